"""Tables of real clients: one reader, one schema, the same numbers as in one process."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.processes import KNOWN_NOISE, ledger_of
from support.table_federation import write_federation, write_table

import privfed.commands.server
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment

SETTINGS = ("data=table", "data.schema=schema.yaml", "eps=20")


def here(folder, *settings):
    """The published model of the same rows in this process, with the same noise."""
    options = ("data=table", f"data.schema={folder}/schema.yaml", f"data.path={folder}/all.csv")
    cfg = compose([*options, *SETTINGS[2:], *settings, "data.test=0"])
    return Experiment(cfg).run().model


def take_part(fleet, port, names, *more):
    return [
        fleet.client(
            *(port, name, "--data", f"{name}.csv", "--insecure", "--state", f"{name}-state"),
            *("--test", "0", *more),
            tokens="tokens",
        )
        for name in names
    ]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["table/fedrep", "table/offset"])
def test_the_same_numbers_as_in_one_process(fleet, algo):
    """Users with one row, many, and gaps; a clinic with a broken user; simulated users beside."""
    folder, singles = fleet.folder, {"alice": 1, "bob": 40, "carol": 1500}
    registered = write_federation(folder, singles, clinic=6, extra=40)
    fleet.start("roster", "roster.json", *registered).ends(0)
    fleet.program = ("-c", KNOWN_NOISE)
    server, port = fleet.server(
        *(*SETTINGS, f"algo={algo}", "data.path=crowd.csv", "out=run", "--insecure"),
        *("--roster", "roster.json", "--simulate"),
    )
    fleet.program = ("-m", "privfed")
    clients = take_part(fleet, port, [*singles, "clinic"])
    server.ends(0)
    for client in clients:
        client.ends(0)
    with np.load(folder / "run/model.npz") as model:
        published = dict(model)
    for name, array in here(folder, f"algo={algo}").items():
        np.testing.assert_allclose(published[name], array, rtol=1e-8, atol=1e-8, err_msg=name)
    heads = {path.name for path in (folder / "clinic-state").glob("patient*.npz")}
    assert "patient%200.npz" in heads and len(heads) in (5, 6)
    assert (folder / "alice-state/alice.npz").exists()
    assert json.loads((folder / "run/result.json").read_text())["privacy"]["guarantee"] != "none"
    assert all(line["epsilon_spent"] > 0 for line in ledger_of(folder / "run"))


@pytest.mark.slow
def test_a_user_without_rows_a_held_out_share_and_a_newcomer(fleet):
    """At a usual epsilon; nobody learns who has no rows, and errors are the clients' own."""
    folder = fleet.folder
    registered = write_federation(folder, {"alice": 30, "bob": 30}, clinic=3, extra=2)[:3]
    write_table(folder / "bob.csv", {}, named=False)
    fleet.start("roster", "roster.json", *registered).ends(0)
    settings = ("data=table", "data.schema=schema.yaml", "eps=8", "out=run", "--insecure")
    server, port = fleet.server(*settings, "--roster", "roster.json", "--stay")
    clients = take_part(fleet, port, ["alice", "bob", "clinic"], "--test", "0.2")
    server.says("giving the model in run")
    for client in clients:
        client.ends(0)
    assert "held-out row(s)" in clients[0].said and "held-out" not in clients[1].said
    port = int(server.said.rpartition("127.0.0.1:")[2].partition(",")[0])
    newcomer = fleet.start(
        *("client", "--server", f"127.0.0.1:{port}", "--user", "dora", "--data", "alice.csv"),
        *("--insecure", "--state", "dora-state"),
    )
    newcomer.ends(0)
    assert "got the model published by" in newcomer.said
    assert (folder / "dora-state/dora.npz").exists()
    server.kill()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("data=table",), "data.schema: real users read their own files by a declared schema"),
        (("data=table", "data.schema=nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("data=patterns", "data.n=3", "algo=headmean"), "learns from pictures"),
        (("data=table", "data.schema=schema.yaml", "algo=fedrep"), "table/fedrep"),
    ],
)
def test_what_cannot_run_is_said_before_anybody_joins(
    tmp_path, monkeypatch, capsys, settings, words
):
    monkeypatch.chdir(tmp_path)
    write_federation(tmp_path, {"alice": 2}, 1, 1)
    from privfed.federation.roster import Member, Roster, new_token

    members = [Member("alice", 1, new_token()), Member("crowd", 2, new_token(), simulated=True)]
    Roster(members if "data=patterns" in settings else members[:1]).save(tmp_path / "roster.json")
    line = [*settings, "--roster", "roster.json", "--insecure", "--listen", "127.0.0.1:0"]
    assert privfed.commands.server.main(line) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1, told
