"""Each user alone with a network: SGD on its own examples from a public random start.

Nothing is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from flwr.common import NDArrays
from torch import Tensor

from clients.fedavg_ft import FedAvgClient, public_heads
from privfed.data.cohort import Cohort
from privfed.models.softmax_heads import Heads


class StandaloneNetworkClient(FedAvgClient):
    """Trains one whole network per user for `epochs` epochs."""

    def __init__(self, epochs: int, **settings: Any) -> None:
        super().__init__(**settings | {"local_epochs": epochs, "head_epochs": 0})
        self.copies = 4

    def finish(self, block: Cohort, shared: NDArrays) -> tuple[Callable[[Tensor], Tensor], Heads]:
        """Return the users' own networks."""
        start = self.network.initial(self.seed, whole=True)
        own, _, _ = self.trained(block, start, 0)
        change = own.update()[len(self.network.body_names) :]
        head = public_heads(self.network.received(start)[1], len(block))

        def see(x: Tensor) -> Tensor:
            with torch.no_grad():
                return own.features(x)

        return see, Heads(head.W + change[0], head.c + change[1] if len(change) > 1 else head.c)
