"""Bugs on the users' side: what a client computes, clips and sends."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

import clients.fedrep
from clients.fedrep import FedRepClient
from clients.initialisers.spectral import SecondMoments
from planted.patching import NO_CLIP, around, everywhere, patched
from privfed.algorithm.client import CohortClient
from privfed.algorithm.table_client import TableClient
from privfed.data import cohort as cohorts
from privfed.data.cohort import Cohort
from privfed.data.tables import table_source
from privfed.kernels.gradients import Gradients
from privfed.kernels.least_squares import leave_one_out_heads
from privfed.privacy import clipping
from privfed.privacy.adaptive_clipping import Histogram
from privfed.privacy.clipping import Dense, Scores


def dense(self, clip):
    """Gradients by the NumPy lines, clipped where a bug can reach them."""
    return Dense(self.some(slice(None))).clipped(clip)


def other_factors(factors):
    """Other clip factors: factors(original, norms, clip)."""
    original = clipping.clip_factors

    def planted(norms, clip):
        return factors(original, norms, clip)

    return patched((Gradients, "clipped", dense), *everywhere(original, planted))


def missing_clip():
    def unclipped(fit, self, parameters, config):
        clips = np.frombuffer(config["clip"])
        if config["task"] != "select":
            config = config | {"clip": np.full(len(clips), NO_CLIP).tobytes()}
        return fit(self, parameters, config)

    def unclamped(self, clip):
        units = np.floor(self.values * clip)
        return np.sum(units, axis=0), np.max(units, axis=1, initial=0.0)

    return patched(around(CohortClient, "fit", unclipped), (Scores, "clipped", unclamped))


def weighting_by_examples():
    def weighted(fit, self, parameters, config):
        arrays, users, metrics = fit(self, parameters, config)
        examples = self.cohort.y.shape[1]
        return [examples * array for array in arrays], users * examples, metrics

    return patched(around(CohortClient, "fit", weighted))


def heads_in_metrics():
    def told(fit, self, parameters, config):
        arrays, users, metrics = fit(self, parameters, config)
        if config["task"] == "gradient" and config["round"] == 2:
            heads = self.weights(next(self.cohort.blocks()), parameters)
            metrics = metrics | {"heads": heads.tobytes()}
        return arrays, users, metrics

    return patched(around(CohortClient, "fit", told))


def no_clip_in_large_blocks():
    def of(kind, count):
        def clipped(original, self, clip):
            return original(self, NO_CLIP if count(self) >= 64 else clip)

        return around(kind, "clipped", clipped)

    return patched(
        of(Dense, lambda part: len(part.values)),
        of(Gradients, lambda part: len(part.X)),
        of(SecondMoments, lambda part: len(part.A)),
    )


def clip_per_example():
    def gradient(self, block, shared, told):
        X, y, U = block.X.astype(np.float64), block.y.astype(np.float64), shared[0]
        P = X @ U
        V = leave_one_out_heads(P, y)
        r = np.vecdot(P, V) - y
        each = 2.0 * (r[..., None] * V)[..., None] * X[:, :, None, :]
        return Dense(each.reshape(-1, *each.shape[2:]))

    gradient.task_name = "gradient"
    return patched((FedRepClient, "gradient", gradient))


def clip_by_value():
    def clipped(self, clip):
        flat = self.values.reshape(len(self.values), -1)
        norms = np.nan_to_num(np.sqrt(np.vecdot(flat, flat)))
        return np.sum(np.clip(np.nan_to_num(self.values), -clip, clip), axis=0), norms

    return patched((Gradients, "clipped", dense), (Dense, "clipped", clipped))


def overlapping_blocks():
    def blocks(self, users=None, *, examples=slice(None), bytes_each=0, exact=True):
        places = np.arange(len(self)) if users is None else users
        for start in range(0, len(places), 63):
            block = self[places[start : start + 64]]
            block = replace(block, X=block.X[:, examples], y=block.y[:, examples])
            yield block.exact() if exact else block

    return patched((Cohort, "blocks", blocks))


@dataclass(frozen=True)
class Weighted:
    part: Dense
    weight: float

    def clipped(self, clip):
        total, norms = self.part.clipped(clip)
        return self.weight * total, norms


def weighting_by_rows():
    gradient = TableClient.gradient

    def planted(self, block, shared, told):
        return Weighted(Dense(gradient(self, block, shared, told)), block.m / 2)

    planted.task_name = "gradient"
    return patched((TableClient, "gradient", planted))


def groups_from_data():
    def asked(original, self, told):
        if told.group is None:
            return original(self, told)
        marks = np.nan_to_num(np.abs(self.cohort.y[:, 0]) * 1e3, posinf=0.0) % 1e9
        return np.flatnonzero(marks.astype(np.int64) % told.groups == told.group)

    return patched(around(CohortClient, "_asked", asked))


def everybody_in_every_group():
    def asked(original, self, told):
        return None if told.group is not None else original(self, told)

    return patched(around(CohortClient, "_asked", asked))


def everybody_in_every_sample():
    def asked(original, self, told):
        return None if told.sampling < 1 else original(self, told)

    return patched(around(CohortClient, "_asked", asked))


def coins_known_to_the_server():
    coins = cohorts.coins

    def known(*given):
        return coins(*given[:-1], False)

    return patched(*everywhere(coins, known))


def broken_users_let_through():
    def clipped(self, clip):
        flat = self.values.reshape(len(self.values), -1)
        norms = np.sqrt(np.vecdot(flat, flat))
        factors = np.minimum(1.0, clip * clipping.SLACK / norms)
        return (factors @ flat).reshape(self.values.shape[1:]), norms

    def whole(self, target=0.0):
        return self

    return patched(
        (Gradients, "clipped", dense),
        (Dense, "clipped", clipped),
        (Cohort, "without_broken_users", whole),
    )


def histogram_of_all_bins_below():
    def count(original, self, norms, clip):
        exponent = np.where(norms > 0, np.frexp(norms)[1] - 1 - self.bottom, 0)
        bins = np.clip(exponent, 0, self.size - 1)
        return np.sum(np.arange(self.size) <= bins[:, None], axis=0).astype(np.float64)

    return patched(around(Histogram, "count", count))


def norms_in_the_log():
    def noted(fit, self, parameters, config):
        arrays, users, metrics = fit(self, parameters, config)
        largest = float(np.max(np.nan_to_num(np.abs(self.cohort.y)), initial=0.0))
        logging.getLogger("privfed.clients").debug("largest target: %.3g", largest)
        return arrays, users, metrics

    return patched(around(CohortClient, "fit", noted))


def floor_of_clip_factors():
    return other_factors(lambda original, norms, clip: np.maximum(original(norms, clip), 0.01))


def clip_by_the_largest_norm():
    return other_factors(
        lambda original, norms, clip: original(np.full_like(norms, norms.max(initial=0.0)), clip)
    )


def state_sent_along():
    def more(fit, self, parameters, config):
        arrays, users, metrics = fit(self, parameters, config)
        if config["task"] == "gradient":
            arrays = [*arrays, self.weights(next(self.cohort.blocks()), parameters)]
        return arrays, users, metrics

    return patched(around(CohortClient, "fit", more))


def rows_as_examples():
    def counted(fit, self, parameters, config):
        arrays, _, metrics = fit(self, parameters, config)
        return arrays, int(np.count_nonzero(self.cohort.y)), metrics

    return patched(around(CohortClient, "fit", counted))


def errors_of_real_users():
    def told(evaluate, self, parameters, config):
        _, users, metrics = evaluate(self, parameters, config)
        return float(np.mean(np.nan_to_num(self.cohort.y) ** 2)), users, metrics

    return patched(around(CohortClient, "evaluate", told))


def scaled_by_the_node():
    def init(original, self, cohort, init=None):
        if isinstance(cohort, Cohort) and len(cohort) > 1:
            with np.errstate(all="ignore"):
                X = cohort.X.astype(np.float64)
                spread = np.maximum(np.nan_to_num(X).std(axis=(0, 1)), 1e-9)
                cohort = replace(cohort, X=X / spread)
        original(self, cohort, init)

    return patched(around(CohortClient, "__init__", init))


def randomness_by_place():
    draws = clients.fedrep.draws

    def by_place(seed, ids, m, *purpose):
        return draws(seed, np.arange(len(ids), dtype=np.uint64), m, *purpose)

    return patched((clients.fedrep, "draws", by_place))


def identities_by_rank():
    """People are known by their place among the sorted names, not by their names."""

    def ranks(names):
        return np.arange(len(list(names)), dtype=np.uint64)

    return patched((table_source, "identities_of", ranks))
