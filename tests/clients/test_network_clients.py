"""What leaves clients with networks, and what they keep: heads stay with their users."""

from __future__ import annotations

import stat

import numpy as np
import pytest

from privfed.algorithm.client import FlowerClient, arrays_of
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.federation.user_state import Memory
from privfed.report.run_files import write_config, write_run

USERS, CLASSES, K = 12, 10, 5
SMALL = (
    "data=patterns",
    f"data.n={USERS}",
    "data.m=6",
    "data.size=6",
    f"model.module.hidden=[8,{K}]",
    "rounds=3",
    "algo.lr=0.1",
)
ALGORITHMS = {
    "centaur": ("algo=network/centaur", "model=mlp"),
    "centaur, sampled": ("algo=network/centaur", "model=mlp", "algo.sampling=0.5"),
    "centaur, batches": (
        "algo=network/centaur",
        "model=mlp",
        "algo.batch=4",
        "algo.augment=always",
    ),
    "fedavg_ft": ("algo=fedavg_ft",),
    "ppsgd": ("algo=ppsgd", "algo.local_step=0.2"),
    "pmtl_ft": ("algo=pmtl_ft",),
    "standalone": ("algo=network/standalone", "model=mlp", "algo.epochs=4"),
}
BODY = 36 * 8 + 8 + 8 * K + K
WHOLE = BODY + K * CLASSES + CLASSES


def settings(name, *more):
    unknown = {"ppsgd": "algo.lr", "standalone": "rounds"}.get(name.partition(",")[0], "none")
    return [
        *(setting for setting in SMALL if not setting.startswith(unknown)),
        *ALGORITHMS[name],
        *more,
    ]


def prepared(name, *more):
    return Experiment(compose(settings(name, *more)))


@pytest.fixture
def overheard(monkeypatch):
    """Every message to and from nodes: (question, ins, res); and all heads that nodes ever held."""
    messages, heads = [], []

    def listen(question):
        original = getattr(FlowerClient, question)

        def ask(self, ins):
            res = original(self, ins)
            messages.append((question, ins, res))
            heads.append({key: value.copy() for key, value in self.client.memory.now.items()})
            return res

        monkeypatch.setattr(FlowerClient, question, ask)

    listen("fit")
    listen("evaluate")
    return messages, heads


def traces(heads):
    """How a head's numbers would look in bytes.

    Pairs of neighbours in single precision, and each number in double precision.
    """
    for state in heads:
        for row in (*state["W"].reshape(-1, K), *state["c"]):
            if row.any():
                yield from (
                    row[i : i + 2].tobytes() for i in range(len(row) - 1) if row[i : i + 2].all()
                )
                yield from (np.float64(value).tobytes() for value in row if value)


def everything(message):
    """All bytes of one message."""
    _, ins, res = message
    parts = [*ins.parameters.tensors, *(getattr(res, "parameters", ins.parameters).tensors)]
    for values in (ins.config, res.metrics):
        parts += [
            value
            if isinstance(value, bytes)
            else np.float64(value).tobytes()
            if isinstance(value, float)
            else b""
            for value in values.values()
        ]
    return b"\n".join(parts)


@pytest.mark.parametrize("nodes", [1, USERS])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_heads_are_in_no_message(name, nodes, overheard):
    messages, heads = overheard
    prepared(name, "eps=inf", f"runtime.nodes={nodes}").run()
    seen = set(traces(heads))
    assert len(seen) > 2 * USERS * CLASSES, "users have heads of their own"
    sent = b"\n".join(everything(message) for message in messages)
    assert not [trace for trace in seen if trace in sent]
    planted = sent + next(iter(seen))
    assert [trace for trace in seen if trace in planted], "the search would find one"


