"""Batched training of many users' networks against one torch.optim.SGD a user."""

from __future__ import annotations

import naive
import naive_networks
import numpy as np
import pytest
import torch
from torch import nn

from clients.centaur_general import CentaurClient
from clients.fedavg_ft import FedAvgClient
from clients.pmtl_ft import MultiTaskClient
from clients.ppsgd import AdditiveClient
from clients.standalone_network import StandaloneNetworkClient
from privfed.data.cohort import BLOCK, Cohort
from privfed.models import zoo
from privfed.models.lowrank import LowRank
from privfed.models.network import Network
from privfed.models.sgd import Explicit

CLASSES, USERS, M = 4, 7, 10
TOLERANCE = 1e-4
SETTINGS = {
    "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "batch": 4, "local_epochs": 2, "head_lr": 0.2, "head_epochs": 3,
    "augment": "never", "seed": 3,
}  # fmt: skip
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
        nn.Flatten(), first(36, 6, bias=bias), *between, nn.Linear(6, 5, bias=bias), nn.ReLU(), nn.Linear(5, CLASSES, head_bias)
    )


MODULES = {
    "mlp": lambda: (zoo.mlp((1, 6, 6), CLASSES, [8, 5]), "head", (1, 6, 6)),
    "lenet": lambda: (zoo.lenet((1, 16, 16), CLASSES, [3, 4], [6, 5]), "head", (1, 16, 16)),
    "without bias": lambda: (layers(nn.ReLU(), bias=False), "5", (1, 6, 6)),
    "head without bias": lambda: (layers(nn.Tanh(), head_bias=False), "5", (1, 6, 6)),
    "in place": lambda: (layers(nn.ReLU(inplace=True)), "5", (1, 6, 6)),
    "normalised": lambda: (layers(nn.LayerNorm(6), nn.ReLU()), "6", (1, 6, 6)),
    "scaled images": lambda: (nn.Sequential(nn.LayerNorm(6, elementwise_affine=False), *layers(nn.ReLU())), "6", (1, 6, 6)),
    "two shifts": lambda: (layers(TwoShifts(6), nn.ReLU()), "6", (1, 6, 6)),
    "called linear": lambda: (layers(nn.ReLU(), first=Absolute), "5", (1, 6, 6)),
    "tied": lambda: (Tied(), "head", (1, 6, 6)),
}  # fmt: skip
BIASED = [name for name in MODULES if name != "head without bias"]


def network(name):
    torch.manual_seed(1)
    module, split, shape = MODULES[name]()
    return module, Network(module, split, shape, CLASSES, "cpu", "float32")


def users(d, ragged=True):
    """Whole users, one with a single image, one with none, one with labels that are no classes; numbers span two blocks."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (USERS, M, d), dtype=np.uint8), rng.integers(0, CLASSES, (USERS, M)).astype(float)
    if ragged:
        y[1, 1:] = -1
        y[2] = -1
        y[3, ::2] = [CLASSES, 0.5, -1, -7, 1e9]
        y[4, 6:] = -1
        X[y < 0] = 0
    return Cohort(np.arange(BLOCK - 3, BLOCK - 3 + USERS), X, y)


def client_of(kind, net, cohort=None, chunk=None, **changes):
    cohort = users(int(np.prod(net.shape))) if cohort is None else cohort
    if chunk is not None:
        net.chunk = lambda copies: chunk
    return kind(cohort=cohort, init=None, model=net, **SETTINGS | MORE[kind] | changes)


def updates(client, shared, t=1):
    """Every user's change of the shared parameters (n, P)."""
    client.memory.begin(t)
    parts = [client.contribute(block, shared, {"round": t}).parts for block in client.blocks()]
    return np.concatenate([np.concatenate([p.detach().double().reshape(len(p), -1) for p in some], 1) for some in parts])


def batches(client, user, epochs, *purpose):
    """Places of one user's examples, batch by batch, as the client draws them."""
    block = client.cohort[np.array([user])]
    for places in client.places(block, client.labels(block.y), epochs, *purpose):
        yield list(range(M))[places] if isinstance(places, slice) else places[0].tolist()


def head_batches(client, user, t):
    return [b for epoch in range(client.head_epochs) for b in batches(client, user, 1, "head batches", t, epoch)]


def sgd(client, head=False, pull=0.0):
    of = client.head if head else client.local
    return {"lr": of.lr, "momentum": of.momentum, "decay": of.decay} | ({"pull": pull} if pull else {})


def user(client, i):
    return client.network.images(client.cohort.X[i : i + 1]).contiguous(), client.cohort.y[i]


