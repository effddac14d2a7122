"""PPSGD, user side: shared plus local parameters, learnt together (Bietti et al. 2022).

    theta = (b, w)   the whole network, shared: representation b and head w
    p_i              the user's correction of the head, kept between rounds
    eta              step size of p_i (`local_step`)
    alpha eta        step size of theta (alpha: `ratio`)

    each round:  SGD for the local epochs on the loss of the network with head w + p_i,
                 in theta (from the shared theta) and in p_i
                 send theta_i - theta
    at the end:  the same steps once more in p_i alone, with the published theta

Steps in theta have the momentum and decay of all SGD here. Steps in p_i are plain. Only the head is
corrected: a correction of all parameters would take a whole network per user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import torch
from flwr.common import NDArrays
from torch import Tensor

from clients.fedavg_ft import public_heads
from privfed.algorithm.announcement import Announcement
from privfed.algorithm.network_client import NetworkClient, picked
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import POSITIVE
from privfed.foundation.linalg import Array
from privfed.models.network_contributions import Updates
from privfed.models.softmax_heads import Heads, cross_entropy, slopes


class AdditiveClient(NetworkClient):
    """Users share the whole network and add a correction of their own to its head."""

    def __init__(
        self,
        local_step: Annotated[float, POSITIVE],
        ratio: Annotated[float, POSITIVE],
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.eta = local_step
        self.local = replace(self.local, lr=ratio * self.eta)

    def contribute(self, block: Cohort, shared: NDArrays, told: Announcement) -> Updates:
        """Return theta_i - theta for every user of the block."""
        x, labels = self.examples(block)
        batches = list(self.places(block, labels, self.local_epochs, "batches", told.round))
        own = self.course(*self.network.received(shared), len(block), len(batches), self.local)
        p = self.kept(block)
        for places in batches:
            some = labels[places]
            seen = own.features(self.images_at(x, places, len(block)))
            logits = own.logits(seen) + p.logits(seen)
            own.step(cross_entropy(logits, some), some.present)
            p = self.corrected(p, seen.detach(), slopes(logits.detach(), some))
        self.keep_heads(block, p)
        return Updates(own.update())

    def corrected(self, p: Heads, features: Tensor, D: Tensor) -> Heads:
        """Return p - eta (gradient in p).

        Args:
            p: corrections.
            features: features (B, m, k).
            D: derivatives of the loss at the logits (B, m, classes).
        """
        c = p.c if self.network.head.bias is None else p.c - self.eta * D.sum(1)
        return Heads(p.W - self.eta * torch.bmm(D.transpose(1, 2), features), c)

    def own_errors(self, block: Cohort, shared: NDArrays) -> Array:
        """Return the errors as in :class:`NetworkClient`; keep the correction, not the head."""
        wrong = super().own_errors(block, shared)
        heads, mean = self.kept(block), public_heads(self.network.received(shared)[1], len(block))
        self.keep_heads(block, Heads(heads.W - mean.W, heads.c - mean.c))
        return wrong

    def finish(self, block: Cohort, shared: NDArrays) -> tuple[Callable[[Tensor], Tensor], Heads]:
        """Return the published network with the users' own corrections, after their last steps."""
        b, w = self.network.received(shared)
        see = self.course(b, w, len(block), 1, self.local).features
        x, labels = self.examples(block)
        mean, p = public_heads(w, len(block)), self.kept(block)
        with torch.no_grad():
            seen = see(x)
            for places in self.places(block, labels, self.local_epochs, "final batches"):
                some, part = labels[places], picked(seen, places)
                p = self.corrected(p, part, slopes(mean.logits(part) + p.logits(part), some))
        return see, Heads(mean.W + p.W, mean.c + p.c)
