"""privfed as a Flower app, over a grid in this process: settings, admission, faults, resuming."""

from __future__ import annotations

import csv
import json
import subprocess
import zipfile
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT
from flwr.app import Context, Error, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.task_identity import TaskIdentity
from omegaconf import OmegaConf

from privfed.commands import flower_app
from privfed.config.composition import compose
from privfed.config.flower_run_config import configuration
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Member, Roster, new_token
from privfed.federation.user_state import private_folder
from privfed.foundation.errors import ConfigError, PrivfedError

SMALL = "data.n=60 data.d=6 data.m=6 rounds=2 init=spectral"
QUICK = f"{SMALL} runtime.join_timeout=10"


class Grid:
    """Nodes by number, each with its node-config; asked at once, answered when pulled.

    silent: nodes that never answer.
    """

    def __init__(self, *nodes, silent=()):
        self.nodes, self.silent = dict(enumerate(nodes, start=1)), set(silent)
        self.run = SimpleNamespace(run_id=7)
        self.replies = {}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for message in messages:
            number = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name = f"message-{len(self.replies)}"
            self.replies[name] = None if number in self.silent else self.reply(number, message)
            yield name

    def reply(self, number, message):
        settings = self.nodes[number]
        context = Context(
            run_id=7, node_id=number, node_config=settings, state=RecordDict(), run_config={}
        )
        try:
            return flower_app.client(message, context)
        except Exception as error:
            return Message(Error(code=0, reason=str(error)), reply_to=message)

    def pull_messages(self, names):
        return [reply for name in names if (reply := self.replies[name]) is not None]


def partitions(n=2):
    return [{"partition-id": i, "num-partitions": n} for i in range(n)]


def named(roster, folder, **more):
    roster.save(folder / "roster.json")
    roster.write_tokens(folder)
    return [
        {"node": m.name, "token-file": str(folder / f"{m.name}.token"), **more.get(m.name, {})}
        for m in roster
    ]


def agrees(folder, text):
    expected = Experiment(compose(text.split())).run().model
    with np.load(folder / "model.npz") as found:
        for name in found.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-12)


def test_a_simulation_of_flowers_own_agrees_with_one_process(tmp_path):
    folder = flower_app.conduct(
        Grid(*partitions()), {"overrides": QUICK, "out": str(tmp_path / "run")}
    )
    agrees(folder, SMALL)
    names = {
        "result.json",
        "ledger.jsonl",
        "rounds.csv",
        "config.yaml",
        "model.npz",
        "report.html",
        "details.json",
    }
    assert {path.name for path in folder.iterdir()} == names


def test_only_who_proves_a_registered_name_is_let_in(tmp_path, caplog):
    roster = Roster.of_simulated(60, 2)
    nodes = named(roster, tmp_path)
    thief = {"node": "1", "token-file": str(tmp_path / "wrong.token")}
    (tmp_path / "wrong.token").write_text(new_token())
    stranger = nodes[0] | {"node": "eve"}
    run = {
        "overrides": f"{SMALL} runtime.join_timeout=2 runtime.start_quorum=1",
        "out": str(tmp_path / "run"),
        "roster": str(tmp_path / "roster.json"),
    }
    with pytest.raises(
        PrivfedError, match="only 1 of 2 nodes joined within 2 s; nothing was released"
    ):
        flower_app.conduct(Grid(nodes[0], thief, stranger, *partitions()), run)
    for name in ("1", "eve"):
        assert f"'{name}' is not registered, or its token is wrong" in caplog.text
    agrees(flower_app.conduct(Grid(stranger, *nodes), run), SMALL)


def test_a_silent_node_counts_as_missing_or_stops_the_run_which_resumes(tmp_path):
    fast = f"{QUICK} runtime.round_timeout=1 runtime.rejoin_timeout=0.5"
    grid = Grid(*partitions())

    def silence(number):
        def step(row):
            if row["step"] == 1:
                grid.silent.add(number)

        return step

    run = {"overrides": f"{fast} runtime.quorum=0.4", "out": str(tmp_path / "missing")}
    folder = conduct_with(grid, run, silence(2))
    rows = (folder / "rounds.csv").read_text().splitlines()
    place = rows[0].split(",").index("missing_users")
    assert [row.split(",")[place] for row in rows[1:]] == ["0", "30", "30"]

    grid.silent.clear()
    run = {"overrides": f"{fast} runtime.quorum=0.9", "out": str(tmp_path / "stopped")}
    with pytest.raises(
        PrivfedError, match="30 of 60 users answered in step 2; it was not released"
    ):
        conduct_with(grid, run, silence(1))
    assert not (tmp_path / "stopped" / "result.json").exists()
    grid.silent.clear()
    with pytest.raises(ConfigError, match="not those of the run"):
        flower_app.conduct(grid, run | {"overrides": f"{run['overrides']} seed=3", "resume": True})
    agrees(flower_app.conduct(grid, run | {"resume": True}), SMALL)


