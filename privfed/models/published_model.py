"""Published part of a finished run, read back from its folder, for use after training."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from privfed.config.saved_config import load_config
from privfed.data.tables.schema import Schema
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.models.linear_model import LinearModel
from privfed.models.table_model import KINDS, MIXTURE, NAMES, TableModel

Model = TableModel | LinearModel
LEAST_SQUARES = "least-squares"
"""The `head` of an algorithm's config: users predict as privfed/models/personal_predictors.py says,
with least-squares heads on U unless more is published."""
LINEAR = (("U",), ("U", "spread"), ("U", "heads", "spread"))
"""Arrays that linear representations publish."""


@dataclass(frozen=True)
class Published:
    """Published part of a finished run.

    Attributes:
        folder: folder of the run.
        arrays: arrays of model.npz by name.
        result: content of result.json.
        schema: columns of a table; None without a table.
        head: kind of heads that the algorithm's config states.
        safety: whether it states that users mix the federated model with their own.
    """

    folder: Path
    arrays: dict[str, Array]
    result: dict[str, Any]
    schema: Schema | None
    head: str | None = None
    safety: bool = False

    @property
    def real(self) -> bool:
        """Whether the run was on the rows of a table, which are those of real users."""
        return self.schema is not None

    @cached_property
    def model(self) -> Model:
        """Return the shared part of a linear personal model.

        Raises:
            ConfigError: the run has none.
        """
        if self.schema is not None and set(NAMES) <= set(self.arrays):
            return self._table(self.schema)
        names = next((names for names in LINEAR if set(names) == set(self.arrays)), None)
        if names and self.arrays["U"].ndim == 2 and self.head == LEAST_SQUARES:
            return LinearModel(tuple(self.arrays[name] for name in names), self.safety)
        if set(NAMES) <= set(self.arrays):
            raise ConfigError(
                f"{self.folder}: has no schema.yaml, so nobody knows what the columns of its "
                "table mean"
            )
        what = ", ".join(self.arrays) if len(self.arrays) < 6 else f"{len(self.arrays)} arrays"
        kinds = (
            "heads are fitted to runs on tables, and to algorithms whose config says "
            f"head: {LEAST_SQUARES}"
        )
        raise ConfigError(
            f"{self.folder}: algo={self.result['algo']} published {what or 'nothing'}; {kinds}"
        )

    def _table(self, schema: Schema) -> TableModel:
        kind = self.head if self.head in KINDS else MIXTURE
        model = TableModel.of(schema, [self.arrays[name] for name in NAMES], kind)
        k, C, scales = model.scale.size, schema.outputs, (len(schema.numbers) + 1,)
        effects = (schema.d + 1, model.effects.shape[-1])
        shapes = (scales, scales, scales, (schema.d + 1, C), (schema.d, k), (k,), effects,
                  model.evidence.shape)  # fmt: skip
        if tuple(array.shape for array in model.arrays) != shapes:
            raise ConfigError(
                f"{self.folder}: model.npz is not of the columns in schema.yaml; was one of them "
                "edited?"
            )
        return model


def read_published(folder: str | Path) -> Published:
    """Return the published part of a finished run.

    Args:
        folder: folder of the run.

    Raises:
        ConfigError: the folder has no finished run, or a file cannot be read.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder")
    if not (folder / "result.json").exists():
        raise ConfigError(f"{folder}: is not a finished run, as it has no result.json")
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder / 'result.json'}: cannot be read ({' '.join(str(error).split())})"
        ) from error
    if not isinstance(result, dict) or not {"algo", "privacy", "n_users"} <= set(result):
        raise ConfigError(f"{folder / 'result.json'}: is not the result of a run")
    arrays, schema = _arrays(folder / "model.npz"), _schema(folder / "schema.yaml")
    return Published(folder, arrays, result, schema, *_about_heads(folder))


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name]) for name in file}
    except FileNotFoundError as error:
        raise ConfigError(f"{path.parent}: has no model.npz, so nothing was published") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise ConfigError(f"{path}: {name} is not an array of finite numbers")
    return arrays


def _schema(path: Path) -> Schema | None:
    if not path.exists():
        return None
    try:
        return Schema.from_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error


def _about_heads(folder: Path) -> tuple[str | None, bool]:
    """Return the kind of heads that the algorithm's config states, if any, and its `safety`."""
    if not (folder / "config.yaml").exists():
        return None, False
    algo = load_config(folder).algo
    head = algo.get("head")
    return None if head is None else str(head), bool(algo.get("safety", False))
