"""Check what the ledger claims by an account of its own: passages, order, prices, total, refusal.

The total is computed here again, from the formula and without the code that is checked:

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu),        mu^2 = sum (sens / std)^2

over the releases of all users and of one group, for the group that pays most. Sampled releases are
counted from below only, each by itself: at sampling probability q, one release that costs eps_q
without sampling at delta / q costs at least log(1 + q (e^eps_q - 1)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from privfed.audit.transcript import Transcript
from privfed.foundation.errors import BudgetError, PrivfedError
from privfed.privacy.accounting import GaussianRelease, Release
from privfed.privacy.bounds import NormBound
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.neighbouring import ZERO_OUT
from privfed.privacy.noise import SeededNoise

FACTORS = {
    ("norm", False): 2.0,
    ("norm", True): 1.0,
    ("outer-product", False): math.sqrt(2.0),
    ("outer-product", True): 1.0,
    ("non-negative", False): math.sqrt(2.0),
    ("non-negative", True): 1.0,
    ("semidefinite", False): math.sqrt(2.0),
    ("semidefinite", True): 1.0,
    ("assumed", False): 2.0,
    ("assumed", True): 2.0,
}
"""Sensitivity in units of the ledger's `clip`, by kind of bound and whether users are emptied."""
ACCURACY = 1e-6
"""Relative error that the comparison of two accounts allows."""


def accounting_findings(base: Transcript, budget: Budget) -> Iterator[str]:
    """Yield what is wrong with the ledger of a run, in words.

    Args:
        base: the recorded run.
        budget: budget of the run.
    """
    yield from _passages(base)
    yield from _order(base)
    yield from price_findings(base, budget)
    yield from _refusals(budget)


def _passages(base: Transcript) -> Iterator[str]:
    """Compare passages through the gate, entries in the ledger, and the plan."""
    passed, written = ([(x.name, x.round) for x in what] for what in (base.calls, base.ledger))
    for (name, round), call in zip(passed, base.calls, strict=True):
        if call.entry is None:
            yield f"{name} of round {round} passed the gate without an entry in the ledger"
        elif (call.entry.name, call.entry.round, call.entry.size) != (name, round, call.total.size):
            yield f"{name} of round {round} is another release in the ledger"
    for what, list_ in (
        ("passages through the noise gate", passed),
        ("entries in the ledger", written),
    ):
        missing = [
            f"{name} of round {round}" for name, round in base.planned if (name, round) not in list_
        ]
        if missing:
            yield f"planned, but not among the {what}: {missing[0]}"
    if not len(passed) == len(written) == len(base.planned):
        counts = (
            f"{len(base.planned)} planned releases, {len(passed)} through the gate, "
            f"{len(written)} in the ledger"
        )
        yield f"{counts}: these should be the same"


def _order(base: Transcript) -> Iterator[str]:
    """Check that every draw of noise is for one passage, whose entry was written before."""
    noisy = [
        (call.name, call.round)
        for call in base.calls
        if call.entry is not None
        and (call.entry.std > 0 if isinstance(call.entry, GaussianRelease) else call.made.ndim == 0)
        and not math.isinf(call.entry.mu + call.entry.epsilon)
    ]
    drawn = [(draw.name, draw.round) for draw in base.draws]
    if noisy != drawn:
        odd = next(
            (f"{name} of round {round}" for name, round in drawn if (name, round) not in noisy),
            f"{len(drawn)} draws for {len(noisy)} releases",
        )
        yield f"noise is drawn for something else than the passages through the gate: {odd}"
    for place, draw in enumerate(base.draws):
        if draw.written < place + 1:
            yield (
                f"the noise of {draw.name} of round {draw.round} is drawn before the ledger has "
                "the release"
            )
            return


