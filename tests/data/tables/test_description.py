"""What a table's owner is told before anything is released."""

from __future__ import annotations

import pytest
from support.sources import reading

from privfed.data.tables.schema_report import describe_table
from privfed.data.tables.table_loading import read_table


@pytest.fixture
def told(tmp_path):
    def told(text, **options):
        path = tmp_path / "mine.csv"
        path.write_text(text)
        words = describe_table(*read_table(reading(path, **options)))
        assert all(len(line) <= 80 and line == line.rstrip() for line in words.splitlines())
        return words

    return told


TEXT = "user,age,joke,city,name,y\n" + "".join(
    f"{i % 4},{20 + i if i % 5 else ''},{i % 3},"
    f"{'Bern' if i % 2 else 'Basel'},{'long ' * 9}{i},{i / 2}\n"
    for i in range(40)
)


def test_everything_that_was_understood(told):
    words = told(TEXT, bounds={"age": [0, 120]})
    for fact in (
        "mine.csv",
        "40 of 4 users; 10 to 10 each, median 10",
        "y: a number, 0 to 19.5",
        "number, public 0 to 120  21 to 59",
        "one-hot of 3",
        "Basel, Bern",
        "- name: free text, hardly any value twice, left out",
        "Encoded, a row has 6 columns",
        "(data.missing=mean)",
        "- age: 8 of 40 values missing; taken as the mean",
        "data.categorical=[age]",
        "data.numeric=[joke]",
        "data.schema=FILE",
    ):
        assert fact in words
    lines = {line.split()[0]: line for line in words.splitlines() if line}
    assert lines["age"].endswith(" 8") and lines["city"].endswith(" 0")


def test_labels_and_long_names(told):
    words = told(
        "user,a very long name of a column indeed,y\n1,1.5,no\n2,2.5,yes\n1,4,yes\n",
        missing="indicator",
        time=None,
    )
    assert "y: one of 2 labels: no (33%), yes (67%)" in words
    assert "a very long name ..." in words and "have a column that says so" in " ".join(
        words.split()
    )


def test_many_values_and_a_declared_schema(told, tmp_path):
    text = "user,city,y\n" + "".join(f"u{i % 7},city number {i % 30},{i / 3}\n" for i in range(90))
    assert "city number 0, city..." in told(text)
    schema, _ = read_table(reading(tmp_path / "mine.csv"))
    (tmp_path / "s.yaml").write_text(schema.to_yaml())
    words = told(text, schema=str(tmp_path / "s.yaml"))
    assert "The schema is declared" in words and "data.numeric" not in words
