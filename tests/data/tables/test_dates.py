"""Dates and times: forms, parts, bounds, and the schema that declares them."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sources import reading

from privfed.data.tables.date_parsing import parse_dates
from privfed.data.tables.date_parts import as_text, phases, round_bounds
from privfed.data.tables.in_memory import encode_rows
from privfed.data.tables.schema import Categorical, Schema
from privfed.data.tables.table_loading import read_table
from privfed.foundation.errors import ConfigError

START = dt.datetime(2023, 1, 2, 6)  # a Monday
MOMENTS = [START + dt.timedelta(hours=37 * i) for i in range(300)]
DAYS = np.array([(m - dt.datetime(1970, 1, 1)) / dt.timedelta(days=1) for m in MOMENTS])


def written(form):
    """The moments as a file has them."""
    ways = {
        "iso": lambda m: m.isoformat(),
        "dmy": lambda m: m.strftime("%d.%m.%Y %H:%M"),
        "mdy": lambda m: m.strftime("%m/%d/%Y %H:%M"),
        "clock": lambda m: m.strftime("%H:%M"),
        "s": lambda m: str(int(m.replace(tzinfo=dt.UTC).timestamp())),
        "ns": lambda m: str(int(m.replace(tzinfo=dt.UTC).timestamp()) * 10**9),
    }
    return [ways[form](m) for m in MOMENTS]


def table(tmp_path, values, name="when", **options):
    path = tmp_path / "mine.csv"
    rows = [f"{i % 7},{i % 11 / 3},{v},{i * 0.7}" for i, v in enumerate(values)]
    path.write_text(f"user,x,{name},y\n" + "\n".join(rows) + "\n")
    return read_table(reading(str(path), **options))


@pytest.mark.parametrize("form", ["iso", "dmy", "mdy", "clock", "s", "ns"])
def test_every_form_says_the_same(tmp_path, form):
    schema, frame = table(tmp_path, written(form))
    parts = [f.date for f in schema.numbers if f.date is not None]
    cycles = ["hour"] if form == "clock" else ["weekday", "month", "hour"]
    assert {p.form for p in parts} == {form}
    assert [p.part for p in parts if not p.sine and p.part != "days"] == cycles
    for j, feature in enumerate(schema.numbers):
        if feature.date is None:
            continue
        days = DAYS if form != "clock" else DAYS - np.floor(DAYS)
        np.testing.assert_allclose(frame.numbers[:, j], feature.date.of(days), atol=1e-6)
        assert feature.bounds == (-1.0, 1.0) or feature.date.part == "days"
    assert any("when: dates" in note for note in frame.notes)
    again = Schema.from_yaml(schema.to_yaml(), "schema.yaml")
    assert again.features == schema.features and again.columns == schema.columns == ("x", "when")


def test_bounds_are_round_and_ignore_rare_mistakes(tmp_path):
    values = [*written("iso"), "9999-12-31"]
    schema, _ = table(tmp_path, values)
    low, high = next(f.bounds for f in schema.numbers if f.name == "when")
    assert as_text(low) == "2023-01-01" and as_text(high) == "2024-05-01"
    assert [as_text(x) for x in round_bounds(19000.2, 19001.1)] == [
        "2022-01-08T04:00:00",
        "2022-01-09T03:00:00",
    ]


def test_a_person_decides(tmp_path):
    schema, _ = table(tmp_path, written("iso"), categorical=["when"])
    assert isinstance(schema.features[1], Categorical)
    schema, _ = table(tmp_path, written("s"), name="count")
    assert schema.features[1].date is None, "seconds need a name that speaks of time"
    schema, _ = table(tmp_path, written("s"), name="count", dates=["count"])
    assert schema.features[1].date is not None
    schema, _ = table(tmp_path, written("iso"), bounds={"when": ["2020-01-01", "2025-01-01"]})
    assert schema.features[1].bounds == (18262.0, 20089.0)
    with pytest.raises(ConfigError, match="'v0' is no date of one form"):
        table(tmp_path, [f"v{i % 3}" for i in range(30)], dates=["when"])


def test_typed_columns_and_rows_in_memory(tmp_path):
    path = tmp_path / "mine.parquet"
    columns = {
        "user": [i % 7 for i in range(300)],
        "when": pa.array(MOMENTS, pa.timestamp("ns")),
        "day": pa.array([m.date() for m in MOMENTS]),
        "y": [i * 0.7 for i in range(300)],
    }
    pq.write_table(pa.table(columns), path)
    schema, frame = read_table(reading(str(path)))
    assert schema.columns == ("when", "day")
    np.testing.assert_allclose(frame.numbers[:, 0], DAYS)
    rows = encode_rows(schema, {"when": MOMENTS[:5], "day": [str(m.date()) for m in MOMENTS[:5]]})
    np.testing.assert_allclose(rows.numbers, frame.numbers[:5], atol=1e-9)


def test_what_is_no_date_is_an_error_or_missing(tmp_path):
    schema, _ = table(tmp_path, written("iso"))
    (tmp_path / "schema.yaml").write_text(schema.to_yaml())
    _, frame = table(tmp_path, [*written("iso"), "31.31.2023"], schema=tmp_path / "schema.yaml")
    assert np.isnan(frame.numbers[-1, 1:]).all()
    assert any("when: 1 values are not dates" in note for note in frame.notes)
    days, odd = parse_dates(pa.array(["2023-02-29", "2024-02-29", None, "x"]), "iso")
    assert odd.tolist() == [True, False, False, True] and np.isnan(days[[0, 2, 3]]).all()


def test_phases():
    monday, sunday = DAYS[0], DAYS[0] + 6
    np.testing.assert_allclose(phases(np.array([monday, sunday]), "weekday"), [0, 6 / 7])
    np.testing.assert_allclose(phases(np.array([monday, np.nan]), "hour"), [0.25, np.nan])
    np.testing.assert_allclose(phases(np.array([monday, np.nan]), "month"), [0, np.nan])
