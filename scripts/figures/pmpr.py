"""Figures on PMPR's problem: error against epsilon, dimension and number of users."""

from __future__ import annotations

from figures.common import Figure, Line, Row, draw, mean, plt, runs, slope, spread

EPSILONS = ("1", "2", "4", "6", "8")


def table(results: dict[tuple[str, str], list[dict[str, float]]], *metrics: str) -> list[Row]:
    """Return rows of (method, eps) with means and standard deviations."""
    return [
        {"method": method, "eps": eps, "seeds": len(found)}
        | {metric: mean(found, metric) for metric in metrics}
        | {f"{metric}_std": spread(found, metric) for metric in metrics}
        for (method, eps), found in results.items()
    ]


def lines(
    rows: list[Row], methods: dict[str, str], levels: dict[str, str], metric: str = "mse"
) -> list[Line]:
    """Return curves of `methods`, and horizontal lines of `levels`, independent of epsilon."""
    curves = []
    for method, name in methods.items():
        mine = [row for row in rows if row["method"] == method and row["eps"] != "inf"]
        x, bars = [float(row["eps"]) for row in mine], [row[f"{metric}_std"] for row in mine]
        curves.append(Line(name, [row[metric] for row in mine], x, bars))
    found = {row["method"]: row[metric] for row in rows if row["eps"] == "inf"}
    return curves + [Line(name, [found[method]]) for method, name in levels.items()]


FEDREP = ("algo=fedrep", "init=spectral", "algo.estimator=leave-one-out")
"""Private FedRep by leave-one-out gradients from a spectral start."""
FRESH = ("preset=pmpr", "algo.batches=fresh", "algo.train=all")
"""The paper's settings with batches that are disjoint over all rounds, which takes all examples."""


def ladder() -> dict[str, tuple[str, ...]]:
    """Return the steps from Priv-AltMin as PMPR runs it to the default.

    Each step adds one remedy.
    """
    steps = {
        "as PMPR runs it": ("preset=pmpr-altmin",),
        "users clipped as a whole": (
            "algo.eta_c=null",
            "algo.zeta=null",
            "algo.clip.moments=1",
            "algo.clip.products=0.1",
            "init.clip=0.1",
        ),
        "all examples": ("algo.train=all", "algo.heads=all"),
        "leave-one-out": ("algo.estimator=leave-one-out",),
        "residuals": ("algo.target=residuals", "algo.clip.products=0.002"),
        "shrinkage": ("algo.shrink=true",),
    }
    names = list(steps)
    return {
        name: tuple(o for earlier in names[: i + 1] for o in steps[earlier])
        for i, name in enumerate(names)
    }