def price_findings(base: Transcript, budget: Budget) -> Iterator[str]:
    """Yield what is wrong with sensitivities in the ledger, or with its total, in words.

    Args:
        base: a run, of which the ledger and the published result are looked at.
        budget: budget of the run.
    """
    for release in base.ledger:
        factor = FACTORS[release.bound, budget.neighbouring == ZERO_OUT]
        if release.sensitivity < factor * release.clip * (1 - ACCURACY):
            yield (
                f"{release.name} of round {release.round} has sensitivity {release.sensitivity:g} "
                f"in the ledger, but the clip norm is {release.clip:g} ({budget.neighbouring})"
            )
            break
    privacy = base.published.get("result", {}).get("privacy")
    if privacy is None or privacy["guarantee"] == "none" or not base.ledger:
        return
    gaussian = any(isinstance(release, GaussianRelease) for release in base.ledger)
    if (gaussian and privacy["delta"] != budget.delta) or privacy["delta"] > budget.delta:
        yield f"the result claims delta {privacy['delta']:g}, the budget says {budget.delta:g}"
    least = least_epsilon(base.ledger, budget.delta, budget.neighbouring)
    if privacy["epsilon"] < least * (1 - ACCURACY):
        yield (
            f"the ledger's releases cost at least epsilon {least:.6g}, "
            f"the result claims {privacy['epsilon']:.6g}"
        )
    if privacy["epsilon"] > budget.epsilon * (1 + ACCURACY):
        yield f"the run spends epsilon {privacy['epsilon']:.6g}, the budget is {budget.epsilon:g}"


def least_epsilon(releases: Sequence[Release], delta: float, relation: str) -> float:
    """Return a lower bound on what releases cost, exact if none is sampled.

    Args:
        releases: releases of a ledger.
        delta: delta at which epsilon is stated.
        relation: neighbouring relation.
    """
    groups = {release.group for release in releases} - {None} or {None}
    mine = [[r for r in releases if r.group in (None, group)] for group in groups]
    return max(_least(part, delta, relation) for part in mine)


def _least(releases: Sequence[Release], delta: float, relation: str) -> float:
    pure = sum(release.epsilon for release in releases)
    whole = [r.sensitivity / r.std for r in releases if isinstance(r, GaussianRelease) and r.std]
    if any(isinstance(r, GaussianRelease) and not r.std for r in releases):
        return math.inf
    sampled = [r for r in releases if r.sampling < 1]
    if not sampled:
        return pure + _epsilon(float(np.linalg.norm(whole)), delta)
    full = [
        r.sensitivity / r.std
        for r in releases
        if isinstance(r, GaussianRelease) and r.sampling == 1
    ]
    single = 0.0
    for release in sampled:
        # Emptying a user is part of replacing one, and moves the sum half as far.
        mu = release.mu / (1.0 if relation == ZERO_OUT else 2.0)
        q = release.sampling
        alone = _epsilon(mu, min(delta / q, 1.0))
        single = max(single, math.log1p(q * math.expm1(min(alone, 700.0))))
    return pure + max(single, _epsilon(float(np.linalg.norm(full)), delta))


def _epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of a Gaussian release at delta."""
    if mu == 0:
        return 0.0
    if delta == 0:
        return math.inf

    def excess(epsilon: float) -> float:
        far = math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - far - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2.0
    return float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-12))


def _refusals(budget: Budget) -> Iterator[str]:
    """Check that a gate refuses to exceed its budget, and to release twice under one name."""
    if budget.delta == 0 or math.isinf(budget.epsilon):
        return

    def gate() -> NoiseGate:
        return NoiseGate(Ledger(budget), SeededNoise(0))

    zero, bound, half = np.zeros(1), NormBound(1.0), budget.mu / 2
    made = gate()
    try:
        for t in range(1, 6):
            made.release("probe", zero, bound=bound, mu=half, round=t)
        yield "the gate goes on releasing when the budget is spent"
    except BudgetError:
        if len(made.ledger.releases) != 4:
            yield f"the gate refuses after {len(made.ledger.releases)} of 4 quarters of the budget"
    made = gate()
    try:
        for _ in range(2):
            made.release("probe", zero, bound=bound, mu=half, round=1)
        yield "the gate releases the same name and round twice"
    except PrivfedError:
        pass
