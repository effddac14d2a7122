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

_SPACES = (
    "' \N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}\N{RIGHT SINGLE QUOTATION MARK}"
)
_SIGN = r"(?:[$€£¥₹]|USD|EUR|GBP|CHF|JPY|INR|US\$)"
_BEFORE = rf"^([+-]?)\s*{_SIGN}\s*"
_AFTER = rf"\s*(?:{_SIGN}|%)$"


def distinct(column: Any) -> tuple[list[str | None], NDArray[np.int32]]:
    """Return the different values of a column, and which of them each row has.

    A value may occur twice if a file spells it in two ways.

    Args:
        column: Arrow array of b values.

    Returns:
        The values as plain text, None for a missing one, and the place (b,) of each row's value.
    """
    pa = arrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    encoded = (clean_texts(column) if pa.types.is_null(column.type) else column).dictionary_encode(
        null_encoding="encode"
    )
    texts = clean_texts(encoded.dictionary)
    # Most values are in plain spelling. Python only examines the others, because examining all
    # would take most of the time of reading.
    unusual = pa.compute.match_substring_regex(
        texts, r"\.0*$|^(?:True|TRUE|False|FALSE)$"
    ).to_pylist()
    plainly = [
        plain_text(text) if odd else text
        for text, odd in zip(texts.to_pylist(), unusual, strict=True)
    ]
    return plainly, encoded.indices.to_numpy(zero_copy_only=False)


def parse_numbers(column: Any, comma: bool = False, grouped: bool = False) -> tuple[Array, Mask]:
    """Convert a column to numbers.

    Args:
        column: Arrow array of b values.
        comma: whether the comma is the decimal separator.
        grouped: whether numbers have thousands marks, signs of currency or %: $1,234.50 and, with
            a decimal comma, 1.234,50 EUR. In such a column 1.234 with a decimal comma is 1234.

    Returns:
        Numbers (b,), NaN where missing or not a number, and which values (b,) are not numbers.
    """
    pa = arrow()
    if not pa.types.is_boolean(column.type):
        try:
            values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return values, np.zeros(len(values), dtype=np.bool_)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
    texts = _ungrouped(clean_texts(column), comma) if grouped else clean_texts(column)
    if comma:
        texts = pa.compute.replace_substring(texts, ",", ".")
    good = pa.compute.match_substring_regex(texts, _NUMBER)
    values = pa.compute.if_else(good, texts, pa.scalar(None, pa.string())).cast(pa.float64())
    return values.to_numpy(zero_copy_only=False), ~good.fill_null(True).to_numpy(
        zero_copy_only=False
    )


def _ungrouped(texts: Any, comma: bool) -> Any:
    """Return texts without signs of currency and thousands marks, where these are in place."""
    compute = arrow().compute
    texts = compute.replace_substring_regex(texts, _BEFORE, r"\1")
    texts = compute.replace_substring_regex(texts, _AFTER, "")
    point, mark = (",", ".") if comma else (".", ",")
    marks = f"[{mark}{_SPACES}]"
    pattern = rf"^[+-]?\d{{1,3}}(?:{marks}\d{{3}})+(?:[{point}]\d*)?$"
    plain = compute.replace_substring_regex(texts, marks, "")
    return compute.if_else(compute.match_substring_regex(texts, pattern), plain, texts)


def parse_times(column: Any) -> tuple[Array, Mask]:
    """Convert a column to seconds.

    Numbers stay as they are. ISO dates become seconds since 1970. Dates without a time zone are in
    UTC.

    Args:
        column: Arrow array of b values.

    Returns:
        Seconds (b,), NaN where missing or not a time, and which values (b,) are neither numbers nor
        dates.
    """
    pa = arrow()
    if not pa.types.is_temporal(column.type):
        values, odd = parse_numbers(column)
        if not odd.any():
            return values, odd
        column = clean_texts(column)
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


def clean_texts(values: Any) -> Any:
    """Return values as trimmed text, null where missing."""
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
        # Arrow writes large whole numbers as 1e+15, unlike other files of the same users.
        written = zip(texts.to_pylist(), values.to_pylist(), strict=True)
        texts = pa.array(
            [f"{value:.0f}" if text and "e+" in text else text for text, value in written],
            pa.string(),
        )
    texts = pa.compute.utf8_trim_whitespace(texts)
    absent = pa.compute.is_in(texts, value_set=pa.array(MISSING))
    return pa.compute.if_else(absent, pa.scalar(None, pa.string()), texts)