def figure1(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: population MSE against epsilon, as published and with our calibration."""
    private = {
        "fedrep": FEDREP,
        "altmin": ("algo=altmin", "init=spectral"),
        "centaur": ("algo=centaur", "init=spectral"),
        "centaur, ppm": ("algo=centaur", "init=ppm"),
        "fedrep published": ("preset=pmpr",),
        "fedrep published, start": ("preset=pmpr", "algo.eta=1e-12", "rounds=1"),
        "altmin published": ("preset=pmpr-altmin",),
    }
    cases = {
        (name, eps): (*overrides, f"eps={eps}")
        for name, overrides in private.items()
        for eps in EPSILONS
    }
    cases |= {
        (f"{name} not private", "inf"): (*overrides, "eps=inf")
        for name, overrides in private.items()
    }
    cases |= {
        ("fedrep published, fresh batches", eps): (*FRESH, f"eps={eps}") for eps in ("1", "8")
    }
    cases |= {("fedrep, released code", "1"): ("preset=pmpr-code",)}
    cases |= {(name, "inf"): (f"algo={name}",) for name in ("standalone", "oracle")}
    cases |= {("oracle published", "inf"): ("algo=oracle", "algo.heads=s1")}
    found = runs(cases, seeds)
    rows = table(found, "mse", "excess")
    picture, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.4))
    published = {
        "fedrep published": "FedRep",
        "altmin published": "Priv-AltMin",
        "fedrep published, start": "the start alone",
    }
    levels = {
        "standalone": "each user alone",
        "fedrep published not private": "FedRep not private",
        "oracle published": "oracle",
    }
    title = "the paper's settings (T=5, b=1, eta=2.5)"
    draw(left, lines(rows, published, levels), "epsilon", "population MSE", title, "y")
    ours = {
        "fedrep": "FedRep",
        "altmin": "Priv-AltMin",
        "centaur": "CENTAUR",
        "centaur, ppm": "CENTAUR, power method",
    }
    levels = {
        "standalone": "each user alone",
        "fedrep not private": "FedRep not private",
        "oracle": "oracle",
    }
    draw(middle, lines(rows, ours, levels), "epsilon", "", "with our calibration", "y")
    middle.set_ylim(left.get_ylim())
    only = {"fedrep not private": "FedRep not private"}
    draw(
        right,
        lines(rows, ours, only, "excess"),
        "epsilon",
        "MSE above the oracle's",
        "with our calibration",
        "y",
    )
    at = {(row["method"], row["eps"]): row["mse"] for row in rows}
    pairs = ", ".join(f"{at['fedrep', eps]:.3e} / {at['altmin', eps]:.3e}" for eps in EPSILONS)
    below = all(at["fedrep", eps] <= at["altmin", eps] for eps in EPSILONS)
    worst = max(at["centaur", eps] / at["fedrep", eps] for eps in EPSILONS)
    power = ", ".join(f"{at['centaur, ppm', eps]:.3e}" for eps in EPSILONS)
    starts = ", ".join(f"{mean(found['centaur, ppm', eps], 'start'):.2f}" for eps in EPSILONS)
    mine, theirs, start = (
        ", ".join(f"{at[f'{name} published{more}', eps]:.3g}" for eps in EPSILONS)
        for name, more in (("fedrep", ""), ("altmin", ""), ("fedrep", ", start"))
    )
    moved = found["fedrep published", "1"]
    code = next(row for row in rows if row["method"] == "fedrep, released code")
    paragraph = f"""
n=20000, d=50, k=2, m=10, label noise 0.01, {seeds} seeds. In the paper's own settings (App. B.4:
T=5, b=floor(m/2T)=1, eta=2.5, psi=10; Priv-AltMin with T=5 and clip norm 1e-4; both started by
Algorithm 2), at an exact total budget of epsilon {", ".join(EPSILONS)}: FedRep {mine}; Priv-AltMin
{theirs}; without privacy {at["fedrep published not private", "inf"]:.3g} and
{at["altmin published not private", "inf"]:.3g}. The paper's ordering holds at every epsilon. With
batches that are disjoint over all rounds, for which all ten examples are needed, FedRep has
{at["fedrep published, fresh batches", "1"]:.3g} at epsilon 1 and
{at["fedrep published, fresh batches", "8"]:.3g} at 8. The released code's variant (heads of length
1, one batch of 5, a start that finds nothing; `preset=pmpr-code`) has {code["mse"]:.3g}
({code["mse_std"]:.2g} over seeds) with the noise it adds at its epsilon 1.

What does not help are the rounds in these settings: one example fits a head of two numbers, and
eta=2.5 is five times the step 1/(2 Lambda^2) of Theorem 10. They make a correct start worse. Its
distance goes from {mean(moved, "start"):.3f} to {mean(moved, "dist"):.3f} at epsilon 1, and heads
on the start alone, whose release has half of the budget, would have {start}.