def conduct_with(grid, run, on_step):
    """A run whose steps are watched from outside."""
    before = Experiment.run

    def watched(self, folder, step, resume):
        return before(self, folder, lambda row: (step(row), on_step(row)), resume)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "run", watched)
        patch.setattr("privfed.runtimes.superlink_grid.GRACE", 0.0)
        return flower_app.conduct(grid, run)


def test_real_users_keep_their_heads_and_need_a_roster(tmp_path):
    roster = Roster(Member(name, 1, new_token()) for name in ("alice", "bob"))
    own = {}
    for number, name in enumerate(roster.members):
        X = np.random.default_rng(number).normal(size=(20, 3))
        np.savetxt(
            tmp_path / f"{name}.csv",
            np.column_stack([X, X @ [1, -1, number]]),
            delimiter=",",
            header="a,b,c,target",
            comments="",
        )
        own[name] = {
            "data": str(tmp_path / f"{name}.csv"),
            "state": str(tmp_path / f"heads-{name}"),
        }
    run = {
        "overrides": "data=remote data.d=3 data.k=1 data.n=2 rounds=1 eps=5 "
        "runtime.join_timeout=10",
        "out": str(tmp_path / "run"),
    }
    grid = Grid(*named(roster, tmp_path, **own))
    with pytest.raises(ConfigError, match="give the file with the registered nodes"):
        flower_app.conduct(grid, run)
    folder = flower_app.conduct(grid, run | {"roster": str(tmp_path / "roster.json")})
    result = json.loads((folder / "result.json").read_text())
    assert result["privacy"]["noise"] == "discrete" and result["metrics"] == {}
    assert not (folder / "private").exists()
    for path in folder.iterdir():
        assert not any(name.encode() in path.read_bytes() for name in roster.members), path
    for name in roster.members:
        (head,) = (tmp_path / f"heads-{name}").glob("*.npz")
        assert head.name == f"{name}.npz" and head.stat().st_mode & 0o077 == 0


def test_supernodes_refuse_what_is_beyond_their_limits_and_tell_nobody_why(tmp_path, caplog):
    roster = Roster(Member(name, 1, new_token()) for name in ("alice", "bob"))
    (tmp_path / "rows.csv").write_text("a,b,c,target\n" + "1,2,3,4\n4,3,1,2\n" * 5)
    own = {"data": str(tmp_path / "rows.csv"), "state": str(tmp_path / "state")}
    grid = Grid(*named(roster, tmp_path, alice=own | {"max-epsilon": 1.0}, bob=own))
    sent, reply = [], grid.reply

    def listening(number, message):
        sent.append(reply(number, message))
        return sent[-1]

    grid.reply = listening
    run = {
        "overrides": "data=remote data.d=3 data.n=2 rounds=1 eps=5 init=random runtime.quorum=0.5 "
        "runtime.join_timeout=10",
        "out": str(tmp_path / "run"),
        "roster": str(tmp_path / "roster.json"),
    }
    folder = flower_app.conduct(grid, run)
    with (folder / "rounds.csv").open() as file:
        assert [row["missing_users"] for row in csv.DictReader(file)] == ["1"]
    errors = [message.error.reason for message in sent if message.has_error()]
    assert errors and set(errors) == {"this node could not answer; its own log says why"}
    assert "--max-epsilon is 1; nothing was sent" in caplog.text


