"""What can be split into a shared body and a head of one's own, and what is refused, in one line."""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from privfed.config import compose
from privfed.data.cohort import draws
from privfed.errors import ConfigError
from privfed.experiment import Experiment
from privfed.models import zoo
from privfed.models.augment import MARGIN, augmented
from privfed.models.network import Network
from privfed.run import main

SMALL = ("data.n=12", "data.m=6", "data.size=6", "rounds=2")
MLP = ("algo=fedavg_ft", "data=patterns", *SMALL, "model.module.hidden=[8,5]")


def network(module, split="head", shape=(1, 6, 6), classes=4, device="cpu", precision="float32"):
    return Network(module, split, shape, classes, device, precision)


def named(**layers):
    made = nn.Sequential()
    for name, layer in layers.items():
        made.add_module(name, layer)
    return made


def net(*between, width=5, **more):
    """flatten, first, what is between, head."""
    parts = {"flatten": nn.Flatten(), "first": nn.Linear(36, width)}
    return named(**parts, **{f"layer{i}": layer for i, layer in enumerate(between)}, head=nn.Linear(width, 4), **more)


class Bare(nn.Module):
    """A parameter that nothing starts."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        return x + self.shift


class Centred(nn.Module):
    """Every image minus the mean image of the batch."""

    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Absolute(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight.abs(), self.bias)


class Idle(nn.Module):
    """A layer that is never asked."""

    def __init__(self):
        super().__init__()
        self.first, self.idle, self.head = nn.Linear(36, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.first(x.flatten(1)).relu())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(36, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(self.first(x.flatten(1))), x


REFUSED = {
    "no such layer": (net, {"split": "haed"}, "model.split=haed: the network has no such layer; did you mean 'head'"),
    "all is no layer": (net, {"split": ""}, "model.split=: the network has no such layer; known: first, head"),
    "no linear layer": (lambda: net(nn.ReLU()), {"split": "layer0"}, "is a ReLU; the head must be a linear layer"),
    "linear in name": (
        lambda: named(flatten=nn.Flatten(), first=nn.Linear(36, 5), head=Absolute(5, 4)), {}, "is a Absolute; the head must be"
    ),
    "not the output": (net, {"split": "first"}, "model.split=first: is not the layer that computes the network's output"),
    "not the last": (
        lambda: net(end=nn.Softmax(1)), {}, "model.split=head: is not the layer that computes the network's output"
    ),
    "batch normalisation": (lambda: net(nn.BatchNorm1d(5)), {}, "keeps 'layer0.running_mean' beside its parameters"),
    "of the batch alone": (
        lambda: net(nn.BatchNorm1d(5, affine=False, track_running_stats=False)), {}, "depends on the other images"
    ),
    "with parameters": (lambda: net(nn.BatchNorm1d(5, track_running_stats=False)), {}, "depends on the other images"),
    "centred": (lambda: net(Centred()), {}, "depends on the other images"),
    "nothing starts it": (lambda: net(Bare()), {}, "nothing says how 'layer0.shift' starts"),
    "takes no part": (Idle, {}, "'idle.weight' takes no part in what the network gives"),
    "other images": (net, {"shape": (1, 7, 7)}, "does not take images of data.shape=[1, 7, 7]: "),
    "other channels": (
        lambda: zoo.lenet((1, 16, 16), 4, [2, 2], [5]), {"shape": (3, 16, 16)}, "does not take images of data.shape=[3, 16, 16]"
    ),
    "other classes": (net, {"classes": 7}, "gives [4] for an image, not one number for each of 7 classes"),
    "two answers": (Pair, {}, "gives tuple for an image"),
    "no module": (lambda: 3, {}, "model.module: int is not a torch.nn.Module"),
    "device": (net, {"device": "abacus"}, "model.device=abacus: there is no such device; use auto, cpu or cuda"),
    "device without numbers": (net, {"device": "meta"}, "model.device=meta: there is no such device"),
    "device of no name": (net, {"device": None}, "model.device=None: there is no such device"),
    "precision": (net, {"precision": "float16"}, "model.precision=float16: must be one of float32, bfloat16"),
}  # fmt: skip
ZOO = {
    "too small": (lambda: zoo.lenet((1, 8, 8), 4, [2, 2], [5]), "data.shape=[1, 8, 8]: too small for LeNet's 5x5 filters"),
    "three convolutions": (lambda: zoo.lenet((1, 16, 16), 4, [2, 2, 2], [5]), "model.module.channels=[2, 2, 2]: LeNet has two"),
    "no channel": (lambda: zoo.lenet((1, 16, 16), 4, [2, 0], [5]), "model.module.channels=0: must be a whole number"),
    "nothing hidden": (lambda: zoo.mlp((1, 6, 6), 4, []), "model.module.hidden=[]: give at least one hidden layer"),
    "half a unit": (lambda: zoo.mlp((1, 6, 6), 4, [2.5]), "model.module.hidden=2.5: must be a whole number"),
    "nothing hidden in LeNet": (lambda: zoo.lenet((1, 16, 16), 4, [2, 2], []), "give at least one hidden layer"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_networks_that_are_refused(what):
    module, changes, words = REFUSED[what]
    with pytest.raises(ConfigError) as refusal:
        network(module(), **changes)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("what", ZOO)
def test_sizes_that_are_refused(what):
    module, words = ZOO[what]
    with pytest.raises(ConfigError) as refusal:
        module()
    assert words in str(refusal.value)


COMMANDS = {
    "split": (("model.split=haed",), "model.split=haed: the network has no such layer"),
    "lenet": (("model=lenet", "data.size=8", "model.module.hidden=[5]"), "too small for LeNet"),
    "device": (("model.device=abacus",), "model.device=abacus: there is no such device"),
    "precision": (("model.precision=float16",), "must be one of float32, bfloat16"),
    "linear": (("model=linear", "model.k=2"), "algo=fedavg_ft: works with a network (model=mlp, lenet or module)"),
    "no images": (("data=synthetic",), "choose data= one of cifar10"),
    "no module": (("model=module",), "model.module._target_: has no value"),
    "no split": (("model=module", "model.module._target_=own.Net"), "model.split: has no value"),
    "unknown module": (("model=module", "model.split=head", "model.module._target_=nowhere.Net"), "nowhere"),
    "momentum": (("algo.momentum=1",), "algo.momentum=1: must be at least 0 and below 1"),
    "batch": (("algo.batch=0",), "algo.batch=0: must be a whole number of at least 1"),
    "augment": (("algo.augment=often",), "algo.augment=often: must be one of never, final, always"),
    "average": (("algo.average=1",), "algo.average=1: must be at least 0, below 1"),
    "eta": (("algo.eta=0",), "algo.eta=0: must be a positive number"),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_the_command_line_refuses_in_one_line(what, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    more, words = COMMANDS[what]
    base = MLP if not any(o.startswith("model=") or o == "data=synthetic" for o in more) else (*MLP[:2], *SMALL[:2])
    base = [setting for setting in base if setting.partition("=")[0] not in {o.partition("=")[0] for o in more}]
    assert main([*base, *more, "out=o"]) == 2
    said = capfd.readouterr().err
    assert words in said and said.count("\n") == 1 and not (tmp_path / "o").exists()


def test_linear_algorithms_take_no_network(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["algo=fedrep", "model=mlp", "data=patterns"]) == 2
    assert "algo=fedrep: works with a linear map, not with a network" in capfd.readouterr().err


@pytest.mark.parametrize("algo", ["centaur", "standalone"])
def test_a_network_chooses_the_algorithm_s_own_config_for_networks(algo):
    linear, chosen = compose([f"algo={algo}"]), compose([f"algo={algo}", "model=mlp", "algo.lr=0.5"])
    assert linear.algo.name == chosen.algo.name == algo
    assert (linear.algo.get("kind"), chosen.algo.kind, chosen.algo.lr) == (None, "network", 0.5)
    assert chosen.data._target_.endswith("Patterns") and linear.data._target_.endswith("Synthetic")
    assert compose(["model=mlp", f"algo={algo}"]).algo.kind == "network", "whatever the order"


MINE = """
from torch import nn


