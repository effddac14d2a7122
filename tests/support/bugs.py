"""Bugs that break the guarantee, planted in the real code by context managers that undo them.

    with halved_noise():
        ...                 # whatever runs here has the bug

`BUGS` lists them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import numpy as np

import privfed.algorithm.strategy
import privfed.privacy.bounds
from privfed.algorithm.client import CohortClient
from privfed.algorithm.strategy import PrivateStrategy
from privfed.privacy.clipping import Scores
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Ledger
from privfed.privacy.noise import DiscreteNoise, SeededNoise

NO_CLIP = 1e90
SOURCES = (SeededNoise, DiscreteNoise)


@contextmanager
def patched(*changes: tuple[object, str, object]) -> Iterator[None]:
    """Attributes of objects replaced for a while."""
    first, *rest = changes
    with patch.object(*first):
        if rest:
            with patched(*rest):
                yield
        else:
            yield


def halved_noise() -> AbstractContextManager[None]:
    """Half the noise that the ledger says, in sums and in selections."""

    def of(source):
        normal, choice = source.normal, source.choice
        yield (
            source,
            "normal",
            lambda self, *rest: np.rint(normal(self, *rest) / 2).astype(np.int64),
        )
        yield source, "choice", lambda self, exponents, *rest: choice(self, 2.0 * exponents, *rest)

    return patched(*(change for source in SOURCES for change in of(source)))


def missing_clip() -> AbstractContextManager[None]:
    """Users send what they have, whatever clip norm is announced; scores are not clamped."""
    fit = CohortClient.fit

    def unclipped(self, parameters, config):
        clips = np.frombuffer(config["clip"])
        if config["task"] != "select":
            config = config | {"clip": np.full(len(clips), NO_CLIP).tobytes()}
        return fit(self, parameters, config)

    def unclamped(self, clip):
        units = np.floor(self.values * clip)
        return np.sum(units, axis=0), np.max(units, axis=1, initial=0.0)

    return patched((CohortClient, "fit", unclipped), (Scores, "clipped", unclamped))


def missing_server_clip() -> AbstractContextManager[None]:
    """The server adds up whatever nodes send."""
    home = privfed.algorithm.strategy
    return patched((home, "clip", lambda x, bound: x), (home, "clamp", lambda x, bound: x))


def psi_for_two_psi() -> AbstractContextManager[None]:
    """Replacing a user counts like adding one."""
    return patched((privfed.privacy.bounds, "influence", lambda relation: 1.0))


def uncharged_initialiser() -> AbstractContextManager[None]:
    """The initialiser has noise of its own and tells the ledger nothing."""

    charged = PrivateStrategy.release

    def release(self, step, sums, users):
        if step.task != "spectral":
            return charged(self, step, sums, users)
        gate = self.federation.gate
        apart = NoiseGate(Ledger(gate.ledger.budget), gate.source)
        bound = self.bound(step, step.task)
        total = sums[step.task]
        noised = apart.release(step.task, total, bound=bound, mu=step.mu, round=step.round)
        return [noised / users]

    def unguarded(self, step, releases):
        return next(iter(releases), None)

    return patched((PrivateStrategy, "release", release), (PrivateStrategy, "_charged", unguarded))


def weighting_by_examples() -> AbstractContextManager[None]:
    """As in FedAvg: users count as often as they have examples, after clipping."""
    fit = CohortClient.fit

    def weighted(self, parameters, config):
        arrays, users, metrics = fit(self, parameters, config)
        examples = self.cohort.y.shape[1]
        return [examples * array for array in arrays], users * examples, metrics

    return patched((CohortClient, "fit", weighted))


def weighting_by_reports() -> AbstractContextManager[None]:
    """As in stock strategies: a node counts as much as the number of examples that it reports."""
    totals_of = privfed.algorithm.strategy.totals_of

    def weighted(results, wanted, asked, bounded, step):
        reported = {node.cid: result.num_examples for node, result in results}
        totals, present = None, 0
        for cid in asked:
            mine, there = totals_of(
                [r for r in results if r[0].cid == cid], wanted, {cid: asked[cid]}, bounded, step
            )
            weight = reported.get(cid, 0) / max(1, asked[cid])
            mine = [weight * total for total in mine]
            totals = mine if totals is None else [a + b for a, b in zip(totals, mine, strict=True)]
            present += there
        return totals, present

    return patched((privfed.algorithm.strategy, "totals_of", weighted))


def reused_noise() -> AbstractContextManager[None]:
    """Every round has the noise of the first (seeded noise; the other kind cannot be had twice)."""
    normal, choice = SeededNoise.normal, SeededNoise.choice
    return patched(
        (SeededNoise, "normal", lambda self, size, s, name, round: normal(self, size, s, name, 1)),
        (
            SeededNoise,
            "choice",
            lambda self, exponents, name, round: choice(self, exponents, name, 1),
        ),
    )


def divisor_of_replies() -> AbstractContextManager[None]:
    """Means are over the users who replied, not over the public number."""
    totals_of, release, present = (
        privfed.algorithm.strategy.totals_of,
        PrivateStrategy.release,
        [0],
    )

    def counted(*arguments):
        totals, present[0] = totals_of(*arguments)
        return totals, present[0]

    def divided(self, step, sums, n):
        return release(self, step, sums, present[0])

    return patched(
        (privfed.algorithm.strategy, "totals_of", counted), (PrivateStrategy, "release", divided)
    )


BUGS: dict[str, tuple[Callable[[], AbstractContextManager[None]], str, str]] = {
    "halved noise": (halved_noise, "noise", "times the claimed standard deviation"),
    "missing clip": (missing_clip, "sensitivity", "neighbours move gradient by"),
    "missing server clip": (missing_server_clip, "sensitivity", "sends -1e300"),
    "psi instead of 2 psi": (psi_for_two_psi, "sensitivity", "neighbours move gradient by"),
    "uncharged initialiser": (
        uncharged_initialiser,
        "ledger",
        "planned, but not among the entries in the ledger: spectral",
    ),
    "weighting by examples": (weighting_by_examples, "sensitivity", "neighbours move gradient by"),
    "weighting by reports": (weighting_by_reports, "sensitivity", "claims a billion examples"),
    "reused noise": (
        reused_noise,
        "noise",
        "noise is used again: gradient of round 2 has that of gradient of round 1",
    ),
    "divisor of replies": (divisor_of_replies, "bypass", "depends on who answers"),
}
"""How to plant it, the claim that a replay of `algo=fedrep` refutes, and part of what it says."""
