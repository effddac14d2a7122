"""DP-FedAvg with fine-tuning, user side: one network for all users, at the end one head per user.

theta = (b, w)   the whole network, shared: representation b and head w
theta_i          the user's copy, trained on the user's examples
w_i              the user's final head

each round:  theta_i <- SGD from theta for the local epochs; send theta_i - theta
at the end:  w_i <- SGD on the head from the published w for the head epochs, b fixed
"""

from __future__ import annotations

from collections.abc import Callable

from flwr.common import NDArrays
from torch import Tensor

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.network_client import NetworkClient
from privfed.data.cohort import Cohort
from privfed.models.network import Parameters
from privfed.models.network_contributions import Updates
from privfed.models.sgd import Course
from privfed.models.softmax_heads import Heads, Labels, cross_entropy


class FedAvgClient(NetworkClient):
    """Users share the whole network."""

    def contribute(self, block: Cohort, shared: NDArrays, told: Announcement) -> Updates:
        """Return theta_i - theta for every user of the block."""
        return Updates(self.trained(block, shared, told.round)[0].update())

    def trained(self, block: Cohort, shared: NDArrays, t: int) -> tuple[Course, Tensor, Labels]:
        """Return each user's network after the local epochs, and the training images and labels."""
        x, labels = self.examples(block)
        batches = list(self.places(block, labels, self.local_epochs, "batches", t))
        own = self.course(*self.network.received(shared), len(block), len(batches), self.local)
        for places in batches:
            some = labels[places]
            seen = own.features(self.images_at(x, places, len(block)))
            own.step(cross_entropy(own.logits(seen), some), some.present)
        return own, x, labels

    def finish(self, block: Cohort, shared: NDArrays) -> tuple[Callable[[Tensor], Tensor], Heads]:
        """Return the published representation, and the published head fine-tuned per user."""
        x, labels = self.examples(block)
        b, w = self.network.received(shared)
        see = self.course(b, w, len(block), 1, self.local).features
        features = self.varied(x, see, block, 0, final=True)
        return see, self.fit_heads(public_heads(w, len(block)), features, block, labels, 0)


def public_heads(w: Parameters, users: int) -> Heads:
    """Return the shared head w, repeated for `users` users."""
    W = w["weight"].expand(users, *w["weight"].shape)
    return Heads(W, w["bias"].expand(users, -1) if "bias" in w else W.new_zeros(W.shape[:2]))