class Net(nn.Module):
    def __init__(self, width=7):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, width), nn.ReLU(inplace=True))
        self.top = nn.ModuleDict({"head": nn.Linear(width, 10)})

    def forward(self, x):
        return self.top["head"](self.body(x))
"""


@pytest.mark.parametrize("algo", ["fedavg_ft", "ppsgd", "pmtl_ft", "centaur", "standalone"])
def test_a_module_of_one_s_own(algo, tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    module = ("model=module", "model.module._target_=own_net.Net", "model.split=top.head")
    more = () if algo == "standalone" else ("eps=inf",)
    outcome = Experiment(compose([f"algo={algo}", "data=patterns", *SMALL, *module, *more])).run()
    sys.modules.pop("own_net", None)
    body, head = ["body.1.weight", "body.1.bias"], ["top.head.weight", "top.head.bias"]
    assert list(outcome.model) == {"centaur": body, "standalone": []}.get(algo, [*body, *head])
    assert all(np.isfinite(array).all() for array in outcome.model.values()) and 0 <= outcome.result["metrics"]["risk"] <= 1


def test_a_config_dir_with_a_model_and_its_module(tmp_path, monkeypatch):
    (tmp_path / "mine/model").mkdir(parents=True)
    (tmp_path / "mine/own_net2.py").write_text(MINE)
    lines = ["defaults: [module]", "split: top.head", "module: {_target_: own_net2.Net, width: 6}"]
    (tmp_path / "mine/model/own.yaml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["--config-dir", "mine", "algo=centaur", "model=own", "data=patterns", *SMALL, "out=o", "--quiet"]) == 0
    with np.load(tmp_path / "o/model.npz") as model:
        assert model["body.1.weight"].shape == (6, 36) and set(model) == {"body.1.weight", "body.1.bias"}


def test_the_start_is_the_seed_s():
    for module, shape in ((zoo.mlp((1, 6, 6), 4, [8, 5]), (1, 6, 6)), (zoo.lenet((1, 16, 16), 4, [2, 3], [5]), (1, 16, 16))):
        state = torch.random.get_rng_state()
        one, again, other = (network(module, shape=shape).initial(seed, whole=True) for seed in (0, 0, 1))
        assert torch.equal(state, torch.random.get_rng_state()), "nobody else's random numbers are touched"
        for a, b, c in zip(one, again, other, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == np.float64 and not np.array_equal(a, c) and np.abs(a).max() < 1
        shared = network(module, shape=shape).initial(0, whole=False)
        assert len(shared) == len(one) - 2
        for a, b in zip(shared, one, strict=False):
            np.testing.assert_array_equal(a, b)


def test_the_start_is_the_same_in_all_threads():
    """torch's generator belongs to all threads at once: two that start networks at the same time must not share it."""
    made = network(zoo.mlp((1, 6, 6), 4, [64, 64, 64, 5]))
    wanted = made.initial(0, whole=True)
    with ThreadPoolExecutor(8) as pool:
        for start in pool.map(lambda _: made.initial(0, whole=True), range(200)):
            assert all(np.array_equal(a, b) for a, b in zip(start, wanted, strict=True))


