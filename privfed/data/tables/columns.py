"""Arrow columns as NumPy arrays: distinct values, numbers, and moments in time."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.tables.schema import plain_text
from privfed.data.tables.table_files import MISSING, arrow
from privfed.foundation.linalg import Array

Mask = NDArray[np.bool_]

_NUMBER = r"(?i)^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|^[+-]?inf(inity)?$"


def distinct(column: Any) -> tuple[list[str | None], NDArray[np.int32]]:
    """The different values of a column as plain text (None: missing), and which of them each row has, (b,).

    A value may appear twice where a file spells it in two ways.
    """
    pa = arrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    encoded = (_clean(column) if pa.types.is_null(column.type) else column).dictionary_encode(
        null_encoding="encode"
    )
    texts = _clean(encoded.dictionary)
    # Most values are in plain spelling; to look closely at each in Python would take most of the time of reading.
    unusual = pa.compute.match_substring_regex(
        texts, r"\.0*$|^(?:True|TRUE|False|FALSE)$"
    ).to_pylist()
    plainly = [
        plain_text(text) if odd else text
        for text, odd in zip(texts.to_pylist(), unusual, strict=True)
    ]
    return plainly, encoded.indices.to_numpy(zero_copy_only=False)


def parse_numbers(column: Any, comma: bool = False) -> tuple[Array, Mask]:
    """A column (b,) as numbers, NaN where missing or not a number, and which values are not numbers.

    comma: whether 1,5 is one and a half.
    """
    pa = arrow()
    if not pa.types.is_boolean(column.type):
        try:
            values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return values, np.zeros(len(values), dtype=np.bool_)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    texts = _clean(column)
    if comma:
        texts = pa.compute.replace_substring(texts, ",", ".")
    good = pa.compute.match_substring_regex(texts, _NUMBER)
    values = pa.compute.if_else(good, texts, pa.scalar(None, pa.string())).cast(pa.float64())
    return values.to_numpy(zero_copy_only=False), ~good.fill_null(True).to_numpy(
        zero_copy_only=False
    )


def parse_times(column: Any) -> tuple[Array, Mask]:
    """Numbers as they are, and ISO dates as seconds since 1970 (of UTC where they name no zone); as for `numbers`."""
    pa = arrow()
    if not pa.types.is_temporal(column.type):
        values, odd = parse_numbers(column)
        if not odd.any():
            return values, odd
        column = _clean(column)
    try:
        ticks = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(
            pa.int64()
        )
        return ticks.cast(pa.float64()).to_numpy(zero_copy_only=False) / 1e6, np.zeros(
            len(column), dtype=np.bool_
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        values, odd = parse_numbers(column)
    texts, places = distinct(column)
    moments = [_moment(text) if text is not None else math.nan for text in texts]
    found = np.array(
        [math.nan if moment is None else moment for moment in moments], dtype=np.float64
    )[places]
    odd &= np.array([moment is None for moment in moments], dtype=np.bool_)[places]
    return np.where(np.isnan(values), found, values), odd


def _moment(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _clean(values: Any) -> Any:
    """Values as trimmed text, null where missing."""
    pa = arrow()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        texts = values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        texts = pa.array(
            [None if value is None else str(value) for value in values.to_pylist()], pa.string()
        )
    if pa.types.is_floating(values.type):
        # Arrow writes large whole numbers as 1e+15, which no other file of the same users does.
        written = zip(texts.to_pylist(), values.to_pylist(), strict=True)
        texts = pa.array(
            [f"{value:.0f}" if text and "e+" in text else text for text, value in written],
            pa.string(),
        )
    texts = pa.compute.utf8_trim_whitespace(texts)
    absent = pa.compute.is_in(texts, value_set=pa.array(MISSING))
    return pa.compute.if_else(absent, pa.scalar(None, pa.string()), texts)
