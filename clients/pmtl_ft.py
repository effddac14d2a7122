"""Private multi-task learning with mean regularisation and fine-tuning, user side (Hu et al. 2021).

    theta     mean of the users' networks, shared
    theta_i   the user's own network
    lambda    strength of the pull toward the mean (`pull`)

    each round:  theta_i <- SGD on loss_i(theta_i) + lambda/2 |theta_i - theta|^2
                            from theta for the local epochs
                 send theta_i - theta
    at the end:  theta_i in the same way from the published theta,
                 then the head alone for the head epochs

A user's network starts each round at the mean to which it is pulled. So it need not be kept; n
users would have to keep n networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import torch
from flwr.common import NDArrays
from torch import Tensor

from clients.fedavg_ft import FedAvgClient, public_heads
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import POSITIVE
from privfed.models.softmax_heads import Heads


class MultiTaskClient(FedAvgClient):
    """Users have networks of their own, not far from the mean."""

    def __init__(self, pull: Annotated[float, POSITIVE], **settings: Any) -> None:
        super().__init__(**settings)
        self.local = replace(self.local, pull=pull)

    def finish(self, block: Cohort, shared: NDArrays) -> tuple[Callable[[Tensor], Tensor], Heads]:
        """Return the users' own networks near the published mean, with fine-tuned heads."""
        own, x, labels = self.trained(block, shared, 0)
        mean = public_heads(self.network.received(shared)[1], len(block))
        change = own.update()[len(self.network.body_names) :]
        heads = Heads(mean.W + change[0], mean.c + change[1] if len(change) > 1 else mean.c)

        def see(x: Tensor) -> Tensor:
            with torch.no_grad():
                return own.features(x)

        return see, self.fit_heads(
            heads, self.varied(x, see, block, 0, final=True), block, labels, 0
        )
