"""One person moves one person's part: renaming, replacing, emptying, moving and re-sorting.

A run is played once, and what the server announced in every step is kept. The same announcements
are then answered in another world, in which one person is somebody else, or nothing but an order
has changed. The part of every other person is the same bit by bit, and each sum moves by no more
than the ledger says.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
from support.own_parts import own_parts, played
from support.tables import write

from privfed.audit.guise import with_data
from privfed.config.composition import compose
from privfed.config.option_groups import options
from privfed.data.cohort import groups_of, spread_evenly
from privfed.data.user_identity import identities_of
from privfed.experiment.wiring import Experiment
from privfed.federation import participant
from privfed.federation.identity import Identity
from privfed.federation.participant import OwnRows, Participant
from privfed.federation.roster import Member, Roster, new_token

D, M = 4, 6


@cache
def _composed(settings):
    return compose(settings)


def composed(*settings):
    """The configuration; the same settings are composed once."""
    return deepcopy(_composed(settings))


@pytest.fixture(autouse=True)
def _files_are_read_once(monkeypatch):
    known = tuple(participant.targets_in_files((participant.CONF,)))
    monkeypatch.setattr(participant, "targets_in_files", lambda folders: known)


def sums(clients, told):
    """The sums over all nodes, by step."""
    totals = []
    for shared, config in told:
        answers = [client.fit([array.copy() for array in shared], config)[0] for client in clients]
        totals.append([np.sum(arrays, axis=0) for arrays in zip(*answers, strict=True)])
    return totals


def parts(world, told):
    """The parts of all persons by name, step after step."""
    clients, names = world
    found = []
    for shared, config in told:
        mine = [own_parts(client, shared, config, names) for client in clients.values()]
        assert sum(map(len, mine)) == len(set().union(*mine)), "a name stands for one person"
        found.append({name: value for some in mine for name, value in some.items()})
    return found


def identified(changed):
    """Identities of persons by name, or of simulated users by number; a world may name one twice.

    A user who keeps its name takes part in the same group before and after.
    """
    if isinstance(changed[0], int):
        return np.array([changed[0]] * 2, dtype=np.uint64)
    return identities_of(changed if len(changed) == 2 else changed * 2)


def check(experiment, told, base, other, changed=()):
    """Compare two worlds; `changed` are the names of the one person in both."""
    for mine, theirs in zip(parts(base, told), parts(other, told), strict=True):
        for name in changed:
            mine.pop(name, None)
            theirs.pop(name, None)
        assert mine == theirs
    before, after = (sums(world[0].values(), told) for world in (base, other))
    ledger, n = experiment.ledger, experiment.data.n
    for i, step in enumerate(experiment.strategy.plan):
        names = list(experiment.strategy.shapes(step)) if step.releases else []
        names += [f"{name} clip norm" for name in step.phase.named if step.question]
        for name, one, two in zip(names, before[i], after[i], strict=True):
            (release,) = [r for r in ledger.releases if (r.name, r.round) == (name, step.round)]
            limit = release.sensitivity if changed else 0.0
            if step.group is not None and changed:
                groups = groups_of(identified(changed), step.phase.groups, 0).tolist()
                limit = release.clip * groups.count(step.group)
            moved = one - two
            if release.mechanism == "exponential":
                moved = np.max(np.abs(moved), initial=0.0)
            assert np.linalg.norm(moved) <= limit + 1e-13 * n * release.clip, (name, step.round)


# Tables.

SCHEMA = """
user: user
target: {column: target, kind: numeric}
%s
columns:
  age: {kind: numeric, bounds: [0, 100]}
  income: {kind: numeric}
  city: {kind: categorical, values: [Bern, Basel%s]}
