"""The server side of algorithms on tables: scales of columns, then one global model.

    magnitudes   number of values per power of two, for each column without public bounds; the
                 interval +-B reaches up to where most of the values are
    locate       number of values in each 32nd of that interval; the narrowest part with half of
                 them; twice
    curvature    G = mean of f_i A_i^T A_i, each positive semidefinite and of norm at most 1
    gradient     T times:  w <- average of the steps so far, shrunk;
                 step = w + W W (mean of f_i A_i^T R_i),  W = (G_+ + RIDGE edge I)^(-1/2)
    counts       N_l = mean of the users' shares of item l, of norm at most 1
    sums         S_l = mean of the users' residuals of item l; its bias is
                 b_l = S_l tau N_l / (tau (N_l^2 + var N_l) + var S_l)

Notation is that of the client. edge is the largest eigenvalue of the noise in G. Gradients are
whitened by W before noise is added, so that noise is equally large in all directions that predict.
Without noise the first step is exact: w is the solution of generalised least squares.

The budget is mu^2, shared between the phases of a run as `algo.shares` say, after the scales have
had what they need. Which phases a run has follows from n, mu and the columns (`table_outlook`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np

from privfed.algorithm import table_outlook as outlook
from privfed.algorithm.phases import LAST, NEVER, Measurement, Phase, Sum, check_gaussian
from privfed.algorithm.strategy import PrivateStrategy
from privfed.algorithm.table_client import MAGNITUDES, SPREADS
from privfed.algorithm.table_estimates import fullest, item_biases, peak, root_inverse, shrunk
from privfed.data.tables.schema import Schema
from privfed.federation.federation import Federation
from privfed.foundation.constraints import WHOLE, Key
from privfed.foundation.errors import ConfigError, check_positive
from privfed.foundation.linalg import Array, unsvec
from privfed.models.table_model import NAMES, PARTS, TableModel, unscaled
from privfed.privacy.adaptive_clipping import AUTO
from privfed.privacy.bounds import UNCLIPPED, Bound, NonNegativeBound, NormBound, SemidefiniteBound
from privfed.privacy.settings import Clip

ZOOMS, HALF, MOST_VALUES = 2, 0.5, 0.6
QUARTILES = 1.349
"""Distance of a Gaussian's quartiles, in standard deviations."""
COARSE = 6.0
"""Largest spread of a column over all rows, in units of its spread within users."""
RIDGE = 0.3
"""Ridge of the curvature, in units of the largest eigenvalue of its noise."""
USUAL = {"gradient": 0.12, "sums": 0.5}
"""Clip norms where n and mu are too small to measure any: whitened parts have about this norm."""
ASSUMED = (
    "under the assumption that the names, kinds, categories and labels of the table's columns, and "
    "the bounds of those with few values, are public"
)


