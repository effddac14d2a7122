"""Linear classification heads of many users: cross-entropy by SGD, on fixed features."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from privfed.models.sgd import SGD


@dataclass(frozen=True)
class Heads:
    """Heads of B users: user u gives features z the logits W_u z + c_u.

    Attributes:
        W: weights, (B, classes, k).
        c: biases, (B, classes).
    """

    W: Tensor
    c: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Return logits: features (B, m, k) -> (B, m, classes)."""
        return torch.baddbmm(self.c[:, None], features, self.W.transpose(1, 2))


@dataclass(frozen=True)
class Labels:
    """Classes of examples.

    Attributes:
        y: classes, (B, m).
        counts: whether each example counts, (B, m). Padding, and examples whose label is no class,
            do not.
    """

    y: Tensor
    counts: Tensor

    def __getitem__(self, places: Tensor | slice) -> Labels:
        """Return the examples at places (B, b), or at a slice of places."""
        if isinstance(places, slice):
            return Labels(self.y[:, places], self.counts[:, places])
        return Labels(self.y.gather(1, places), self.counts.gather(1, places))

    @property
    def weights(self) -> Tensor:
        """Return 1 / (number of the user's examples that count), or 0, (B, m)."""
        return self.counts / self.counts.sum(1, keepdim=True).clamp(min=1)

    @property
    def present(self) -> Tensor:
        """Return which users have an example that counts, (B,)."""
        return self.counts.any(1)


def cross_entropy(logits: Tensor, labels: Labels) -> Tensor:
    """Return the sum over users of the mean over each user's examples.

    Args:
        logits: (B, m, classes).
        labels: labels of the examples.
    """
    each = torch.logsumexp(logits, 2) - logits.gather(2, labels.y[..., None])[..., 0]
    return (each * labels.weights).sum()


def slopes(logits: Tensor, labels: Labels) -> Tensor:
    """Return the derivative of `cross_entropy` in the logits, (B, m, classes)."""
    P = torch.softmax(logits, 2)
    P.scatter_add_(2, labels.y[..., None], torch.full_like(P[..., :1], -1.0))
    return P * labels.weights[..., None]


def descend(
    heads: Heads, batches: Iterable[tuple[Tensor, Labels]], sgd: SGD, biased: bool = True
) -> Heads:
    """Make one step of SGD per batch; users without an example in a batch do not move.

    Args:
        heads: heads at the start.
        batches: pairs of features (B, b, k) and labels.
        sgd: settings of SGD.
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
