"""SGD on a network for a chunk of users at once, each from the shared to its own parameters.

There are two implementations of `Course`. `Explicit` holds one copy of the parameters per user.
`LowRank` (`privfed/models/low_rank_sgd.py`) never forms them and is faster if it applies: for few
steps on linear layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from privfed.models.network import Network, Parameters


@dataclass(frozen=True)
class SGD:
    """Settings of SGD, as in torch.optim.SGD.

    v <- momentum v + gradient + decay theta + pull (theta - theta_0);  theta <- theta - lr v
    """

    lr: float
    momentum: float
    decay: float
    pull: float = 0.0


class Course(Protocol):
    """Path of a chunk of users from the shared parameters to their own."""

    def features(self, x: Tensor) -> Tensor:
        """Return features by each user's own representation: x (B m, C, H, W) -> (B, m, k)."""
        ...

    def logits(self, features: Tensor) -> Tensor:
        """Return logits by each user's copy of the shared head: (B, m, k) -> (B, m, classes)."""
        ...

    def step(self, loss: Tensor, active: Tensor) -> None:
        """Make one step down the sum of the users' losses.

        Args:
            loss: sum of the losses.
            active: users who move, (B,).
        """
        ...

    def update(self) -> list[Tensor]:
        """Return own minus shared parameters, one tensor (B, ...) per parameter."""
        ...


class Explicit:
    """One copy of the parameters per user; a single user is computed without batching."""

    def __init__(
        self, network: Network, body: Parameters, head: Parameters, users: int, sgd: SGD
    ) -> None:
        self.network, self.users, self.sgd = network, users, sgd
        self.start = [*body.values(), *head.values()]
        self.names = (list(body), list(head))
        self.own = [
            value.expand(users, *value.shape).clone().requires_grad_() for value in self.start
        ]
        self.velocity = [torch.zeros_like(value) for value in self.own]

    def features(self, x: Tensor) -> Tensor:
        """See :class:`Course`."""
        names, _ = self.names
        return self._each(
            self.network.body, names, self.own[: len(names)], x.unflatten(0, (self.users, -1))
        )

    def logits(self, features: Tensor) -> Tensor:
        """See :class:`Course`."""
        _, names = self.names
        return self._each(
            self.network.head, names, self.own[len(self.own) - len(names) :], features
        )

    def _each(self, module: nn.Module, names: list[str], values: list[Tensor], x: Tensor) -> Tensor:
        own = dict(zip(names, values, strict=True))
        with self.network.fast():
            if self.users == 1:
                out = functional_call(
                    module, {name: value[0] for name, value in own.items()}, (x[0],)
                )[None]
            else:
                out = vmap(lambda own, x: functional_call(module, own, (x,)))(own, x)
        result: Tensor = out.float()
        return result

    def step(self, loss: Tensor, active: Tensor) -> None:
        """See :class:`Course`."""
        sgd, everybody = self.sgd, bool(active.all())
        gradients = torch.autograd.grad(loss, self.own)
        with torch.no_grad():
            for value, velocity, gradient, start in zip(
                self.own, self.velocity, gradients, self.start, strict=True
            ):
                # Not in place: parameters that are added to each other share the memory of one
                # gradient.
                new = torch.add(gradient, value, alpha=sgd.decay).add_(velocity, alpha=sgd.momentum)
                if sgd.pull:
                    new.add_(value - start, alpha=sgd.pull)
                if not everybody:
                    moves = active.view(-1, *(1,) * start.dim())
                    velocity.copy_(torch.where(moves, new, velocity))
                    value.sub_(torch.where(moves, new, 0.0), alpha=sgd.lr)
                    continue
                velocity.copy_(new)
                value.sub_(new, alpha=sgd.lr)

    def update(self) -> list[Tensor]:
        """See :class:`Course`."""
        return [own.detach() - start for own, start in zip(self.own, self.start, strict=True)]
