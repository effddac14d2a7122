"""PMPR's theorems beside measurements: the factor d k, Theorem 10, Corollary 11 and Lemma 12."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from figures.common import Figure, Line, Row, draw, mean, plt, runs, settings, slope, spread
from figures.pmpr import FEDREP
from privfed.data.problems.synthetic import Synthetic
from privfed.experiment.wiring import Experiment
from privfed.models.linear import fit_heads

ALTMIN = ("algo=altmin", "init=spectral")
INVISIBLE = 1e-12
"""Least cost of privacy that is drawn: differences of measured errors may be negative."""


def row_of(found: list[dict[str, float]], **key: object) -> Row:
    """Return a row of a table: what was set, and means and deviations of errors and distances."""
    row: Row = {**key, "seeds": len(found)}
    for metric in ("mse", "excess", "dist", "start"):
        row |= {metric: mean(found, metric), f"{metric}_std": spread(found, metric)}
    return row


def sloped(x: list[float], y: list[float], power: float, words: str) -> Line:
    """Return a dotted line of a given slope through the first point."""
    return Line(words, [y[0] * (value / x[0]) ** power for value in x], x, style=":")


def factor(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: what privacy costs Priv-AltMin and FedRep, against d and k."""
    dims, ranks = (25, 50, 100), (1, 2, 4)
    common = ("data.n=40000", "data.m=10")
    methods = {
        "FedRep": FEDREP,
        "Priv-AltMin": ALTMIN,
        "Priv-AltMin for U itself": (*ALTMIN, "algo.target=labels", "algo.clip.products=0.1"),
    }
    points = [(d, 2) for d in dims] + [(50, k) for k in ranks if k != 2]
    cases = {
        (name, d, k, eps): (*how, *common, f"data.d={d}", f"data.k={k}", f"eps={eps}")
        for d, k in points
        for name, how in methods.items()
        for eps in ("0.5", "inf")
    }
    found = runs(cases, seeds)
    rows = [row_of(r, method=name, d=d, k=k, eps=eps) for (name, d, k, eps), r in found.items()]
    at = {(row["method"], row["d"], row["k"], row["eps"]): row["excess"] for row in rows}
    picture, both = plt.subplots(1, 2, figsize=(11, 4.4))
    words = []
    for axes, key, sizes in zip(both, ("d", "k"), (dims, ranks), strict=True):
        places = [(size, 2) if key == "d" else (50, size) for size in sizes]
        curves, x, costs = [], [float(size) for size in sizes], {}
        for name in methods:
            costs[name] = [
                max(at[name, *place, "0.5"] - at[name, *place, "inf"], INVISIBLE)
                for place in places
            ]
            curves.append(Line(f"{name}, slope {slope(x, costs[name]):+.1f}", costs[name], x))
        fixed = "k=2" if key == "d" else "d=50"
        draw(axes, curves, key, "excess risk that privacy costs", f"n=40000, epsilon .5, {fixed}")
        told = [
            ", ".join(f"{a / b:.3g}" for a, b in zip(costs[name], costs["FedRep"], strict=True))
            for name in list(methods)[1:]
        ]
        where = f"at {key} = {', '.join(map(str, sizes))} ({fixed})"
        words.append(f"{where} {told[0]} times, and {told[1]} times where it solves for U itself")
    paragraph = f"""
PMPR claims that privacy costs FedRep less than Priv-AltMin (Jain et al.) by a factor of the order
d k. What privacy costs is the excess risk at epsilon .5 minus that without noise, from the same
start, n=40000, m=10, {seeds} seeds. With our calibration Priv-AltMin's cost is that of FedRep
{words[0]}; {words[1]}, as Jain et al. have it, where our default solves for the change of U. That
the factor grows with d and with k is confirmed. Its size depends on how the noisy system is solved.
"""
    return rows, picture, paragraph


