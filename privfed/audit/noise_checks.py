"""Check that the noise added by the gate is as claimed: its scale, its mean, and no reuse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from scipy.stats import chi2, chisquare

from privfed.audit.transcript import Call
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import GaussianRelease, SelectionRelease
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger

RARE = 1e-7
"""Significance level: a test rejects correct noise once in ten million times."""
NUMBERS, DRAWS = 2000, 200
"""A release is drawn again until there are NUMBERS numbers, but at most DRAWS times."""
SAME = 2.0**-22
"""Noise within SAME standard deviations counts as equal, since noise lies on a grid.
"""


def noise_findings(calls: Sequence[Call], gate: NoiseGate) -> Iterator[str]:
    """Yield what is wrong with the noise of a run, in words.

    Args:
        calls: passages through the gate.
        gate: gate of the run.
    """
    noise = {}
    for call in calls:
        if (
            isinstance(call.entry, GaussianRelease)
            and call.entry.std > 0
            and call.made.shape == call.total.shape
        ):
            noise[f"{call.name} of round {call.round}"] = (
                (call.made - call.total) / call.entry.std
            ).ravel()
    if noise:
        yield from scale_findings(
            "the run's releases together", np.concatenate(list(noise.values()))
        )
    yield from reuse_findings(noise)
    names = {call.name: call for call in reversed(calls)}
    for call in names.values():
        yield from redrawn_findings(call, gate)


def scale_findings(what: str, z: Array) -> Iterator[str]:
    """Yield a finding if the noise is not standard normal.

    Args:
        what: name of the noise in the message.
        z: noise in units of the claimed standard deviation, (size,).
    """
    square = float(np.sum(z * z))
    p = 2.0 * min(chi2.cdf(square, z.size), chi2.sf(square, z.size))
    if not p >= RARE:
        size = math.sqrt(square / z.size)
        chance = f"chi-square, p={p:.1g}, {z.size} numbers"
        yield f"the noise of {what} has {size:.3g} times the claimed standard deviation ({chance})"
    elif abs(np.sum(z)) > 6.0 * math.sqrt(z.size):
        yield f"the noise of {what} has a mean of {np.mean(z):.3g} standard deviations, not 0"


def reuse_findings(noise: dict[str, Array]) -> Iterator[str]:
    """Yield a finding if the noise of two releases is the same or correlated.

    Args:
        noise: noise by name of the release, in units of its standard deviation.
    """
    for (one, z), (other, w) in combinations(noise.items(), 2):
        size = min(len(z), len(w))
        z, w = z[:size], w[:size]
        # One or two numbers may agree by chance.
        if size < 3:
            continue
        if min(np.max(np.abs(z - w)), np.max(np.abs(z + w))) <= SAME:
            yield f"noise is used again: {other} has that of {one}"
            return
        if size > 50 and abs(z @ w) > 7.0 * np.linalg.norm(z) * np.linalg.norm(w) / math.sqrt(size):
            yield f"the noise of {other} is correlated with that of {one}"
            return


def redrawn_findings(call: Call, gate: NoiseGate) -> Iterator[str]:
    """Yield findings about fresh draws of a release, each with a new ledger."""
    relation, delta = gate.ledger.budget.neighbouring, gate.ledger.budget.delta

    def again(method: str, total: Array, draw: int) -> tuple[Array, GaussianRelease]:
        fresh = NoiseGate(Ledger(Budget(1e6, delta, relation)), gate.source)
        terms = {key: value for key, value in call.terms.items() if key != "group"}
        made = getattr(fresh, method)(call.name, total, round=10**6 + draw, **terms)
        return np.asarray(made), fresh.ledger.releases[0]  # type: ignore[return-value]

    if isinstance(call.entry, GaussianRelease) and call.entry.std > 0:
        rows = []
        for draw in range(min(DRAWS, -(-NUMBERS // call.total.size))):
            made, entry = again("release", np.zeros(call.total.size), draw)
            rows.append(made / entry.std)
        yield from scale_findings(call.name, np.concatenate(rows))
        yield from reuse_findings(
            {f"draw {i} of {call.name}": row for i, row in enumerate(rows[:5])}
        )
    elif isinstance(call.entry, SelectionRelease) and math.isfinite(call.entry.rate):
        # This spread of scores makes a wrong rate visible.
        exponents = np.linspace(0.0, 3.0, 8)
        chosen = [
            int(again("select", exponents / call.entry.rate, draw)[0]) for draw in range(DRAWS)
        ]
        expected = DRAWS * np.exp(exponents) / np.exp(exponents).sum()
        p = chisquare(np.bincount(chosen, minlength=8), expected).pvalue
        if not p >= RARE:
            again_ = "noise is used again, or " if len(set(chosen)) == 1 else ""
            yield (
                f"{call.name}: {again_}candidates are not chosen with the claimed probabilities "
                f"(chi-square, p={p:.1g})"
            )
