"""Linear classification heads of many users at once: cross-entropy, by SGD, on features that stay fixed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from privfed.models.sgd import SGD


@dataclass(frozen=True)
class Heads:
    """W (B, classes, k) and c (B, classes): user u gives features z the logits W_u z + c_u."""

    W: Tensor
    c: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """features (B, m, k) -> (B, m, classes)."""
        return torch.baddbmm(self.c[:, None], features, self.W.transpose(1, 2))


@dataclass(frozen=True)
class Labels:
    """Classes y (B, m) of the examples, and whether each counts (B, m): places without an example, or with a label that is no
    class, do not."""

    y: Tensor
    counts: Tensor

    def __getitem__(self, places: Tensor | slice) -> Labels:
        """The examples at places (B, b), or at a slice of places."""
        if isinstance(places, slice):
            return Labels(self.y[:, places], self.counts[:, places])
        return Labels(self.y.gather(1, places), self.counts.gather(1, places))

    @property
    def weights(self) -> Tensor:
        """1 / (number of examples of the user that count), or 0: (B, m)."""
        return self.counts / self.counts.sum(1, keepdim=True).clamp(min=1)

    @property
    def present(self) -> Tensor:
        """The users (B,) with any example that counts."""
        return self.counts.any(1)


def cross_entropy(logits: Tensor, labels: Labels) -> Tensor:
    """Sum over users of the mean over each user's examples: logits (B, m, classes) -> a number."""
    each = torch.logsumexp(logits, 2) - logits.gather(2, labels.y[..., None])[..., 0]
    return (each * labels.weights).sum()


def slopes(logits: Tensor, labels: Labels) -> Tensor:
    """Derivative of that in the logits: (B, m, classes)."""
    P = torch.softmax(logits, 2)
    P.scatter_add_(2, labels.y[..., None], torch.full_like(P[..., :1], -1.0))
    return P * labels.weights[..., None]


def descend(
    heads: Heads, batches: Iterable[tuple[Tensor, Labels]], sgd: SGD, biased: bool = True
) -> Heads:
    """One step of SGD a batch of (features (B, b, k), labels); users without an example in a batch stay where they are.

    biased: whether c is learnt as well.
    """
    W, c = heads.W.clone(), heads.c.clone()
    v, u = torch.zeros_like(W), torch.zeros_like(c)
    for features, labels in batches:
        D = slopes(Heads(W, c).logits(features), labels)
        moves = labels.present.float()
        learnt = [(W, v, torch.bmm(D.transpose(1, 2), features)), (c, u, D.sum(1))]
        for value, velocity, gradient in learnt if biased else learnt[:1]:
            shape = (-1, *(1,) * (value.dim() - 1))
            new = gradient.add_(value, alpha=sgd.decay).add_(velocity, alpha=sgd.momentum)
            velocity.lerp_(new, moves.view(shape))
            value.sub_(new * moves.view(shape), alpha=sgd.lr)
    return Heads(W, c)
