"""Judge personal models of one split of a table beside everything they have to beat."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from omegaconf import DictConfig

from panels import outside, references
from panels.references import Array, Rows
from privfed.config.composition import compose
from privfed.data.tables.ragged_cohort import RaggedCohort
from privfed.data.tables.table_source import Table as TableSource
from privfed.experiment.wiring import Experiment
from privfed.models.table_model import ALONE, MIXTURE, OFFSET, TableModel

FEW, FEW_ALLOWED, ALLOWED = 60, 1.10, 1.03
"""Users below which personal models may be above the best of the others by FEW_ALLOWED."""


@dataclass(frozen=True)
class Split:
    """One table with one split of its rows.

    Args:
        overrides: settings of a run, without seed and epsilon.
        seed: seed of the split.
    """

    overrides: tuple[str, ...]
    seed: int

    @cached_property
    def source(self) -> TableSource:
        """The table, with this split."""
        return Experiment(self.config("table/fedrep", math.inf, self.seed)).data  # type: ignore[return-value]

    @cached_property
    def _configs(self) -> dict[str, DictConfig]:
        return {}

    def config(self, algo: str, eps: float, seed: int) -> DictConfig:
        """Return the configuration of one run."""
        if algo not in self._configs:
            found = compose([*self.overrides, f"algo={algo}", "privacy.account=none"])
            self._configs[algo] = found
        cfg = self._configs[algo].copy()
        cfg.eps, cfg.seed = eps, seed
        return cfg

    @cached_property
    def cohort(self) -> RaggedCohort:
        """All users."""
        return self.source.cohort(0, self.source.n)

    @property
    def n(self) -> int:
        """Number of users."""
        return self.source.n

    @cached_property
    def weights(self) -> Array:
        """User (t,) of every held-out row."""
        return np.repeat(np.arange(self.n), np.diff(self.cohort.held_starts))

    def trained(self, algo: str, eps: float, seed: int) -> tuple[TableModel, float]:
        """Train without judging; return the model, and the budget mu of the run."""
        experiment = Experiment(self.config(algo, eps, seed), source=self.source)
        experiment.watches = False
        experiment.federation.personal = False
        experiment.run()
        arrays = list(experiment.model().values())
        model = TableModel.of(self.source.schema, arrays or experiment.strategy.start(), MIXTURE)
        return model, experiment.ledger.budget.mu

    def losses(self, model: TableModel) -> Array:
        """Return the loss (t,) of every held-out row with heads of a model."""
        return outside.losses_with_heads(self.cohort, model)

    @cached_property
    def alone(self) -> Array:
        """Losses (t,) of users alone."""
        return self.losses(replace(TableModel.before(self.source.schema), kind=ALONE))

    def personal(self, eps: float, seed: int) -> Array:
        """Losses (t,) of private personal models."""
        return self.losses(self.trained("table/fedrep", eps, seed)[0])

    def offset(self, eps: float, seed: int) -> Array:
        """Losses (t,) of the global private model with the whole budget and personal offsets."""
        model = self.trained("table/global", eps, seed)[0]
        if not model.has_global:
            return self.alone
        return self.losses(replace(model, kind=OFFSET))

    def mu(self, eps: float) -> float:
        """Return the whole budget."""
        return Experiment(self.config("table/global", eps, 0), source=self.source).ledger.budget.mu

    # Methods from outside.

    @cached_property
    def rows(self) -> tuple[Rows, Rows]:
        """Training rows and held-out rows in the units of the table; labels are -1 and 1."""
        schema = self.source.schema
        model = outside.free_scales(self.cohort, TableModel.before(schema))
        every = []
        for rows, starts in (
            (self.cohort.rows, self.cohort.starts),
            (self.cohort.held, self.cohort.held_starts),
        ):
            inputs = model.inputs(rows)
            who = np.repeat(np.arange(self.n), np.diff(starts))
            place = np.full(schema.d + 1, 0, dtype=np.int64)
            place[schema.items] = np.arange(len(schema.items))
            items = place[inputs.items[:, 0]] if inputs.items.shape[1] else np.zeros(0, np.int64)
            y = np.where(rows.y == 1, 1.0, -1.0) if schema.classes else rows.y
            every.append(Rows(who, inputs.X, items, y))
        return every[0], every[1]

    def told(self, predictions: Array) -> Array:
        """Return the losses (t,) of predictions in the table's units."""
        y = self.rows[1].y
        if self.source.schema.classes:
            return ((predictions > 0) != (y > 0)).astype(np.float64)
        return np.asarray((predictions - y) ** 2)

    def outside(self, eps: float, seed: int) -> dict[str, Array]:
        """Return the losses (t,) of the simple private methods by name."""
        mu, rng = self.mu(eps), np.random.default_rng([self.seed, seed])
        found = {"statistics": self.losses(outside.statistics(self.cohort, mu, rng))}
        train, held = self.rows
        L = len(self.source.schema.items)
        if L:
            means, middle = outside.item_means(train, self.n, L, mu, rng)
            level = float(np.mean(middle))
            tried = [
                self.told(outside.with_offset(means.biases(ridge), train, held, self.n, level))
                for ridge in outside.RIDGES
            ]
            found["item means"] = min(tried, key=lambda losses: float(np.mean(losses)))
        return found

    def references(self) -> dict[str, Array]:
        """Return the losses (t,) of what is reached without privacy by name."""
        train, held = self.rows
        found = {}
        if train.X.shape[1]:
            for name, full in (("mixed diagonal", False), ("mixed", True)):
                found[name] = self.told(references.mixed_model(train, held, self.n, full))
        if len(self.source.schema.items):
            L = len(self.source.schema.items)
            found["factors"] = self.told(references.best_factors(train, held, self.n, L))
        return found


def standard_error(difference: Array, who: Array, n: int) -> float:
    """Return the standard error over users of a mean over held-out rows.

    Args:
        difference: values (t,) of held-out rows.
        who: user (t,) of each.
        n: number of users.
    """
    mean = float(np.mean(difference))
    sums = np.bincount(who.astype(np.int64), difference - mean, minlength=n)
    return float(np.sqrt(np.sum(sums**2)) / max(len(difference), 1))


def allowed(n: int) -> float:
    """Return how far personal models may be above the best of the others."""
    return FEW_ALLOWED if n < FEW else ALLOWED
