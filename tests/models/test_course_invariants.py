"""What batched training must not depend on, and what it must not let through."""

from __future__ import annotations

import numpy as np
import pytest
from support import naive, naive_networks
from support.courses import (
    CLASSES,
    MODULES,
    USERS,
    M,
    agree,
    batches,
    client_of,
    network,
    sgd,
    updates,
    user,
    users,
)

from clients.centaur_network import CentaurNetworkClient as CentaurClient
from clients.fedavg_ft import FedAvgClient
from clients.pmtl_ft import MultiTaskClient
from clients.ppsgd import AdditiveClient
from privfed.data.cohort import Cohort
from privfed.models.low_rank_sgd import LowRank
from privfed.models.network import Network
from privfed.models.sgd import Explicit


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


@pytest.mark.parametrize(
    "name", ["mlp", "without bias", "head without bias", "in place", "scaled images"]
)
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
            made,
            made.parameters(),
            *user(client, i),
            batches(client, i, 5, "batches", 1),
            CLASSES,
            **sgd(client),
        )
        start = naive_networks.flat(
            naive_networks.loaded(module, net.names(True), shared), net.names(True)
        )
        agree([mine[i]], [naive_networks.flat(made, net.names(True)) - start])


@pytest.mark.parametrize("kind", [CentaurClient, FedAvgClient, AdditiveClient, MultiTaskClient])
def test_labels_that_are_no_class_count_for_nothing(kind):
    """A user with examples that do not count is the user without them, if order plays no role."""
    _, net = network("mlp")
    cohort = users(36, ragged=False)
    cohort.y[:, 6:] = [-1, CLASSES, 1.5, 1e300]
    fewer = Cohort(cohort.ids, cohort.X[:, :6], cohort.y[:, :6])
    shared = net.initial(0, whole=kind is not CentaurClient)
    agree(
        updates(client_of(kind, net, cohort, batch=M), shared),
        updates(client_of(kind, net, fewer, batch=M), shared),
    )


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
    assert (
        list(batches(client_of(FedAvgClient, network("mlp")[1], batch=M), 0, 2, "batches", 1))
        == [list(range(M))] * 2
    )


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
        config = {
            "step": 1,
            "task": "update",
            "round": 1,
            "seed": 0,
            "clip": np.array([0.1]).tobytes(),
            "release": True,
            "measure": "",
        }
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