def test_a_mistake_in_a_node_config_stays_with_its_node(tmp_path, caplog):
    node = {"node": "a", "token-file": str(tmp_path / "secret illness/a.token")}
    context = Context(run_id=7, node_id=1, node_config=node, state=RecordDict(), run_config={})
    with pytest.raises(PrivfedError, match="its own log says why"):
        flower_app.make_client(context)
    assert "secret illness" in caplog.text


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"overrides": "algo=fedrap"}, "did you mean 'fedrep'"),
        ({"overrides": "eps='1"}, "quotation"),
        ({"overrides": "runtime=ray"}, "runtime=superlink"),
        ({"overrides": "eps=1", "settings": "eps: 1"}, "not both"),
        ({"override": "eps=1"}, "did you mean 'overrides'"),
        ({"roster": "/nowhere/roster.json"}, "cannot be read"),
        ({"overrides": "data.n=60 runtime.nodes=0"}, "runtime.nodes=0"),
        ({"overrides": "runtime.port=70000"}, "port number"),
        ({"resume": True, "out": "/nowhere"}, "there is no run"),
    ],
)
def test_a_mistake_in_the_run_config_is_one_line(run, words):
    with pytest.raises(ConfigError, match=words) as caught:
        flower_app.conduct(Grid(*partitions()), run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({}, "say who this node is"),
        ({"node": "a"}, "needs its token"),
        ({"node": "a", "token-file": "/nowhere/a.token"}, "cannot be read"),
        ({"partition-id": 0, "dta": "x.csv"}, "did you mean 'data'"),
        ({"partition-id": 0, "data": "x.csv", "test": 1.5}, "test=1.5"),
        ({"partition-id": 0, "max-clip": "one"}, "max-clip=one: must be a number"),
        ({"partition-id": 0, "min-users": 1.5}, "min-users=1.5: must be a whole number"),
        ({"partition-id": 0, "max-epsilon": -1.0}, "max-epsilon=-1.0: must be a positive"),
    ],
)
def test_a_mistake_in_the_node_config_is_one_line(node, words):
    with pytest.raises(ConfigError, match=words) as caught:
        flower_app.participant(tuple(sorted(node.items())))
    assert "\n" not in str(caught.value)


def test_a_failed_run_tells_flower_why(tmp_path, monkeypatch):
    monkeypatch.setenv(flower_app.STATUS, str(tmp_path))
    context = Context(
        run_id=7, node_id=0, node_config={}, state=RecordDict(), run_config={"overrides": "eps=0"}
    )
    with pytest.raises(RuntimeError, match=r"privfed: eps=0: .* \(exit code 2\)"):
        flower_app.server(Grid(), context)
    assert json.loads((tmp_path / "7.json").read_text())["exit_code"] == 2


def test_the_bundle_holds_what_nodes_need_and_nothing_else():
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(ROOT))) as bundle:
        names = bundle.namelist()
    assert {
        "conf/config.yaml",
        "conf/runtime/superlink.yaml",
        "privfed/commands/flower_app.py",
        "privfed/report/templates/run.html.md",
        "privfed/report/templates/style.css.md",
        "strategies/fedrep.py",
        "clients/fedrep.py",
    } <= set(names)
    assert {name.split("/")[0] for name in names} == {
        "privfed", "strategies", "clients", "conf", "pyproject.toml", "LICENSE", ".info"
    }  # fmt: skip


def test_a_port_in_use_is_one_line(command):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done: subprocess.CompletedProcess[str] = command(
            "runtime=superlink", f"runtime.port={taken.getsockname()[1]}", *SMALL.split()
        )
    assert (
        done.returncode == 2
        and "the port is in use" in done.stderr
        and done.stderr.count("\n") == 1
    )


def test_a_resumed_run_keeps_its_roster(tmp_path):
    """Users are numbered by it, and so are the disjoint groups that pay side by side."""
    run = {
        "overrides": "data.n=4 data.d=4",
        "out": str(tmp_path / "run"),
        "roster": str(tmp_path / "roster.json"),
        "resume": True,
    }
    cfg = configuration(run)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(OmegaConf.to_yaml(cfg))
    members = [
        Member("a", 1, new_token(), simulated=True),
        Member("b", 3, new_token(), simulated=True),
    ]
    (private_folder(tmp_path / "run") / flower_app.NODES).write_text(
        json.dumps(Roster(members).public(), indent=1) + "\n"
    )
    Roster(members[::-1]).save(tmp_path / "roster.json")
    with pytest.raises(ConfigError, match="numbered anew, and pay twice"):
        flower_app.conduct(None, run)
