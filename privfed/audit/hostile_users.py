"""Hostile users, handmade or found by a search: data chosen to move a sum as far as possible.

The search climbs on the real client. It asks what one user would send in a step of a recorded run,
and changes the user's numbers, from 1e-150 to 1e150, if that moves the sum further. Random changes
are enough, since most contributions are clipped. What is left to find is a client whose clip does
not hold, a rounding error that grows, or two users with opposite contributions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.common import parameters_to_ndarrays

from privfed.algorithm.announcement import Announcement
from privfed.audit.guise import COHORT, floating
from privfed.audit.replay import Theatre
from privfed.audit.transcript import Call, Message, Transcript
from privfed.data.cohort import Cohort, coins, groups_of
from privfed.data.source import DataSource
from privfed.foundation.errors import RefutedError
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy.accounting import GaussianRelease, Release
from privfed.privacy.clipping import norm

User = tuple[Array, Array]
"""Examples X (m, d) and targets y (m,) of one user."""
LARGEST = 150.0
"""Largest power of ten of the numbers that the search tries."""


def moved(entry: Release, one: Array, other: Array) -> float:
    """Return the distance of two totals (size,) as a fraction of what the ledger claims.

    For sums, it is the Euclidean distance over the sensitivity. For selections, it is the largest
    change of a candidate's log-probability over epsilon. Above 1, the claim is wrong.
    """
    with np.errstate(all="ignore"):
        if isinstance(entry, GaussianRelease) or not np.isfinite(entry.rate):
            return norm(one - other) / entry.sensitivity
        p, q = (entry.rate * (total - np.max(total)) for total in (one, other))
        p, q = (x - np.log(np.sum(np.exp(x))) for x in (p, q))
        return float(np.max(np.abs(p - q))) / entry.epsilon


def labels_of(data: DataSource) -> Array | None:
    """Return the targets that examples may have: classes, or -1 and 1; None means any number."""
    if data.error != "risk":
        return None
    return np.array([-1.0, 1.0]) if data.classes is None else np.arange(float(data.classes))


def as_labels(y: Array, labels: Array | None) -> Array:
    """Return numbers y as labels: by their sign for two labels, otherwise modulo their number."""
    if labels is None:
        return y
    if len(labels) == 2:
        return labels[(y >= 0).astype(int)]
    return labels[np.mod(np.rint(y), len(labels)).astype(int)]


def hostile(rng: np.random.Generator, m: int, d: int, labels: Array | None) -> dict[str, User]:
    """Return hostile users by what is unusual about them.

    Args:
        rng: source of randomness.
        m: examples per user.
        d: features per example.
        labels: allowed targets; None means any number. Users whose targets are unusual ignore it.
    """

    def targets(scale: float = 1.0) -> Array:
        y = rng.standard_normal(m)
        return (
            scale * y
            if labels is None
            else as_labels(y if len(labels) == 2 else y * len(labels), labels)
        )

    def features(scale: float = 1.0) -> Array:
        return scale * rng.standard_normal((m, d))

    def one_entry(value: float) -> Array:
        X = features()
        X[m // 2, d // 2] = value
        return X

    # All pairs of examples add up to zero, and leave only rounding errors.
    cancelling = np.zeros(m)
    cancelling[: min(m, 3)] = [2.0, 2.0, -1.0][:m]
    row, sides = features()[:1], np.where(np.arange(m) % 2, 1e-15, 1e15)
    explained = features() * (np.arange(d) == 0)
    return {
        "another": (features(), targets()),
        "zero": (np.zeros((m, d)), np.zeros(m)),
        "huge": (features(1e8), targets(1e8)),
        "overflowing": (np.full((m, d), 1e200), np.full(m, 1e200 if labels is None else 1.0)),
        "tiny": (features(1e-200), targets()),
        "subnormal": (features(1e-310), targets(1e-310)),
        "aligned": (np.tile(row, (m, 1)), targets()),
        "cancelling": (np.outer(cancelling, row) * 1e10, np.ones(m)),
        "lopsided": (features() * sides[:, None], targets()),
        "one-dimensional": (explained, as_labels(explained[:, 0], labels)),
        "other targets": (features(), 100.0 * rng.standard_normal(m)),
        "with NaN": (one_entry(np.nan), targets()),
        "with infinity": (one_entry(-np.inf), targets()),
        "with the largest number": (one_entry(1.7e308), targets()),
    }


@dataclass
class Search:
    """Searches for users who move a release far.

    Attributes:
        theatre: the experiment.
        base: the recorded run.
        user: number of the user whose place they take.
        tries: number of changes per climb.
        labels: allowed targets; None means any number.
        dtype: precision in which the node holds its users' features.
    """

    theatre: Theatre
    base: Transcript
    user: int
    tries: int
    labels: Array | None
    dtype: np.dtype[Any]

    def pairs(self, own: User, weak: bool, remove: bool) -> Iterator[tuple[str, User, User]]:
        """Yield two distant users per sum and kind of step, with the name of the release.

        Args:
            own: data that the user has.
            weak: whether the two users share their features.
            remove: whether distances are from being absent; then both users are the same.
        """
        for message, calls in self._kinds_of_steps():
            for i, call in enumerate(calls):
                found = self._pair(message, i, call, own, weak, remove)
                if found is not None:
                    yield f"{call.name} of round {call.round}", *found

    def _kinds_of_steps(self) -> Iterator[tuple[Message, list[Call]]]:
        """Yield one message to the user's node per kind of question, with the calls of the gate."""
        seen = set()
        for message in self.base.messages:
            config = message.ins.config
            kind = (config.get("task"), config.get("release"), config.get("measure"))
            if message.kind == "fit" and message.cid == COHORT and kind not in seen:
                calls = [call for call in self.base.calls if call.step == config["step"] - 1]
                if self._is_asked(message):
                    seen.add(kind)
                    yield message, calls

    def _is_asked(self, message: Message) -> bool:
        told = Announcement.from_config(message.ins.config)
        own = np.array([self.user], dtype=np.uint64)
        if told.sampling < 1:
            return bool(coins(own, told.sampling, told.seed, told.step, told.secret)[0])
        return told.group in (None, groups_of(own, told.groups, told.seed)[0])

    def _answer(self, message: Message, user: User) -> list[Array]:
        """Return what a node with this one user would send."""
        X, y = user
        with np.errstate(over="ignore"):
            X = X.astype(floating(self.dtype))
        client = self.theatre.serving(Cohort(np.array([self.user]), X[None], y[None]))
        answer: list[Array] = client.fit(
            parameters_to_ndarrays(message.ins.parameters), message.ins.config
        )[0]
        return answer

    def _pair(
        self, message: Message, i: int, call: Call, own: User, weak: bool, remove: bool
    ) -> tuple[User, User] | None:
        """Return two users, each found by climbing away from the other."""
        mine = self._answer(message, own)
        if call.entry is None or i >= len(mine) or mine[i].size != call.total.size:
            # The release is not simply this sum, so only users found for other releases test it.
            return None
        entry, others = call.entry, call.total.ravel() - mine[i].ravel()

        def total(user: User) -> Array:
            answer = self._answer(message, user)
            if len(answer) <= i or answer[i].size != others.size:
                raise RefutedError(
                    f"{message.words} is answered by other arrays, or not at all, if the user has "
                    "other data"
                )
            with np.errstate(all="ignore"):
                return np.asarray(others + answer[i].ravel())

        rng = generator(self.theatre.cfg.seed, "search", call.name, call.round)
        first = self._climb(rng, lambda user: moved(entry, total(user), others), own, frozen=None)
        if remove:
            return first, first
        reference = total(first)
        second = self._climb(
            rng, lambda user: moved(entry, total(user), reference), own, first[0] if weak else None
        )
        if weak:
            return first, second
        reference = total(second)
        return self._climb(
            rng, lambda user: moved(entry, total(user), reference), first, None
        ), second

    def _climb(
        self,
        rng: np.random.Generator,
        far: Callable[[User], float],
        own: User,
        frozen: Array | None,
    ) -> User:
        """Return a user as far away as random changes lead, from a few starts.

        Args:
            rng: source of randomness.
            far: distance of a user.
            own: data that the user has.
            frozen: features, if they may not change.
        """
        m, d = own[0].shape
        strange = list(hostile(rng, m, d, self.labels).values())
        starts = [own, *strange, (own[0], -own[1]), (-own[0], own[1])]
        starts = [
            (X if frozen is None else frozen, y)
            for X, y in starts
            if np.isfinite(X).all() and np.isfinite(y).all()
        ]
        ranked = sorted(((far(user), i) for i, user in enumerate(starts)), reverse=True)
        value, best = ranked[0][0], starts[ranked[0][1]]
        for _, i in ranked[:3]:
            user, height, stride = (
                starts[i],
                ranked[[place for _, place in ranked].index(i)][0],
                1.0,
            )
            for _ in range(self.tries // 3):
                X, y = self._changed(rng, user, stride)
                new = (X if frozen is None else frozen, y)
                there = far(new)
                if there >= height:
                    user, height, stride = new, there, min(2.0 * stride, 1e3)
                else:
                    stride = max(0.85 * stride, 1e-6)
            if height > value:
                value, best = height, user
        return best

    def _changed(self, rng: np.random.Generator, user: User, stride: float) -> User:
        """Return the user's numbers, changed at random in one of several ways, and finite."""
        X, y = user[0].copy(), user[1].copy()
        with np.errstate(all="ignore"):
            self._change(rng, X, y, stride)
        bound = 10.0 ** (2 * LARGEST)
        X, y = (np.clip(np.nan_to_num(x), -bound, bound) for x in (X, y))
        return X, as_labels(y, self.labels)

    @staticmethod
    def _change(rng: np.random.Generator, X: Array, y: Array, stride: float) -> None:
        """Make one random change in place."""
        m, d = X.shape
        j = rng.integers(m)
        kind = rng.integers(7)
        if kind == 0:
            X += stride * np.max(np.abs(X)) / np.sqrt(d) * rng.standard_normal((m, d))
        elif kind == 1:
            y += stride * (np.max(np.abs(y)) or 1.0) * rng.standard_normal(m)
        elif kind == 2:
            X[j, rng.integers(d)] *= rng.choice([0.0, -1.0, 1.0 + stride, 1.0 - stride])
        elif kind == 3:
            X[j] *= 10.0 ** rng.normal(0.0, min(stride, 10.0))
        elif kind == 4:
            y[j] *= rng.choice([-1.0, 0.0, 10.0 ** rng.normal(0.0, min(stride, 10.0))])
        elif kind == 5:
            X[j] = rng.choice([-1.0, 1.0]) * X[rng.integers(m)]
        else:
            X *= 10.0 ** rng.uniform(-LARGEST, LARGEST) / (np.max(np.abs(X)) or 1.0)
            y *= 10.0 ** rng.uniform(-LARGEST, LARGEST) / (np.max(np.abs(y)) or 1.0)
