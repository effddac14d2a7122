"""The server side of algorithms on tables: scales of columns, then one global model.

    magnitudes   number of values per power of two, for each column without public bounds; the
                 interval +-B reaches up to where half of the values are
    locate       number of values in each 64th of that interval; the narrowest part with half of
                 them; twice
    global       T_w times:  w <- w + 1.5 (mean of the users' ridge solutions to what w leaves over)

In the first two, a user adds shares of its rows, at most 1 per column: with c columns a norm of at
most sqrt(c), known in advance. Ridge solutions never overshoot what they are fitted to, so steps of
up to 2 are stable, whatever the data.

The budget is mu^2, shared between the phases of a run as `algo.shares` say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np

from privfed.algorithm.phases import EACH, NEVER, Measurement, Phase, Sum
from privfed.algorithm.strategy import PrivateStrategy
from privfed.data.tables.schema import Schema
from privfed.federation.federation import Federation
from privfed.foundation.constraints import WHOLE
from privfed.foundation.errors import ConfigError, check_positive
from privfed.foundation.linalg import Array
from privfed.models.table_model import NAMES, PARTS, TableModel, unscaled
from privfed.privacy.adaptive_clipping import NORMS
from privfed.privacy.bounds import NormBound
from privfed.privacy.settings import Clip

STEP, ZOOMS, HALF = 1.5, 2, 0.5
MANY = 5
"""Number of columns without bounds from which on the whole share for scales is used."""
QUARTILES = 1.349
"""Distance of a Gaussian's quartiles, in standard deviations."""
ASSUMED = (
    "under the assumption that the names, kinds, categories and labels of the table's columns are "
    "public"
)


