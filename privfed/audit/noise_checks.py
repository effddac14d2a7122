"""Check that the noise added by the gate is as claimed.

It has the claimed scale in every coordinate, whatever the sum is. It lies on a grid. It is drawn
anew for every release and every coordinate. The noise that real users get is drawn anew in every
process, too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from scipy.stats import chi2, chisquare

from privfed.audit.transcript import Call, Transcript
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import GaussianRelease, SelectionRelease
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import DiscreteNoise

RARE = 1e-7
"""Significance level: a test rejects correct noise once in ten million times."""
NUMBERS, LEAST, DRAWS = 2000, 8, 200
"""A release is drawn again until there are NUMBERS numbers, from LEAST to DRAWS times."""
FEWER = 400
"""The same with sums that are not zero."""
SAME = 2.0**-22
"""Noise within SAME standard deviations counts as equal, since noise lies on a grid.
"""
FINEST = -40
"""Releases are whole multiples of about 2^FINEST standard deviations, or of more.

Noise that was added in floating point has finer digits.
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
    yield from secret_findings()


def dependence_findings(base: Transcript, seen: Transcript) -> Iterator[str]:
    """Yield a finding if repeatable noise is not the same in two runs with different sums.

    Args:
        base: run.
        seen: run with other sums, but with the same seed.
    """
    for mine, theirs in zip(base.calls, seen.calls, strict=False):
        if (
            not isinstance(mine.entry, GaussianRelease)
            or mine.entry != theirs.entry
            or not mine.made.shape == theirs.made.shape == mine.total.shape
        ):
            continue
        with np.errstate(all="ignore"):
            gap = float(np.max(np.abs((mine.made - mine.total) - (theirs.made - theirs.total))))
            size = max(float(np.max(np.abs(call.total))) for call in (mine, theirs))
        # Totals that no clip has bounded have no digits left for the noise.
        if size < 1e9 * mine.entry.std and not gap <= 4 * SAME * mine.entry.std + 1e-12 * size:
            yield f"the noise of {mine.name} depends on the sum that it is added to"
            return


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


def coordinate_findings(what: str, rows: Array) -> Iterator[str]:
    """Yield a finding if a coordinate has another scale, or if coordinates share their noise.

    Args:
        what: name of the noise in the message.
        rows: draws in units of the claimed standard deviation, (draws, size).
    """
    draws, size = rows.shape
    squares = np.sum(rows * rows, axis=0)
    p = 2.0 * np.minimum(chi2.cdf(squares, draws), chi2.sf(squares, draws))
    worst = int(np.argmin(p))
    if not p[worst] >= RARE / size:
        factor = math.sqrt(squares[worst] / draws)
        yield (
            f"the noise of {what} has {factor:.3g} times the claimed standard deviation "
            f"in coordinate {worst} of {size}"
        )
    elif size > 1 and np.all(np.ptp(rows, axis=1) <= SAME):
        yield f"the noise of {what} is the same in all coordinates"


def on_grid(made: Array, std: float) -> bool:
    """Return whether released numbers are whole multiples of a grid that is not too fine."""
    steps = made / 2.0 ** (math.floor(math.log2(std)) + FINEST)
    return bool(np.array_equal(steps, np.rint(steps)))


def secret_findings() -> Iterator[str]:
    """Yield what is wrong with the noise that real users get, whatever the run itself uses."""
    source, s = DiscreteNoise(), 1 << 24
    rows = [source.normal(FEWER // LEAST, s, "secret", 1) / s for _ in range(LEAST)]
    yield from scale_findings("real users", np.concatenate(rows))
    yield from coordinate_findings("real users", np.array(rows))
    yield from reuse_findings({f"draw {i} for real users": z for i, z in enumerate(rows[:5])})
    one, other = (
        in_a_fork(lambda: DiscreteNoise().normal(LEAST, s, "secret", 1).tobytes()) for _ in range(2)
    )
    if one and one == other:
        yield "two processes draw the same noise for real users"
    race = np.zeros(64)
    one, other = (
        in_a_fork(lambda: bytes(DiscreteNoise().choice(race, "secret", 1) for _ in range(LEAST)))
        for _ in range(2)
    )
    if one and one == other:
        yield "two processes make the same choices for real users"


def in_a_fork(work: Callable[[], bytes]) -> bytes:
    """Return what `work` returns in a forked process; nothing where processes cannot be forked."""
    if not hasattr(os, "fork"):
        return b""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, work())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


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
        size, draw = call.total.size, 0
        reach, places = call.entry.sensitivity, np.arange(size)
        for sums, total, numbers in (
            ("", np.zeros(size), NUMBERS),
            (
                ", added to large sums,",
                1e3 * reach * np.where(np.arange(size) % 2, -1.0, 1.0),
                FEWER,
            ),
            (", added to a small sum,", 1e-3 * reach * (places == 0), FEWER),
            (", added to the sum of the run,", call.total.ravel(), FEWER),
        ):
            rows = []
            for _ in range(max(LEAST, min(DRAWS, -(-numbers // size)))):
                made, entry = again("release", total, draw)
                if not on_grid(made, entry.std):
                    yield f"{call.name} is not on a grid: its last digits tell the sum"
                    return
                rows.append((made - total) / entry.std)
                draw += 1
            name = f"{call.name}{sums}"
            found = [
                *scale_findings(name, np.concatenate(rows)),
                *coordinate_findings(name, np.array(rows)),
                *reuse_findings({f"draw {i} of {name}": z for i, z in enumerate(rows[:5])}),
            ]
            yield from found
            if found:
                return
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
