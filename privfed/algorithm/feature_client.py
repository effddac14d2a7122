"""Base of clients with linear heads on public features: chunks of users, and judging."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from flwr.common import NDArrays
from numpy.typing import NDArray

from privfed.algorithm.client import CohortClient
from privfed.data.cohort import Cohort, Ids
from privfed.foundation.constraints import Number
from privfed.foundation.linalg import Array
from privfed.models.feature_users import FeatureUsers
from privfed.models.public_features import PublicFeatures

CHUNK = 32
"""Number of users that are computed together."""
STRENGTH = Number(lambda x: 1e-8 <= x < math.inf, "must be a number of at least 1e-8")
"""With much less, a user whose pictures are all equal would make the equations singular.

Singular equations would stop every user of the node.
"""


class FeatureClient(CohortClient):
    """Serves users with linear heads on fixed features.

    An algorithm adds its task, `scores` and `scores_alone`.
    """

    takes_rows = False
    nothing = -1.0

    def __init__(self, cohort: Cohort, model: PublicFeatures) -> None:
        super().__init__(cohort)
        self.model = model
        self._tested: tuple[Cohort, FeatureUsers, Array] | None = None

    # What an algorithm writes.

    def scores(self, user: FeatureUsers, test: Array, shared: NDArrays) -> Array:
        """Return the scores (B, t, classes) of held-out images, given the published model.

        Args:
            user: users.
            test: features of their held-out images, centred like the users' own, (B, t, D).
            shared: the published model.
        """
        raise TypeError(f"{type(self).__name__} does not say how a user predicts")

    def scores_alone(self, user: FeatureUsers, test: Array) -> Array:
        """Return the scores (B, t, classes) that a user would give alone."""
        raise TypeError(f"{type(self).__name__} does not say how a user predicts alone")

    # What all share.

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """Features of all users (n, m, D), not centred; computed once."""
        return self.model(self.cohort.X)

    def of_block(self, values: NDArray[Any], block: Cohort) -> NDArray[Any]:
        """Return the rows of `values` (n, ...) that belong to the users of a block."""
        return values[np.searchsorted(self.cohort.ids, block.ids)]

    def users(self, block: Cohort) -> FeatureUsers:
        """Return the users of a block with their features."""
        return FeatureUsers(block, self.of_block(self.features, block), self.model.classes)

    def blocks(self, users: Ids | None = None) -> Iterator[Cohort]:
        """Yield CHUNK users at a time, with pictures as they are stored."""
        everybody = np.arange(len(self.cohort)) if users is None else users
        for start in range(0, len(everybody), CHUNK):
            yield self.cohort[everybody[start : start + CHUNK]]

    def judged(self) -> Iterator[Cohort]:
        """Yield the users as they are judged at the end, in the same blocks."""
        return self.blocks()

    def own_errors(self, block: Cohort, shared: NDArrays) -> Array:
        """Return the fraction (B,) of each user's held-out pictures that its head gets wrong."""
        user, test = self._test(block)
        scores = self.scores(user, test, shared) if shared else self.scores_alone(user, test)
        return self._wrong(block, user, scores)

    def rival_errors(self, block: Cohort) -> dict[str, Array]:
        """Return the errors of each user alone, on the same features."""
        user, test = self._test(block)
        return {"alone": self._wrong(block, user, self.scores_alone(user, test))}

    def _test(self, block: Cohort) -> tuple[FeatureUsers, Array]:
        """Return the users and the features of their held-out pictures; cache the last block."""
        if self._tested is None or self._tested[0] is not block:
            user = self.users(block)
            self._tested = (block, user, user.centred(self.model(block.truth.X)))  # type: ignore[union-attr]
        return self._tested[1:]

    @staticmethod
    def _wrong(block: Cohort, user: FeatureUsers, scores: Array) -> Array:
        wrong: Array = block.truth.wrong(user.best(scores))  # type: ignore[union-attr]
        return wrong

    def keep(self, shared: NDArrays) -> None:
        """Keep nothing: heads follow from the published model and the user's own pictures."""
