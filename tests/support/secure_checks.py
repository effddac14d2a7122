"""What must hold of secure aggregation, as checks that a planted mistake makes fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

from privfed.secure import aggregator, node
from privfed.secure.keys import KEY, Words
from privfed.secure.node import ENTRY, REVEALED, SEALED, exclusive_or, pads
from privfed.secure.shamir import combine
from privfed.secure.terms import MaskedSum
from support.secure_federation import Town, without_noise

SIZE = 40


def revealed(town: Town) -> dict[int, list[bytes]]:
    """Return all secrets that the server can combine, per node: both halves of what it was told."""
    told: dict[int, dict[int, bytes]] = {}
    for place, stage, answer in town.seen:
        if stage == "unmask":
            for at, owner in enumerate(town.server.beside[place].tolist()):
                share = answer["shares"][REVEALED * at : REVEALED * (at + 1)]
                holder = int(np.searchsorted(town.server.beside[owner], place)) + 1
                told.setdefault(owner, {})[holder] = share
    found = {}
    for owner, shares in told.items():
        if len(shares) >= town.terms.degrees.threshold:
            places = tuple(sorted(shares)[: town.terms.degrees.threshold])
            found[owner] = combine([shares[x] for x in places], places)
    return found


def open_pairs(town: Town, bundles: dict[int, bytes], step: int) -> set[tuple[int, int]]:
    """Return the pairs of nodes whose mask the server can compute from what it holds."""
    found = set()
    for owner, secrets in revealed(town).items():
        for at, j in enumerate(town.server.beside[owner].tolist()):
            hidden = bundles[owner][ENTRY * at + SEALED : ENTRY * (at + 1)]
            true, k = town.nodes[owner]._pair_seeds(step)[at], town.terms.degrees.neighbours
            if any(exclusive_or(hidden, pads(x, k)[at]) == true for x in secrets):
                found.add((min(owner, j), max(owner, j)))
    return found


def check_no_node_stands_alone() -> None:
    """What the server holds determines the total, and no other combination of nodes' sums."""
    town = Town([1] * 12, honest=0.75)
    town.begin()
    bundles = {place: bundle for place, (_, bundle) in town.server.bundles.items()}
    x = np.arange(12 * SIZE, dtype=float).reshape(12, SIZE)
    late = (3, 7)
    town.gone = {"masked": late}
    total = without_noise(SIZE)
    messages = town.server.announce(1, [total], range(12))
    sent: dict[int, Words] = {}
    for place, message in messages.items():
        words, more = town.nodes[place].masked({**message, "step": 1}, [x[place]], b"q")
        sent[place] = words
        if (
            place not in late
        ):  # the server counts these two as lost, and has their sums all the same
            town.server.take(place, words, more["bundle"])
    town.server.close()
    town.server.unmask()
    known = revealed(town)
    pairs = open_pairs(town, bundles, 1)
    survivors = [i for i in range(12) if i not in late]
    # Combinations of survivors in which all unknown masks cancel: a null space of dimension 1.
    rows = []
    for i in survivors:
        for j in town.server.beside[i].tolist():
            if i < j and j in survivors and (i, j) not in pairs:
                row = np.zeros(12)
                row[i], row[j] = 1, -1
                rows.append(row[survivors])
    rank = int(np.linalg.matrix_rank(np.array(rows))) if rows else 0
    assert rank == len(survivors) - 1, "a part of the survivors can be told from the others"
    for place in late:
        bare = sent[place].copy()
        for at, j in enumerate(town.server.beside[place].tolist()):
            mask = aggregator.stream(town.nodes[place]._pair_seeds(1)[at], SIZE)
            bare = bare - mask if place < j else bare + mask
        true = town.nodes[place].noisy(1, [total], [x[place]])
        assert not (bare == true).all(), "a lost node's sum is bare once its pair masks are known"
        for secret in known[place]:
            assert not (bare - node.stream(secret, SIZE) == true).all()