With our calibration, FedRep / Priv-AltMin: {pairs}; each user alone
{at["standalone", "inf"]:.3g}, oracle {at["oracle", "inf"]:.3e}. FedRep is
{"" if below else "not "}below Priv-AltMin at every epsilon: FedRep's rounds share the budget but
each averages over all users, Priv-AltMin's have the whole of it but each averages over its own
group only. CENTAUR's linear form from the spectral start is within {100 * (worst - 1):.1f}% of
FedRep; from its own power method, whose start lies at distance {starts}, it has {power}.
"""
    return rows, picture, paragraph


def remedies(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: Priv-AltMin as PMPR runs it, with one remedy added after the other."""
    steps, grid = ladder(), ("1", "2", "4", "8")
    found = runs(
        {
            (name, eps): (*overrides, f"eps={eps}")
            for name, overrides in steps.items()
            for eps in grid
        },
        seeds,
    )
    rows = table(found, "mse", "dist", "start")
    picture, axes = plt.subplots(figsize=(8, 4.4))
    at = {(row["method"], row["eps"]): row for row in rows}
    places = list(range(len(steps)))
    curves = [
        Line(f"epsilon {eps}", [at[name, eps]["mse"] for name in steps], places) for eps in grid
    ]
    draw(axes, curves, "", "population MSE", "Priv-AltMin, one remedy on top of the other", "y")
    axes.set_xticks(places, [name.replace(" as ", "\nas ") for name in steps], fontsize=8)
    axes.get_xticklabels()[0].set_text("as PMPR\nruns it")
    literal = at["as PMPR runs it", "8"]
    climb = "; ".join(
        f"{name} {at[name, '1']['mse']:.3g}, {at[name, '8']['mse']:.3g}" for name in steps
    )
    paragraph = f"""
Priv-AltMin as PMPR runs it beside FedRep (`preset=pmpr-altmin`: T=5, clip norm 1e-4, started by
Algorithm 2) begins at distance {literal["start"]:.3f} from the true representation at epsilon 8 and
ends at {literal["dist"]:.3f}. Remedies within the same algorithm, each on top of the ones before,
error at epsilon 1 and 8: {climb}. With bounds of 1e-4 every feature vector and every label is
clipped: what is left of an example is a direction and a sign. Bounds for single examples are also
paid for as if all of a user's examples pointed the same way. Heads on 2 examples for 2 unknowns
have errors without a finite variance. And solving A vec(U) = b for U itself multiplies the noise in
A, a 100 x 100 matrix, by U, where solving for the change of U from residuals multiplies it by
little. Shrinking A toward the form it has for isotropic features matters where noise is large.
"""
    return rows, picture, paragraph