def agree(mine, theirs, of=None):
    for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        size = np.linalg.norm(other if of is None else of[i])
        assert np.linalg.norm(one - other) <= TOLERANCE * size, f"user {i}: {np.linalg.norm(one - other) / size:.2g}"


def other_users_moved(U, without=2):
    assert np.all(np.linalg.norm(np.delete(U, without, 0), axis=1) > 1e-3) and not U[without].any()


@pytest.mark.parametrize("batch", [4, M])
@pytest.mark.parametrize("name", BIASED)
def test_centaur_two_rounds_in_a_row(name, batch):
    module, net = network(name)
    client = client_of(CentaurClient, net, batch=batch)
    names, shared = net.names(whole=False), net.initial(0, whole=False)
    heads = [(torch.zeros(CLASSES, net.k), torch.zeros(CLASSES))] * USERS
    for t in (1, 2):
        mine, theirs, before = updates(client, shared, t), [], heads
        for i in range(USERS):
            x, y = user(client, i)
            change, head = naive_networks.centaur(
                module, net.split, names, shared, before[i], x, y, head_batches(client, i, t),
                batches(client, i, client.local_epochs, "batches", t), CLASSES, sgd(client, head=True), sgd(client)
            )  # fmt: skip
            heads = [*heads[:i], head, *heads[i + 1 :]]
            theirs.append(change)
        agree(mine, theirs)
        other_users_moved(mine)
        kept = client.kept(client.cohort)
        agree(kept.W, [W for W, _ in heads])
        agree(kept.c, [c for _, c in heads])
        mean = mine.mean(0)
        shared = [part + mean[a : a + part.size].reshape(part.shape) for part, a in offsets(shared)]
    predicted(client, shared, [
        centaur_at_the_end(module, client, names, shared, heads[i], i) for i in range(USERS)
    ])  # fmt: skip


def offsets(shared):
    return zip(shared, np.cumsum([0, *(part.size for part in shared[:-1])]), strict=True)


def centaur_at_the_end(module, client, names, shared, head, i):
    made = naive_networks.with_head(naive_networks.loaded(module, names, shared), client.network.split, *head)
    last = made.get_submodule(client.network.split)
    naive_networks.train(
        made, last.parameters(), *user(client, i), head_batches(client, i, 0), CLASSES, **sgd(client, head=True)
    )
    return made


def predicted(client, shared, theirs):
    """Logits of the users' own predictors on fresh images are those of their own networks."""
    X = np.random.default_rng(1).integers(0, 256, (USERS, 3, client.cohort.X.shape[2]), dtype=np.uint8)
    mine = []
    for block in client.blocks():
        rows = np.searchsorted(client.cohort.ids, block.ids)
        see, heads = client.finish(block, shared)
        mine += list(heads.logits(see(client.network.images(X[rows]))).detach().numpy())
    with torch.no_grad():
        wanted = [made(client.network.images(x[None]).contiguous()).numpy() for made, x in zip(theirs, X, strict=True)]
    agree(mine, wanted)


def of_the_head(made, net):
    return made.get_submodule(net.split).parameters()


@pytest.mark.parametrize("batch", [4, M])
@pytest.mark.parametrize("name", MODULES)
def test_fedavg_and_multi_task_learning(name, batch):
    module, net = network(name)
    names, shared = net.names(whole=True), net.initial(0, whole=True)
    for kind, pull in ((FedAvgClient, 0.0), (MultiTaskClient, 0.7)):
        client = client_of(kind, net, batch=batch)
        mine, theirs = updates(client, shared, 5), []
        for i in range(USERS):
            made = naive_networks.loaded(module, names, shared)
            steps = list(batches(client, i, 2, "batches", 5))
            naive_networks.train(made, made.parameters(), *user(client, i), steps, CLASSES, **sgd(client, pull=pull))
            theirs.append(
                naive_networks.flat(made, names) - naive_networks.flat(naive_networks.loaded(module, names, shared), names)
            )
        agree(mine, theirs)
        other_users_moved(mine)


@pytest.mark.parametrize("name", BIASED)
def test_fedavg_and_multi_task_predictors(name):
    module, net = network(name)
    names, shared = net.names(whole=True), net.initial(0, whole=True)
    for kind, pull in ((FedAvgClient, 0.0), (MultiTaskClient, 0.7)):
        client, theirs = client_of(kind, net), []
        for i in range(USERS):
            made = naive_networks.loaded(module, names, shared)
            if pull:
                steps = list(batches(client, i, 2, "batches", 0))
                naive_networks.train(made, made.parameters(), *user(client, i), steps, CLASSES, **sgd(client, pull=pull))
            fitted = sgd(client, head=True)
            naive_networks.train(made, of_the_head(made, net), *user(client, i), head_batches(client, i, 0), CLASSES, **fitted)
            theirs.append(made)
        predicted(client, shared, theirs)


