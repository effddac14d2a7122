"""Networks, users and clients for tests of batched training."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from clients.centaur_network import CentaurNetworkClient as CentaurClient
from clients.fedavg_ft import FedAvgClient
from clients.pmtl_ft import MultiTaskClient
from clients.ppsgd import AdditiveClient
from clients.standalone_network import StandaloneNetworkClient
from privfed.algorithm.announcement import Announcement
from privfed.data.cohort import Cohort
from privfed.models import architectures
from privfed.models.network import Network

CLASSES, USERS, M = 4, 7, 10
TOLERANCE = 1e-4
SETTINGS = {
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "batch": 4,
    "local_epochs": 2,
    "head_lr": 0.2,
    "head_epochs": 3,
    "augment": "never",
    "seed": 3,
}
MORE = {
    CentaurClient: {},
    FedAvgClient: {},
    MultiTaskClient: {"pull": 0.7},
    AdditiveClient: {"local_step": 0.3, "ratio": 0.4},
    StandaloneNetworkClient: {"epochs": 3},
}


class TwoShifts(nn.Module):
    """Parameters that are no linear layer's, and have the same gradient."""

    def __init__(self, width):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def reset_parameters(self):
        nn.init.normal_(self.one)
        nn.init.normal_(self.other)

    def forward(self, x):
        return x + (self.one + self.other)


class Absolute(nn.Linear):
    """Called linear, but is not."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.abs(), self.bias)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.one, self.other = nn.Linear(36, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.weight = self.one.weight
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.other(self.one(self.first(x.flatten(1))).relu()))


def layers(*between, bias=True, head_bias=True, first=nn.Linear):
    return nn.Sequential(
        nn.Flatten(),
        first(36, 6, bias=bias),
        *between,
        nn.Linear(6, 5, bias=bias),
        nn.ReLU(),
        nn.Linear(5, CLASSES, head_bias),
    )


MODULES = {
    "mlp": lambda: (architectures.mlp((1, 6, 6), CLASSES, [8, 5]), "head", (1, 6, 6)),
    "lenet": lambda: (
        architectures.lenet((1, 16, 16), CLASSES, [3, 4], [6, 5]),
        "head",
        (1, 16, 16),
    ),
    "without bias": lambda: (layers(nn.ReLU(), bias=False), "5", (1, 6, 6)),
    "head without bias": lambda: (layers(nn.Tanh(), head_bias=False), "5", (1, 6, 6)),
    "in place": lambda: (layers(nn.ReLU(inplace=True)), "5", (1, 6, 6)),
    "normalised": lambda: (layers(nn.LayerNorm(6), nn.ReLU()), "6", (1, 6, 6)),
    "scaled images": lambda: (
        nn.Sequential(nn.LayerNorm(6, elementwise_affine=False), *layers(nn.ReLU())),
        "6",
        (1, 6, 6),
    ),
    "two shifts": lambda: (layers(TwoShifts(6), nn.ReLU()), "6", (1, 6, 6)),
    "called linear": lambda: (layers(nn.ReLU(), first=Absolute), "5", (1, 6, 6)),
    "tied": lambda: (Tied(), "head", (1, 6, 6)),
}
BIASED = [name for name in MODULES if name != "head without bias"]


def network(name):
    torch.manual_seed(1)
    module, split, shape = MODULES[name]()
    return module, Network(module, split, shape, CLASSES, "cpu", "float32")


def users(d, ragged=True):
    """Whole users: one with a single image, one with none, one with labels that are no classes.

    Numbers span two blocks.
    """
    rng = np.random.default_rng(0)
    X, y = (
        rng.integers(0, 256, (USERS, M, d), dtype=np.uint8),
        rng.integers(0, CLASSES, (USERS, M)).astype(float),
    )
    if ragged:
        y[1, 1:] = -1
        y[2] = -1
        y[3, ::2] = [CLASSES, 0.5, -1, -7, 1e9]
        y[4, 6:] = -1
        X[y < 0] = 0
    return Cohort(np.arange(1021, 1021 + USERS), X, y)


def client_of(kind, net, cohort=None, chunk=None, **changes):
    cohort = users(int(np.prod(net.shape))) if cohort is None else cohort
    if chunk is not None:
        net.chunk = lambda copies: chunk
    return kind(cohort=cohort, init=None, model=net, **SETTINGS | MORE[kind] | changes)


def updates(client, shared, t=1):
    """Every user's change of the shared parameters (n, P)."""
    client.memory.begin(t)
    parts = [
        client.contribute(block, shared, Announcement(1, "update", t, 0, (), True)).parts
        for block in client.blocks()
    ]
    return np.concatenate(
        [
            np.concatenate([p.detach().double().reshape(len(p), -1) for p in some], 1)
            for some in parts
        ]
    )


def batches(client, user, epochs, *purpose):
    """Places of one user's examples, batch by batch, as the client draws them."""
    block = client.cohort[np.array([user])]
    for places in client.places(block, client.labels(block.y), epochs, *purpose):
        yield list(range(M))[places] if isinstance(places, slice) else places[0].tolist()


def head_batches(client, user, t):
    return [
        b
        for epoch in range(client.head_epochs)
        for b in batches(client, user, 1, "head batches", t, epoch)
    ]


def sgd(client, head=False, pull=0.0):
    of = client.head if head else client.local
    return {"lr": of.lr, "momentum": of.momentum, "decay": of.decay} | (
        {"pull": pull} if pull else {}
    )


def user(client, i):
    return client.network.images(client.cohort.X[i : i + 1]).contiguous(), client.cohort.y[i]


def agree(mine, theirs, of=None):
    for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        size = np.linalg.norm(other if of is None else of[i])
        assert np.linalg.norm(one - other) <= TOLERANCE * size, (
            f"user {i}: {np.linalg.norm(one - other) / size:.2g}"
        )


def other_users_moved(U, without=2):
    assert np.all(np.linalg.norm(np.delete(U, without, 0), axis=1) > 1e-3) and not U[without].any()