class TableStrategy(PrivateStrategy):
    """Scales and a global model; an algorithm adds its phases after them."""

    publishes = NAMES
    global_is_model = False
    """Whether the global model is a model of its own, after each of its rounds."""

    def __init__(
        self,
        federation: Federation,
        global_rounds: Annotated[int, WHOLE],
        clip: Mapping[str, Clip],
        shares: Mapping[str, float],
    ) -> None:
        super().__init__(federation)
        if not isinstance(federation.schema, Schema):
            raise ConfigError("algo: this form of the algorithm is for tables; choose data=table")
        for name, share in shares.items():
            check_positive(f"algo.shares.{name}", share)
        self.schema: Schema = federation.schema
        self.model = TableModel.before(self.schema)
        self.columns = unscaled(self.schema)
        self.global_rounds, self.clip, self.shares = global_rounds, clip, shares
        self.guessed = np.zeros(0)
        """Per column without bounds: 1 if its scale did not stand out of the noise, else 0."""

    @property
    def guarantee(self) -> str | None:  # type: ignore[override]
        """Columns' names and kinds are published; unless declared, they are taken for public."""
        return None if self.schema.declared else ASSUMED

    def start(self) -> list[Array]:
        """Return public scales."""
        return self.model.arrays

    def phases(self) -> list[Phase]:
        """Return the phases for columns without public bounds, and the global model."""
        phases = []
        if self.columns:
            c = len(self.columns)
            bound = NormBound(math.sqrt(c))
            less = min(1.0, c / MANY)  # with fewer columns less budget gives the same accuracy
            phases = [
                Phase(
                    "magnitudes",
                    Sum((c, NORMS.size), bound),
                    self.set_intervals,
                    share=self.shares["magnitudes"] * less,
                    model=NEVER,
                ),
                Phase(
                    "locate",
                    Sum((c, PARTS), bound),
                    self.narrow_intervals,
                    ZOOMS,
                    share=self.shares["locate"] * less,
                    model=NEVER,
                ),
            ]
        w = self.clipped_phase("global", self.model.w.shape, self.step_global, self.global_rounds)
        return [*phases, replace(w, model=EACH if self.global_is_model else NEVER)]

    def clipped_phase(self, name: str, shape: object, update: object, rounds: int = 1) -> Phase:
        """Return a phase with the clip norm and the share of this name."""
        total = Sum(shape, self.clip[name], f"algo.clip.{name}")  # type: ignore[arg-type]
        measured = Measurement("narrow", share=self.shares["clip"], again=False)
        return Phase(
            name,
            total,
            update,  # type: ignore[arg-type]
            rounds,
            share=self.shares[name],
            measurement=measured,
        )

    # Updates from released means.

    def set_intervals(self, t: int, mean: Array) -> list[Array]:
        """Set intervals +-B, up to the power of two where half of the values are."""
        noise = self.noise_std("magnitudes")
        sure = [fullest(column, noise) for column in mean]
        self.guessed = np.array([run is None for run in sure], dtype=np.float64)
        tops = [(run or likeliest(column))[1] for run, column in zip(sure, mean, strict=True)]
        return self._scaled(np.zeros(len(tops)), 2.0 ** (np.array(tops) + NORMS.bottom))

    def narrow_intervals(self, t: int, mean: Array) -> list[Array]:
        """Narrow intervals around half of the values; the last time, set centre and spread."""
        noise = self.noise_std("locate")
        centre, half = self.model.centre[self.columns], self.model.spread[self.columns]
        runs = [fullest(column, noise) or (0, PARTS) for column in mean]
        first, last = np.array(runs).T
        low, high = (centre - half + 2 * half * edge / PARTS for edge in (first, last))
        room = 1 / QUARTILES if t == ZOOMS else 1.5
        return self._scaled((low + high) / 2, np.minimum((high - low) * room, half))

    def step_global(self, t: int, mean: Array) -> list[Array]:
        """Take one step of the global model."""
        return self.publish_model(replace(self.model, w=self.model.w + STEP * mean))

    def publish_model(self, model: TableModel) -> list[Array]:
        """Make this the model; return its arrays."""
        self.model = model
        return model.arrays

    def _scaled(self, centre: Array, spread: Array) -> list[Array]:
        whole = self.model.centre.copy(), self.model.spread.copy()
        for array, values in zip(whole, (centre, spread), strict=True):
            array[self.columns] = values
        return self.publish_model(replace(self.model, centre=whole[0], spread=whole[1]))

    def memory(self) -> dict[str, Array]:
        """Return which scales were guessed."""
        return {"guessed": self.guessed}

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore which scales were guessed; the model is read from the shared parameters."""
        self.model = TableModel.of(self.schema, self.shared)
        self.guessed = memory["guessed"]

    def notes(self) -> list[str]:
        """Say which scales noise may have made up."""
        names = [*(feature.name for feature in self.schema.numbers), self.schema.target.name]
        guessed = np.asarray(self.columns)[self.guessed.astype(bool)] if self.guessed.size else []
        if not len(guessed):
            return []
        unsure = ", ".join(names[column] for column in guessed)
        return [
            f"The scale of {unsure} did not stand out of the noise and is a guess, which may ruin "
            "the model: give public bounds (data.bounds), more users or a larger epsilon."
        ]


def fullest(column: Array, noise: float) -> tuple[int, int] | None:
    """Return the shortest run of bins first..last-1 that holds half of the values.

    Args:
        column: noised share of the values per bin, (bins,).
        noise: standard deviation of the noise per bin.

    Returns:
        (first, last), or None if no run surely holds half of the values.
    """
    sums = np.concatenate([[0.0], np.cumsum(column)])
    for width in range(1, len(column) + 1):
        mass = sums[width:] - sums[:-width]
        # The margin of three standard deviations keeps noise from being taken for values.
        if mass.max() >= HALF + 3 * noise * math.sqrt(width):
            first = int(np.argmax(mass))
            return first, first + width
    return None


def likeliest(column: Array) -> tuple[int, int]:
    """Return the three bins in a row, as first and last + 1, with most of the values."""
    first = int(np.argmax(column[:-2] + column[1:-1] + column[2:]))
    return first, first + 3
