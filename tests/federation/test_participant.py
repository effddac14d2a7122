"""What a client refuses to do for a server, and what it never tells one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from flwr.common import FitIns, ndarrays_to_parameters

from privfed.config.composition import CONF, compose
from privfed.experiment.wiring import Experiment
from privfed.federation.identity import Identity
from privfed.federation.participant import OwnRows, Participant, targets_in_files
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes.superlink_grid import WELCOME
from privfed.runtimes.supernode_client import SuperNodeClient

CSV = "a,b,c,target\n" + "\n".join(f"{i},{i * i},{7 - i},{i / 3}" for i in range(8)) + "\n"


@pytest.fixture
def factory():
    roster = Roster([Member("alice", 1, new_token())])
    return Experiment(compose(["data=remote", "data.d=3", "data.n=1"]), roster).factory


@pytest.fixture
def participant(tmp_path):
    def make(content=CSV):
        (tmp_path / "mine.csv").write_text(content)
        return Participant(
            Identity("alice", ""),
            OwnRows(tmp_path / "mine.csv", "target", 0.2),
            say=lambda text: None,
        )

    return make


def test_real_rows_are_not_given_to_a_simulation(factory, participant):
    """Its noise is seeded, and every announcement tells the seed: anybody could remove it."""
    with pytest.raises(ConfigError, match="takes alice for a simulated user"):
        participant().welcome(factory.welcome(range(1), simulated=True).to_json())
    participant().welcome(factory.welcome(range(1)).to_json())


def test_a_file_of_several_users_takes_the_published_model(factory, participant):
    header, *lines = CSV.split()
    content = (
        "\n".join([f"user,{header}", *(f"u{i % 2},{line}" for i, line in enumerate(lines))]) + "\n"
    )
    me = participant(content)
    me.welcome(factory.welcome(range(1), published=True).to_json())
    assert len(me.client.cohort) == 2
    with pytest.raises(ConfigError, match="no rows of user 'alice'"):
        participant(content).welcome(factory.welcome(range(1)).to_json())


@pytest.mark.parametrize("where", ["client", "data"])
@pytest.mark.parametrize(
    "value",
    [
        {"_args_": [1]},
        {"x": "${oc.env:HOME}"},
        {"x": ["${oc.env:HOME}"]},
        {"_target_": "os.system"},
    ],
)
def test_a_server_runs_no_code_here(factory, participant, where, value):
    settings = factory.welcome(range(1))
    changed = {where: {**getattr(settings, where), "more": value}}
    with pytest.raises(ConfigError, match=r"does not take|no configuration file"):
        participant().welcome(replace(settings, **changed).to_json())


def test_a_mistake_in_a_users_file_is_not_told_to_the_server(factory, participant, caplog):
    """Flower sends the words of an exception over a SuperLink."""
    client = SuperNodeClient(participant(CSV.replace("target", "secret illness")))
    ins = FitIns(ndarrays_to_parameters([]), {WELCOME: factory.welcome(range(1)).to_json()})
    with pytest.raises(PrivfedError) as told:
        client.fit(ins)
    assert "secret" not in str(told.value) and told.value.__suppress_context__
    assert "secret illness" in caplog.text


def test_real_users_are_not_released_without_noise():
    roster = Roster([Member("alice", 1, new_token())])
    with pytest.raises(ConfigError, match=r"eps=inf.*simulations only"):
        Experiment(compose(["data=remote", "data.d=3", "data.n=1", "eps=inf"]), roster)
    with pytest.raises(ConfigError, match="protects nobody"):
        Experiment(compose(["data=remote", "data.d=3", "data.n=1", "privacy.noise=seeded"]), roster)
    with pytest.raises(ConfigError, match=r"data\.d: say how many features"):
        Experiment(compose(["data=remote", "data.n=1"]), roster)


def test_tables_are_not_given_to_a_federation_that_learns_from_pictures(participant):
    cfg = compose(["algo=fedavg_ft", "data=patterns", "data.n=1", "data.m=2"])
    settings = replace(Experiment(cfg).factory.welcome(range(1)), d=3)
    with pytest.raises(ConfigError, match="learns from pictures, and rows of a table are none"):
        participant().welcome(settings.to_json())


def test_every_algorithm_of_the_configuration_is_one_that_clients_make():
    known = set(targets_in_files((CONF,)))
    for path in CONF.glob("algo/**/*.yaml"):
        found = re.findall(r"_target_: ((?:clients|privfed\.algorithm)\.[\w.]+)", path.read_text())
        assert found and set(found) <= known, path