@pytest.mark.parametrize("nodes", [3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_sums_leave_and_nothing_else(name, nodes, overheard):
    messages, _ = overheard
    outcome = prepared(name, "eps=1", f"runtime.nodes={nodes}").run()
    size = BODY if name.startswith("centaur") else WHOLE
    fits = [(ins, res) for question, ins, res in messages if question == "fit"]
    assert len(fits) == (0 if name == "standalone" else 3 * nodes)
    for ins, res in fits:
        (array,) = arrays_of(res.parameters)
        assert array.shape == (size,) and res.metrics == {"step": ins.config["step"]}
        assert np.linalg.norm(array) <= res.num_examples * np.frombuffer(ins.config["clip"])[0]
        told = {"step", "task", "round", "seed", "clip", "release", "measure"}
        told |= {"sampling", "secret", "shapes"} if "sampled" in name else set()
        assert set(ins.config) == told
    judged = [(ins, res) for question, ins, res in messages if question == "evaluate"]
    assert len(judged) == nodes
    for ins, res in judged:
        assert ins.config == {"judge": True} and set(res.metrics) == {"own", "histogram_own"}
        assert np.frombuffer(res.metrics["histogram_own"]).sum() == pytest.approx(res.num_examples)
    if name.startswith("centaur"):
        for _, ins, _ in messages:
            shapes = [array.shape for array in arrays_of(ins.parameters)]
            assert shapes == [(8, 36), (8,), (K, 8), (K,)]
    assert [row["missing_users"] for row in outcome.rows] == [0] * (
        0 if name == "standalone" else 3
    )
    assert "notes" not in outcome.result


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_numbers_however_users_are_spread(name):
    eps = (
        "eps=inf" if "sampled" in name else "eps=100"
    )  # what large budgets allow with sampling takes long to find
    outcomes = [prepared(name, eps, f"runtime.nodes={nodes}").run() for nodes in (1, 3, USERS)]
    for other in outcomes[1:]:
        assert other.result["metrics"] == pytest.approx(
            outcomes[0].result["metrics"], abs=1.01 / (10 * USERS)
        )
        assert other.model.keys() == outcomes[0].model.keys()
        for key, array in outcomes[0].model.items():
            assert np.linalg.norm(other.model[key] - array) <= 1e-4 * np.linalg.norm(array)


def test_heads_on_disk_are_gone_with_the_run(tmp_path, overheard):
    _, heads = overheard
    experiment = prepared("centaur")
    write_config(tmp_path, experiment.cfg)
    during = []
    outcome = experiment.run(
        tmp_path, lambda row: during.append(sorted((tmp_path / "private").iterdir()))
    )
    assert all(during) and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in during[-1])
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    write_run(tmp_path, experiment.cfg, outcome)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    contents = b"".join(path.read_bytes() for path in left)
    with np.load(tmp_path / "model.npz") as model:
        contents += b"".join(model[key].tobytes() for key in model.files)
    assert not (tmp_path / "private").exists()
    assert not [trace for trace in traces(heads) if trace in contents]


def memory(ids=(4, 5, 9), **start):
    return Memory(
        np.array(ids),
        start or {"W": np.zeros((3, 2), dtype=np.float32), "c": np.ones(3, dtype=np.float32)},
    )


def stepped(kept, step, value):
    """A step after which users keep this value; returns what they had before it."""
    kept.begin(step)
    before = float(kept.now["W"][0, 0])
    kept.now["W"][:] = value
    kept.end()
    return before


def test_memory_goes_on_repeats_and_starts_anew():
    kept = memory()
    assert [stepped(kept, 1, 10), stepped(kept, 2, 20)] == [0, 10]
    assert [stepped(kept, 2, 21), stepped(kept, 2, 22)] == [10, 10], (
        "asked again: from where it started"
    )
    assert stepped(kept, 3, 30) == 22, "a later step goes on from the last answer"
    assert stepped(kept, 7, 70) == 30, "steps may be missed"
    assert [stepped(kept, 1, 11), stepped(kept, 2, 21)] == [0, 11], "an earlier step is another run"
    assert not kept.start["W"].any() and (kept.start["c"] == 1).all()


def test_memory_of_a_step_that_failed_half_way_starts_it_again():
    kept = memory()
    stepped(kept, 1, 10)
    kept.begin(2)
    kept.now["W"][1] = 99
    assert stepped(kept, 2, 20) == 10
    np.testing.assert_array_equal(kept.before["W"], 10)


def test_memory_finds_users_by_number():
    np.testing.assert_array_equal(memory().places(np.array([9, 4])), [2, 0])


def test_memory_survives_on_disk(tmp_path):
    first = memory()
    first.keep_in(tmp_path / "a")
    stepped(first, 1, 10)
    stepped(first, 2, 20)
    for step, wanted in ((2, 10), (3, 20), (1, 0)):
        again = memory()
        again.keep_in(tmp_path / "a")
        assert again.step == 2 and stepped(again, step, 50) == wanted
        assert again.now["W"].dtype == np.float32 and again.now["c"].tolist() == [1, 1, 1]
        first.end()
    (path,) = (tmp_path / "a").iterdir()
    assert path.name == "node-4-9.npz" and stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.99])
def test_a_file_that_was_cut_off_starts_anew(tmp_path, kept):
    first = memory()
    first.keep_in(tmp_path)
    stepped(first, 3, 30)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    again = memory()
    again.keep_in(tmp_path)
    assert (again.step, stepped(again, 4, 40)) == (0, 0)
    whole = memory()
    whole.keep_in(tmp_path)
    assert whole.step == 4 and (whole.now["W"] == 40).all()


def test_a_file_of_other_users_or_of_another_network_starts_anew(tmp_path):
    first = memory()
    first.keep_in(tmp_path)
    stepped(first, 3, 30)
    wider = memory(W=np.zeros((3, 4), dtype=np.float32), c=np.ones(3, dtype=np.float32))
    wider.keep_in(tmp_path)
    other = memory(ids=(4, 5, 10))
    other.keep_in(tmp_path)
    assert wider.step == other.step == 0 and not wider.now["W"].any() and not other.now["W"].any()


def test_nobody_has_a_memory(tmp_path):
    nobody = Memory(np.arange(0), {"W": np.zeros((0, 2), dtype=np.float32)})
    nobody.keep_in(tmp_path)
    nobody.begin(1)
    nobody.end()
    assert [path.name for path in tmp_path.iterdir()] == ["node-0--1.npz"]
