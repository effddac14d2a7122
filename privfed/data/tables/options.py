"""The settings of data=table that concern reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from privfed.data.tables.schema import MISSING_POLICIES
from privfed.data.tables.schema_file import check_bounds
from privfed.foundation.errors import ConfigError, check_whole, nearest


@dataclass(frozen=True)
class Options:
    """Which file, and what its columns mean where a person knows better than the data.

    features: None for all columns that are nothing else. most_categories: a column with more values is hashed into so many
    buckets. schema: a file that says it all.
    """

    path: str | None = None
    user: str = "user"
    target: str | None = None
    time: str | None = None
    features: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    categorical: Sequence[str] = ()
    numeric: Sequence[str] = ()
    bounds: Mapping[str, Any] = field(default_factory=dict)
    categories: str = "one-hot"
    buckets: int = 64
    most_categories: int = 256
    missing: str = "mean"
    task: str = "auto"
    schema: str | None = None

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
        for key in ("features", "ignore", "categorical", "numeric"):
            given = getattr(self, key)
            if given is not None:
                if isinstance(given, str) or not isinstance(given, Sequence):
                    raise ConfigError.of(
                        f"data.{key}",
                        given,
                        f"must be a list of columns, such as data.{key}=[age,city]",
                    )
                object.__setattr__(self, key, tuple(map(str, given)))
        if not isinstance(self.bounds, Mapping):
            raise ConfigError.of(
                "data.bounds",
                self.bounds,
                "must give columns their bounds, such as data.bounds={age:[0,120]}",
            )
        bounds = {
            str(name): check_bounds(given, f"data.bounds.{name}")
            for name, given in self.bounds.items()
        }
        object.__setattr__(self, "bounds", bounds)
        allowed = {
            "categories": ("one-hot", "hash"),
            "missing": MISSING_POLICIES,
            "task": ("auto", "regression", "classification"),
        }
        for key, known in allowed.items():
            if getattr(self, key) not in known:
                raise ConfigError.of(
                    f"data.{key}", getattr(self, key), nearest(str(getattr(self, key)), known)
                )
        check_whole("data.buckets", self.buckets)
        check_whole("data.most_categories", self.most_categories)
        self._check_roles()

    def _check_roles(self) -> None:
        """No column may be two things."""
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
        both = [name for name in self.categorical if name in self.numeric]
        if both:
            raise ConfigError.of(
                "data.numeric", _listed(self.numeric), f"{both[0]!r} is in data.categorical, too"
            )
        wrong = [name for name in self.categorical if name in self.bounds]
        if wrong:
            raise ConfigError.of(
                f"data.bounds.{wrong[0]}",
                list(self.bounds[wrong[0]]),
                "the column is in data.categorical",
            )
        if self.schema is not None:
            for key in ("features", "ignore", "categorical", "numeric", "bounds"):
                if getattr(self, key):
                    raise ConfigError(
                        f"data.{key}: data.schema={self.schema} decides; change it in that file"
                    )


def _listed(names: Sequence[str] | None) -> str:
    return f"[{','.join(names or ())}]"
