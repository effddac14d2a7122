"""Whole runs with privacy.trust=nobody, in one process: every kind of phase, losses, refusals."""

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from conftest import SMALL

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes import inprocess
from privfed.secure.aggregator import SecureAggregator

NOBODY = ("privacy.trust=nobody", "runtime.nodes=6")


def model_of(*overrides: str) -> dict:
    made = Experiment(compose([*SMALL, "runtime.nodes=6", *overrides]))
    made.run()
    return made.model()


@pytest.mark.parametrize(
    "algorithm",
    [("algo=fedrep",), ("algo=altmin",), ("init=ppm",), ("privacy.clip=auto",), ("algo=centaur",)],
)
def test_without_noise_masked_sums_are_those_of_a_trusted_server(algorithm):
    usual = model_of("eps=inf", *algorithm)
    masked = model_of("eps=inf", *algorithm, "privacy.trust=nobody")
    for name, array in usual.items():
        assert np.allclose(np.abs(masked[name]), np.abs(array), rtol=1e-6, atol=1e-8)


def test_the_same_seed_gives_the_same_numbers_for_any_order_of_work():
    one = model_of("privacy.trust=nobody")
    two = model_of("privacy.trust=nobody", "runtime.threads=1")
    assert all((one[name] == two[name]).all() for name in one)


def test_a_run_says_whom_it_trusts(run):
    result = run(*NOBODY).result
    assert result["privacy"]["trust"] == "nobody"
    assert result["privacy"]["epsilon"] <= 1.0
    assert any("No server saw the sum of a node" in note for note in result["notes"])
    simulated = run("privacy.trust=simulated").result
    assert simulated["privacy"]["trust"] == "simulated"
    assert any("not masked" in note for note in simulated["notes"])
    assert run().result["privacy"]["trust"] == "server"


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (("algo=expmech",), "a selection needs a server"),
        (("algo=jlmargin", "data=margin"), "a selection needs a server"),
        (("runtime.nodes=2",), "at least 3 nodes"),
        (("privacy.honest=0.3",), "cannot outvote"),
        (("privacy.honest=0",), "privacy.honest"),
        (("privacy.colluding=0.95",), "nobody would add noise"),
        (("privacy.noise=opendp",), "privacy.noise"),
        (("privacy.trust=everybody",), "must be server, nobody"),
        (("runtime=superlink",), "use inprocess, ray or grpc"),
    ],
)
def test_what_cannot_be_is_one_line(overrides, match):
    with pytest.raises(ConfigError, match=match) as caught:
        Experiment(compose([*SMALL, *NOBODY, *overrides]))
    assert "\n" not in str(caught.value)


class Unreliable(inprocess.LocalProxy):
    """Calls a node that does not answer some questions."""

    lost: ClassVar[dict[str, dict[int, tuple[str, ...]]]] = {}
    """Per stage and step the nodes that do not answer."""

    def ask(self, question, ins, timeout):
        stage = str(ins.config.get("secure", "sums")) if question == "fit" else question
        step = int(ins.config.get("step", 0))
        if self.cid in self.lost.get(stage, {}).get(step, ()):
            raise ConnectionError("lost")
        return super().ask(question, ins, timeout)


@pytest.fixture
def unreliable(monkeypatch):
    """Make nodes in this process lose messages."""
    monkeypatch.setattr(inprocess, "LocalProxy", Unreliable)

    def start(lost, *overrides):
        Unreliable.lost = lost
        made = Experiment(compose([*SMALL, "runtime.nodes=10", "privacy.trust=nobody", *overrides]))
        made.federation = replace(made.federation, strict=False)
        made.strategy.federation = made.federation
        return made

    return start


def test_a_lost_node_is_missed_for_a_step_and_comes_back(unreliable):
    made = unreliable({"sums": {2: ("3",)}, "unmask": {3: ("5",)}})
    made.run()
    assert [row["missing_users"] for row in made.rows] == [0, 30, 0, 0]


