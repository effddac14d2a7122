"""Users who are made when they are needed, some at a time, and forgotten: memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from privfed.data.cohort import BYTES, Cohort, Ids, Truth, users_within
from privfed.foundation.errors import ConfigError


@dataclass(frozen=True)
class Streamed:
    """Users first..last-1 of a source: what a Cohort tells of its users, without their examples.

    make: (first, last) -> the users' Cohort, always the same. shape: (n, m, d). each: bytes of a user's examples.
    """

    make: Callable[[int, int], Cohort]
    first: int
    last: int
    shape: tuple[int, ...]
    each: int
    truth: Truth | None

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def ids(self) -> Ids:
        """The users' public numbers (n,)."""
        return np.arange(self.first, self.last)

    @property
    def X(self) -> NoReturn:
        """Not there."""
        raise ConfigError.of(
            "data.stream", "true", "this needs all users' data in memory; set data.stream=false"
        )

    y = X

    def without_broken_users(self, target: float = 0.0) -> Streamed:
        """The same: simulated numbers are finite."""
        return self

    def blocks(
        self,
        examples: slice = slice(None),
        users: Ids | None = None,
        bytes_each: int = BYTES,
        exact: bool = True,
    ) -> Iterator[Cohort]:
        """As Cohort.blocks, in the same portions where all users are asked for."""
        size = users_within(bytes_each, self.each)
        for start in range(self.first, self.last, size):
            stop = min(start + size, self.last)
            if users is None:
                yield from self.make(start, stop).blocks(examples, None, bytes_each, exact)
                continue
            low, high = np.searchsorted(users, (start - self.first, stop - self.first))
            if low < high:
                yield from self.make(start, stop).blocks(
                    examples, users[low:high] - (start - self.first), bytes_each, exact
                )
