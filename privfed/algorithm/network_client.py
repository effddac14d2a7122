"""Base of clients with networks: chunks of users, batches, personal heads, and judging.

    body(x)   representation, shared
    Heads     W_i, c_i: user i's own linear head, kept from round to round
    local     SGD on shared parameters
    head      SGD on heads alone, with the representation fixed

Users are computed in chunks; the leading axis of every array is the user. Padding, and examples
whose label is no class, have no effect.
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
from privfed.models.network_contributions import Updates
from privfed.models.sgd import SGD, Course, Explicit
from privfed.models.softmax_heads import Heads, Labels, descend

BELOW_ONE = Number(lambda x: 0 <= x < 1, "must be at least 0 and below 1")


class NetworkClient(CohortClient):
    """Serves users with networks.

    An algorithm adds `contribute`, the users' updates of a round, and `finish`, the users' final
    predictors.
    """

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
        """Number of copies of the parameters that are held in memory per user."""
        shape = (len(self.cohort), model.classes, model.k)
        start = {"W": np.zeros(shape, dtype=np.float32), "c": np.zeros(shape[:2], dtype=np.float32)}
        self.memory: Memory = Memory(self.cohort.ids, start)

    # What an algorithm writes.

    @task("update")
    def contribute(self, block: Cohort, shared: NDArrays, told: Announcement) -> Updates:
        """Return the users' changes of the shared parameters, not clipped yet."""
        raise TypeError(f"{type(self).__name__} does not say what a round does")

    def finish(self, block: Cohort, shared: NDArrays) -> tuple[Callable[[Tensor], Tensor], Heads]:
        """Return the users' final predictors, given the published model.

        Returns:
            The users' representations as a function of images, (B t, C, H, W) -> (B, t, k), and
            the users' own heads.
        """
        raise TypeError(f"{type(self).__name__} does not say how a user predicts")

    # What all share.

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Compute one round: return sums, and keep the users' state in memory."""
        self.memory.begin(int(config["step"]))
        answer = super().fit(parameters, config)
        self.memory.end()
        return answer

    def blocks(self, users: Ids | None = None) -> Iterator[Cohort]:
        """Yield the users in chunks, with images as they are stored."""
        everybody = np.arange(len(self.cohort)) if users is None else users
        size = self.network.chunk(self.copies)
        # Cohorts run in parallel; threads inside each of them would compete for the same cores.
        torch.set_num_threads(1)
        for start in range(0, len(everybody), size):
            yield self.cohort[everybody[start : start + size]]

    def judged(self) -> Iterator[Cohort]:
        """Yield the users as they are judged at the end, in the same chunks."""
        return self.blocks()

    def examples(self, block: Cohort) -> tuple[Tensor, Labels]:
        """Return images (B m, C, H, W) and labels of the users' examples."""
        return self.network.images(block.X), self.labels(block.y)

    def labels(self, y: Array) -> Labels:
        """Return targets y (B, m) as classes."""
        counts = is_class(y, self.network.classes)
        classes = np.where(counts, y, 0).astype(np.int64)
        device = self.network.device
        return Labels(torch.from_numpy(classes).to(device), torch.from_numpy(counts).to(device))

    def course(
        self, body: Parameters, head: Parameters, users: int, steps: int, sgd: SGD
    ) -> Course:
        """Return the start of `steps` SGD steps per user from the shared parameters.

        A short course on linear layers is computed without copies of the parameters per user.

        Args:
            body: shared parameters of the representation.
            head: shared parameters of the head; empty if it is not shared.
            users: number of users B.
            steps: number of steps.
            sgd: step size, momentum and decay.
        """
        if self.personal is not None and steps <= LowRank.LONGEST:
            return LowRank(self.personal, body, head, users, steps, sgd)
        return Explicit(self.network, body, head, users, sgd)

    def places(
        self, block: Cohort, labels: Labels, epochs: int, *purpose: str | int
    ) -> Iterator[Tensor | slice]:
        """Yield the batches of `epochs` epochs.

        Args:
            block: users.
            labels: their labels; padding comes last in an epoch.
            epochs: number of epochs.
            purpose: what the random order is for, part of its seed.

        Yields:
            `slice(None)` if all examples fit into one batch, otherwise positions (B, b) in random
            order.
        """
        m = block.y.shape[1]
        for epoch in range(epochs):
            if m <= self.batch:
                yield slice(None)
                continue
            keys = draws(self.seed, block.identities, m, *purpose, epoch)
            keys[~labels.counts.cpu().numpy()] = 2.0
            order = torch.from_numpy(np.argsort(keys, axis=1)).to(self.network.device)
            yield from order.split(self.batch, dim=1)

    @staticmethod
    def images_at(x: Tensor, places: Tensor | slice, users: int) -> Tensor:
        """Return the images (B b, C, H, W) of a batch, out of x (B m, C, H, W)."""
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
        """Return the heads after the head epochs.

        Args:
            heads: heads to start from.
            features: epoch -> features (B, m, k) of all examples of the users.
            block: users.
            labels: their labels.
            round: round, part of the seed of the batches.
        """

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
        """Return features of the images by epoch: always the same unless images are augmented.

        Args:
            x: images (B m, C, H, W).
            see: representation.
            block: users.
            round: round, part of the seed of the augmentation.
            final: whether this is the final fit of the heads.
            seen: features of x (B, m, k) if they are already known.

        Returns:
            epoch -> features (B, m, k).
        """
        if self.augment == "always" or (self.augment == "final" and final):
            return lambda epoch: see(
                augmented(
                    x,
                    draws(
                        self.seed,
                        block.identities,
                        3 * block.y.shape[1],
                        "augment",
                        round,
                        epoch,
                    ),
                )
            )
        with torch.no_grad():
            fixed = see(x) if seen is None else seen.detach()
        return lambda epoch: fixed

    def kept(self, block: Cohort) -> Heads:
        """Return the users' heads as they were kept last."""
        rows, now = self.memory.places(block.ids), self.memory.now
        return Heads(
            *(torch.from_numpy(now[name][rows]).to(self.network.device) for name in ("W", "c"))
        )

    def keep_heads(self, block: Cohort, heads: Heads) -> None:
        """Keep the users' heads for the next round."""
        rows = self.memory.places(block.ids)
        for name, value in (("W", heads.W), ("c", heads.c)):
            self.memory.now[name][rows] = value.cpu().numpy()

    def own_errors(self, block: Cohort, shared: NDArrays) -> Array:
        """Return the fraction (B,) of each user's held-out images that its predictor gets wrong."""
        assert block.truth is not None
        see, heads = self.finish(block, shared)
        self.keep_heads(block, heads)
        with torch.no_grad():
            logits = heads.logits(see(self.network.images(block.truth.X)))  # type: ignore[attr-defined]
        wrong: Array = block.truth.wrong(logits.argmax(2).cpu().numpy())  # type: ignore[attr-defined]
        return wrong

    def rival_errors(self, block: Cohort) -> dict[str, Array]:
        """Return nothing.

        Users alone are a separate experiment (algo=network/standalone), because training one
        network per user takes longer than a whole run.
        """
        return {}

    def keep(self, shared: NDArrays) -> None:
        """Save each user's head in the store, if there is one."""
        if self.store is None:
            return
        for block in self.blocks():
            _, heads = self.finish(block, shared)
            for i, user in enumerate(block.ids.tolist()):
                self.store.save_arrays(user, W=heads.W[i].cpu().numpy(), c=heads.c[i].cpu().numpy())


def picked(values: Tensor, places: Tensor | slice) -> Tensor:
    """Return the rows of `values` (B, m, ...) at `places` (B, b), or all rows for a slice."""
    if isinstance(places, slice):
        return values[:, places]
    return values[torch.arange(len(values), device=values.device)[:, None], places]
