"""Clients of one node: one per number of rows, because users of a client have equally many.

What is computed for a user depends on that user's rows alone. A user of the node who has no rows,
or too few for the algorithm, contributes nothing and keeps nobody else away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    NDArrays,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)

from privfed.data.cohort import Cohort
from privfed.data.row_order import row_order
from privfed.data.user_identity import Identities, identities_of
from privfed.federation.client_factory import ClientFactory, ServingClient
from privfed.federation.head_store import HeadStore
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array

Rows = tuple[Array, Array]
"""X (m, d) and y (m,) of one user."""
NOTHING_TOLD = EvaluateRes(Status(Code.OK, ""), 0.0, 1, {})
"""What a server learns when it sends the published model to real users."""


@dataclass(frozen=True)
class Served:
    """Users with equally many rows.

    Attributes:
        client: serves them.
        held_out: X (B, t, d) and y (B, t) of the rows that only judge; None without any.
    """

    client: ServingClient
    held_out: tuple[Array, Array] | None = None


class NodeClients:
    """The clients of a node, who answer as one.

    Args:
        served: clients of users with rows.
        absent: client of registered users who contribute nothing; None without any.
    """

    def __init__(self, served: list[Served], absent: ServingClient | None = None) -> None:
        self.served, self.absent = served, absent

    @property
    def first(self) -> ServingClient:
        """One of the clients; they differ in their users only."""
        client = self.served[0].client if self.served else self.absent
        assert client is not None
        return client

    @property
    def users(self) -> int:
        """Number of users with rows."""
        return sum(len(each.client.cohort) for each in self.served)

    @property
    def row_counts(self) -> list[int]:
        """Numbers of training rows of the users, each at least once."""
        return [each.client.cohort.m for each in self.served]

    def keep_heads(self, store: HeadStore) -> None:
        """Keep the users' own predictors, once the model is published."""
        for each in self.served:
            each.client.store = store

    def fit(self, ins: FitIns) -> FitRes:
        """Return the sums over all users of the node."""
        clients = [each.client for each in self.served]
        clients += [] if self.absent is None else [self.absent]
        answers = [client.to_client().fit(ins) for client in clients]
        if len(answers) == 1:
            return answers[0]
        sums = [parameters_to_ndarrays(answer.parameters) for answer in answers]
        total = [np.asarray(sum(parts)) for parts in zip(*sums, strict=True)]
        users = sum(answer.num_examples for answer in answers)
        return FitRes(answers[0].status, ndarrays_to_parameters(total), users, answers[0].metrics)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Take the published model."""
        judged = [each.client.to_client().evaluate(ins) for each in self.served]
        return judged[0] if len(judged) == 1 else NOTHING_TOLD

    def errors(self, shared: NDArrays, labels: bool) -> Array:
        """Return the errors on all held-out rows, (rows,).

        Args:
            shared: the published model.
            labels: whether targets are the labels -1 and 1, which are right or wrong.
        """
        found = [np.empty(0)]
        for each in self.served:
            if each.held_out is not None:
                X, y = each.held_out
                blocks = each.client.cohort.blocks()
                W = np.concatenate([each.client.weights(block, shared) for block in blocks])
                predicted = np.matmul(X, W[:, :, None])[..., 0]
                found.append(np.ravel(predicted * y <= 0 if labels else (predicted - y) ** 2))
        return np.concatenate(found)


def clients_for(
    factory: ClientFactory,
    rows: Mapping[int, Rows],
    names: Mapping[int, str],
    registered: range | None,
    test: float,
    say: Callable[[str], None],
) -> NodeClients:
    """Make the clients of a node with real users.

    Args:
        factory: makes clients.
        rows: rows by public number of the user.
        names: names by public number of the user, from which everything random follows.
        registered: public numbers of the registered users; None: those who have rows.
        test: fraction of each user's rows, chosen at random, that only judge.
        say: prints a line for the operator of the node.

    Raises:
        ConfigError: if the settings of the server are not allowed.
    """
    sizes: dict[int, list[int]] = {}
    for user in sorted(rows):
        sizes.setdefault(len(rows[user][1]), []).append(user)
    served: list[Served] = []
    for m, users in sorted(sizes.items()):
        named = identities_of(names[user] for user in users)
        X, y = _in_order(factory.seed, named, [rows[user] for user in users])
        kept = m - int(test * m)
        cohort = Cohort(np.array(users), X[:, :kept], y[:, :kept], named=named)
        held_out = (X[:, kept:], y[:, kept:]) if kept < m else None
        try:
            served.append(Served(factory.serving(cohort), held_out))
        except ConfigError as error:
            # Raises if the settings, rather than these users, are wrong.
            factory.serving(factory.source.empty())
            if registered is None:
                raise
            say(f"{len(users)} user(s) with {m} row(s) contribute nothing: {error}")
    here = {int(user) for each in served for user in each.client.cohort.ids}
    missing = [user for user in registered or () if user not in here]
    if not missing:
        return NodeClients(served)
    # Numbers that are not finite count as none, in whatever way the algorithm needs.
    shape = (len(missing), factory.source.m)
    lost = Cohort(
        np.array(missing), np.full((*shape, factory.source.d), np.nan), np.full(shape, np.nan)
    )
    return NodeClients(served, factory.serving(lost))


def _in_order(seed: int, named: Identities, users: list[Rows]) -> Rows:
    """Return the rows of users with equally many, each user's in a random order.

    The order follows from the seed, the user's name and the rows themselves: neither the order of
    the file nor other users change it.

    Args:
        seed: seed of the run.
        named: identities (B,) of the users.
        users: rows of each user.

    Returns:
        X (B, m, d) and y (B, m).
    """
    X, y = (np.stack(part) for part in zip(*users, strict=True))
    who = np.repeat(np.arange(len(X)), X.shape[1])
    order = row_order(seed, named, who, (X.reshape(len(who), -1), y.ravel()))
    X, y = (part.reshape(-1, *part.shape[2:])[order].reshape(part.shape) for part in (X, y))
    return X, y
