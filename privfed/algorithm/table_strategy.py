"""Tables, server side: scales of columns, then one global model, both released; algorithms go on from there.

    magnitudes   how many values are of which power of two, for each column without public bounds: +-B up to where half are
    locate       how many lie in which 64th of that interval: the narrowest part of it with half of them; twice
    global       T_w times:  w <- w + 1.5 (mean of the users' ridge solutions to what w leaves over)

For the first two a user adds shares of its rows, at most 1 a column: with c columns a norm of at most sqrt(c), known in
advance. Ridge solutions never overshoot what they are fitted to, so steps of up to 2 are stable, whatever the data.

The budget is mu^2, shared as `algo.shares` say between the stages that there are; equally between the rounds of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from privfed.algorithm.phases import Step, check_gaussian
from privfed.algorithm.steps_of import Clip
from privfed.algorithm.strategy import PrivateStrategy
from privfed.data.tables.schema import Schema
from privfed.federation.federation import Federation, check_clip
from privfed.foundation.errors import ConfigError, check_number, check_whole
from privfed.foundation.linalg import Array
from privfed.models.table_model import NAMES, PARTS, TableModel, unscaled
from privfed.privacy.accounting import GaussianRelease
from privfed.privacy.clip_norms import AUTO, NORMS

STEP, ZOOMS, HALF = 1.5, 2, 0.5
MANY = 5
"""Columns without bounds that the whole share for scales is meant for."""
QUARTILES = 1.349
"""Between its quartiles a Gaussian is so many standard deviations wide."""
ASSUMED = "under the assumption that the names, kinds, categories and labels of the table's columns are public"


class TableStrategy(PrivateStrategy):
    """Takes a plan of several tasks; what becomes of a task's released mean is written in a method of that name."""

    names, uses_init = NAMES, False

    def __init__(
        self,
        federation: Federation,
        rounds: int,
        global_rounds: int,
        clip: Mapping[str, Clip],
        shares: Mapping[str, float],
    ) -> None:
        if not isinstance(federation.schema, Schema):
            raise ConfigError("algo: this form of the algorithm is for tables; choose data=table")
        self.model = TableModel.before(federation.schema)
        self.columns = unscaled(federation.schema)
        self.global_rounds = check_whole("algo.global_rounds", global_rounds)
        for name, share in shares.items():
            check_number(
                f"algo.shares.{name}",
                share,
                lambda x: 0 < x < math.inf,
                "must be a positive number",
            )
        self.parts = dict(shares)
        self.guessed = np.zeros(0)
        """Of the columns without bounds, those whose scale did not stand out of the noise (1) and those whose did (0)."""
        super().__init__(federation, rounds, clip)
        self.started = False

    def initial(self) -> list[Array]:
        """Public scales."""
        return self.model.arrays

    @property
    def guarantee(self) -> str | None:  # type: ignore[override]
        """Names and kinds of columns are published with the model; who did not declare them takes them for public."""
        return None if self.federation.schema.declared else ASSUMED

    # The plan.

    def stages(self) -> dict[str, int]:
        """Tasks and how often each is released."""
        scales = {"magnitudes": 1, "locate": ZOOMS} if self.columns else {}
        return {**scales, "global": self.global_rounds}

    def steps(self) -> list[Step]:
        """Every task in turn; before one whose clip norm is `auto`, a step that measures it."""
        stages = self.stages()
        settings, total = self.federation.privacy, self.federation.gate.ledger.budget.mu
        check_gaussian(settings, total)
        measured = [task for task in stages if self.clips[task] == AUTO]
        weights = {task: self.parts[task] for task in stages} | {
            f"{task} clip": self.parts["clip"] for task in measured
        }
        for task in weights.keys() & {
            "magnitudes",
            "locate",
        }:  # the fewer columns, the less noise hides where they lie
            weights[task] *= min(1.0, len(self.columns) / MANY)
        whole = sum(weights.values())

        def mu(name: str, releases: int) -> float:
            if settings.noise_multiplier is not None:
                return 1.0 / settings.noise_multiplier
            return total * math.sqrt(weights[name] / whole / releases)

        steps = []
        for task, rounds in stages.items():
            if task in measured:
                steps.append(Step(task, 0, measure=mu(f"{task} clip", 1), asks="narrow"))
            steps += [Step(task, t, mu(task, rounds)) for t in range(1, rounds + 1)]
        return steps

    def _clips(self, clip: Clip | Mapping[str, Clip]) -> dict[str, Clip]:
        """Shares have norms known in advance; the others' are configured."""
        assert isinstance(clip, Mapping)
        asked = self.federation.privacy.clip
        if asked not in (None, AUTO):
            raise ConfigError.of(
                "privacy.clip",
                asked,
                f"there are several clip norms; set algo.clip.{{{','.join(clip)}}}",
            )
        own = {
            name: check_clip(f"algo.clip.{name}", AUTO if asked == AUTO else bound)
            for name, bound in clip.items()
        }
        bound = math.sqrt(max(1, len(self.columns)))
        return {"magnitudes": bound, "locate": bound, **own}

    def _names(self, task: str) -> list[str]:
        return [task]

    def sums_of(self, step: Step) -> dict[str, tuple[int, ...]]:
        """One sum a task."""
        c = len(self.columns)
        shapes = {"magnitudes": (c, NORMS.size), "locate": (c, PARTS), "global": self.model.w.shape}
        return {step.task: shapes[step.task]}

    # What becomes of what was released.

    def _update(self, step: Step, sums: dict[str, Array], n: int) -> None:
        made = len(self.federation.gate.ledger.releases)
        (mean,) = self.release(step, sums, n)
        release = self.federation.gate.ledger.releases[made]
        noise = release.std / n if isinstance(release, GaussianRelease) else 0.0
        getattr(self, f"take_{step.task}")(step.round, mean, noise)
        self.shared = self.model.arrays

    def memory(self) -> dict[str, Array]:
        """Columns whose scale was guessed."""
        return {"guessed": self.guessed}

    def recall(self, memory: dict[str, Array]) -> None:
        """The model is what is shared."""
        self.model, self.guessed = (
            TableModel.of(self.federation.schema, self.shared),
            memory["guessed"],
        )

    @property
    def notes(self) -> list[str]:
        """Which scales noise may have made up."""
        schema = self.federation.schema
        names = [*(feature.name for feature in schema.numbers), schema.target.name]
        unsure = (
            [names[column] for column in np.asarray(self.columns)[self.guessed.astype(bool)]]
            if self.guessed.size
            else []
        )
        if not unsure:
            return []
        return [
            f"The scale of {', '.join(unsure)} did not stand out of the noise and is a guess, which may ruin the model: give "
            "public bounds (data.bounds), more users or a larger epsilon."
        ]

    def take_magnitudes(self, t: int, mean: Array, noise: float) -> None:
        """Intervals +-B, up to the power of two where half of the values are."""
        sure = [fullest(column, noise) for column in mean]
        self.guessed = np.array([run is None for run in sure], dtype=np.float64)
        tops = [(run or likeliest(column))[1] for run, column in zip(sure, mean, strict=True)]
        self.model = self._scaled(np.zeros(len(tops)), 2.0 ** (np.array(tops) + NORMS.bottom))

    def take_locate(self, t: int, mean: Array, noise: float) -> None:
        """Narrower intervals around half of the values, with room on both sides; after the last one centres and spreads."""
        centre, half = self.model.centre[self.columns], self.model.spread[self.columns]
        first, last = np.array([fullest(column, noise) or (0, PARTS) for column in mean]).T
        low, high = (centre - half + 2 * half * edge / PARTS for edge in (first, last))
        room = 1 / QUARTILES if t == ZOOMS else 1.5
        self.model = self._scaled((low + high) / 2, np.minimum((high - low) * room, half))

    def take_global(self, t: int, mean: Array, noise: float) -> None:
        """One step of the global model."""
        self.model = replace(self.model, w=self.model.w + STEP * mean)

    def _scaled(self, centre: Array, spread: Array) -> TableModel:
        whole = self.model.centre.copy(), self.model.spread.copy()
        for array, values in zip(whole, (centre, spread), strict=True):
            array[self.columns] = values
        return replace(self.model, centre=whole[0], spread=whole[1])


def fullest(column: Array, noise: float) -> tuple[int, int] | None:
    """The shortest run of bins first..last-1 that holds half of the values, by noised means (bins,); None: none surely does."""
    sums = np.concatenate([[0.0], np.cumsum(column)])
    for width in range(1, len(column) + 1):
        mass = sums[width:] - sums[:-width]
        if mass.max() >= HALF + 3 * noise * math.sqrt(
            width
        ):  # noise that gathers in a run must not pass for values
            first = int(np.argmax(mass))
            return first, first + width
    return None


def likeliest(column: Array) -> tuple[int, int]:
    """The three bins in a row with most of the values."""
    first = int(np.argmax(column[:-2] + column[1:-1] + column[2:]))
    return first, first + 3


class Global(TableStrategy):
    """One global private model with the whole budget: what personal models have to beat."""

    task = "global"

    def __init__(
        self,
        federation: Federation,
        global_rounds: int,
        clip: Mapping[str, Clip],
        shares: Mapping[str, float],
    ) -> None:
        super().__init__(federation, global_rounds, global_rounds, clip, shares)

    def take_global(self, t: int, mean: Array, noise: float) -> None:
        """After every step there is a model."""
        super().take_global(t, mean, noise)
        self.started = True