"""
MANY = "".join(f", town {i}" for i in range(40))
"""So many values are items, which have sums of their own."""
TABLES = {
    "random rows": ("data.most_rows=4", "data.evaluate=false"),
    "latest rows": ("data.most_rows=4", "data.evaluate=false"),
    "held-out rows": ("data.test=0.4",),
    "private clip norms": ("data.most_rows=5", "privacy.clip=auto"),
    "a global model alone": ("algo=table/global", "data.most_rows=4", "data.evaluate=false"),
    "a global model and offsets": ("algo=table/offset", "data.test=0.4"),
    "items": ("data.most_rows=4", "data.evaluate=false", "eps=1000"),
}


def people():
    """Rows by name; everybody has more than are used, and many are at the same time."""
    rng = np.random.default_rng(0)
    return {
        f"person-{i}": [
            [
                f"{rng.normal(40, 10):.3f}",
                f"{rng.normal(5000, 999):.3f}",
                rng.choice(["Bern", "Basel"]),
                f"{rng.normal():.3f}",
                int(rng.integers(3)),
            ]
            for _ in range(7 + i % 4)
        ]
        for i in range(23)
    }


def table(folder, rows, kind, nodes, order=None):
    """The world of a table, and its experiment."""
    lines = [[name, *row] for name, mine in rows.items() for row in mine]
    lines = lines if order is None else [lines[i] for i in order(len(lines))]
    path = write(folder / "t.csv", ["user", "age", "income", "city", "target", "time"], lines)
    schema = folder / "schema.yaml"
    time = "time: time" if kind == "latest rows" else ""
    schema.write_text(SCHEMA % (time, MANY if kind == "items" else ""))
    cfg = composed("data=table", "data.path=?", "rounds=2", *TABLES[kind])
    cfg.data.path, cfg.data.schema, cfg.runtime.nodes = str(path), str(schema), nodes
    experiment = Experiment(cfg)
    clients = {cid: experiment.factory(users) for cid, users in experiment.nodes.items()}
    return experiment, (clients, dict(enumerate(experiment.data.frame.names)))


@pytest.mark.parametrize(
    ("kind", "nodes"), [(kind, nodes) for kind in TABLES for nodes in (1, 4)][:-1]
)
def test_a_person_of_a_table_moves_its_own_part_only(tmp_path, kind, nodes):
    rows = people()
    experiment, base = table(tmp_path, rows, kind, nodes)
    told = played(experiment, base[0])
    tasks = {step.task for step in experiment.strategy.plan}
    assert (kind == "items") == (tasks >= {"counts", "sums", "factors", "evidence"})
    somebody = [["20", "1e9", "Basel", "-7", t % 3] for t in range(11)]
    for name in ("person-0", "person-12"):
        rest = {other: mine for other, mine in rows.items() if other != name}
        for new in ("0-first", "zz-last"):
            for mine in (rows[name], somebody):
                other = table(tmp_path, {new: mine, **rest}, kind, nodes)[1]
                check(experiment, told, base, other, (name, new))
        nothing = [["20", "1", "Bern", "", "0"]]
        for empty in ({**rest, name: nothing}, rest):
            other = table(tmp_path, empty, kind, nodes)[1]
            check(experiment, told, base, other, (name,))
    rng = np.random.default_rng(1)
    for order in (rng.permutation, lambda n: range(n)[::-1]):
        check(experiment, told, base, table(tmp_path, rows, kind, nodes, order)[1])
    # The number of nodes is public. It moves nobody's part.
    check(experiment, told, base, table(tmp_path, rows, kind, 5 - nodes)[1])


# Nodes of several real users.

NODES = {"alpha": 7, "beta": 1, "gamma": 9}
REMOTE = {
    "fedrep": (),
    "fedrep, two batches": ("algo=fedrep", "algo.estimator=two-batches"),
    "fedrep, fresh batches": (
        "algo=fedrep",
        "algo.estimator=two-batches",
        "algo.batches=fresh",
        "data.m=8",
        "rounds=2",
    ),
    "fedrep, auto": ("algo=fedrep", "privacy.clip=auto"),
    "fedrep, power method": ("algo=fedrep", "init=ppm", "init.batch=2"),
    "fedrep, pairs": ("algo=fedrep", "init=pairs", "algo.train=s0", "algo.heads=s1"),
    "fedrep, cascade": ("algo=fedrep", "init=cascade"),
    "altmin": ("algo=altmin",),
    "altmin, auto": ("algo=altmin", "privacy.clip=auto"),
    "centaur": ("algo=centaur",),
    "expmech": ("algo=expmech", "algo.candidates=20"),
}


def persons(seed=0):
    rng = np.random.default_rng(seed)
    return {
        node: {
            (node if users == 1 else f"{node}-{i}"): rng.normal(size=(M, D + 1)).round(3)
            for i in range(users)
        }
        for node, users in NODES.items()
    }


def federation(folder, nodes, algorithm, order=None, mixed=False):
    """The world of participants who read their users' rows from files, and its experiment."""
    roster = Roster(Member(node, NODES[node], new_token()) for node in order or nodes)
    settings = ["data=remote", f"data.d={D}", f"data.n={roster.users}", "data.k=2", "rounds=3"]
    settings += [f"data.m={M}", *REMOTE[algorithm]]
    experiment = Experiment(composed(*settings), roster)
    clients, names = {}, {}
    rng = np.random.default_rng(7)
    for node, users in roster.nodes.items():
        lines = [[name, *row] for name, mine in nodes[node].items() for row in mine]
        lines = [lines[i] for i in rng.permutation(len(lines))] if mixed else lines
        path = write(folder / f"{node}.csv", ["user", *"abcd", "y"], lines)
        own = OwnRows(path, "y", 0.0)
        state = folder / f"{node}-state"
        one = Participant(Identity(node, ""), own, state=state, say=lambda text: None)
        one.welcome(experiment.factory.welcome(users).to_json())
        clients[node] = one.client
        names |= {users.start + i: name for i, name in enumerate(sorted(nodes[node]))}
    return experiment, (clients, names)


