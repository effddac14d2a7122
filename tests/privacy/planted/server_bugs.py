"""Bugs on the server's side: how answers are added up, released and used."""

from __future__ import annotations

import numpy as np
from flwr.common import FitRes

import privfed.algorithm.strategy
from planted.patching import around, patched
from privfed.algorithm.exponential_mechanism import SelectionStrategy
from privfed.algorithm.strategy import PrivateStrategy
from privfed.experiment import checkpoint
from privfed.privacy.clipping import norm
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Ledger
from privfed.privacy.noise import SeededNoise

HOME = privfed.algorithm.strategy


def missing_server_clip():
    return patched((HOME, "clip", lambda x, bound: x), (HOME, "clamp", lambda x, bound: x))


def uncharged_initialiser():
    def release(charged, self, step, sums, users):
        if step.task != "spectral":
            return charged(self, step, sums, users)
        gate = self.federation.gate
        apart = NoiseGate(Ledger(gate.ledger.budget), gate.source)
        bound, total = self.bound(step, step.task), sums[step.task]
        noised = apart.release(step.task, total, bound=bound, mu=step.mu, round=step.round)
        return [noised / users]

    def unguarded(self, step, releases):
        return next(iter(releases), None)

    return patched(
        around(PrivateStrategy, "release", release), (PrivateStrategy, "_charged", unguarded)
    )


def weighting_by_reports():
    totals_of = HOME.totals_of

    def weighted(results, wanted, reach, bounded, step):
        reported = {node.cid: result.num_examples for node, result in results}
        totals, answered = [np.zeros(shape) for shape, _ in wanted], []
        for cid in reach:
            mine, there = totals_of(
                [r for r in results if r[0].cid == cid], wanted, {cid: reach[cid]}, bounded, step
            )
            weight = reported.get(cid, 0) / max(1, reach[cid])
            totals = [a + weight * b for a, b in zip(totals, mine, strict=True)]
            answered += there
        return totals, answered

    return patched((HOME, "totals_of", weighted))


def divisor_of_replies():
    totals_of, answered = HOME.totals_of, []

    def counted(*arguments):
        totals, answered[:] = totals_of(*arguments)
        return totals, list(answered)

    def divided(release, self, step, sums, n):
        registered = self.federation.registered
        there = sum(registered[cid] for cid in answered) / sum(registered.values())
        return release(self, step, sums, n * there)

    return patched((HOME, "totals_of", counted), around(PrivateStrategy, "release", divided))


def early_stopping():
    """Training stops once the gradient before noise is small."""

    def release(original, self, step, sums, users):
        released = original(self, step, sums, users)
        total, clip = next(iter(sums.values())), self.bound(step, next(iter(sums))).clip
        if norm(total) < 1e-3 * users * clip:
            self.plan = self.plan[: self.done + 1]
        return released

    return patched(around(PrivateStrategy, "release", release))


def uncharged_measurement():
    def measure(original, self, step, counts, n):
        gate = self.federation.gate
        self.federation.gate = NoiseGate(Ledger(gate.ledger.budget), gate.source)
        try:
            original(self, step, counts, n)
        finally:
            self.federation.gate = gate

    return patched(around(PrivateStrategy, "_measure", measure))


def measurement_without_noise():
    def measure(self, step, counts, n):
        rule = HOME.MEASURES[step.question]
        for name, count in counts.items():
            last = float(self.clips[name]) if step.releases else 0.0
            self.clips[name] = rule.clip(count, n, self.federation.privacy.quantile, last)

    return patched((PrivateStrategy, "_measure", measure))


def step_size_from_the_sum():
    """Steps are normalised by the length of the mean before noise."""

    def release(original, self, step, sums, users):
        released = original(self, step, sums, users)
        if step.phase.selects:
            return released
        lengths = [norm(total) / users for total in sums.values()]
        return [x / (1.0 + length) for x, length in zip(released, lengths, strict=True)]

    return patched(around(PrivateStrategy, "release", release))


def candidates_from_data():
    """The next round looks around the best candidate instead of the chosen one."""

    def release(original, self, step, sums, users):
        self.best = int(np.argmax(next(iter(sums.values()))))
        return original(self, step, sums, users)

    def choose(original, self, t, chosen):
        choice = self.pool[chosen]
        original(self, t, self.best)
        return self.published(choice)

    return patched(
        around(PrivateStrategy, "release", release), around(SelectionStrategy, "choose", choose)
    )


def bounded_by_reports():
    """A node's sum is clipped at as many users as the node says it has."""
    totals_of = HOME.totals_of

    def believed(results, wanted, reach, bounded, step):
        said = {node.cid: min(result.num_examples, 10**9) for node, result in results}
        return totals_of(results, wanted, {cid: said.get(cid, 0) for cid in reach}, bounded, step)

    return patched((HOME, "totals_of", believed))


def resumed_step_released_again():
    """A resumed run repeats the step it was killed in, with new noise and the old entry."""
    restore = checkpoint.restore

    def trusting(folder, strategy):
        gate = strategy.federation.gate
        kept, gate.source = gate.source, _Repeatable()
        try:
            return restore(folder, strategy)
        finally:
            gate.source = kept

    return patched((checkpoint, "restore", trusting))


class _Repeatable(SeededNoise):
    def __init__(self):
        super().__init__(0)


def answers_of_other_steps():
    """A late answer counts for the step that is being added up, as often as it is sent."""
    totals_of = HOME.totals_of

    def late(results, wanted, reach, bounded, step):
        totals, answered = totals_of(results, wanted, reach, bounded, step)
        again = [(node, _renumbered(result, step)) for node, result in results]
        more, _ = totals_of(again, wanted, reach, bounded, step)
        return [a + b for a, b in zip(totals, more, strict=True)], answered

    return patched((HOME, "totals_of", late))


def _renumbered(result: FitRes, step: int) -> FitRes:
    return FitRes(result.status, result.parameters, result.num_examples, {"step": step})


def sums_in_the_announcement():
    """Nodes are told how long the last sum was, for a momentum of their own."""

    def totals(original, self, step, sums, users):
        self.last = float(sum(norm(total) for total in sums.values()))
        return original(self, step, sums, users)

    def configure(original, self, *given, **more):
        told = original(self, *given, **more)
        for _, ins in told:
            ins.config["length"] = vars(self).get("last", 0.0)
        return told

    return patched(
        around(PrivateStrategy, "release", totals),
        around(PrivateStrategy, "configure_fit", configure),
    )
