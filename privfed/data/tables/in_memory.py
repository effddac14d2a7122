"""Encoding of rows in arrays or data frames, by the same rules as for files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privfed.data.tables.encoding import Encoder
from privfed.data.tables.ragged_cohort import TableRows
from privfed.data.tables.schema import Schema
from privfed.data.tables.schema_inference import require
from privfed.data.tables.table_files import Columns, TableReader, arrow
from privfed.foundation.errors import ConfigError


class InMemoryTable(TableReader):
    """Columns in memory. Messages call them X."""

    def __init__(self, columns: Mapping[str, Any]):
        self.path, self.header, self.columns = Path("X"), tuple(columns), columns

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Columns]]:
        """Yield all rows at once."""
        yield 0, {name: _column(name, self.columns[name]) for name in names}


def encode_rows(schema: Schema, X: Any, y: Any = None, fitting: bool = True) -> TableRows:
    """Encode rows and, if given, their targets.

    Args:
        schema: meaning of the columns.
        X: mapping or data frame whose columns include the features, or an array (m, features) with
            exactly the features in the schema's order.
        y: targets (m,).
        fitting: whether rows with missing values are left out if the schema says so. Predictions
            need an answer for every row.

    Returns:
        Rows (m,) in compact form.

    Raises:
        ConfigError: if X or y do not fit the schema or each other.
    """
    table = InMemoryTable(_columns(schema, X))
    names = list(schema.columns)
    for name in names:
        require(table, name, "a feature")
    ((_, columns),) = table.batches(names)
    sizes = {name: len(column) for name, column in columns.items()}
    m = sizes[names[0]]
    if y is not None:
        columns = {**columns, schema.target.name: _column("y", y)}
        sizes["y"] = len(columns[schema.target.name])
    for name, size in sizes.items():
        if size != m:
            raise ConfigError(f"X, y: {name!r} has {size} values, {names[0]!r} has {m}")
    if not m:
        p, q = len(schema.numbers), len(schema.choices)
        return TableRows(np.empty((0, p)), np.empty((0, q), np.int32), np.empty(0))
    if schema.missing == "drop" and not fitting:
        schema = replace(schema, missing="mean")
    encoder = Encoder(table, replace(schema, time=None), need_target=y is not None, strict=True)
    encoder.add(0, columns)
    lost = encoder.counts.get((schema.target.name, "no target"), 0)
    if lost:
        raise ConfigError(f"y: {lost} of {m} values are missing; leave these rows out")
    frame = encoder.finish()
    return TableRows(frame.numbers, frame.codes, frame.target)


def _columns(schema: Schema, X: Any) -> dict[str, Any]:
    """Return columns by name."""
    if isinstance(X, Mapping):
        return {str(name): column for name, column in X.items()}
    if hasattr(X, "columns") and hasattr(X, "__getitem__"):  # a data frame, or an Arrow table
        return {str(name): X[name] for name in getattr(X, "column_names", None) or X.columns}
    if isinstance(X, np.ndarray) and X.dtype.names:
        return {name: X[name] for name in X.dtype.names}
    array = X if isinstance(X, np.ndarray) else _objects("X", X)
    names = list(schema.columns)
    if array.ndim == 1 and not array.size:
        array = array.reshape(0, len(names))
    if array.ndim != 2:
        raise ConfigError(f"X: must have two dimensions, rows and columns, and has {array.ndim}")
    if array.shape[1] != len(names):
        raise ConfigError(
            f"X: has {array.shape[1]} columns; the model takes {len(names)}: {', '.join(names)}"
        )
    return dict(zip(names, array.T, strict=True))


def _column(name: str, values: Any) -> Any:
    """Return an Arrow array; values of several types become text, as in a file."""
    pa = arrow()
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        values = values if hasattr(values, "dtype") else _objects(name, values)
        if np.ndim(values) != 1:
            raise ConfigError(f"{name}: must have one dimension, and has {np.ndim(values)}")
        try:
            values = pa.array(values, from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            values = pa.array(
                [None if v is None or v != v else str(v) for v in values], pa.string()
            )
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_nested(values.type):
        raise ConfigError(f"{name}: holds {values.type} and not single values")
    return values


def _objects(name: str, values: Any) -> Any:
    """Return any list as an array of objects, so that no value changes its type."""
    try:
        return np.asarray(values, dtype=object)
    except ValueError as error:
        raise ConfigError(f"{name}: must be an array ({error})") from error