@pytest.mark.parametrize("algorithm", REMOTE)
def test_a_person_of_a_node_moves_its_own_part_only(tmp_path, algorithm):
    nodes = persons()
    experiment, base = federation(tmp_path, nodes, algorithm)
    told = played(experiment, base[0])
    somebody = 100 * np.random.default_rng(3).normal(size=(M, D + 1)).round(3)
    for node, name in (("alpha", "alpha-0"), ("gamma", "gamma-4")):
        rest = {other: mine for other, mine in nodes[node].items() if other != name}
        for new in ("0-first", "zz-last"):
            for mine in (nodes[node][name], somebody):
                other = federation(tmp_path, {**nodes, node: {new: mine, **rest}}, algorithm)[1]
                check(experiment, told, base, other, (name, new))
        other = federation(tmp_path, {**nodes, node: rest}, algorithm)[1]
        check(experiment, told, base, other, (name,))
    for order in (None, ["gamma", "beta", "alpha"]):
        other = federation(tmp_path, nodes, algorithm, order, mixed=True)[1]
        check(experiment, told, base, other)


# Simulated users in one process.

LINEAR = ("data.n=60", f"data.d={D}", f"data.m={M}", "rounds=3")
IMAGES = ("data.n=14", "data.m=6", "data.size=6", "model.module.hidden=[8,5]", "rounds=2")
FEATURES = ("model.pictures=300", "model.k=20")
SETTINGS = {
    "fedrep": LINEAR,
    "centaur": LINEAR,
    "altmin": LINEAR,
    "expmech": (*LINEAR, "algo.candidates=20"),
    "jlmargin": ("data.n=60", "data.d=12", "data.m=8", "algo.candidates=20", "algo.sketch=6"),
    "rgrad": ("data.n=60", "data.d1=5", "data.d2=4", "rounds=3"),
    "headmean": ("data.n=14", "data.m=6", *FEATURES),
    "headboost": ("data.n=14", "data.m=6", "rounds=2", *FEATURES),
    "fedavg_ft": (*IMAGES, "model=mlp", "algo.batch=2"),
    "ppsgd": (*IMAGES, "model=mlp", "algo.batch=2", "algo.sampling=0.5"),
    "pmtl_ft": (*IMAGES, "model=mlp", "algo.batch=2", "algo.augment=always"),
    "network/centaur": (*IMAGES, "model=mlp", "algo.batch=2"),
}
SINGLE = {"fedavg_ft", "ppsgd", "pmtl_ft", "network/centaur"}
"""Computed in single precision by chunks; how users are spread over nodes changes the rounding.

It is public, and depends on nobody's data.
"""
SILENT = {"oracle", "standalone", "features/standalone", "network/standalone", "table/standalone"}


def test_every_algorithm_that_asks_users_is_checked():
    tables = {"table/fedrep", "table/global", "table/offset"}
    assert {*SETTINGS, *SILENT, *tables} == set(options("algo"))


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_a_simulated_user_moves_its_own_part_only(algorithm):
    cfg = composed(f"algo={algorithm}", *SETTINGS[algorithm])
    experiment = Experiment(cfg)
    n = experiment.data.n

    def world(nodes, replaced=None):
        clients = {}
        for i, users in enumerate(spread_evenly(n, nodes)):
            cohort = experiment.data.cohort(users.start, users.stop)
            if replaced in users:
                place = replaced - users.start
                other = (place + 1) % len(users)
                cohort = with_data(cohort, place, 3 * cohort.X[other], cohort.y[other])
            clients[str(i)] = experiment.factory.serving(cohort)
        return clients, {}

    told = played(experiment, world(len(experiment.nodes))[0])
    base = world(1)
    check(experiment, told, base, world(1, 5), (5,))
    if algorithm not in SINGLE:
        check(experiment, told, base, world(4, n - 2), (n - 2,))
        check(experiment, told, base, world(n // 2))
