"""The contract between a data source and the rest: what every source says about its users."""

from __future__ import annotations

from typing import Any, Protocol

from privfed.data.cohort import Cohort, Ids, UserCohort
from privfed.data.evaluation_bins import LOGARITHMIC, Scale
from privfed.data.tables.schema import Schema
from privfed.foundation.linalg import Array


class DataSource(Protocol):
    """Users of one data set, numbered 0..n-1.

    A source inherits from this class and states what differs from the defaults. It has to set
    `n`, `m`, `d`, `error`, `simulated`, `personal` and `seed`, and to define `cohort`.
    """

    n: int
    """Number of users."""
    m: int
    """Number of examples per user; the median where users differ."""
    d: int
    """Number of features per example."""
    error: str
    """Name of the error by which users are judged: `mse`, `risk` or `frobenius`."""
    simulated: bool
    named: bool = False
    """Whether the data name their users, whose identities then follow from their names."""
    """Whether errors may be disclosed, because no real user takes part."""
    real: bool = False
    """Whether rows are those of real users, even if a simulation is made with them."""
    personal: bool
    """Whether every user has a predictor of its own that can be judged."""
    seed: int
    """Seed of everything random in the data."""
    scale: Scale = LOGARITHMIC
    """Bins in which users' errors are counted."""
    floor: float = 0.0
    """Error that no predictor can avoid; it is added to the mean of users' errors."""
    U_star: Array | None = None
    """True shared representation (d, k); None where it is unknown or does not exist."""
    held_out: bool = False
    """Whether some rows of every user judge predictors and are not learnt from."""
    classes: int | None = None
    """Number of classes where targets are the classes 0..classes-1; None for other targets."""
    schema: Schema | None = None
    """Meaning of the columns, for sources that read tables."""
    columns: list[str] | None = None
    """Names of the features in their order, where clients must check them."""

    def cohort(self, first: int, last: int) -> UserCohort:
        """Return the users first..last-1 with their examples.

        Raises:
            ConfigError: if the data cannot be made or read.
        """
        ...

    def empty(self) -> UserCohort:
        """Return a cohort of no users, which has the shape of every other cohort."""
        return Cohort.empty(self.m, self.d)

    def validation(self) -> UserCohort | None:
        """Return users on whom the model is judged during training; None where there are none."""
        return None

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Compare a published model with the truth.

        Args:
            model: shared parameters by name.

        Returns:
            Metrics by name; none where the truth is unknown.
        """
        return {}

    def told(self, settings: dict[str, Any], simulated: bool) -> dict[str, Any]:
        """Return the settings from which a node on another machine makes this source.

        Args:
            settings: settings of this source.
            simulated: whether the users of the node are simulated.
        """
        return settings

    def constants(self) -> dict[str, float]:
        """Return constants of a simulated problem that theorems take as known, by name."""
        return {}

    def describe_split(self) -> Ids | None:
        """Count each user's training examples by class (n, classes); None without classes."""
        return None

    @property
    def examples(self) -> str:
        """What each user has, in words."""
        features = f"{self.d} features"
        return f"{self.m} examples of {features} each" if self.simulated else features

    @property
    def notes(self) -> list[str]:
        """Remarks on the data that belong into the result of a run."""
        return []

    def identity(self) -> list[str]:
        """Return facts that each identify these data, for their account; as secret as users."""
        return []

    @property
    def fingerprint(self) -> str | None:
        """Hash of the data, by which a resumed run notices other data; None for generated data."""
        return None