@pytest.mark.parametrize("batch", [4, M])
@pytest.mark.parametrize("name", BIASED)
def test_ppsgd_two_rounds_in_a_row(name, batch):
    module, net = network(name)
    client = client_of(AdditiveClient, net, batch=batch)
    names, shared = net.names(whole=True), net.initial(0, whole=True)
    p = [(torch.zeros(CLASSES, net.k), torch.zeros(CLASSES))] * USERS
    for t in (1, 2):
        mine, theirs = updates(client, shared, t), []
        for i in range(USERS):
            steps = list(batches(client, i, 2, "batches", t))
            change, own = naive_networks.ppsgd(
                module, net.split, names, shared, p[i], *user(client, i), steps, CLASSES, client.eta, sgd(client)
            )
            p = [*p[:i], own, *p[i + 1 :]]
            theirs.append(change)
        agree(mine, theirs)
        other_users_moved(mine)
        agree(client.kept(client.cohort).W, [W for W, _ in p])


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_ppsgd_predictors(name):
    module, net = network(name)
    client, shared = client_of(AdditiveClient, net), net.initial(0, whole=True)
    updates(client, shared)
    p, theirs = client.kept(client.cohort), []
    for i in range(USERS):
        made = naive_networks.loaded(module, net.names(whole=True), shared)
        own = naive_networks.Corrected(made.get_submodule(net.split), p.W[i], p.c[i])
        naive_networks.with_layer(made, net.split, own)
        steps = list(batches(client, i, 2, "final batches"))
        naive_networks.train(made, [own.W, own.c], *user(client, i), steps, CLASSES, lr=client.eta)
        theirs.append(made)
    predicted(client, shared, theirs)


@pytest.mark.parametrize("kind", [CentaurClient, FedAvgClient, MultiTaskClient, AdditiveClient])
def test_users_heads_have_no_bias_where_the_network_s_has_none(kind):
    _, net = network("head without bias")
    client, shared = client_of(kind, net), net.initial(0, whole=kind is not CentaurClient)
    assert not client.finish(client.cohort, shared)[1].c.any()


def test_ppsgd_judges_with_a_correction_that_stays_one():
    """Judging again and again does not add the shared head to the correction again and again."""
    _, net = network("mlp")
    client, shared = client_of(AdditiveClient, net, users(36, ragged=False), local_step=1e-9), net.initial(0, whole=True)
    block = client.cohort
    truth = type("Truth", (), {"X": block.X, "wrong": lambda self, predicted: np.zeros(len(predicted))})()
    for _ in range(3):
        client.own_errors(Cohort(block.ids, block.X, block.y, truth), shared)
        assert np.abs(client.memory.now["W"]).max() < 1e-6


@pytest.mark.parametrize("name", MODULES)
def test_users_alone(name):
    module, net = network(name)
    client = client_of(StandaloneNetworkClient, net)
    names, theirs = net.names(whole=True), []
    for i in range(USERS):
        made = naive_networks.loaded(module, names, net.initial(3, whole=True))
        steps = list(batches(client, i, 3, "batches", 0))
        naive_networks.train(made, made.parameters(), *user(client, i), steps, CLASSES, **sgd(client))
        theirs.append(made)
    predicted(client, [], theirs)


@pytest.mark.parametrize("name", ["mlp", "lenet", "normalised"])
@pytest.mark.parametrize("kind", [CentaurClient, FedAvgClient, AdditiveClient, MultiTaskClient])
def test_chunks_do_not_matter(kind, name):
    results = []
    for chunk in (1, 3, USERS):
        _, net = network(name)
        client = client_of(kind, net, chunk=chunk)
        shared = net.initial(0, whole=kind is not CentaurClient)
        results.append(updates(client, shared))
    agree(results[1], results[0])
    agree(results[2], results[0])


@pytest.mark.parametrize("name", ["mlp", "without bias", "head without bias", "in place", "scaled images"])
@pytest.mark.parametrize("kind", [CentaurClient, FedAvgClient, AdditiveClient, MultiTaskClient])
def test_low_rank_is_explicit(kind, name):
    _, net = network(name)
    shared = net.initial(0, whole=kind is not CentaurClient)
    low, explicit = (client_of(kind, net) for _ in range(2))
    explicit.personal = None
    body, head = net.received(shared)
    assert isinstance(low.course(body, head, 1, 6, low.local), LowRank)
    assert isinstance(explicit.course(body, head, 1, 6, low.local), Explicit)
    agree(updates(low, shared), updates(explicit, shared))


