"""An audit by one single run with many canaries: for algorithms that cannot be run thousands of times.

m hostile users, each a node of its own; a fair coin b_i = +1 or -1 decides what user i sends in the first sum of every round:

    replace-one   +clip v_i or -clip v_i          add-remove   +clip v_i, or no answer in the whole run

v_i: a direction of its own, a coordinate where there are at least m of them, otherwise a random unit vector. To all other
questions it answers zeros. As in `canary` everything is sent a hundred times too long, for the server to clip. The score of
user i is the sum over its rounds of <R_t, v_i>, weighted by the noise that the ledger states: the likelihood ratio, were the
other users' coins known. The sign of the score is the guess of b_i. Guesses are counted for the most confident users only, and
four numbers of them are tried, each with a quarter of the error probability. `privfed.audit.lower_bounds` has the theorem.

It is far from tight, and the further the more the canaries hide each other; it is valid in any case.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

from privfed.audit.canary import EXAMPLES, LOUD, overhear
from privfed.audit.lower_bounds import one_run_epsilon
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy.accounting import GaussianRelease
from privfed.privacy.clip_norms import MEASURES
from privfed.privacy.neighbouring import ADD_REMOVE
from privfed.runtimes.inprocess import LocalProxy

SHARES = (0.02, 0.1, 0.3, 1.0)
"""Fractions of the canaries for which a guess is made."""


def directions(m: int, size: int, seed: int) -> Array:
    """v_i as rows (m, size)."""
    rng = generator(seed, "canaries' directions")
    if m <= size:
        rows = np.zeros((m, size))
        rows[np.arange(m), rng.choice(size, m, replace=False)] = rng.choice([-1.0, 1.0], m)
        return rows
    rows = rng.standard_normal((m, size))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def one_run(experiment: Experiment, coins: Array) -> Array:
    """Scores (m,) of one run in which canary i, the only user of node i, tosses coins[i]: large ones say +1."""
    strategy: Any = experiment.strategy
    federation, ledger = experiment.federation, experiment.ledger
    if any(step.epsilon for step in strategy.plan):
        raise ConfigError(
            "--one-run: canaries have directions in a sum, but this algorithm releases choices; audit without it"
        )
    absent = experiment.budget.neighbouring == ADD_REMOVE
    name, shape = next(iter(strategy.shapes(strategy.plan[-1]).items()))
    V = directions(len(coins), math.prod(shape), federation.seed)
    scores, middle = np.zeros(len(coins)), np.zeros(len(coins))
    nodes = [LocalProxy(cid, None) for cid in experiment.nodes]  # type: ignore[arg-type]
    means: list[Array] = []
    overhear(strategy, "apply", lambda _, step, released: means.extend(released))
    for step in strategy.plan:
        announced = strategy.announcement(step)
        asked = federation.asked(step.phase.groups, step.group)
        clips, main = announced.clips, step.task == strategy.rounds_task and step.releases
        shapes = list(strategy.shapes(step).values()) if step.releases else []
        if step.question:
            shapes += [(MEASURES[step.question].size,)] * len(clips)
        zeros = [np.zeros(other) for other in shapes]
        results = []
        for node, v, coin in zip(nodes, V, coins, strict=True):
            if absent and coin < 0:
                continue
            answer = [LOUD * clips[0] * coin * v.reshape(shape), *zeros[1:]] if main else zeros
            metrics = {"step": announced.step}
            results.append(
                (
                    node,
                    FitRes(Status(Code.OK, ""), ndarrays_to_parameters(answer), EXAMPLES, metrics),
                )
            )
        means.clear()
        strategy.aggregate_fit(strategy.done + 1, results, [])
        release = next(
            (r for r in ledger.releases if (r.name, r.round) == (name, step.round)), None
        )
        if main and isinstance(release, GaussianRelease):
            weight = (release.clip / release.std) ** 2 * (np.array(list(asked.values())) > 0)
            scores += weight * (V @ means[0].ravel()) * sum(asked.values()) / release.clip
            middle += weight * (0.5 if absent else 0.0)
    return scores - middle


def guesses(scores: Array, coins: Array, delta: float, confidence: float) -> dict[str, Any]:
    """The `audit` part of a result, but for the claim: right guesses of the most confident ones, and the best bound."""
    m = len(coins)
    order, right = np.argsort(-np.abs(scores)), np.sign(scores) == coins
    tries = []
    for share in SHARES:
        r = max(1, round(share * m))
        v = int(np.sum(right[order[:r]]))
        lower = one_run_epsilon(m, r, v, delta, (1 - confidence) / len(SHARES))
        tries.append({"guesses": r, "right": v, "epsilon_lower": lower})
    return {
        "kind": "one run",
        "epsilon_lower": max(t["epsilon_lower"] for t in tries),
        "confidence": confidence,
        "repetitions": 1,
        "canaries": m,
        "delta": delta,
        "tries": tries,
    }
