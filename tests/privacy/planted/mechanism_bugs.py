"""Bugs of the mechanism itself: noise, sensitivity, ledger, accounting."""

from __future__ import annotations

import math

import numpy as np

import privfed.privacy.distances
import privfed.privacy.gate
from planted.patching import around, everywhere, patched
from privfed.algorithm.strategy import PrivateStrategy
from privfed.foundation.seeding import generator
from privfed.privacy import accounting, exact_sampling
from privfed.privacy.clipping import norm
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Ledger
from privfed.privacy.noise import DiscreteNoise, SeededNoise

SOURCES = (SeededNoise, DiscreteNoise)


def halved_noise():
    def normal(original, self, *given):
        return np.rint(original(self, *given) / 2).astype(np.int64)

    def choice(original, self, exponents, *given):
        return original(self, 2.0 * exponents, *given)

    return patched(
        *(around(source, "normal", normal) for source in SOURCES),
        *(around(source, "choice", choice) for source in SOURCES),
    )


def psi_for_two_psi():
    return patched((privfed.privacy.distances, "influence", lambda relation: 1.0))


def reused_noise():
    def normal(original, self, size, s, name, round):
        return original(self, size, s, name, 1)

    def choice(original, self, exponents, name, round):
        return original(self, exponents, name, 1)

    return patched(around(SeededNoise, "normal", normal), around(SeededNoise, "choice", choice))


def groups_pay_for_themselves_only():
    composed = accounting.composed

    def planted(paid, delta, replaced=True):
        groups = {price: count for price, count in paid.items() if price[2] is not None}
        return composed(groups or paid, delta, replaced)

    return patched(*everywhere(composed, planted))


def secret_noise_with_a_fixed_seed():
    stream = np.random.default_rng(0)

    def words(count):
        return stream.integers(2**64, size=count, dtype=np.uint64)

    return patched((exact_sampling, "system_words", words))


def noise_scaled_by_the_sum():
    """Noise is a tenth of the signal where that is less."""

    def release(original, self, name, total, **terms):
        made = original(self, name, total, **terms)
        entry = self.ledger.releases[-1] if self.ledger.releases else None
        if entry is None or not entry.std:
            return made
        factor = min(1.0, 0.1 * norm(total) / (entry.std * math.sqrt(total.size)))
        grid = entry.std * 2.0**-24
        return grid * np.rint((total + factor * (made - total)) / grid)

    return patched(around(NoiseGate, "release", release))


def ledger_after_the_release():
    def release(original, self, name, total, **terms):
        later, charge = [], self.ledger.charge
        self.ledger.charge = later.append
        try:
            made = original(self, name, total, **terms)
        finally:
            self.ledger.charge = charge
        for entry in later:
            charge(entry)
        return made

    return patched(around(NoiseGate, "release", release))


def every_name_charged_once():
    def charge(original, self, release):
        if all(release.name != other.name for other in self.releases):
            original(self, release)

    def unguarded(self, step, releases):
        return next(iter(releases), None)

    return patched(around(Ledger, "charge", charge), (PrivateStrategy, "_charged", unguarded))


def sensitivity_of_the_mean():
    sensitivity_of = privfed.privacy.gate.sensitivity_of

    def of_the_mean(kind, radius, relation, **more):
        return sensitivity_of(kind, radius / 100, relation, **more)

    return patched((privfed.privacy.gate, "sensitivity_of", of_the_mean))


def sums_of_a_step_share_their_noise():
    def normal(original, self, size, s, name, round):
        return original(self, size, s, "noise", round)

    return patched(around(SeededNoise, "normal", normal))


def last_coordinate_without_noise():
    def normal(original, self, size, *given):
        drawn = original(self, size, *given)
        drawn[-1:] = 0
        return drawn

    return patched(*(around(source, "normal", normal) for source in SOURCES))


def one_draw_for_all_coordinates():
    def normal(original, self, size, *given):
        return np.full(size, original(self, 1, *given))

    return patched(*(around(source, "normal", normal) for source in SOURCES))


def noise_in_floating_point():
    def release(original, self, name, total, **terms):
        original(self, name, total, **terms)
        std = self.ledger.releases[-1].std
        round = terms["round"]
        return total + std * generator(0, "noise", name, round).standard_normal(total.shape)

    return patched(around(NoiseGate, "release", release))


def epsilon_at_another_delta():
    epsilon = Ledger.epsilon.fget

    def planted(self):
        other = Ledger(type(self.budget)(self.budget.epsilon, 1e-2, self.budget.neighbouring))
        other._note(*self.releases)
        return epsilon(other)

    return patched(
        (Ledger, "epsilon", property(planted)),
        (Ledger, "epsilon_under", lambda self, neighbouring: self.epsilon),
    )


def budget_never_refuses():
    return patched((Ledger, "check", lambda self, costs, what: None))


def released_twice_under_one_name():
    def charge(original, self, release):
        self._made.discard((release.name, release.round))
        original(self, release)

    return patched(around(Ledger, "charge", charge))


def best_candidate_always():
    def choice(self, exponents, name, round):
        return int(np.argmax(exponents))

    return patched(*((source, "choice", choice) for source in SOURCES))


def rounding_not_charged():
    """Sums are rounded to a coarse grid, and the sensitivity does not know."""

    def release(original, self, name, total, **terms):
        coarse = 0.5 * terms["bound"].clip
        return original(self, name, coarse * np.rint(total / coarse), **terms)

    return patched(around(NoiseGate, "release", release))
