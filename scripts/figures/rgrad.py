"""DP-RGrad's error against n and epsilon, beside the minimax lower and the paper's upper bound."""

from __future__ import annotations

import math

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


FIGURES = {"rgrad-rate": Figure("DP-RGrad against the minimax rate", rate)}
