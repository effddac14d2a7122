"""Figure `few-users`: error against the number of users, predicted and measured."""

from __future__ import annotations

import math
import statistics

from matplotlib import pyplot as plt

from figures.common import Figure, Row, runs
from privfed.privacy.accounting import gaussian_mu
from strategies.rehearsal import forecast

D, K, M, R = 50, 2, 10, 0.01
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
INFORMATION = (1.5, 5.0, 16.0)
"""S^2 at which runs are made, for each epsilon."""
METHODS = {
    "posterior": ("algo.estimator=posterior", "init=cascade"),
    "leave-one-out": ("algo.estimator=leave-one-out", "init=spectral"),
    "paper": ("preset=pmpr",),
}


def users(eps: float, information: float) -> int:
    """Return the number of users n at which S^2 has this value."""
    mu = gaussian_mu(eps, 1e-6)
    return math.ceil(2 * K * (D - K) * math.sqrt(information / (M - K)) / mu)


def predicted(eps: float, n: int) -> float:
    """Return the predicted error."""
    return forecast(n, D, K, M, R, gaussian_mu(eps, 1e-6), "replace-one").error


def few_users(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: population MSE against n, for several epsilon."""
    cases: dict[tuple[str, float, int], tuple[str, ...]] = {
        (name, eps, users(eps, s2)): (*more, f"eps={eps}", f"data.n={users(eps, s2)}")
        for name, more in METHODS.items()
        for eps in EPSILONS
        for s2 in INFORMATION
    }
    rows: list[Row] = []
    for (name, eps, n), found in runs(cases, range(500, 500 + seeds)).items():
        errors = [metrics["mse"] for metrics in found]
        row = {"method": name, "eps": eps, "n": n, "median": statistics.median(errors)}
        row |= {"worst": max(errors)}
        row |= {"predicted": predicted(eps, n) if name == "posterior" else ""}
        row |= {"standalone": found[0]["mse_standalone"], "oracle": found[0]["mse_oracle"]}
        rows.append(row)
    return rows, draw(rows), paragraph(rows, seeds)


def draw(rows: list[Row]) -> plt.Figure:
    """Draw measured errors as points, and predictions as lines."""
    picture, axes = plt.subplots(figsize=(8.2, 5.2))
    colours = plt.get_cmap("viridis")
    for i, eps in enumerate(EPSILONS):
        colour = colours(i / len(EPSILONS))
        numbers = [users(eps, 0.8 * 1.4**j) for j in range(11)]
        axes.plot(numbers, [predicted(eps, n) for n in numbers], "-", color=colour, lw=1)
        for name, style in (("posterior", "o"), ("leave-one-out", "x--"), ("paper", "+:")):
            mine = [row for row in rows if (row["method"], row["eps"]) == (name, eps)]
            label = f"epsilon {eps:g}" if name == "posterior" else None
            axes.plot(
                [row["n"] for row in mine], [row["median"] for row in mine], style, lw=0.7,
                color=colour, label=label, ms=5,
            )  # fmt: skip
    ends = [min(row["n"] for row in rows), max(row["n"] for row in rows)]
    rate = [D**1.5 * math.sqrt(K) / n for n in ends]
    axes.plot(
        ends, rate, "-.", color="grey", lw=0.8, label="d^1.5 sqrt(k) / (n epsilon) at epsilon 1"
    )
    for name, words in (("standalone", "users alone"), ("oracle", "oracle")):
        level = statistics.median(float(row[name]) for row in rows)
        axes.axhline(level, color="black", lw=0.6, ls=":")
        axes.text(ends[1], level, words, fontsize=7, va="bottom", ha="right")
    axes.plot([], [], "k-", lw=1, label="predicted, without data")
    axes.plot([], [], "kx--", lw=0.7, label="leave-one-out from a spectral start")
    axes.plot([], [], "k+:", lw=0.7, label="PMPR's printed setting (preset=pmpr)")
    axes.set(xscale="log", yscale="log", xlabel="users n", ylabel="population MSE (median)")
    axes.legend(fontsize=7, loc="lower left")
    axes.grid(alpha=0.3)
    return picture


def paragraph(rows: list[Row], seeds: int) -> str:
    """Return the figure in words."""
    mine = [row for row in rows if row["method"] == "posterior"]
    ratios = [row["median"] / row["predicted"] for row in mine]
    close = sum(1 / 1.3 <= ratio <= 1.3 for ratio in ratios)
    one = [row for row in rows if row["eps"] == 1]
    at = [
        f"{row['n']}: {row['median']:.3g} ({row['predicted']:.3g})"
        for row in one
        if row["method"] == "posterior"
    ]
    old = [f"{row['n']}: {row['median']:.3g}" for row in one if row["method"] == "leave-one-out"]
    return f"""
d={D}, k={K}, m={M}, label noise {R}, {seeds} seeds, medians. `algo.estimator=posterior
init=cascade` at epsilon 1, error by number of users and in brackets the prediction:
{"; ".join(at)}. Leave-one-out gradients from a spectral start: {"; ".join(old)}. Of {len(ratios)}
medians, {close} are within 30% of the prediction, which uses n, d, k, m, epsilon and the assumed
label noise alone. How it works is in [few-users.md](few-users.md).
"""


FIGURES = {"few-users": Figure("Few users, predicted and measured", few_users, seeds=5)}
