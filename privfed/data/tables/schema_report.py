"""Description of how a table is understood, for its owner to check before any release."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from privfed.data.tables.date_parts import as_text
from privfed.data.tables.encoding import EncodedTable
from privfed.data.tables.hints import column_bounds, column_list
from privfed.data.tables.schema import Categorical, Hashed, Numeric, Schema

WIDTH = 80
"""Columns of a terminal."""
_WIDEST = (20, 24, 22)
"""Largest widths of the first columns of the list of features."""


def describe_table(schema: Schema, frame: EncodedTable) -> str:
    """Describe what a file contains, how each column is understood, and how to change that.

    Args:
        schema: the table's schema.
        frame: its rows.

    Returns:
        A text in lines of at most 80 letters.
    """
    lines = [*_overview(schema, frame), "", *_grid(schema, frame), ""]
    lines += _wrapped(f"Encoded, a row has {schema.d:,} columns. {_missing(schema)}")
    if frame.notes:
        lines += ["", "Notes", *(line for note in frame.notes for line in _wrapped(note, "- "))]
    return "\n".join([*lines, "", *_changes(schema)])


def _overview(schema: Schema, frame: EncodedTable) -> list[str]:
    sizes = np.bincount(frame.who, minlength=len(frame.names))
    each = f"{sizes.min():,} to {sizes.max():,} each, median {np.median(sizes):,g}"
    target, y = schema.target, frame.target[np.isfinite(frame.target)]
    if target.labels is not None:
        shares = np.bincount(y.astype(np.int64), minlength=len(target.labels)) / max(1, len(y))
        seen = f"one of {len(target.labels)} labels: " + _few(
            [f"{a} ({s:.0%})" for a, s in zip(target.labels, shares, strict=True)]
        )
    else:
        seen = f"a number, {_span(y)}{_public(target.bounds)}"
    facts = {
        "file": Path(frame.path).name,
        "rows": f"{len(frame):,} of {len(frame.names):,} users; {each}",
        "user": f"{schema.user} ({_few(frame.names, 4)})",
        "target": f"{target.name}: {seen}",
        **({"time": schema.time} if schema.time is not None else {}),
    }
    return [line for key, fact in facts.items() for line in _wrapped(fact, f"{key:<8}")]


def _grid(schema: Schema, frame: EncodedTable) -> list[str]:
    """Return one line per feature: how it is understood, what it contains, how much is missing."""
    rows = [("column", "taken as", "seen", "missing")]
    for feature in schema.features:
        if isinstance(feature, Numeric):
            if feature.date is not None and feature.date.sine:
                continue
            v = frame.numbers[:, schema.numbers.index(feature)]
            absent = np.isnan(v)
            rows.append(
                (
                    feature.name,
                    _number_kind(feature),
                    _span(v[~absent], feature.date is not None and feature.date.part == "days"),
                    f"{absent.sum():,}",
                )
            )
            continue
        codes = frame.codes[:, schema.choices.index(feature)]
        used = np.unique(codes[codes >= 0])
        rows.append((feature.name, _kind(feature), _seen(feature, used), f"{(codes < 0).sum():,}"))
    widths = [min(most, max(len(row[i]) for row in rows)) for i, most in enumerate(_WIDEST)]
    last = max(len(row[-1]) for row in rows)
    cells = [
        [_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=False)]
        for row in rows
    ]
    return ["  ".join([*cell, row[-1].rjust(last)]) for cell, row in zip(cells, rows, strict=True)]


def _changes(schema: Schema) -> list[str]:
    if schema.declared:
        return _wrapped(
            "The schema is declared: public, whatever the data. "
            "To change it, edit the file that data.schema names."
        )
    number = next((f.name for f in schema.numbers if f.date is None), None)
    choice = schema.choices[0].name if schema.choices else None
    item = next(
        (f.name for f in schema.choices if isinstance(f, Categorical) and _are_numbers(f.values)),
        "...",
    )
    ways = {
        "data.user, data.target, data.time": "choose other columns for these",
        "data.features, data.ignore": "take only some columns, or leave some out",
        column_list("categorical", [str(number)]): "take numbers as names of things"
        if number
        else "",
        column_list("numeric", [item]): "take whole numbers as numbers, not as names"
        if choice
        else "",
        column_bounds({str(number): (0, 100)}): "say public bounds of a number" if number else "",
        "data.categories=hash": "hash all values into data.buckets columns" if choice else "",
        "data.most_categories": "one-hot columns at most; beyond, hashed" if choice else "",
        "data.missing": "mean, indicator, drop or refuse",
        "data.task": "regression or classification",
    }
    ways = {_cut(key, 34): does for key, does in ways.items() if does}
    width = max(map(len, ways))
    hint = (
        "Kinds, values and labels were inferred from the data. Save the schema, keep in it what is "
        "public anyway, and give it as data.schema=FILE: it is then public by declaration, and no "
        "longer follows from anybody's rows."
    )
    return [
        "To change it",
        *(f"  {key:<{width}}  {does}" for key, does in ways.items()),
        *_wrapped(hint),
    ]


def _are_numbers(values: Sequence[str]) -> bool:
    return all(value.lstrip("+-").isdecimal() for value in values)


def _kind(feature: Categorical | Hashed) -> str:
    return (
        f"one-hot of {len(feature.values)}"
        if isinstance(feature, Categorical)
        else f"hashed into {feature.buckets:,}"
    )


def _number_kind(feature: Numeric) -> str:
    if feature.date is None:
        return f"number{_public(feature.bounds)}"
    return "date, in days" if feature.date.part == "days" else "cycle, sine and cosine"


def _seen(feature: Categorical | Hashed, used: np.ndarray) -> str:
    if isinstance(feature, Hashed):
        return f"{len(used):,} buckets in use"
    return _few([feature.values[i] for i in used], 8) if len(used) else "nothing"


def _missing(schema: Schema) -> str:
    said = {
        "mean": "Missing numbers count as the mean, missing names as none of the values.",
        "indicator": "Missing numbers count as the mean and have a column that says so.",
        "drop": "Rows with missing values are left out.",
        "refuse": "Missing values are an error.",
    }
    return f"{said[schema.missing]} (data.missing={schema.missing})"


def _public(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f", public {bounds[0]:g} to {bounds[1]:g}"


def _span(v: np.ndarray, days: bool = False) -> str:
    if days and len(v):
        return f"{as_text(v.min())[:10]} to {as_text(v.max())[:10]}"
    return f"{v.min():.6g} to {v.max():.6g}" if len(v) else "nothing"


def _few(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(_cut(name, 20) for name in names[:most]) + (
        ", ..." if len(names) > most else ""
    )


def _cut(text: str, width: int) -> str:
    text = " ".join(text.split()) or text
    return text if len(text) <= width else text[: width - 3] + "..."


def _wrapped(text: str, first: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first)) or [
        first
    ]
