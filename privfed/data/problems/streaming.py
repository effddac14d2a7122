"""Users who are generated in portions whenever they are needed, so that memory stays constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from privfed.data.cohort import BYTES, Cohort, Ids, Truth, users_within
from privfed.data.user_identity import Identities
from privfed.foundation.errors import ConfigError


@dataclass(frozen=True)
class Streamed:
    """Users first..last-1 of a source. It has what a Cohort has, except the examples.

    Attributes:
        make: function (first, last) -> Cohort of these users; it always returns the same users.
        first: public number of the first user.
        last: public number after that of the last user.
        shape: (n, m, d).
        each: bytes of examples per user.
        truth: what is known about all users together.
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
        """Public numbers (n,) of the users."""
        return np.arange(self.first, self.last)

    @property
    def identities(self) -> Identities:
        """Identities (n,) of the users: their numbers."""
        return self.ids.astype(np.uint64)

    @property
    def m(self) -> int:
        """Number of examples of each user."""
        return self.shape[1]

    @property
    def X(self) -> NoReturn:
        """Raise a ConfigError: the examples are never all in memory."""
        raise ConfigError.of(
            "data.stream", "true", "this needs all users' data in memory; set data.stream=false"
        )

    y = X

    def __getitem__(self, users: slice | Ids) -> Streamed:
        """Return users who are consecutive.

        Raises:
            ConfigError: for any other selection, which only users in memory allow.
        """
        if not isinstance(users, slice) or users.step not in (None, 1):
            return self.X
        first, last, _ = users.indices(len(self))
        last = max(first, last)
        return replace(
            self,
            first=self.first + first,
            last=self.first + last,
            shape=(last - first, *self.shape[1:]),
        )

    def without_broken_users(self, target: float = 0.0) -> Streamed:
        """Return the same users: simulated numbers are finite."""
        return self

    def blocks(
        self,
        users: Ids | None = None,
        *,
        examples: slice = slice(None),
        bytes_each: int = BYTES,
        exact: bool = True,
    ) -> Iterator[Cohort]:
        """See :class:`UserCohort`. Portions of all users are the same as those of a Cohort."""
        size = users_within(bytes_each, self.each)
        for start in range(self.first, self.last, size):
            stop = min(start + size, self.last)
            mine = None
            if users is not None:
                low, high = np.searchsorted(users, (start - self.first, stop - self.first))
                if low == high:
                    continue
                mine = users[low:high] - (start - self.first)
            yield from self.make(start, stop).blocks(
                mine, examples=examples, bytes_each=bytes_each, exact=exact
            )
