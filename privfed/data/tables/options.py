"""The settings of data=table that say how a file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from privfed.data.tables.hints import column_bounds, column_list
from privfed.data.tables.schema import MISSING_POLICIES
from privfed.data.tables.schema_file import check_bounds
from privfed.foundation.constraints import WHOLE, Choice, check_settings
from privfed.foundation.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which file to read, and what its columns mean where a person knows better than the data.

    Defaults are in conf/data/table.yaml.

    Attributes:
        path: CSV or Parquet file.
        user: column with the user of each row.
        target: column to predict; None: the column `target` or `y`.
        time: column of numbers or dates; None: rows have no order.
        features: columns to learn from; None: all columns that have no other role.
        ignore: columns to leave out.
        categorical: columns whose numbers are names.
        numeric: columns whose numbers are quantities although they look like names.
        dates: columns of dates, where their numbers do not look like any.
        bounds: public [lowest, highest] of numeric columns.
        categories: how categorical columns are encoded, `one-hot` or `hash`.
        buckets: encoded columns of a hashed column.
        most_categories: a column with more different values is hashed into this many buckets.
        missing: what to do with missing values, one of MISSING_POLICIES.
        task: `auto`, `regression` or `classification`.
        schema: file that declares all of this; None: the schema is inferred.

    Raises:
        ConfigError: if a setting is not allowed, or settings contradict each other.
    """

    path: str | None
    user: str
    target: str | None
    time: str | None
    features: Sequence[str] | None
    ignore: Sequence[str]
    categorical: Sequence[str]
    numeric: Sequence[str]
    dates: Sequence[str]
    bounds: Mapping[str, Any]
    categories: Annotated[str, Choice("one-hot", "hash")]
    buckets: Annotated[int, WHOLE]
    most_categories: Annotated[int, WHOLE]
    missing: Annotated[str, Choice(*MISSING_POLICIES)]
    task: Annotated[str, Choice("auto", "regression", "classification")]
    schema: str | None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Options:
        """Make options from settings by name.

        Raises:
            ConfigError: if a setting is unknown or missing, or as for the constructor.
        """
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                raise ConfigError(f"data.{name}: is no setting of a table; {nearest(name, known)}")
        for name in known:
            if name not in settings:
                raise ConfigError(f"data.{name}: is missing")
        return cls(**settings)

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError.of(
                "data.path",
                self.path,
                "must be a CSV or Parquet file, such as data.path=ratings.csv",
            )
        if self.user in (None, ""):
            raise ConfigError.of(
                "data.user", self.user, "must be the column that says whose a row is"
            )
        for key in ("user", "target", "time"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, str(getattr(self, key)))
        for key in ("features", "ignore", "categorical", "numeric", "dates"):
            given = getattr(self, key)
            if given is not None:
                if isinstance(given, str) or not isinstance(given, Sequence):
                    raise ConfigError.of(
                        f"data.{key}",
                        given,
                        f"must be a list of columns, such as {column_list(key, ['age', 'city'])}",
                    )
                object.__setattr__(self, key, tuple(map(str, given)))
        if not isinstance(self.bounds, Mapping):
            raise ConfigError.of(
                "data.bounds",
                self.bounds,
                f"must give columns their bounds, such as {column_bounds({'age': (0, 120)})}",
            )
        bounds = {
            str(name): check_bounds(given, f"data.bounds.{name}")
            for name, given in self.bounds.items()
        }
        object.__setattr__(self, "bounds", bounds)
        check_settings("data", Options, vars(self))
        self._check_roles()

    def _check_roles(self) -> None:
        """Raise a ConfigError if a column has two roles."""
        roles = {"user": self.user, "target": self.target, "time": self.time}
        for role, name in roles.items():
            if role != "user" and name is not None and name == self.user:
                raise ConfigError.of(f"data.{role}", name, "is the user column already (data.user)")
            if name is not None and name in (self.features or ()):
                raise ConfigError.of(
                    "data.features",
                    _listed(self.features),
                    f"{name!r} is the {role} column, not a feature",
                )
        if self.target is not None and self.target == self.time:
            raise ConfigError.of(
                "data.time", self.time, "is the target column already (data.target)"
            )
        for key, other in (
            ("numeric", "categorical"),
            ("dates", "categorical"),
            ("dates", "numeric"),
        ):
            both = [name for name in getattr(self, other) if name in getattr(self, key)]
            if both:
                raise ConfigError.of(
                    f"data.{key}",
                    _listed(getattr(self, key)),
                    f"{both[0]!r} is in data.{other}, too",
                )
        wrong = [name for name in self.categorical if name in self.bounds]
        if wrong:
            raise ConfigError.of(
                f"data.bounds.{wrong[0]}",
                list(self.bounds[wrong[0]]),
                "the column is in data.categorical",
            )
        if self.schema is not None:
            for key in ("features", "ignore", "categorical", "numeric", "dates", "bounds"):
                if getattr(self, key):
                    raise ConfigError(
                        f"data.{key}: data.schema={self.schema} decides; change it in that file"
                    )


def _listed(names: Sequence[str] | None) -> str:
    return f"[{','.join(names or ())}]"
