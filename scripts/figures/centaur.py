"""CENTAUR's initialiser: does choosing among several private power methods help?"""

from __future__ import annotations

import statistics

from figures.common import Figure, Line, Row, draw, plt, runs

NEAR = 0.3
"""Distance to the true representation below which a start counts as successful."""
EPSILONS = ("0.5", "1", "2", "4", "8")
COPIES = 5


def initialiser(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: success probability of one power method and of the best of several.

    Both have the same total budget.
    """
    size = (
        "algo=centaur",
        "init=ppm",
        "data.n=4000",
        "data.d=20",
        "rounds=1",
        "privacy.init_share=0.9",
    )
    methods = {
        "one power method": ("init.copies=1", "init.centre=false", "init.iterations=8"),
        f"picked of {COPIES}": (f"init.copies={COPIES}", "init.centre=false", "init.iterations=8"),
        "one, centred": ("init.copies=1", "init.iterations=3"),
        f"picked of {COPIES}, centred": (f"init.copies={COPIES}", "init.iterations=3"),
        "spectral": ("init=spectral",),
    }
    cases = {
        (name, eps): (*size, *more, f"eps={eps}")
        if name != "spectral"
        else (*size[:1], *more, *size[2:], f"eps={eps}")
        for name, more in methods.items()
        for eps in EPSILONS
    }
    found = runs(cases, seeds)
    rows = [
        {
            "method": name, "eps": eps, "success": sum(r["start"] < NEAR for r in results) / seeds,
            "median_dist": statistics.median(r["start"] for r in results), "seeds": seeds,
        }
        for (name, eps), results in found.items()
    ]  # fmt: skip
    picture, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    for axes, key, label, log in (
        (left, "success", f"runs that start within {NEAR}", "x"),
        (right, "median_dist", "median distance of the start", "xy"),
    ):
        curves = [
            Line(
                name,
                [row[key] for row in rows if row["method"] == name],
                [float(eps) for eps in EPSILONS],
            )
            for name in methods
        ]
        draw(axes, curves, "epsilon (90% of it for the initialiser)", label, "", log)
    at = {(row["method"], row["eps"]): row for row in rows}
    names = list(methods)
    shares = {
        name: ", ".join(f"{at[name, eps]['success']:.2f}" for eps in EPSILONS) for name in names
    }
    success = "; ".join(f"{name} {share}" for name, share in shares.items())
    paragraph = f"""
n=4000, d=20, k=2, m=10, {seeds} seeds. Share of runs whose start lies within {NEAR} of the true
representation, at epsilon {", ".join(EPSILONS)}: {success}. All copies of a power method are
charged, so each of {COPIES} has sqrt({COPIES}) times the noise of one alone: picking by agreement
guards against a bad random start, which is what a single power method fails by however large its
budget, and pays where the budget is ample; where it is tight the noise of many copies loses more.
PMPR's spectral initialiser needs one release and no start at all.
"""
    return rows, picture, paragraph


FIGURES = {
    "centaur-init": Figure("One private power method or the best of several", initialiser, seeds=40)
}