def dimension(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: distance to the true representation against d and n at epsilon 0.5."""
    dims, users = (25, 50, 100, 200), (10000, 20000, 40000, 80000, 160000)
    common = (*FEDREP, "eps=0.5", "privacy.clip=auto")
    cases: dict[tuple[int, int], tuple[str, ...]] = {
        (d, 80000): (*common, f"data.d={d}", "data.n=80000") for d in dims
    }
    cases |= {(50, n): (*common, "data.d=50", f"data.n={n}") for n in users}
    found = runs(cases, seeds)
    rows = [
        {
            "d": d,
            "n": n,
            "dist": mean(r, "dist"),
            "std": spread(r, "dist"),
            "start": mean(r, "start"),
            "mse": mean(r, "mse"),
            "excess": mean(r, "excess"),
            "seeds": seeds,
        }
        for (d, n), r in found.items()
    ]
    picture, both = plt.subplots(1, 2, figsize=(11, 4.4))
    words = []
    for axes, key, fixed, sign in zip(
        both, ("d", "n"), (("n", 80000), ("d", 50)), (1, -1), strict=True
    ):
        mine = sorted((row for row in rows if row[fixed[0]] == fixed[1]), key=lambda row: row[key])
        x = [row[key] for row in mine]
        curves = []
        for metric, name in (("start", "initialiser"), ("dist", "after the rounds")):
            y = [row[metric] for row in mine]
            measured = slope(x, y)
            words.append(f"{name} {measured:+.2f} in {key}")
            curves.append(
                Line(
                    f"{name}, slope {measured:+.2f}",
                    y,
                    x,
                    [row["std"] for row in mine] if metric == "dist" else (),
                )
            )
        first = mine[0]["dist"]
        curves.append(
            Line(f"theorem, slope {sign:+d}", [first * (v / x[0]) ** sign for v in x], x, style=":")
        )
        draw(axes, curves, key, "distance to the true representation", f"{fixed[0]}={fixed[1]}")
    paragraph = f"""
The theorem bounds the part of the error that privacy costs by d sqrt(k) / (n epsilon) in the
distance of the representation (the excess risk goes with its square). Measured slopes on
logarithmic axes at epsilon 0.5, k=2, m=10, private clip norms, {seeds} seeds: {", ".join(words)};
the bounds say +1 in d after the rounds (Lemma 9), +3/2 for the initialiser (Lemma 12), and -1 in n.
The initialiser estimates d(d+1)/2 numbers where a round
estimates dk: it is the part that breaks first when d grows or n shrinks, and where it breaks the
rounds have nothing to start from.
"""
    return rows, picture, paragraph


def fedrep_epsilon(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: population MSE of Private FedRep over a wide range of epsilon."""
    methods = {
        "fedrep": FEDREP,
        "fedrep, private clip norms": (*FEDREP, "privacy.clip=auto"),
        "fedrep, S0 trains and S1 fits heads": (*FEDREP, "algo.train=s0", "algo.heads=s1"),
        "the paper's settings": ("preset=pmpr",),
        "the paper's settings, b=2 and eta .25": (
            "preset=pmpr",
            "algo.eta=0.25",
            "algo.head_batch=2",
            "algo.batch=2",
        ),
    }
    grid = ("0.1", "0.25", "0.5", "1", "2", "8", "inf")
    cases = {
        (name, eps): (*overrides, f"eps={eps}")
        for name, overrides in methods.items()
        for eps in grid
    }
    cases |= {(name, "inf"): (f"algo={name}",) for name in ("standalone", "oracle")}
    rows = table(runs(cases, seeds), "mse")
    picture, axes = plt.subplots(figsize=(7.4, 4.6))
    levels = {"standalone": "each user alone", "oracle": "oracle"}
    axis = "epsilon (total, replace-one, delta 1e-6)"
    draw(axes, lines(rows, {name: name for name in methods}, levels), axis, "population MSE")
    paragraph = f"""
n=20000, d=50, k=2, m=10, {seeds} seeds, at epsilon {", ".join(grid)}.
{series(rows, methods, grid)}. The floor is the final head's own error on its noisy examples, which
the oracle shares.
"""
    return rows, picture, paragraph


def fedrep_choices(seeds: int) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: what each default is worth, by changing it alone."""
    methods = {
        "defaults": (),
        "half of the examples train": ("algo.train=s0",),
        "clip norms 100 times larger": ("algo.clip=5", "init.clip=10"),
        "constant step .1": ("algo.decay=1", "algo.step=0.1"),
        "constant step .02": ("algo.decay=1", "algo.step=0.02"),
        "two batches": ("algo.estimator=two-batches",),
        "a fifth for the initialiser": ("privacy.init_share=0.2",),
    }
    grid = ("0.1", "0.25", "1")
    rows = table(
        runs(
            {
                (name, eps): (*FEDREP, *more, f"eps={eps}")
                for name, more in methods.items()
                for eps in grid
            },
            seeds,
        ),
        "mse",
    )
    picture, axes = plt.subplots(figsize=(7.4, 4.4))
    for i, eps in enumerate(grid):
        values = [
            next(row["mse"] for row in rows if (row["method"], row["eps"]) == (name, eps))
            for name in methods
        ]
        axes.barh(
            [j + (i - 1) * 0.27 for j in range(len(methods))], values, 0.25, label=f"epsilon {eps}"
        )
    axes.set_yticks(range(len(methods)), list(methods))
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="population MSE")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3, axis="x")
    paragraph = f"""
n=20000, d=50, k=2, m=10, {seeds} seeds, at epsilon {", ".join(grid)}.
{series(rows, methods, grid)}. A clipped contribution costs the same however many examples are
behind it, so all of them may train; leave-one-out takes every example's gradient at the head fitted
without it. Small clip norms cost little once steps are in units of them.
"""
    return rows, picture, paragraph


def series(rows: list[Row], methods: dict[str, tuple[str, ...]], grid: tuple[str, ...]) -> str:
    """Return the numbers in words."""
    at = {(row["method"], row["eps"]): row["mse"] for row in rows}
    return "; ".join(
        f"{name}: {', '.join(f'{at[name, eps]:.3g}' for eps in grid)}" for name in methods
    )


FIGURES = {
    "fedrep-epsilon": Figure("Private FedRep against epsilon", fedrep_epsilon),
    "fedrep-choices": Figure("What each choice in FedRep's defaults is worth", fedrep_choices),
    "pmpr-figure1": Figure("FedRep and Priv-AltMin, as published and equally calibrated", figure1),
    "altmin-remedies": Figure("What mends Priv-AltMin", remedies),
    "pmpr-dimension": Figure("What privacy costs in d and n", dimension),
}