def check_steps_have_masks_of_their_own() -> None:
    """Two steps with equal sums look different, also without the self-masks that were revealed."""
    town = Town([1] * 5)
    town.begin()
    x, bare = np.ones((5, SIZE)), []
    for step in (1, 2):
        town.seen.clear()
        town.step(step, x, without_noise(SIZE))
        mine = {p: a["words"] for p, stage, a in town.seen if stage == "masked"}
        known = revealed(town)
        bare.append([mine[p] - node.stream(known[p][0], SIZE) for p in range(5)])
        bare.append([mine[p] for p in range(5)])
    for p in range(5):
        assert (bare[0][p] != bare[2][p]).all(), "pair masks of two steps are the same"
        assert (bare[1][p] != bare[3][p]).all()


def check_noise_is_whole(lost: int = 0, nodes: int = 20, colluding: int = 0) -> float:
    """The noise has its variance, also without what colluding nodes added; return std / target."""
    size, s = 4000, 1 << 24
    town = Town([2] * nodes, honest=0.9, colluding=colluding / nodes, salt=lost)
    town.begin()
    town.gone = {"masked": range(lost)}
    total = MaskedSum(size, 2.0**-20, s, "norm", 1.0)
    x = np.random.default_rng(0).normal(size=(nodes, size))
    released = town.step(1, x, total)
    noise = released - np.rint(x[lost:] / total.grid).sum(axis=0)
    level = town.terms.levels(size).level(2 * lost)
    for place in range(nodes - colluding, nodes):  # colluders take back what they know
        noise = noise - own_noise(town, place, total, level)
    # The promise is kept: at least s, and at most what the next level costs.
    square = float(noise @ noise) / s**2
    assert square > chi2.ppf(1e-6, size), "there is less noise than promised"
    assert square < chi2.ppf(1 - 1e-6, size) * 1.03, "there is more noise than needed"
    return float(np.sqrt(square / size))


def own_noise(town: Town, place: int, total: MaskedSum, level: int) -> np.ndarray:
    """Return the noise of a node that remains in the released sum."""
    me = town.nodes[place]
    seeds = [me._secret(1, "noise"), *node.chain(me._secret(1, "excess"), 5)]
    deviations = town.terms.levels(total.size).components(total.s, town.terms.users[place])
    return node.components_sum(seeds[: level + 1], deviations[: level + 1], 0, total.size)


@contextmanager
def recorded_seeds() -> Iterator[list[bytes]]:
    """Record the seed of every stream that nodes and server draw."""
    seeds: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (node, aggregator):
            true = module.stream

            def noted(seed: bytes, count: int, true=true) -> Words:
                seeds.append(seed)
                return true(seed, count)

            patch.setattr(module, "stream", noted)
        yield seeds


def check_seeds_are_long() -> None:
    """Every byte of every seed is uniform: no stream comes from fewer than 256 bits."""
    with recorded_seeds() as seeds:
        town = Town([1] * 12)
        town.begin()
        for step in range(1, 6):
            town.step(step, np.zeros((12, 4)), without_noise(4))
    table = np.frombuffer(b"".join(sorted(set(seeds))), dtype=np.uint8).reshape(-1, KEY)
    assert len(table) > 300
    for column in table.T:
        counts = np.bincount(column >> 4, minlength=16)
        assert chisquare(counts).pvalue > 1e-6, "a byte of the seeds is not random"


def check_messages_say_nothing(runs: int = 400) -> None:
    """Bits of what a node sends have the same distribution for two data sets: a fair coin's."""
    ones = {}
    for which, value in (("zeros", 0.0), ("ones", 1.0)):
        counts = np.zeros((2, 64))
        for salt in range(runs // 8):
            town = Town([1] * 4, honest=1.0, salt=salt)
            town.begin()
            for step in range(1, 9):
                town.seen.clear()
                town.step(step, np.full((4, 2), value), without_noise(2))
                words = town.seen[0][2]["words"]
                counts += np.unpackbits(words.view(np.uint8).reshape(2, 8), axis=1)
        ones[which] = counts
        z = (counts - runs / 2) ** 2 / (runs / 4)
        assert chi2.sf(z.sum(), z.size) > 1e-6, f"bits of {which} are not fair coins"
    z = (ones["zeros"] - ones["ones"]) ** 2 / (runs / 2)
    assert chi2.sf(z.sum(), z.size) > 1e-6, "bits tell two data sets apart"
