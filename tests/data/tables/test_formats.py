"""Formats of files: the same table from each, and one line where it cannot be read."""

from __future__ import annotations

import datetime as dt
import gzip
import json

import numpy as np
import pytest
from support.sources import reading

from privfed.data.tables.columns import parse_numbers
from privfed.data.tables.schema import Schema
from privfed.data.tables.table_files import arrow
from privfed.data.tables.table_loading import read_table
from privfed.foundation.errors import ConfigError

HEAD = ("user", "age", "city", "day", "y")
PEOPLE = [
    (f"u{i % 9}", 20 + i % 31 + 0.5, ("Bern", "Genève", None)[i % 3], dt.date(2024, 1, 1 + i % 28),
     i * 0.7)
    for i in range(90)
]  # fmt: skip


def lines(separator):
    rows = [HEAD, *PEOPLE]
    return "\n".join(separator.join("" if v is None else str(v) for v in row) for row in rows)


def objects():
    rows = [dict(zip(HEAD, row, strict=True)) for row in PEOPLE]
    return "\n".join(json.dumps(row, default=str, ensure_ascii=False) for row in rows) + "\n"


def workbook(path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [HEAD, *PEOPLE]:
        book.active.append(row)
    book.save(path)


@pytest.mark.parametrize("form", ["pipe", "json", "json.gz", "xlsx"])
def test_the_same_table_in_every_format(tmp_path, form):
    plain = tmp_path / "mine.csv"
    plain.write_text(lines(","))
    path = tmp_path / f"other.{form}"
    if form == "xlsx":
        workbook(path)
    else:
        content = (lines("|") if form == "pipe" else objects()).encode()
        path.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    (schema, frame), (other, again) = (read_table(reading(str(p))) for p in (plain, path))
    assert other == schema and again.names == frame.names
    np.testing.assert_allclose(again.numbers, frame.numbers)
    np.testing.assert_array_equal(again.codes, frame.codes)
    np.testing.assert_allclose(again.target, frame.target)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lines(",").encode("cp1252"), "line 3 is not UTF-8 text; save the table as UTF-8, as in"),
        (b"[" + objects().encode(), "line 1 is no JSON object"),
        (b'{"user": 1, "x": [1], "y": 2}\n', "'x': is no single value; leave it out with 'data.ig"),
        (b'{"user": 1, "x": 1, "y": 2}\n{"user"\n', "line 2 is no JSON object"),
        (b"\xd0\xcf\x11\xe0 old", "is an old Excel workbook"),
        (b"PK\x03\x04 zip", "is a zip archive and no workbook"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path, content, words):
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_table(reading(str(path)))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_damaged_object_harms_nothing_with_a_declared_schema(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(objects())
    schema, _ = read_table(reading(str(path)))
    (tmp_path / "schema.yaml").write_text(schema.to_yaml())
    path.write_text(objects() + '{"user": "u1", "age": [3], "y": 1}\n{"user": \n')
    _, frame = read_table(reading(str(path), schema=tmp_path / "schema.yaml"))
    assert len(frame) == len(PEOPLE) + 1 and np.isnan(frame.numbers[-1, 0])


def test_thousands_and_currency(tmp_path):
    pa = arrow()
    found, odd = parse_numbers(pa.array(["$1,234.50", "1,234,567", "-€ 3", "12 %"]), False, True)
    assert found.tolist() == [1234.5, 1234567.0, -3.0, 12.0] and not odd.any()
    found, odd = parse_numbers(pa.array(["1.234,50 EUR", "1.234", "3,5", "1,2,3"]), True, True)
    assert found[:3].tolist() == [1234.5, 1234.0, 3.5] and odd.tolist() == [False] * 3 + [True]
    assert parse_numbers(pa.array(["1,234"]))[1].all(), "not unless a column is known for it"
    path = tmp_path / "mine.csv"
    rows = [f'{i % 5},"${1000 + i:,}.50",{i}' for i in range(40)]
    path.write_text("user,price,y\n" + "\n".join(rows))
    schema, frame = read_table(reading(str(path)))
    assert schema.numbers[0].grouped and frame.numbers[1, 0] == 1001.5
    assert any("price: thousands marks" in note for note in frame.notes)
    assert Schema.from_yaml(schema.to_yaml(), "s").features == schema.features