def test_the_start_does_not_depend_on_what_the_module_held():
    torch.manual_seed(5)
    one = network(net(nn.ReLU())).initial(0, whole=True)
    torch.manual_seed(6)
    for a, b in zip(one, network(net(nn.ReLU())).initial(0, whole=True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_halves_make_the_whole():
    made = network(net(nn.ReLU()))
    assert made.k == 5 and made.names(True) == ["first.weight", "first.bias", "head.weight", "head.bias"]
    assert made.sizes(True) == [(5, 36), (5,), (4, 5), (4,)] and made.sizes(False) == [(5, 36), (5,)]
    body, head = made.received(made.initial(0, whole=True))
    assert list(body) == ["first.weight", "first.bias"] and list(head) == ["weight", "bias"]
    assert made.received(made.initial(0, whole=False))[1] == {}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_pixels_become_numbers_between_minus_one_and_one(dtype):
    X = np.array([0, 255, 51, 204] * 9, dtype=dtype).reshape(1, 1, 36)
    images = network(net()).images(X)
    assert images.shape == (1, 1, 6, 6) and images.dtype == torch.float32
    np.testing.assert_allclose(images.ravel()[:4], [-1, 1, -0.6, 0.6], atol=1e-6)


def test_pictures_are_shifted_and_mirrored():
    x = torch.arange(1.0, 1 + 2 * 3 * 5 * 6).reshape(2, 3, 5, 6)

    def place(shift):
        return (shift + MARGIN + 0.5) / (2 * MARGIN + 1)

    def moved(picture, dy, dx):
        """What is seen through a window moved by dy, dx, grey outside."""
        seen = torch.zeros_like(picture)
        for i in range(5):
            for j in range(6):
                if 0 <= i + dy < 5 and 0 <= j + dx < 6:
                    seen[:, i, j] = picture[:, i + dy, j + dx]
        return seen

    for dy, dx in ((0, 0), (-MARGIN, MARGIN), (2, -1), (MARGIN, 0)):
        numbers = np.array([place(dy), place(dx), 0.7, place(0), place(0), 0.2])
        still, mirrored = augmented(x, numbers)
        torch.testing.assert_close(still, moved(x[0], dy, dx))
        torch.testing.assert_close(mirrored, x[1].flip(2))
    numbers = np.array([place(1), place(2), 0.2] * 2)
    torch.testing.assert_close(augmented(x, numbers)[0], moved(x[0], 1, 2).flip(2))
    ends = augmented(x, np.array([0.0, 0.0, 0.9, 1 - 1e-9, 1 - 1e-9, 0.9]))
    torch.testing.assert_close(ends[0], moved(x[0], -MARGIN, -MARGIN))
    torch.testing.assert_close(ends[1], moved(x[1], MARGIN, MARGIN))


def test_random_numbers_are_the_user_s_own():
    ids = np.array([3, 900, 1023, 1024, 1030, 5000])
    whole = draws(0, ids, 6, "augment", 1, 2)
    for some in ([0, 1], [1, 3, 5], [4]):
        np.testing.assert_array_equal(draws(0, ids[some], 6, "augment", 1, 2), whole[some])
    assert len(np.unique(whole)) == whole.size and draws(0, ids[:0], 6, "augment").shape == (0, 6)
    for other in (draws(1, ids, 6, "augment", 1, 2), draws(0, ids, 6, "augment", 2, 2), draws(0, ids, 6, "batches", 1, 2)):
        assert not np.isin(other, whole).any()


def test_augmented_runs_differ_in_heads_only_where_asked():
    base = ("algo=centaur", "model=mlp", *MLP[1:], "eps=inf", "algo.lr=0.1")
    never, final, always = (Experiment(compose([*base, f"algo.augment={when}"])).run() for when in ("never", "final", "always"))
    same = [np.array_equal(never.model[name], final.model[name]) for name in never.model]
    other = [np.array_equal(never.model[name], always.model[name]) for name in never.model]
    assert all(same) and not any(other)
