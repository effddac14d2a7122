"""Obviously right training of networks, one torch.optim.SGD per user, to check clients against."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn


def loaded(module, names, arrays):
    """A copy of the module with these parameters."""
    made = copy.deepcopy(module).eval()
    own = dict(made.named_parameters())
    with torch.no_grad():
        for name, array in zip(names, arrays, strict=True):
            own[name].copy_(torch.as_tensor(array))
    return made


def flat(module, names):
    own = dict(module.named_parameters())
    return np.concatenate([own[name].detach().double().numpy().ravel() for name in names])


def train(module, parameters, x, y, batches, classes, lr, momentum=0.0, decay=0.0, pull=0.0):
    """SGD on some of a module's parameters.

    Labels that are no class are left out, and so are batches without any other.
    """
    parameters = list(parameters)
    start = [parameter.detach().clone() for parameter in parameters]
    descent = torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
    for batch in batches:
        good = [j for j in batch if y[j] in range(classes)]
        if good:
            descent.zero_grad()
            loss = nn.functional.cross_entropy(
                module(x[good]), torch.tensor([int(y[j]) for j in good])
            )
            for parameter, first in zip(parameters, start, strict=True):
                loss = loss + pull / 2 * ((parameter - first) ** 2).sum()
            loss.backward()
            descent.step()


def centaur(
    module, split, names, shared, head, x, y, head_batches, batches, classes, head_sgd, sgd
):
    """A round of CENTAUR: the change of the body, and the head (W, c) that the user keeps.

    x: images as networks see them.
    """
    made = with_head(loaded(module, names, shared), split, *head)
    last = made.get_submodule(split)
    before = flat(made, names)
    train(made, last.parameters(), x, y, head_batches, classes, **head_sgd)
    kept = (last.weight.detach().clone(), last.bias.detach().clone())
    train(
        made, [dict(made.named_parameters())[name] for name in names], x, y, batches, classes, **sgd
    )
    return flat(made, names) - before, kept


def with_head(module, split, W, c):
    """The module with a head W x + c."""
    last = nn.Linear(W.shape[1], W.shape[0])
    with torch.no_grad():
        last.weight.copy_(W)
        last.bias.copy_(c)
    return with_layer(module, split, last)


def with_layer(module, split, layer):
    parent, _, name = split.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)
    return module


class Corrected(nn.Module):
    """A shared head plus a correction."""

    def __init__(self, head, W, c):
        super().__init__()
        self.head, self.W, self.c = head, nn.Parameter(W.clone()), nn.Parameter(c.clone())

    def forward(self, z):
        return self.head(z) + z @ self.W.T + self.c


def ppsgd(module, split, names, shared, p, x, y, batches, classes, eta, sgd):
    """A round of PPSGD: the change of the network, and the user's own correction (W, c)."""
    made = loaded(module, names, shared)
    theta = [dict(made.named_parameters())[name] for name in names]
    sums = Corrected(made.get_submodule(split), *p)
    with_layer(made, split, sums)
    before = np.concatenate([value.detach().double().numpy().ravel() for value in theta])
    descents = [
        torch.optim.SGD(theta, lr=sgd["lr"], momentum=sgd["momentum"], weight_decay=sgd["decay"]),
        torch.optim.SGD([sums.W, sums.c], lr=eta),
    ]
    for batch in batches:
        good = [j for j in batch if y[j] in range(classes)]
        if good:
            for descent in descents:
                descent.zero_grad()
            nn.functional.cross_entropy(
                made(x[good]), torch.tensor([int(y[j]) for j in good])
            ).backward()
            for descent in descents:
                descent.step()
    after = np.concatenate([value.detach().double().numpy().ravel() for value in theta])
    return after - before, (sums.W.detach(), sums.c.detach())