@pytest.mark.parametrize("name", ["lenet", "normalised", "two shifts", "called linear", "tied"])
def test_low_rank_is_for_plain_linear_layers(name):
    assert client_of(FedAvgClient, network(name)[1]).personal is None


def test_long_courses_are_explicit_and_the_same():
    module, net = network("mlp")
    client, shared = client_of(FedAvgClient, net, local_epochs=5), net.initial(0, whole=True)
    assert isinstance(client.course(*net.received(shared), 1, 15, client.local), Explicit)
    mine = updates(client, shared)
    for i in (0, 4):
        made = naive_networks.loaded(module, net.names(True), shared)
        naive_networks.train(
            made, made.parameters(), *user(client, i), batches(client, i, 5, "batches", 1), CLASSES, **sgd(client)
        )
        start = naive_networks.flat(naive_networks.loaded(module, net.names(True), shared), net.names(True))
        agree([mine[i]], [naive_networks.flat(made, net.names(True)) - start])


@pytest.mark.parametrize("kind", [CentaurClient, FedAvgClient, AdditiveClient, MultiTaskClient])
def test_labels_that_are_no_class_count_for_nothing(kind):
    """A user with examples that do not count is the user without them, when nothing depends on their order."""
    _, net = network("mlp")
    cohort = users(36, ragged=False)
    cohort.y[:, 6:] = [-1, CLASSES, 1.5, 1e300]
    fewer = Cohort(cohort.ids, cohort.X[:, :6], cohort.y[:, :6])
    shared = net.initial(0, whole=kind is not CentaurClient)
    agree(updates(client_of(kind, net, cohort, batch=M), shared), updates(client_of(kind, net, fewer, batch=M), shared))


def test_batches_take_every_example_once_an_epoch_and_padding_last():
    client = client_of(FedAvgClient, network("mlp")[1])
    for i, counted in enumerate(client.labels(client.cohort.y).counts.numpy()):
        first, second = (list(batches(client, i, 1, "batches", t)) for t in (1, 2))
        order = [place for batch in first for place in batch]
        assert [len(batch) for batch in first] == [4, 4, 2] and sorted(order) == list(range(M))
        assert counted[order].tolist() == sorted(counted, reverse=True), "full batches first"
        assert counted.sum() < 2 or first != second
        both = list(batches(client, i, 2, "batches", 1))
        assert both[:3] == first and (counted.sum() < 2 or both[3:] != first)
    assert list(batches(client_of(FedAvgClient, network("mlp")[1], batch=M), 0, 2, "batches", 1)) == [list(range(M))] * 2


@pytest.mark.parametrize("clip", [1e-3, 0.2, 1e3])
def test_what_is_sent_is_the_sum_of_clipped_updates(clip):
    _, net = network("mlp")
    client, shared = client_of(FedAvgClient, net, chunk=3), net.initial(0, whole=True)
    wanted = sum(naive.clip(update, clip) for update in updates(client, shared, 1))
    config = {
        "step": 1,
        "task": "update",
        "round": 1,
        "seed": 0,
        "clip": np.array([clip]).tobytes(),
        "release": True,
        "measure": "",
    }
    (total,), count, metrics = client.fit(shared, config)
    assert (count, metrics, total.dtype) == (USERS, {"step": 1}, np.float64)
    agree([total], [wanted])


def test_a_user_whose_numbers_overflow_contributes_nothing_and_harms_nobody():
    for name in ("mlp", "lenet"):
        _, net = network(name)
        shared, cohort = net.initial(0, whole=True), users(int(np.prod(net.shape)), ragged=False)
        broken = Cohort(cohort.ids, cohort.X.astype(float), cohort.y)
        broken.X[3] = 1e200
        config = {"step": 1, "task": "update", "round": 1, "clip": np.array([0.1]).tobytes(), "release": True, "measure": ""}
        with np.errstate(all="ignore"):
            (total,), _, _ = client_of(FedAvgClient, net, broken).fit(shared, config)
        others = updates(client_of(FedAvgClient, net, cohort), shared)
        agree([total], [sum(naive.clip(others[i], 0.1) for i in range(USERS) if i != 3)])


def test_bfloat16_is_near():
    results = []
    for precision in ("float32", "bfloat16"):
        module, split, shape = MODULES["lenet"]()
        net = Network(module, split, shape, CLASSES, "cpu", precision)
        results.append(updates(client_of(FedAvgClient, net), net.initial(0, whole=True)))
    away = np.linalg.norm(results[0] - results[1]) / np.linalg.norm(results[0])
    assert 1e-6 < away < 0.1
