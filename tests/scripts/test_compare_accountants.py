"""The table of accountants in docs/privacy.md is what its script makes; nothing is understated."""

from __future__ import annotations

import compare_accountants as script
import pytest

ROWS = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in script.PAGE.read_text(encoding="utf-8")
    .split(script.BEGIN)[1]
    .split(script.END)[0]
    .strip()
    .splitlines()
]


def test_the_page_has_every_case():
    assert ROWS[0] == ["releases", "relation", "privfed", *script.OTHERS]
    named = [(case.name, case.relation) for case in [*script.MIXES, *script.RUNS]]
    assert [tuple(row[:2]) for row in ROWS[2:]] == named


@pytest.mark.parametrize("row", ROWS[2:], ids=lambda row: ", ".join(row[:2]))
def test_no_accountant_finds_more(row):
    """Up to the grid of losses; the upper bounds of others are never below ours."""
    ours, *others = (None if cell == "-" else float(cell) for cell in row[2:])
    exact, *upper = others
    assert ours >= exact - 3e-4 and all(value >= ours for value in upper if value is not None)
    if "pure" not in row[0]:
        assert ours == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("case", script.MIXES[:5], ids=lambda case: case.name)
def test_rows_are_made_as_they_stand(case):
    assert script.line(case) == f"| {' | '.join(next(r for r in ROWS if r[0] == case.name))} |"


def test_a_run_s_ledger_can_be_compared():
    case = next(case for case in script.RUNS if "expmech" in case.name)
    epsilons = script.compared(case)
    assert epsilons[0] == pytest.approx(1.0) and epsilons[2] is None
