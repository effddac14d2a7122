"""Made-up tables of many kinds, to choose constants on instead of on the rows they are judged by.

Table number i is drawn from the seed i alone: numbers of users and rows, columns (within and
between users, 0/1, sparse, heavy-tailed, a time trend), the strength of random intercepts and
slopes (of full or low rank), items with biases and factors, noise with light or heavy tails, units
and shifts, numeric or binary targets.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from panels.catalogue import Table, write

Array = NDArray[np.float64]
MOST_ROWS = 30_000


def made_up(number: int) -> Table:
    """Return table number i; its file is made when it is asked for."""
    binary = bool(_traits(number)[1].random() < 0.3)
    settings: tuple[str, ...] = ()
    if binary:
        settings = ("data.task=classification",)
    return Table(
        f"made-up-{number}",
        "made",
        ".",
        "user",
        "y",
        settings,
        prepare=lambda _, made: make(number, binary, made),
    )


def _traits(number: int) -> tuple[np.random.Generator, np.random.Generator]:
    return np.random.default_rng([17, number]), np.random.default_rng([18, number])


def make(number: int, binary: bool, path: Path) -> None:
    """Write table number i."""
    rng = _traits(number)[0]
    n = round(math.exp(rng.uniform(math.log(30), math.log(3000))))
    typical = math.exp(rng.uniform(math.log(5), math.log(80)))
    typical = min(typical, MOST_ROWS / n)
    if rng.random() < 0.5:
        sizes = np.full(n, max(5, round(typical)))
    else:
        sizes = np.maximum(4, np.round(typical * rng.gamma(2.0, 0.5, n))).astype(np.int64)
    who = np.repeat(np.arange(n), sizes)
    names, X = _columns(rng, who, n, sizes)
    signal = np.zeros(len(who))
    p = X.shape[1]
    if p:
        beta = rng.normal(size=p) * (rng.random(p) < 0.6) / math.sqrt(p)
        signal += X @ beta * rng.choice([0.3, 1.0, 2.0])
        strength = rng.choice([0.0, 0.1, 0.3, 0.8])
        rank = p if rng.random() < 0.5 else min(p, int(rng.integers(1, 4)))
        slopes = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, p)) / math.sqrt(rank * p)
        signal += strength * np.sum(X * slopes[who], axis=1)
    signal += rng.choice([0.0, 0.3, 1.0, 3.0]) * rng.normal(size=n)[who]
    item = None
    if rng.random() < 0.35:
        L = int(rng.choice([24, 60, 150, 400]))
        popular = rng.gamma(0.7, 1.0, L)
        item = rng.choice(L, size=len(who), p=popular / popular.sum())
        signal += rng.choice([0.2, 0.5, 1.0]) * rng.normal(size=L)[item]
        if rng.random() < 0.5:
            user, thing = rng.normal(size=(n, 2)), rng.normal(size=(L, 2))
            signal += rng.choice([0.3, 0.7]) * np.sum(user[who] * thing[item], axis=1) / 2
    heavy = rng.random() < 0.3
    noise = rng.standard_t(3, len(who)) / math.sqrt(3) if heavy else rng.normal(size=len(who))
    y = signal + rng.choice([0.5, 1.0, 2.0]) * noise
    if binary:
        told = np.where(y > np.quantile(y, rng.uniform(0.3, 0.7)), "yes", "no").tolist()
    else:
        unit, shift = 10.0 ** rng.uniform(-3, 5), rng.choice([0.0, 10.0, 1000.0])
        told = [f"{value:.8g}" for value in unit * (y + shift)]
    columns = [[f"u{i}" for i in who]]
    heads = ["user"]
    if item is not None:
        heads, columns = [*heads, "item"], [*columns, [f"i{i}" for i in item]]
    for j, name in enumerate(names):
        heads, columns = [*heads, name], [*columns, [f"{value:.8g}" for value in X[:, j]]]
    write(path, [*heads, "y"], zip(*columns, told, strict=True))


def _columns(
    rng: np.random.Generator, who: NDArray[np.int64], n: int, sizes: NDArray[np.int64]
) -> tuple[list[str], Array]:
    """Return names and values (N, p) of the columns; values have about unit variance."""
    N, p = len(who), int(rng.integers(1, 16))
    X = np.empty((N, p))
    names = []
    for j in range(p):
        kind = rng.choice(["within", "mixed", "between", "yes", "rare", "heavy", "time"],
                          p=[0.3, 0.2, 0.12, 0.13, 0.08, 0.1, 0.07])  # fmt: skip
        if kind == "between":
            X[:, j] = rng.normal(size=n)[who]
        elif kind == "mixed":
            X[:, j] = 0.7 * rng.normal(size=n)[who] + 0.7 * rng.normal(size=N)
        elif kind == "yes":
            X[:, j] = rng.random(N) < rng.uniform(0.2, 0.8)
        elif kind == "rare":
            X[:, j] = rng.random(N) < rng.uniform(0.01, 0.1)
        elif kind == "heavy":
            X[:, j] = np.exp(rng.normal(size=N))
        elif kind == "time":
            X[:, j] = np.concatenate([np.arange(m) for m in sizes]) / max(1.0, float(sizes.mean()))
        else:
            X[:, j] = rng.normal(size=N)
        names.append(f"{kind}{j}")
    return names, X
