"""Audit by one single run with many canaries, for algorithms too slow to run thousands of times.

There are m hostile users, each on its own node. A fair coin b_i = +1 or -1 decides what user i
sends in the first sum of every round:

    replace-one   +clip v_i or -clip v_i          zero-out   +clip v_i, or no answer in the run

v_i is a direction per user: a coordinate if there are at least m of them, otherwise a random unit
vector. To all other questions user i answers zeros. As in `canary`, everything is sent a hundred
times too long, for the server to clip. The score of user i is the sum over its rounds of <R_t,
v_i>, weighted by the noise that the ledger states: the likelihood ratio if the other users' coins
were known. The sign of the score is the guess of b_i. Only the guesses for the most confident users
count. Four numbers of guesses are tried, each with a quarter of the error probability.
`privfed.audit.lower_bounds` states the theorem.

The bound is valid in any case, but far from tight, and the less tight the more the canaries hide
each other.
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
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.neighbouring import ZERO_OUT
from privfed.runtimes.inprocess import LocalProxy

SHARES = (0.02, 0.1, 0.3, 1.0)
"""Fractions of the canaries for which guesses are counted."""


def directions(m: int, size: int, seed: int) -> Array:
    """Return the directions v_i as rows, (m, size)."""
    rng = generator(seed, "canaries' directions")
    if m <= size:
        rows = np.zeros((m, size))
        rows[np.arange(m), rng.choice(size, m, replace=False)] = rng.choice([-1.0, 1.0], m)
        return rows
    rows = rng.standard_normal((m, size))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def one_run(experiment: Experiment, coins: Array) -> Array:
    """Return the canaries' scores of one run, (m,); large scores suggest the coin +1.

    Args:
        experiment: experiment in which canary i is the only user of node i.
        coins: coin of each canary, +1 or -1, (m,).

    Raises:
        ConfigError: the algorithm releases choices instead of sums.
    """
    strategy: Any = experiment.strategy
    federation, ledger = experiment.federation, experiment.ledger
    if any(step.epsilon for step in strategy.plan):
        raise ConfigError(
            "--one-run: canaries have directions in a sum, but this algorithm releases choices; "
            "audit without it"
        )
    absent = experiment.budget.neighbouring == ZERO_OUT
    name, shape = next(iter(strategy.shapes(strategy.plan[-1]).items()))
    V = directions(len(coins), math.prod(shape), federation.seed)
    scores, middle = np.zeros(len(coins)), np.zeros(len(coins))
    nodes = [LocalProxy(cid, None) for cid in experiment.nodes]  # type: ignore[arg-type]
    means: list[Array] = []
    overhear(strategy, "apply", lambda _, step, released: means.extend(released))
    for step in strategy.plan:
        announced = strategy.announcement(step)
        asked = federation.reach(step.phase.groups, step.group)
        n = federation.expected(step.phase.groups)
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
            scores += weight * (V @ means[0].ravel()) * n / release.clip
            middle += weight * (0.5 if absent else 0.0)
    return scores - middle


def guesses(scores: Array, coins: Array, delta: float, confidence: float) -> dict[str, Any]:
    """Return the `audit` part of a result, without the claim.

    Args:
        scores: score of each canary, (m,).
        coins: coin of each canary, (m,).
        delta: delta of the claim.
        confidence: confidence of the best bound.
    """
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
