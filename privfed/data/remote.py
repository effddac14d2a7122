"""Users whose data stay with them: the server knows only their number and their features."""

from __future__ import annotations

from typing import Annotated

from privfed.data.cohort import Cohort
from privfed.data.source import DataSource
from privfed.foundation.constraints import WHOLE
from privfed.foundation.errors import ConfigError, check_number

ERRORS = ("mse", "risk")


class Remote(DataSource):
    """Registered users whose data are on other machines.

    Args:
        n: number of registered users.
        d: features per example.
        k: dimension of the shared representation.
        m: approximate number of examples per user; it only serves to check settings.
        error: `mse` where targets are numbers, `risk` where they are the labels -1 and 1.
        columns: names of the features in their order, which clients must check; None: any.
        seed: seed of the run.

    Raises:
        ConfigError: if n or d is missing, k > d, `error` is unknown or `columns` are not d names.
    """

    simulated = False
    real = True
    personal = True

    def __init__(
        self,
        n: Annotated[int, WHOLE] | None,
        d: Annotated[int, WHOLE] | None,
        k: Annotated[int, WHOLE],
        m: Annotated[int, WHOLE],
        error: str,
        columns: list[str] | None,
        seed: int,
    ) -> None:
        if n is None:
            raise ConfigError(
                "data=remote: data stay with their users; start privfed server with a roster"
            )
        if d is None:
            raise ConfigError("data.d: say how many features a user has, as in data.d=5")
        check_number("data.k", k, lambda x: x <= d, f"cannot be larger than data.d={d}")
        if error not in ERRORS:
            raise ConfigError.of("data.error", error, f"must be one of {', '.join(ERRORS)}")
        if columns is not None and len(columns) != d:
            raise ConfigError.of(
                "data.columns", columns, f"names {len(columns)} features, but data.d={d}"
            )
        self.n, self.d, self.k, self.m = n, d, k, m
        self.error, self.columns, self.seed = error, columns, seed

    def cohort(self, first: int, last: int) -> Cohort:
        """Raise a ConfigError: only a client has data."""
        raise ConfigError("data=remote: a client needs --data, the file with its user's rows")
