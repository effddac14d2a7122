"""Small networks for tests."""

from __future__ import annotations

from torch import nn

from privfed.models.network import Network

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
    return named(
        **parts,
        **{f"layer{i}": layer for i, layer in enumerate(between)},
        head=nn.Linear(width, 4),
        **more,
    )