def theorem10(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: error against m and k beside the terms of Theorem 10."""
    sizes, ranks, R = (6, 10, 20, 40), (1, 2, 3, 4), 0.01
    common = (*FEDREP, "eps=1", "data.n=20000", "data.d=50", f"data.R={R}")
    points = {("m", m): (m, 2) for m in sizes} | {("k", k): (20, k) for k in ranks}
    cases = {
        key: (*common, f"data.m={m}", f"data.k={k}", "privacy.clip=auto")
        for key, (m, k) in points.items()
    }
    found = runs(cases, seeds)
    rows = [row_of(r, m=points[key][0], k=points[key][1]) for key, r in found.items()]
    picture, both = plt.subplots(1, 2, figsize=(11, 4.4))
    words = []
    for axes, key, line, title in zip(
        both, ("m", "k"), (rows[: len(sizes)], rows[len(sizes) :]), ("k=2", "m=20"), strict=True
    ):
        x = [float(row[key]) for row in line]
        risk = [row["mse"] - R**2 for row in line]
        shared = [row["dist"] ** 2 for row in line]
        term = [R**2 * row["k"] / row["m"] for row in line]
        curves = [
            Line("excess risk", risk, x, [row["mse_std"] for row in line]),
            Line("squared distance of U", shared, x),
            Line("R^2 k / m", term, x, style=":"),
        ]
        draw(axes, curves, key, "", f"n=20000, d=50, epsilon 1, {title}")
        last = f"{slope(x, risk):+.2f} and {slope(x, shared):+.2f}"
        words.append(f"slopes in {key} {last} (from {key}={x[0]:g} to {x[-1]:g})")
    paragraph = f"""
Theorem 10 bounds the excess risk by d^2 k / (n epsilon)^2 + d / (n m), which the representation
costs, and R^2 k / m, which a user's own head costs. Measured with private clip norms at epsilon
1, {seeds} seeds, excess risk and squared distance of the representation: {words[0]}; {words[1]}.
The theorem's slopes are -1 in m for the head's term and +1 in k for it and for the cost of privacy.
With few examples the measured error is above R^2 k / m, because least squares with k numbers from m
examples costs R^2 k / (m - k - 1).
"""
    return rows, picture, paragraph


def newcomers(
    how: tuple[str, ...], seed: int, sizes: Sequence[int], users: int
) -> tuple[float, dict[int, float]]:
    """Return the distance of one run's representation, and newcomers' excess risk by m'."""
    cfg = settings((*how, "eps=1")).copy()
    cfg.seed = seed
    experiment = Experiment(cfg)
    U = experiment.run().model["U"]
    assert isinstance(experiment.data, Synthetic)
    errors = {}
    for m in sizes:
        cfg.data.m = m
        source = Experiment(cfg).data if m >= 4 else experiment.data
        assert isinstance(source, Synthetic)
        source.m = m
        fresh = source.validation(users)
        heads = fit_heads(U, fresh.X.astype(np.float64), fresh.y.astype(np.float64))
        assert fresh.truth is not None
        errors[m] = float(np.mean(fresh.truth.errors(heads @ U.T)))
    return experiment.data.compare({"U": U})["dist"], errors


def newcomer(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: error of users who never took part, by their number of examples m'."""
    sizes, users = (3, 4, 6, 10, 20, 40, 80, 160), 2000
    methods = {"FedRep": FEDREP, "the paper's settings": ("preset=pmpr",)}
    rows: list[Row] = []
    for name, how in methods.items():
        errors: dict[int, list[float]] = {m: [] for m in sizes}
        distances = []
        for seed in range(seeds):
            distance, found = newcomers(how, seed, sizes, users)
            distances.append(distance)
            for m in sizes:
                errors[m].append(found[m])
            print(f"  {name}, seed {seed}: distance {distances[-1]:.4f}", flush=True)
        dist = statistics.fmean(distances)
        rows += [
            {
                "method": name, "m": m, "excess": statistics.fmean(errors[m]),
                "std": statistics.stdev(errors[m]), "dist": dist, "seeds": seeds,
            }
            for m in sizes
        ]  # fmt: skip
    picture, axes = plt.subplots(figsize=(7.4, 4.6))
    x = [float(m) for m in sizes]
    curves = [
        Line(
            name,
            [row["excess"] for row in rows if row["method"] == name],
            x,
            [row["std"] for row in rows if row["method"] == name],
        )
        for name in methods
    ]
    curves.append(Line("R^2 k / m'", [1e-4 * 2 / m for m in sizes], x, style=":"))
    draw(axes, curves, "examples m' of a newcomer", "excess risk", "trained at epsilon 1")
    told = {
        name: ", ".join(f"{row['excess']:.2g}" for row in rows if row["method"] == name)
        for name in methods
    }
    far = next(row["dist"] for row in rows if row["method"] != "FedRep")
    paragraph = f"""
Users who never took part fit a head to their own m' examples on the published representation
(Corollary 11): n=20000, d=50, k=2, m=10 at epsilon 1, {seeds} seeds, {users} newcomers each. Excess
risk at m' = {", ".join(map(str, sizes))}: {told["FedRep"]}. It falls as R^2 k / m' and has no floor
of its own here. With the paper's settings, whose representation lies at distance {far:.2f}, it is
{told["the paper's settings"]}: more examples do not help below what the representation misses. With
m' = 3 least squares has no finite expected error, which the corollary excludes (m' >= k log m').
"""
    return rows, picture, paragraph


def lemma12(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: distance of the spectral start against d, with the lemma's clip norm."""
    dims = (25, 50, 100, 200)
    size = ("data.n=40000", "data.unit_heads=true", "rounds=1", "privacy.init_share=0.9")
    methods = {
        "psi_init = d / 2": lambda d: ("eps=2", f"init.clip={d / 2}"),
        "psi_init a private quantile": lambda d: ("eps=2", "init.clip=auto"),
        "no privacy": lambda d: ("eps=inf", f"init.clip={d / 2}"),
    }
    cases = {
        (name, d): (*FEDREP, *size, f"data.d={d}", *how(d))
        for name, how in methods.items()
        for d in dims
    }
    found = runs(cases, seeds)
    rows = [row_of(r, method=name, d=d) for (name, d), r in found.items()]
    at = {(row["method"], row["d"]): row for row in rows}
    picture, axes = plt.subplots(figsize=(7.4, 4.6))
    x, curves, told = [float(d) for d in dims], [], []
    for name in methods:
        y = [at[name, d]["start"] for d in dims]
        curves.append(Line(name, y, x, [at[name, d]["start_std"] for d in dims]))
        told.append(f"{name}: {', '.join(f'{distance:.3g}' for distance in y)}")
    own = [at["no privacy", d]["start"] for d in dims]
    clipping = [at[next(iter(methods)), d]["start"] for d in dims]
    part = [math.sqrt(max(a * a - b * b, INVISIBLE)) for a, b in zip(clipping, own, strict=True)]
    first = [at[next(iter(methods)), d]["start"] for d in dims]
    curves.append(sloped(x, first, 1.5, "Lemma 12, slope +1.5"))
    draw(axes, curves, "d", "distance of the start", "n=40000, epsilon 2, heads of length 1")
    bare = slope(x, [at["no privacy", d]["start"] for d in dims])
    paragraph = f"""
Lemma 12 bounds the distance of the spectral start by d^(3/2) / (n epsilon) and a statistical term
of order sqrt(d / (n m)). n=40000, m=10, k=2, true heads of length 1, epsilon 2, {seeds} seeds.
Distances at d = {", ".join(map(str, dims))}: {"; ".join(told)}. What privacy adds to the first (the
root of the difference of squares) has slope {slope(x, part):+.2f} in d, and the distance without
privacy {bare:+.2f}: the lemma's rates. Noise has a spectral norm of psi_init
sqrt(d), and a user's matrix grows in proportion to d: a clip norm that clips nobody has to grow
with it (d / 2 clips .2% of the users at d=25 and none at d=200), and one that does not shrinks
what users send instead.
"""
    return rows, picture, paragraph


FIGURES = {
    "altmin-factor": Figure("The factor d k over Jain et al.", factor, seeds=3),
    "pmpr-theorem10": Figure("Error in m and k beside Theorem 10", theorem10, seeds=3),
    "pmpr-newcomer": Figure("A newcomer's error by its number of examples", newcomer, seeds=3),
    "spectral-dimension": Figure("The spectral start beside Lemma 12", lemma12, seeds=3),
}
