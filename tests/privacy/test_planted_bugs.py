"""Every planted bug is caught by the checker that must catch it, and nothing else is."""

from __future__ import annotations

import re

import numpy as np
import pytest
from bugs import BUGS, FIRST, LIST, OWN, SECOND, Bug
from conftest import ROOT

from privfed.audit.replay_checks import Report, replay
from privfed.commands import audit
from privfed.commands.replay import main
from privfed.config.composition import compose
from privfed.data.cohort import Cohort

TRIES = 30


def checked(bug: Bug) -> Report:
    return replay(compose(bug.line), TRIES)


@pytest.mark.parametrize("bug", LIST, ids=lambda bug: bug.name)
def test_a_replay_catches(bug):
    with bug.plant():
        report = checked(bug)
    found = [finding.words for finding in report.findings if finding.claim == bug.claim]
    assert any(bug.words in words for words in found), report.findings


SETTINGS = {" ".join(bug.settings): bug for bug in LIST}


@pytest.mark.parametrize("settings", SETTINGS)
def test_nothing_is_found_without_a_bug(settings):
    report = checked(SETTINGS[settings])
    assert report.findings == [] and report.releases > 0


def test_the_lists_are_as_long_as_promised():
    lengths = [sum(bug.list == name for bug in LIST) for name in (FIRST, SECOND, OWN)]
    assert len(BUGS) == len(LIST)
    assert all(a >= b for a, b in zip(lengths, (7, 22, 10), strict=True)), lengths


def test_the_table_has_every_bug_and_no_row_that_everything_missed():
    page = (ROOT / "docs" / "audit-bugs.md").read_text()
    rows = [re.split(r" *\| *", line)[1:-1] for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] != "bug"]
    assert [row[0] for row in rows] == list(BUGS)
    assert all("**caught**" in row for row in rows)


SMALL = ("data.n=24", "data.d=5", "data.m=6", "rounds=1")


def failing(*given, **more):
    raise IndexError("no such row")


def test_a_failure_is_a_refutation_and_not_a_crash(monkeypatch, capsys, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr("privfed.algorithm.strategy.totals_of", failing)
        assert main([*SMALL, "--tries", "3"]) == 4
        assert "REFUTED (robustness)" in capsys.readouterr().out
        line = [*SMALL[1:], "--repetitions", "40", "--quiet", f"out={tmp_path}/a"]
        assert audit.main(line) == 4
        error = capsys.readouterr().err
        assert "a run with a hostile user fails (IndexError" in error and error.count("\n") == 1
    with monkeypatch.context() as patch:
        patch.setattr(Cohort, "without_broken_users", failing)
        assert main([*SMALL, "--tries", "3"]) == 4
        assert "fails (IndexError: no such row)" in capsys.readouterr().err


def test_a_user_whose_data_stop_its_node_is_a_finding(monkeypatch):
    real = Cohort.without_broken_users

    def fragile(self, target=0.0):
        return real(self, target) if np.isfinite(self.X).all() else failing()

    monkeypatch.setattr(Cohort, "without_broken_users", fragile)
    found = replay(compose(SMALL), 3).findings
    words = "a user's data make its node fail"
    assert any(words in finding.words for finding in found), found


@pytest.mark.parametrize(
    "name",
    [
        "no clip at the user",
        "early stopping on the sum before noise",
        "noise scaled by the sum",
        "uncharged measurement of norms",
    ],
)
def test_what_an_audit_catches(name, tmp_path):
    bug = BUGS[name]
    settings = [setting for setting in bug.settings if not setting.startswith("eps=")]
    line = [*settings, "rounds=4", "eps=4", "--quiet", f"out={tmp_path}/audit"]
    line += ["--repetitions", "100", "--client-repetitions", "60"]
    with bug.plant():
        assert audit.main(line) == 4
    assert audit.main(line) == 0