class TableStrategy(PrivateStrategy):
    """Scales and a global model; an algorithm adds its phases after them."""

    publishes = NAMES

    def __init__(
        self,
        federation: Federation,
        rounds: Annotated[int, WHOLE, Key("rounds")],
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
        self.rounds, self.clip, self.shares = rounds, clip, shares
        check_gaussian(federation.privacy, federation.gate.ledger.budget.mu)
        self.scales = outlook.scales(
            self.mu, federation.n, unscaled(self.schema), len(self.schema.numbers)
        )
        self.kept: dict[str, Array] = {}
        """What later rounds need besides the model: public arrays by name."""

    @property
    def mu(self) -> float:
        """The budget; with a fixed noise multiplier, about what the run will spend."""
        fixed = self.federation.privacy.noise_multiplier
        whole = self.federation.gate.ledger.budget.mu
        return whole if fixed is None else min(whole, 3.0 / fixed)

    @property
    def guarantee(self) -> str | None:  # type: ignore[override]
        """Columns' names and kinds are published; unless declared, they are taken for public."""
        return None if self.schema.declared else ASSUMED

    @property
    def width(self) -> int:
        """P: the constant, and the dense columns that can have a scale."""
        local = sum(
            feature.bounds is None and place not in self.scales
            for place, feature in enumerate(self.schema.numbers)
        )
        return 1 + len(self.schema.dense) - local

    @property
    def releases(self) -> bool:
        """Whether a global model can be seen; otherwise nothing is asked, and nothing released."""
        aimed = bool(self.schema.classes) or self.schema.target.bounds is not None
        if not aimed and len(self.schema.numbers) not in self.scales:
            return False
        share = self.parts["gradient"] / sum(self.parts.values()) * (1 - self.scales.share)
        seen = outlook.visibility(self.mu, share, self.federation.n, self.width)
        return seen >= outlook.SEEN

    @property
    def parts(self) -> dict[str, float]:
        """Relative shares of the global model's phases, by the kind of table."""
        kind = "columns"
        if len(self.schema.items):
            kind = "both" if self.width > 1 else "items"
        names = ("curvature", "gradient", "counts", "sums")
        table = {name: self.shares.get(f"{name}_{kind}", 0.0) for name in names}
        return {name: share for name, share in table.items() if share}

    def start(self) -> list[Array]:
        """Return public scales."""
        return self.model.arrays

    def phases(self) -> list[Phase]:
        """Return all phases, the last of them with the model; none if nothing can be seen."""
        if not self.releases:
            return []
        learning = [*self.global_phases(), *self.personal_phases()]
        # The last phase only improves on a model: if its result is lost, there is one all the same.
        learning[-2:] = [replace(phase, model=LAST) for phase in learning[-2:]]
        rest = sum(p.share for p in learning) + sum(
            float(p.measurement.share or 0.0) for p in learning if self.measures(p)
        )
        return [*self.scale_phases(rest / (1 - self.scales.share)), *learning]

    def measures(self, phase: Phase) -> bool:
        """Return whether a clip norm of the phase is found privately."""
        return any(total.bound == AUTO for total in phase.named.values())

    def personal_phases(self) -> list[Phase]:
        """Return what follows the global model; an algorithm adds it here."""
        return []

    def scale_phases(self, whole: float) -> list[Phase]:
        """Return the phases for columns without public bounds, given the shares of all phases.

        A user's shares have no negative entry and add up to at most 1 per column: with c columns
        a norm of at most sqrt(c), known in advance.
        """
        scales = self.scales

        def phase(
            name: str, columns: tuple[int, ...], bins: int, update: object, rounds: int,
            share: float,
        ) -> Phase:  # fmt: skip
            c = len(columns)
            return Phase(
                name,
                Sum((c, bins), NonNegativeBound(math.sqrt(c))),
                update,  # type: ignore[arg-type]
                rounds,
                share=whole * share * rounds,
                announce=lambda: [*self.model.arrays, np.array(columns, dtype=np.float64)],
                model=NEVER,
            )

        phases = []
        if scales.pooled:
            each = scales.pooled_share / (1 + ZOOMS)
            phases = [
                phase("magnitudes", scales.pooled, MAGNITUDES.size, self.set_intervals, 1, each),
                phase("locate", scales.pooled, PARTS, self.narrow_intervals, ZOOMS, each),
            ]
        if scales.within:
            share = scales.within_share
            phases.append(phase("spreads", scales.within, SPREADS.size, self.set_spreads, 1, share))
        return phases

    def global_phases(self) -> list[Phase]:
        """Return the phases of the global model."""
        schema, parts = self.schema, self.parts
        P, L, C = 1 + len(schema.dense), len(schema.items), schema.outputs
        entries = (P * (P + 1) // 2,)
        unit = UNCLIPPED if math.isinf(self.mu) else 1.0  # without noise nothing is bounded
        phases = [
            self.bounded("curvature", entries, SemidefiniteBound(unit), self.set_curvature,
                         parts["curvature"]),
            replace(
                self.clipped("gradient", (P, C), self.step, parts["gradient"], self.rounds),
                announce=lambda: [*self.model.arrays, self.kept["whitener"]],
            ),
        ]  # fmt: skip
        if L:
            features = len(schema.item_features)
            phases += [
                self.bounded(
                    "counts", (L, 1), NonNegativeBound(unit), self.set_counts, parts["counts"]
                ),
                self.clipped("sums", (L, C), self.set_biases, parts["sums"], features),
            ]
        return phases

    def bounded(
        self, name: str, shape: object, bound: object, update: object, share: float
    ) -> Phase:
        """Return a phase of one round whose parts have a bound of their own."""
        return Phase(name, Sum(shape, bound), update, share=share, model=NEVER)  # type: ignore[arg-type]

    def clipped(
        self,
        name: str,
        shape: object,
        update: object,
        share: float,
        rounds: int = 1,
        bounded: Callable[[float], Bound] = NormBound,
    ) -> Phase:
        """Return a phase with a clip norm: configured, measured, or the usual one.

        Without noise nothing is clipped, unless a clip norm is configured.
        """
        clip: Clip = self.clip[name]
        if clip == AUTO and math.isinf(self.mu):
            clip = UNCLIPPED
        elif clip == AUTO and name in USUAL:
            seen = outlook.measurable(self.mu, self.shares["clip"], self.federation.n)
            clip = AUTO if seen else USUAL[name]
        total = Sum(shape, clip, f"algo.clip.{name}", bounded=bounded)  # type: ignore[arg-type]
        measured = Measurement("narrow", share=self.shares["clip"], again=False)
        return Phase(
            name,
            total,
            update,  # type: ignore[arg-type]
            rounds,
            share=share,
            measurement=measured,
            model=NEVER,
        )

    # Updates from released means.

    def set_intervals(self, t: int, mean: Array) -> list[Array]:
        """Set intervals +-B, up to the power of two where most of the values are."""
        noise = self.noise_std("magnitudes")
        runs = [fullest(column, noise, MOST_VALUES) for column in mean]
        tops = [0.0 if run is None else 2.0 ** (run[1] + MAGNITUDES.bottom) for run in runs]
        return self._scaled(np.zeros(len(tops)), np.array(tops))

    def narrow_intervals(self, t: int, mean: Array) -> list[Array]:
        """Narrow intervals around half of the values; the last time, set centre and spread.

        A column in which nothing stands out in the first zoom loses its scale, and stays with the
        users.
        """
        noise = self.noise_std("locate")
        columns = list(self.scales.pooled)
        centre, half = self.model.centre[columns], self.model.spread[columns]
        runs = [fullest(column, noise, HALF) for column in mean]
        first, last = np.array([(0, PARTS) if run is None else run for run in runs]).T
        low, high = (centre - half + 2 * half * edge / PARTS for edge in (first, last))
        room = 1 / QUARTILES if t == ZOOMS else 1.5
        spread = np.minimum((high - low) * room, half)
        lost = np.array([run is None for run in runs]) & (t == 1)
        return self._scaled((low + high) / 2, np.where(lost, 0.0, spread))

    def set_spreads(self, t: int, mean: Array) -> list[Array]:
        """Take columns around users' own means if their centre is not known, or not well enough.

        A spread over all rows that is many times the spread within users says that the zooms did
        not reach the values: they lie far from 0, close together.
        """
        noise, columns = self.noise_std("spreads"), list(self.scales.within)
        places = [peak(column, noise) for column in mean]
        found = np.array([0.0 if p is None else 2.0 ** ((p + SPREADS.bottom) / 2) for p in places])
        spread, within = self.model.spread.copy(), self.model.within.copy()
        centre, pooled = self.model.centre.copy(), spread[columns]
        own = (pooled == 0) | (pooled > COARSE * found) & (found > 0)
        within[columns] = own
        spread[columns] = np.where(own, found, pooled)
        centre[columns] = np.where(own, 0.0, centre[columns])
        return self.publish_model(replace(self.model, centre=centre, spread=spread, within=within))

    def set_curvature(self, t: int, mean: Array) -> list[Array]:
        """Keep the whitener W of the released curvature."""
        P = 1 + len(self.schema.dense)
        edge = self.noise_std("curvature") * math.sqrt(2 * P)
        self.kept["whitener"] = root_inverse(unsvec(mean, P), RIDGE * edge)
        return self.model.arrays

    def step(self, t: int, mean: Array) -> list[Array]:
        """Take one step of the global model, and publish the shrunk average of all steps.

        Every step aims at the solution itself, with fresh noise; later ones are less clipped. The
        average with weights t = 1, 2, ... uses all of them.
        """
        W, P = self.kept["whitener"], len(mean)
        dense = np.concatenate([[0], 1 + self.schema.dense])
        aim = self.model.w[dense] + math.sqrt(P) * (W @ mean)
        part = 2.0 / (t + 1)
        last, variance = self.kept.get("average", aim), self.kept.get("variance", np.ones(1))
        average = aim if t == 1 else last + part * (aim - last)
        variance = np.ones(1) if t == 1 else (1 - part) ** 2 * variance + part**2
        self.kept |= {"average": average, "variance": variance}
        noise = self.noise_std("gradient") ** 2 * P * float(variance[0])
        w = self.model.w.copy()
        w[dense] = shrunk(average, noise * (W @ W))
        return self.publish_model(replace(self.model, w=w))

    def set_counts(self, t: int, mean: Array) -> list[Array]:
        """Keep the released counts of items."""
        self.kept["counts"] = mean[:, 0]
        return self.model.arrays

    def set_biases(self, t: int, mean: Array) -> list[Array]:
        """Set the biases of the t-th feature with items."""
        b = self.schema.item_features[t - 1]
        before = sum(int(self.schema.sizes[i]) for i in self.schema.item_features[: t - 1])
        mine = slice(before, before + int(self.schema.sizes[b]))
        biases = item_biases(
            mean[mine],
            self.kept["counts"][mine],
            self.noise_std("sums"),
            self.noise_std("counts"),
            self.federation.n,
            weighted=not math.isinf(self.mu),
        )
        w = self.model.w.copy()
        w[1 + self.schema.items[mine]] = biases
        return self.publish_model(replace(self.model, w=w))

    def publish_model(self, model: TableModel) -> list[Array]:
        """Make this the model; return its arrays."""
        self.model = model
        return model.arrays

    def _scaled(self, centre: Array, spread: Array) -> list[Array]:
        whole = self.model.centre.copy(), self.model.spread.copy()
        for array, values in zip(whole, (centre, spread), strict=True):
            array[list(self.scales.pooled)] = values
        return self.publish_model(replace(self.model, centre=whole[0], spread=whole[1]))

    def memory(self) -> dict[str, Array]:
        """Return what later rounds need."""
        return self.kept

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore what later rounds need; the model is read from the shared parameters."""
        self.model = TableModel.of(self.schema, self.shared)
        self.kept = memory

    def notes(self) -> list[str]:
        """Say what stays with the users, and why."""
        schema = self.schema
        if not self.plan:
            return [
                "Nothing was released: with so few users at this epsilon a shared model would be "
                "noise, so users are on their own."
            ]
        names = [*(feature.name for feature in schema.numbers), schema.target.name]
        local = [name for name, spread in zip(names, self.model.spread, strict=True) if not spread]
        if not local or not self.started:
            return []
        listed = ", ".join(local)
        more = "public bounds (data.bounds)" + (
            "" if math.isinf(self.mu) else ", more users or a larger epsilon"
        )
        if schema.target.name in local:
            return [
                f"The scale of {listed} did not stand out of the noise, so there is no global "
                f"model and users are on their own; it takes {more}."
            ]
        return [
            f"The scale of {listed} did not stand out of the noise: only users' own fits use it. "
            f"It takes {more}."
        ]
