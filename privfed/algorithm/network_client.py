"""What clients with networks share: chunks of users, batches, heads that stay with their users, and how a user is judged.

    body(x)   representation, shared        Heads   W_i, c_i: user i's own linear head, kept from round to round
    local     SGD on shared parameters      head    SGD on heads alone, the representation fixed

Users are computed in chunks, each user's images and numbers on a leading axis. Places without an example, and labels that are
no class, count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import torch
from flwr.common import NDArrays, Scalar
from torch import Tensor

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import CohortClient, task
from privfed.data.cohort import Cohort, Ids, draws, is_class
from privfed.federation.user_state import Memory
from privfed.foundation.constraints import AT_LEAST_ZERO, POSITIVE, WHOLE, Choice, Number, Whole
from privfed.foundation.linalg import Array
from privfed.models.augmentation import augmented
from privfed.models.low_rank_sgd import LowRank, PersonalNetwork
from privfed.models.network import Network, Parameters
from privfed.models.network_updates import Updates
from privfed.models.sgd import SGD, Course, Explicit
from privfed.models.softmax_heads import Heads, Labels, descend

BELOW_ONE = Number(lambda x: 0 <= x < 1, "must be at least 0 and below 1")


class NetworkClient(CohortClient):
    """An algorithm adds `contribute`, the users' updates of a round, and `finish`, the predictors they end with."""

    takes_rows = False
    nothing = -1.0

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        model: Network,
        lr: Annotated[float, POSITIVE],
        momentum: Annotated[float, BELOW_ONE],
        weight_decay: Annotated[float, AT_LEAST_ZERO],
        batch: Annotated[int, WHOLE],
        local_epochs: Annotated[int, WHOLE],
        head_lr: Annotated[float, POSITIVE],
        head_epochs: Annotated[int, Whole(0)],
        augment: Annotated[str, Choice("never", "final", "always")],
        seed: int,
    ) -> None:
        super().__init__(cohort)
        self.network, self.batch, self.seed, self.augment = model, batch, seed, augment
        self.local, self.local_epochs = SGD(lr, momentum, weight_decay), local_epochs
        self.head, self.head_epochs = SGD(head_lr, momentum, weight_decay), head_epochs
        self.personal = PersonalNetwork(model) if PersonalNetwork.serves(model) else None
        self.copies = 1 if self.personal is not None else 4
        """Copies of the parameters that a user needs for work."""
        shape = (len(self.cohort), model.classes, model.k)
        start = {"W": np.zeros(shape, dtype=np.float32), "c": np.zeros(shape[:2], dtype=np.float32)}
        self.memory: Memory = Memory(self.cohort.ids, start)

    # What an algorithm writes.

    @task("update")
    def contribute(self, block: Cohort, shared: NDArrays, told: Announcement) -> Updates:
        """The users' changes of the shared parameters, not clipped yet."""
        raise TypeError(f"{type(self).__name__} does not say what a round does")

    def finish(self, block: Cohort, shared: NDArrays) -> tuple[Callable[[Tensor], Tensor], Heads]:
        """How each user sees an image (B t, C, H, W) -> (B, t, k) and its own head, given the published model."""
        raise TypeError(f"{type(self).__name__} does not say how a user predicts")

    # What all share.

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """One round: what leaves are sums, what users keep is in their memory."""
        self.memory.begin(int(config["step"]))
        answer = super().fit(parameters, config)
        self.memory.end()
        return answer

    def blocks(self, users: Ids | None = None) -> Iterator[Cohort]:
        """A chunk of users at a time, images as they are stored."""
        everybody = np.arange(len(self.cohort)) if users is None else users
        size = self.network.chunk(self.copies)
        torch.set_num_threads(
            1
        )  # of this thread: cohorts are the parallelism, and two layers of it get in each other's way
        for start in range(0, len(everybody), size):
            yield self.cohort[everybody[start : start + size]]

    def judged(self) -> Iterator[Cohort]:
        """See :class:`CohortClient`."""
        return self.blocks()

    def examples(self, block: Cohort) -> tuple[Tensor, Labels]:
        """Images (B m, C, H, W) and labels of the users' examples."""
        return self.network.images(block.X), self.labels(block.y)

    def labels(self, y: Array) -> Labels:
        """Targets (B, m) as classes."""
        counts = is_class(y, self.network.classes)
        classes = np.where(counts, y, 0).astype(np.int64)
        device = self.network.device
        return Labels(torch.from_numpy(classes).to(device), torch.from_numpy(counts).to(device))

    def course(
        self, body: Parameters, head: Parameters, users: int, steps: int, sgd: SGD
    ) -> Course:
        """A way of so many steps from the shared parameters; short ones on linear layers need no copies of them."""
        if self.personal is not None and steps <= LowRank.LONGEST:
            return LowRank(self.personal, body, head, users, steps, sgd)
        return Explicit(self.network, body, head, users, sgd)

    def places(
        self, block: Cohort, labels: Labels, epochs: int, *purpose: str | int
    ) -> Iterator[Tensor | slice]:
        """Batches of so many epochs: everything at once if it fits, otherwise places (B, b) in random order, padding last."""
        m = block.y.shape[1]
        for epoch in range(epochs):
            if m <= self.batch:
                yield slice(None)
                continue
            keys = draws(self.seed, block.ids, m, *purpose, epoch)
            keys[~labels.counts.cpu().numpy()] = 2.0
            order = torch.from_numpy(np.argsort(keys, axis=1)).to(self.network.device)
            yield from order.split(self.batch, dim=1)

    @staticmethod
    def images_at(x: Tensor, places: Tensor | slice, users: int) -> Tensor:
        """The images of a batch, out of x (B m, C, H, W)."""
        return (
            x
            if isinstance(places, slice)
            else picked(x.unflatten(0, (users, -1)), places).flatten(0, 1)
        )

    def fit_heads(
        self,
        heads: Heads,
        features: Callable[[int], Tensor],
        block: Cohort,
        labels: Labels,
        round: int,
    ) -> Heads:
        """Heads after the head epochs, on features(epoch) (B, m, k) of all of the users' examples."""

        def batches() -> Iterator[tuple[Tensor, Labels]]:
            for epoch in range(self.head_epochs):
                seen = features(epoch)
                for places in self.places(block, labels, 1, "head batches", round, epoch):
                    yield picked(seen, places), labels[places]

        with torch.no_grad():
            return descend(heads, batches(), self.head, biased=self.network.head.bias is not None)

    def varied(
        self,
        x: Tensor,
        see: Callable[[Tensor], Tensor],
        block: Cohort,
        round: int,
        final: bool = False,
        seen: Tensor | None = None,
    ) -> Callable[[int], Tensor]:
        """Features of the images x by epoch: always the same (`seen`, where they are known), unless images are augmented."""
        if self.augment == "always" or (self.augment == "final" and final):
            return lambda epoch: see(
                augmented(
                    x, draws(self.seed, block.ids, 3 * block.y.shape[1], "augment", round, epoch)
                )
            )
        with torch.no_grad():
            fixed = see(x) if seen is None else seen.detach()
        return lambda epoch: fixed

    def kept(self, block: Cohort) -> Heads:
        """The users' heads as they left them."""
        rows, now = self.memory.places(block.ids), self.memory.now
        return Heads(
            *(torch.from_numpy(now[name][rows]).to(self.network.device) for name in ("W", "c"))
        )

    def keep_heads(self, block: Cohort, heads: Heads) -> None:
        """Remember the users' heads."""
        rows = self.memory.places(block.ids)
        for name, value in (("W", heads.W), ("c", heads.c)):
            self.memory.now[name][rows] = value.cpu().numpy()

    def own_errors(self, block: Cohort, shared: NDArrays) -> Array:
        """The fraction of each user's held-out images (B,) that its own predictor gets wrong."""
        assert block.truth is not None
        see, heads = self.finish(block, shared)
        self.keep_heads(block, heads)
        with torch.no_grad():
            logits = heads.logits(see(self.network.images(block.truth.X)))  # type: ignore[attr-defined]
        wrong: Array = block.truth.wrong(logits.argmax(2).cpu().numpy())  # type: ignore[attr-defined]
        return wrong

    def rival_errors(self, block: Cohort) -> dict[str, Array]:
        """Users alone are an experiment of their own (algo=standalone): training a network each takes longer than a run."""
        return {}

    def keep(self, shared: NDArrays) -> None:
        """Put every user's head where the user keeps it, if there is such a place."""
        if self.store is None:
            return
        for block in self.blocks():
            _, heads = self.finish(block, shared)
            for i, user in enumerate(block.ids.tolist()):
                self.store.save_arrays(user, W=heads.W[i].cpu().numpy(), c=heads.c[i].cpu().numpy())


def picked(values: Tensor, places: Tensor | slice) -> Tensor:
    """Rows of values (B, m, ...) at places (B, b), or all."""
    if isinstance(places, slice):
        return values[:, places]
    return values[torch.arange(len(values), device=values.device)[:, None], places]