def test_too_many_lost_nodes_stop_the_run_before_anything_is_charged(unreliable, monkeypatch):
    made = unreliable({"sums": {2: ("3", "4")}})
    monkeypatch.setattr(SecureAggregator, "unmask", counted := Counted(SecureAggregator.unmask))
    with pytest.raises(PrivfedError, match="only 240 of 300 users answered"):
        made.run()
    assert len(made.ledger.releases) == 1 and counted.calls == 1


class Counted:
    """A method that counts its calls."""

    def __init__(self, true):
        self.true, self.calls = true, 0

    def __get__(self, owner, kind=None):
        def call(*arguments):
            self.calls += 1
            return self.true(owner, *arguments)

        return call


def test_the_ledger_has_a_release_before_anything_is_unmasked(tmp_path, monkeypatch):
    made = Experiment(compose([*SMALL, *NOBODY]))
    seen = []
    true = SecureAggregator._revealed

    def revealed(self, step):
        lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
        seen.append((step.number, [json.loads(line)["name"] for line in lines]))
        return true(self, step)

    monkeypatch.setattr(SecureAggregator, "_revealed", revealed)
    made.run(tmp_path)
    assert seen[0] == (1, ["spectral"])
    assert [len(names) for _, names in seen] == [1, 2, 3, 4]


def test_a_crash_while_unmasking_stays_paid_and_the_run_goes_on(tmp_path, monkeypatch):
    settings = [*SMALL, *NOBODY, "privacy.noise=discrete"]
    true = SecureAggregator._revealed

    def dies(self, step):
        if step.number == 3:
            raise KeyboardInterrupt
        return true(self, step)

    monkeypatch.setattr(SecureAggregator, "_revealed", dies)
    with pytest.raises(KeyboardInterrupt):
        Experiment(compose(settings)).run(tmp_path)
    monkeypatch.setattr(SecureAggregator, "_revealed", true)
    again = Experiment(compose(settings))
    again.run(tmp_path, resume=True)
    assert [row["missing_users"] for row in again.rows] == [0, 0, 300, 0]
    assert len(again.ledger.releases) == 4


def test_a_node_that_sends_too_much_stops_the_run(monkeypatch):
    from privfed.secure.node import SecureNode

    true = SecureNode.noisy

    def noisy(self, step, sums, arrays):
        return true(self, step, sums, [1e6 * array + 1e6 for array in arrays])

    monkeypatch.setattr(SecureNode, "noisy", noisy)
    with pytest.raises(PrivfedError, match="did not keep to the clip norm"):
        Experiment(compose([*SMALL, *NOBODY])).run()


def test_a_masked_client_refuses_plain_steps():
    made = Experiment(compose([*SMALL, *NOBODY]))
    member = next(iter(made.roster))
    client = made.factory.node(member, made.roster.nodes[member.name])
    from flwr.common import FitIns, ndarrays_to_parameters

    config = made.strategy.announcement(made.strategy.plan[0]).to_config()
    with pytest.raises(ConfigError, match="without masks"):
        client.fit(FitIns(ndarrays_to_parameters(made.strategy.shared), config))


def test_the_released_noise_has_its_standard_deviation(monkeypatch):
    """All sums of a run without and with noise differ by noise of the recorded size."""
    made = Experiment(compose([*SMALL, *NOBODY, "data.d=40", "rounds=1", "privacy.colluding=0"]))
    plain = Experiment(compose([*SMALL, "runtime.nodes=6", "data.d=40", "rounds=1", "eps=inf"]))
    sums = []
    for each in (made, plain):
        true = each.federation.gate.release

        def heard(name, total, true=true, **terms):
            found = true(name, total, **terms)
            sums.append(found)
            return found

        monkeypatch.setattr(each.federation.gate, "release", heard)
        each.run()
    noise = (sums[0] - sums[2]).ravel()
    std = made.ledger.releases[0].std
    assert noise.size == 820 and noise.std() == pytest.approx(std, rel=0.12)
