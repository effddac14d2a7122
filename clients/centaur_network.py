"""CENTAUR with a network, user side (CENTAUR Algorithm 2).

b       representation, shared
w_i     the user's head, kept between rounds
eta_l   step size of the user's SGD (`lr`)

1. w_i <- SGD on w_i for the head epochs, b fixed
2. b_i <- SGD on the representation, starting from b, for the local epochs, w_i fixed
3. send b_i - b
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.common import NDArrays
from torch import Tensor

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.network_client import NetworkClient
from privfed.data.cohort import Cohort
from privfed.models.network_contributions import Updates
from privfed.models.softmax_heads import Heads, cross_entropy


class CentaurNetworkClient(NetworkClient):
    """Users share a representation and nothing else."""

    def contribute(self, block: Cohort, shared: NDArrays, told: Announcement) -> Updates:
        """Return b_i - b for every user of the block."""
        x, labels = self.examples(block)
        t, users = told.round, len(block)
        b, _ = self.network.received(shared)
        batches = list(self.places(block, labels, self.local_epochs, "batches", t))
        own = self.course(b, {}, users, len(batches), self.local)
        # If one batch holds all examples, the first step has the same features as the head.
        seen = own.features(x) if isinstance(batches[0], slice) else None
        features = self.varied(x, own.features, block, t, seen=seen)
        heads = self.fit_heads(self.kept(block), features, block, labels, t)
        self.keep_heads(block, heads)
        for i, places in enumerate(batches):
            if i or seen is None:
                seen = own.features(self.images_at(x, places, users))
            some = labels[places]
            own.step(cross_entropy(heads.logits(seen), some), some.present)
        return Updates(own.update())

    def finish(self, block: Cohort, shared: NDArrays) -> tuple[Callable[[Tensor], Tensor], Heads]:
        """Return the published representation, and the users' heads fitted once more on it."""
        x, labels = self.examples(block)
        see = self.course(*self.network.received(shared), len(block), 1, self.local).features
        return see, self.fit_heads(
            self.kept(block), self.varied(x, see, block, 0, final=True), block, labels, 0
        )
