"""What every data source says about its users, whether it states it or takes the default."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from support.tables import write

from privfed.config.composition import CONF
from privfed.config.instantiation import build
from privfed.data.source import DataSource

GENERATED = {
    "synthetic": {"n": 40},
    "margin": {"n": 40},
    "trace": {"n": 40},
    "patterns": {"n": 40, "shape": [1, 8, 8]},
    "remote": {"n": 40, "d": 3},
    "table": {},
}


@pytest.fixture
def made(tmp_path):
    def made(name: str) -> DataSource:
        settings = yaml.safe_load((CONF / f"data/{name}.yaml").read_text()) | GENERATED[name]
        if name == "table":
            lines = [[f"u{i % 40:02}", i * 0.37 % 1, i * 0.61 % 1] for i in range(400)]
            settings["path"] = str(write(tmp_path / "mine.csv", ["user", "a", "y"], lines))
        return build(settings, "data")(seed=3)

    return made


@pytest.mark.parametrize("name", GENERATED)
def test_every_source_fulfils_the_contract(made, name):
    data = made(name)
    assert DataSource in type(data).__mro__ and data.n == 40 and data.seed == 3
    assert data.error in ("mse", "risk", "frobenius") and data.floor >= 0.0
    assert data.simulated == (name != "remote") and data.personal == (name != "trace")
    nobody = data.empty()
    assert len(nobody) == 0 and list(nobody.without_broken_users().ids) == []
    assert (data.fingerprint is not None) == (data.schema is not None) == (name == "table")
    assert (data.classes is not None) == (data.describe_split() is not None) == (name == "patterns")
    assert data.compare({}) == {} and data.columns is None and isinstance(data.notes, list)
    assert (data.U_star is not None) == (name in ("synthetic", "margin"))
    assert (data.validation() is None) == (name in ("trace", "remote"))
    counts = data.scale.count(np.array([0.5]))
    assert counts.sum() == 1


def test_users_are_described_in_words(made):
    assert made("synthetic").examples == "10 examples of 50 features each"
    assert made("remote").examples == "3 features"
    assert made("table").examples == "8 to 8 rows of 1 columns each"
