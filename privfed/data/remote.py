"""Users whose data stay with them: the server knows how many there are and how many features they have, nothing else."""

from __future__ import annotations

from privfed.data.cohort import Cohort
from privfed.data.error_bins import LOGARITHMIC
from privfed.foundation.errors import ConfigError, check_number, check_whole
from privfed.foundation.linalg import Array

ERRORS = ("mse", "risk")


class Remote:
    """n registered users with d features each. columns: the features' names, in order, where clients are to check them.

    m: about how many examples a user has; settings are checked with it, nothing else.
    """

    simulated = False
    personal = True
    scale, floor = LOGARITHMIC, 0.0

    def __init__(
        self,
        n: int | None,
        d: int | None,
        k: int,
        m: int,
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
        for key, value in (("data.n", n), ("data.d", d), ("data.k", k), ("data.m", m)):
            check_whole(key, value)
        check_number("data.k", k, lambda x: x <= d, f"cannot be larger than data.d={d}")
        if error not in ERRORS:
            raise ConfigError.of("data.error", error, f"must be one of {', '.join(ERRORS)}")
        if columns is not None and len(columns) != d:
            raise ConfigError.of(
                "data.columns", columns, f"names {len(columns)} features, but data.d={d}"
            )
        self.n, self.d, self.k, self.m, self.error, self.columns = n, d, k, m, error, columns

    def cohort(self, first: int, last: int) -> Cohort:
        """There is nothing to make."""
        raise ConfigError("data=remote: a client needs --data, the file with its user's rows")

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Nobody knows the true representation."""
        return {}
