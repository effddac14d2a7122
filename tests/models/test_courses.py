"""Batched training of many users' networks against one torch.optim.SGD a user."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import naive_networks
from support.courses import (
    BIASED,
    CLASSES,
    MODULES,
    USERS,
    M,
    agree,
    batches,
    client_of,
    head_batches,
    network,
    other_users_moved,
    sgd,
    updates,
    user,
    users,
)

from clients.centaur_network import CentaurNetworkClient as CentaurClient
from clients.fedavg_ft import FedAvgClient
from clients.pmtl_ft import MultiTaskClient
from clients.ppsgd import AdditiveClient
from clients.standalone_network import StandaloneNetworkClient
from privfed.data.cohort import Cohort


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
                module,
                net.split,
                names,
                shared,
                before[i],
                x,
                y,
                head_batches(client, i, t),
                batches(client, i, client.local_epochs, "batches", t),
                CLASSES,
                sgd(client, head=True),
                sgd(client),
            )
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
    made = naive_networks.with_head(
        naive_networks.loaded(module, names, shared), client.network.split, *head
    )
    last = made.get_submodule(client.network.split)
    naive_networks.train(
        made,
        last.parameters(),
        *user(client, i),
        head_batches(client, i, 0),
        CLASSES,
        **sgd(client, head=True),
    )
    return made


def predicted(client, shared, theirs):
    """Logits of the users' own predictors on fresh images are those of their own networks."""
    X = np.random.default_rng(1).integers(
        0, 256, (USERS, 3, client.cohort.X.shape[2]), dtype=np.uint8
    )
    mine = []
    for block in client.blocks():
        rows = np.searchsorted(client.cohort.ids, block.ids)
        see, heads = client.finish(block, shared)
        mine += list(heads.logits(see(client.network.images(X[rows]))).detach().numpy())
    with torch.no_grad():
        wanted = [
            made(client.network.images(x[None]).contiguous()).numpy()
            for made, x in zip(theirs, X, strict=True)
        ]
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
            naive_networks.train(
                made, made.parameters(), *user(client, i), steps, CLASSES, **sgd(client, pull=pull)
            )
            theirs.append(
                naive_networks.flat(made, names)
                - naive_networks.flat(naive_networks.loaded(module, names, shared), names)
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
                naive_networks.train(
                    made,
                    made.parameters(),
                    *user(client, i),
                    steps,
                    CLASSES,
                    **sgd(client, pull=pull),
                )
            fitted = sgd(client, head=True)
            naive_networks.train(
                made,
                of_the_head(made, net),
                *user(client, i),
                head_batches(client, i, 0),
                CLASSES,
                **fitted,
            )
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
                module,
                net.split,
                names,
                shared,
                p[i],
                *user(client, i),
                steps,
                CLASSES,
                client.eta,
                sgd(client),
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
    client, shared = (
        client_of(AdditiveClient, net, users(36, ragged=False), local_step=1e-9),
        net.initial(0, whole=True),
    )
    block = client.cohort
    truth = type(
        "Truth", (), {"X": block.X, "wrong": lambda self, predicted: np.zeros(len(predicted))}
    )()
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
        naive_networks.train(
            made, made.parameters(), *user(client, i), steps, CLASSES, **sgd(client)
        )
        theirs.append(made)
    predicted(client, [], theirs)
