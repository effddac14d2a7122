"""What can be split into a shared body and a personal head, and what is refused, in one line."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import torch
from support.small_networks import MLP, SMALL, named, net, network
from torch import nn

from privfed.commands.run import main
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import ConfigError
from privfed.models import architectures


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
    "no such layer": (
        net,
        {"split": "haed"},
        "model.split=haed: the network has no such layer; did you mean 'head'",
    ),
    "all is no layer": (
        net,
        {"split": ""},
        "model.split=: the network has no such layer; known: first, head",
    ),
    "no linear layer": (
        lambda: net(nn.ReLU()),
        {"split": "layer0"},
        "is a ReLU; the head must be a linear layer",
    ),
    "linear in name": (
        lambda: named(flatten=nn.Flatten(), first=nn.Linear(36, 5), head=Absolute(5, 4)),
        {},
        "is a Absolute; the head must be",
    ),
    "not the output": (
        net,
        {"split": "first"},
        "model.split=first: is not the layer that computes the network's output",
    ),
    "not the last": (
        lambda: net(end=nn.Softmax(1)),
        {},
        "model.split=head: is not the layer that computes the network's output",
    ),
    "batch normalisation": (
        lambda: net(nn.BatchNorm1d(5)),
        {},
        "keeps 'layer0.running_mean' beside its parameters",
    ),
    "of the batch alone": (
        lambda: net(nn.BatchNorm1d(5, affine=False, track_running_stats=False)),
        {},
        "depends on the other images",
    ),
    "with parameters": (
        lambda: net(nn.BatchNorm1d(5, track_running_stats=False)),
        {},
        "depends on the other images",
    ),
    "centred": (lambda: net(Centred()), {}, "depends on the other images"),
    "nothing starts it": (lambda: net(Bare()), {}, "nothing says how 'layer0.shift' starts"),
    "takes no part": (Idle, {}, "'idle.weight' takes no part in what the network gives"),
    "other images": (net, {"shape": (1, 7, 7)}, "does not take images of data.shape=[1, 7, 7]: "),
    "other channels": (
        lambda: architectures.lenet((1, 16, 16), 4, [2, 2], [5]),
        {"shape": (3, 16, 16)},
        "does not take images of data.shape=[3, 16, 16]",
    ),
    "other classes": (
        net,
        {"classes": 7},
        "gives [4] for an image, not one number for each of 7 classes",
    ),
    "two answers": (Pair, {}, "gives tuple for an image"),
    "no module": (lambda: 3, {}, "model.module: int is not a torch.nn.Module"),
    "device": (
        net,
        {"device": "abacus"},
        "model.device=abacus: there is no such device; use auto, cpu or cuda",
    ),
    "device without numbers": (
        net,
        {"device": "meta"},
        "model.device=meta: there is no such device",
    ),
    "device of no name": (net, {"device": None}, "model.device=None: there is no such device"),
    "precision": (
        net,
        {"precision": "float16"},
        "model.precision=float16: must be one of float32, bfloat16",
    ),
}
ZOO = {
    "too small": (
        lambda: architectures.lenet((1, 8, 8), 4, [2, 2], [5]),
        "data.shape=[1, 8, 8]: too small for LeNet's 5x5 filters",
    ),
    "three convolutions": (
        lambda: architectures.lenet((1, 16, 16), 4, [2, 2, 2], [5]),
        "model.module.channels=[2, 2, 2]: LeNet has two",
    ),
    "no channel": (
        lambda: architectures.lenet((1, 16, 16), 4, [2, 0], [5]),
        "model.module.channels=0: must be a whole number",
    ),
    "nothing hidden": (
        lambda: architectures.mlp((1, 6, 6), 4, []),
        "model.module.hidden=[]: give at least one hidden layer",
    ),
    "half a unit": (
        lambda: architectures.mlp((1, 6, 6), 4, [2.5]),
        "model.module.hidden=2.5: must be a whole number",
    ),
    "nothing hidden in LeNet": (
        lambda: architectures.lenet((1, 16, 16), 4, [2, 2], []),
        "give at least one hidden layer",
    ),
}


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
    "linear": (
        ("model=linear", "model.k=2"),
        "algo=fedavg_ft: works with a network (model=mlp, lenet or module)",
    ),
    "no images": (("data=synthetic",), "choose data= one of cifar10"),
    "no module": (("model=module",), "model.module._target_: has no value"),
    "no split": (("model=module", "model.module._target_=own.Net"), "model.split: has no value"),
    "unknown module": (
        ("model=module", "model.split=head", "model.module._target_=nowhere.Net"),
        "nowhere",
    ),
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
    base = (
        MLP
        if not any(o.startswith("model=") or o == "data=synthetic" for o in more)
        else (*MLP[:2], *SMALL[:2])
    )
    base = [
        setting
        for setting in base
        if setting.partition("=")[0] not in {o.partition("=")[0] for o in more}
    ]
    assert main([*base, *more, "out=o"]) == 2
    said = capfd.readouterr().err
    assert words in said and said.count("\n") == 1 and not (tmp_path / "o").exists()


def test_linear_algorithms_take_no_network(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["algo=fedrep", "model=mlp", "data=patterns"]) == 2
    assert "algo=fedrep: works with a linear map, not with a network" in capfd.readouterr().err


@pytest.mark.parametrize("algo", ["centaur", "standalone"])
def test_the_form_of_an_algorithm_for_networks_is_chosen_by_its_name(algo):
    linear, chosen = compose([f"algo={algo}"]), compose([f"algo=network/{algo}", "algo.lr=0.5"])
    assert linear.algo.name == chosen.algo.name == algo
    assert (linear.algo.kind, chosen.algo.kind, chosen.algo.lr) == ("linear", "network", 0.5)
    assert chosen.data._target_.endswith("Patterns") and linear.data._target_.endswith("Synthetic")
    for more in ([], ["algo.lr=0.5"]):
        with pytest.raises(ConfigError, match=f"choose algo=network/{algo}"):
            compose([f"algo={algo}", "model=mlp", *more])


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
    form = f"network/{algo}" if algo in ("centaur", "standalone") else algo
    outcome = Experiment(compose([f"algo={form}", "data=patterns", *SMALL, *module, *more])).run()
    sys.modules.pop("own_net", None)
    body, head = ["body.1.weight", "body.1.bias"], ["top.head.weight", "top.head.bias"]
    assert list(outcome.model) == {"centaur": body, "standalone": []}.get(algo, [*body, *head])
    assert (
        all(np.isfinite(array).all() for array in outcome.model.values())
        and 0 <= outcome.result["metrics"]["risk"] <= 1
    )


def test_a_config_dir_with_a_model_and_its_module(tmp_path, monkeypatch):
    (tmp_path / "mine/model").mkdir(parents=True)
    (tmp_path / "mine/own_net2.py").write_text(MINE)
    lines = ["defaults: [module]", "split: top.head", "module: {_target_: own_net2.Net, width: 6}"]
    (tmp_path / "mine/model/own.yaml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert (
        main(
            [
                "--config-dir",
                "mine",
                "algo=network/centaur",
                "model=own",
                "data=patterns",
                *SMALL,
                "out=o",
                "--quiet",
            ]
        )
        == 0
    )
    with np.load(tmp_path / "o/model.npz") as model:
        assert model["body.1.weight"].shape == (6, 36) and set(model) == {
            "body.1.weight",
            "body.1.bias",
        }
