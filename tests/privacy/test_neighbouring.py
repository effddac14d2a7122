"""The relations of neighbouring data sets: their names, and what was written under other names."""

from __future__ import annotations

import json

import numpy as np
import pytest

from privfed.foundation.errors import ConfigError
from privfed.privacy import ledger as ledgers
from privfed.privacy.bounds import NormBound
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import SeededNoise
from privfed.privacy.statement import guarantee_in_words


def test_the_other_name_of_zero_out_is_accepted_and_never_written(experiment):
    made = experiment("rounds=1", "data.n=200", "neighbouring=add-remove")
    assert made.cfg.neighbouring == "zero-out"
    privacy = made.run().result["privacy"]
    assert privacy["neighbouring"] == "zero-out"
    assert set(privacy["epsilon_by_neighbouring"]) == {"replace-one", "zero-out"}


def test_a_ledger_of_the_old_name_is_still_read_and_continued(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    with monkeypatch.context() as before:
        before.setattr(ledgers, "canonical", lambda relation: relation)
        before.setattr(ledgers, "RELATIONS", ("add-remove",))
        before.setattr(ledgers, "ZERO_OUT", "add-remove")
        old = Ledger(Budget(1.0, 1e-6, "add-remove"))
        old.open(path)
        NoiseGate(old, SeededNoise(0)).release(
            "x", np.zeros(3), bound=NormBound(1.0), mu=0.05, round=1
        )
        old.close()
    assert json.loads(path.read_text())["neighbouring"] == "add-remove"
    again = Ledger(Budget(1.0, 1e-6, "add-remove"))
    assert again.reopen(path, 1, old.chain) == [] and again.budget.neighbouring == "zero-out"
    NoiseGate(again, SeededNoise(0)).release(
        "x", np.zeros(3), bound=NormBound(1.0), mu=0.05, round=2
    )
    again.close()
    whole = Ledger(Budget(1.0, 1e-6, "zero-out"))
    whole.verify(path)
    assert len(whole.releases) == 2
    with pytest.raises(ConfigError, match="line 1"):
        Ledger(Budget(1.0, 1e-6, "replace-one")).verify(path)


def test_the_statement_says_what_is_emptied_and_what_is_public():
    privacy = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "releases": 3,
        "guarantee": "worst-case",
        "noise": "discrete",
    }
    for name in ("zero-out", "add-remove"):
        words = guarantee_in_words({"n_users": 200, "privacy": privacy | {"neighbouring": name}})
        assert "emptying one user's data, the number of users being public (zero-out)" in words
