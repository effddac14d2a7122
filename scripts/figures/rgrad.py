"""DP-RGrad's error against n and epsilon, beside the minimax lower and the paper's upper bound."""

from __future__ import annotations

import math
from typing import Any

from figures.common import Figure, Line, Row, draw, mean, plt, runs, slope, spread

D, RANK, SIGMA, SIGMA_R = 20, 2, 0.1, 0.7
USERS, EPSILONS = (10000, 20000, 40000, 80000, 160000), ("0.25", "0.5", "1", "2", "4", "8")


def lower(n: float, eps: float) -> float:
    """Return the minimax lower bound without its constant.

    It is sigma sqrt(r d / n) + sigma r d / (n eps), with d the larger side of the matrix.
    """
    return SIGMA * math.sqrt(RANK * D / n) + SIGMA * RANK * D / (n * eps)


def upper(n: float, eps: float) -> float:
    """Return the paper's upper bound without constants and logarithms.

    Compared with the lower bound it has d1 + d2 instead of d, and in the term of privacy
    sigma + sigma_r instead of sigma.
    """
    return SIGMA * math.sqrt(RANK * 2 * D / n) + (SIGMA + SIGMA_R) * RANK * 2 * D / (n * eps)


def rate(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: Frobenius error with worst-case calibration and with the paper's own.

    Both are shown for weak privacy as well.
    """
    methods = {
        "clipped": (),
        "weak": ("neighbouring=weak",),
        "paper": ("algo.calibration=paper",),
        "paper, weak": ("algo.calibration=paper", "neighbouring=weak"),
    }
    points = [(n, "1") for n in USERS] + [(20000, eps) for eps in EPSILONS if eps != "1"]
    cases = {
        (name, n, eps): ("algo=rgrad", f"data.n={n}", f"eps={eps}", *more)
        for name, more in methods.items()
        for n, eps in points
        if name != "weak" or (n, eps) in ((20000, "1"), (80000, "1"))
    }
    found = runs(cases, seeds)
    rows = [
        {
            "method": name,
            "n": n,
            "eps": eps,
            "frobenius": mean(r, "frobenius"),
            "std": spread(r, "frobenius"),
            "lower_bound": lower(n, float(eps)),
            "upper_bound": upper(n, float(eps)),
            "seeds": seeds,
        }
        for (name, n, eps), r in found.items()
    ]
    picture, both = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    slopes = {}
    for axes, key, fixed in zip(both, ("n", "eps"), (("eps", "1"), ("n", 20000)), strict=True):
        curves = []
        for name, words in (
            ("clipped", "worst-case privacy"),
            ("paper", "the paper's calibration"),
            ("paper, weak", "the same, weak"),
        ):
            mine = [row for row in rows if row["method"] == name and row[fixed[0]] == fixed[1]]
            mine.sort(key=lambda row: float(row[key]))
            x = [float(row[key]) for row in mine]
            y = [row["frobenius"] for row in mine]
            slopes[name, key] = slope(x, y)
            curves.append(Line(words, y, x, [row["std"] for row in mine]))
        bounds = [(row["lower_bound"], row["upper_bound"]) for row in mine]
        curves.append(Line("minimax lower bound, constant 1", [a for a, _ in bounds], x, style=":"))
        curves.append(
            Line("paper's upper bound, constant 1", [b for _, b in bounds], x, style="--")
        )
        label = "users n" if key == "n" else "epsilon"
        draw(axes, curves, label, "Frobenius error" if key == "n" else "", f"{fixed[0]}={fixed[1]}")
    at = {(row["method"], row["n"], row["eps"]): row["frobenius"] for row in rows}
    clipped, weak, paper = (
        at["clipped", 20000, "1"],
        at["weak", 20000, "1"],
        at["paper", 20000, "1"],
    )
    paragraph = f"""
d1=d2=20, r=2, singular values (1, .7), label noise .1, one observation a user, {seeds} seeds. At
epsilon 1 the error is {clipped:.4f} at n=20000 and {at["clipped", 80000, "1"]:.4f} at n=80000, with
slope {slopes["clipped", "n"]:+.2f} in n (statistics alone: -1/2, privacy alone: -1) and
{slopes["clipped", "eps"]:+.2f} in epsilon, where statistics take over. Weak privacy gives
{weak:.4f} and {at["weak", 80000, "1"]:.4f}: clipping a user's gradient is clipping its residual, so
protecting the features as well costs nothing more. The gap between the upper and the lower bound, a
factor sigma_r, comes from calibrating noise to what is likely under the assumed design instead of
clipping: the paper's own calibration has {paper:.3f} ({at["paper, weak", 20000, "1"]:.3f} under
weak privacy) and a guarantee that holds only if the data are as assumed. Its constants are open;
the ones used here covered what a single user was seen to move on data exactly as assumed.
"""
    return rows, picture, paragraph


def sizes(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: errors in three norms over label noise, d, r, n, and known covariances."""
    base = {"sigma": 0.1, "d": 20, "r": 2, "n": 20000, "C": 1.0, "whiten": False}
    grids: dict[str, tuple[Any, ...]] = {
        "sigma": (0.07, 0.21, 0.7, 2.1),
        "d": (10, 20, 40),
        "r": (1, 2, 4),
        "n": (2500, 5000, 10000, 20000),
    }
    points = [{**base, key: value} for key, values in grids.items() for value in values]
    points += [{**base, "C": C, "whiten": how} for C in (2.0, 4.0) for how in (False, True)]
    cases = {
        tuple(point.values()): (
            "algo=rgrad", "init=regression", "eps=1", f"data.sigma={point['sigma']}",
            f"data.d1={point['d']}", f"data.d2={point['d']}", f"data.r={point['r']}",
            f"data.n={point['n']}", f"data.C_l={1 / point['C']}", f"data.C_u={point['C']}",
            f"algo.whiten={str(point['whiten']).lower()}",
        )
        for point in points
    }  # fmt: skip
    found = runs(cases, seeds)
    norms = ("frobenius", "spectral", "nuclear")
    rows = [
        {**dict(zip(base, key, strict=True)), "seeds": seeds, "start": mean(r, "start")}
        | {norm: mean(r, norm) for norm in norms}
        | {"std": spread(r, "frobenius")}
        for key, r in found.items()
    ]
    picture, places = plt.subplots(1, 4, figsize=(16, 4))
    words = []
    for axes, (key, values) in zip(places, grids.items(), strict=True):
        mine = [
            next(row for row in rows if all(row[k] == ({**base, key: value})[k] for k in base))
            for value in values
        ]
        x = [float(value) / (SIGMA_R if key == "sigma" else 1) for value in values]
        curves = [Line(norm, [row[norm] for row in mine], x) for norm in norms]
        curves.append(Line("the start, Frobenius", [row["start"] for row in mine], x, style="s--"))
        label = "sigma / sigma_r" if key == "sigma" else {"d": "d1 = d2"}.get(key, key)
        draw(axes, curves, label, "error" if key == "sigma" else "")
        skip = 1 if key == "n" else 0  # with 2500 users nothing is found
        each = ", ".join(
            f"{slope(x[skip:], [row[norm] for row in mine[skip:]]):+.2f}" for norm in norms
        )
        words.append(f"in {label} {each}{' (from 5000)' * skip}")
    starts = ", ".join(f"{row['start'] / SIGMA_R:.2f}" for row in mine)
    ends = ", ".join(f"{row['frobenius']:.3g}" for row in mine)
    known = "; ".join(
        f"eigenvalues between {1 / row['C']:g} and {row['C']:g}, "
        f"{'whitened' if row['whiten'] else 'as in the paper'}: {row['frobenius']:.4f}"
        for row in rows
        if row["C"] > 1
    )
    plain = next(row for row in rows if all(row[k] == base[k] for k in base))["frobenius"]
    paragraph = f"""
Around d1=d2=20, r=2, label noise .1, n=20000, epsilon 1, clipped calibration, {seeds} seeds. Slopes
of the Frobenius, spectral and nuclear errors: {"; ".join(words)}. Theorem 2's lower bounds go with
sigma, with sqrt(d) (statistics) or d (privacy), and with r^(1/q) to r^(1/2 + 1/q) for the Schatten
norms q = 2, infinity and 1.

Corollary 1 asks for a start within a fraction of sigma_r. Its Frobenius error in units of sigma_r
is {starts} at n = {", ".join(map(str, grids["n"]))}: the condition is not met, since clipped
contributions shrink the start toward 0. The rounds end at {ends} all the same, and fail with 2500
users only. The condition is sufficient, not necessary.

Known covariances Lambda_i that differ between users (identity: {plain:.4f}): {known}. The
initialiser multiplies by their inverses; `algo.whiten=true` does so in the rounds, too.
"""
    return rows, picture, paragraph


FIGURES = {
    "rgrad-sizes": Figure("DP-RGrad over noise, sizes, norms and covariances", sizes, seeds=3),
    "rgrad-rate": Figure("DP-RGrad against the minimax rate", rate),
}
