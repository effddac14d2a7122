"""Exact noise: the right distributions, the same draw from the same bits, and no bit wasted."""

from __future__ import annotations

from fractions import Fraction
from itertools import count

import numpy as np
import pytest
from scipy.stats import chi2, kstest, norm

from privfed.foundation.compilation import choosing
from privfed.privacy import exact_loops, exact_sampling
from privfed.privacy.exact_deviates import Deviate, Slow

ENOUGH = 1e-4
"""A correct test of chance fails once in ten thousand seeds.

Seeds are fixed, so it fails always or never.
"""


def words_from(seed):
    rng = np.random.default_rng(seed)
    return lambda size: rng.integers(0, 2**64, size=size, dtype=np.uint64)


@pytest.mark.parametrize("s", [1, 2, 5, 37])
def test_rounded_gaussians_have_the_stated_probabilities(s):
    draws = exact_sampling.normals(400_000, s, words_from(s))
    values = np.arange(-5 * s, 5 * s + 1)
    edges = np.concatenate([[-np.inf], values[1:] - 0.5, [np.inf]]) / s
    expected = len(draws) * np.diff(norm.cdf(edges))
    found = np.bincount(np.clip(draws, values[0], values[-1]) - values[0], minlength=len(values))
    large = expected > 10
    statistic = np.sum((found - expected)[large] ** 2 / expected[large])
    assert chi2.sf(statistic, large.sum() - 1) > ENOUGH


def test_fine_grids_look_gaussian_far_into_the_tails():
    draws = exact_sampling.normals(1_000_000, 1 << 24, words_from(0)) / 2**24
    assert kstest(draws, "norm").pvalue > ENOUGH
    for threshold in (3.0, 4.0):
        expected = 1e6 * 2 * norm.sf(threshold)
        assert abs(np.sum(np.abs(draws) > threshold) - expected) < 4 * np.sqrt(expected)


@pytest.mark.parametrize("s", [1, 1000, (1 << 25) + 3])
def test_the_slow_draw_is_the_fast_one(s):
    words, at = words_from(1)(100_000), 0
    for _ in range(2000):
        state, after, value = exact_loops.draw(words, at, s)
        slow = Slow(iter(words[at:].tolist()), lambda: pytest.fail("64 bits sufficed"))
        assert state == exact_loops.DONE and (slow.value(s), slow.used) == (value, after - at)
        at = after


@pytest.mark.parametrize("s", [1, 1000, (1 << 25) + 3])
def test_draws_in_python_are_those_of_compiled_loops(s):
    words = words_from(6)(40_000)
    made = []
    for mode in ("never", "always"):
        with choosing(mode):
            made.append(exact_sampling.normals(500, s, lambda size: words))
    np.testing.assert_array_equal(*made)


def test_few_draws_do_not_compile(monkeypatch):
    monkeypatch.setattr(exact_sampling, "_drawn", 0)
    monkeypatch.setattr(exact_sampling.LOOPS.__class__, "_load", lambda self: pytest.fail("few"))
    with choosing("auto"):
        assert len(exact_sampling.normals(100, 7, words_from(7))) == 100
        deviates = exact_sampling.exponentials(3000, words_from(8))
    assert kstest([float(x) for x in deviates], "expon").pvalue > ENOUGH
    assert min(deviates) > 0 and all(isinstance(x, Fraction) for x in deviates)


@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_running_out_of_words_changes_no_draw(chunk):
    whole = words_from(2)(40_000)
    at = 0

    def given(size):  # whatever is asked for, only a few words come at a time
        nonlocal at
        at += chunk
        return whole[at - chunk : at]

    np.testing.assert_array_equal(
        exact_sampling.normals(500, 99, given), exact_sampling.normals(500, 99, lambda size: whole)
    )


def test_a_tie_is_decided_by_further_bits():
    half = 1 << 63
    tied = np.array([half, 0, 0, 0, 5], dtype=np.uint64)
    assert exact_loops.draw(tied, 0, 10)[0] == exact_loops.TIE
    for word in (1, 2**64 - 1):  # one half is exact: what begins like it is not below it
        assert Slow(iter([half]), lambda word=word: word).half()
    low, high = Deviate(7, lambda: 0), Deviate(7, lambda: 1)
    assert low.below(high) and not high.below(low)
    bits = count()
    a, b = (
        Deviate(7, lambda: next(bits) // 3),
        Deviate(7, lambda: next(bits) // 3),
    )  # 0 and 0, then 0 and 1
    assert a.below(b) != b.below(a)


def test_ties_in_the_middle_of_many_draws_leave_the_others_alone():
    words = words_from(3)(4000)
    plain = exact_sampling.normals(100, 7, lambda size: words)
    first = exact_loops.draw(words, 0, 7)[1]
    tied = np.concatenate([words[:first], [1 << 63], words[first:]]).astype(
        np.uint64
    )  # the second draw meets one half exactly
    assert exact_loops.draw(tied, first, 7)[0] == exact_loops.TIE
    again = exact_sampling.normals(100, 7, lambda size: tied)
    assert plain[0] == again[0] and len(again) == 100


@pytest.mark.parametrize(("tail", "wanted"), [(0, 2), (2**64 - 1, 3)])
def test_rounding_next_to_a_border_takes_more_bits(tail, wanted):
    x = 5 * 2**64 // 6  # a hair below 5/6, so that 3 x is 2.5 to 64 bits
    words = [
        1 << 62,
        1 << 63,
        x,
        2**64 - 1,
        0,
    ]  # k = 0: the run 1/2 > 1/4 has odd length; then x, kept, and its sign
    assert exact_loops.draw(np.array(words, dtype=np.uint64), 0, 3)[0] == exact_loops.TIE
    assert Slow(iter(words), lambda: tail).value(3) == wanted


def test_exponential_deviates():
    deviates = exact_sampling.exponentials(100_000, words_from(4))
    assert kstest([float(x) for x in deviates], "expon").pvalue > ENOUGH
    assert min(deviates) > 0 and all(isinstance(x, Fraction) for x in deviates)


def test_choices_have_the_stated_probabilities():
    exponents = -np.array([0.0, 0.3, 1.0, 2.5, 5.0, 700.0, 1e6])
    fresh, draws = words_from(5), 20_000
    found = np.bincount(
        [exact_sampling.first_of_race(exponents, fresh) for _ in range(draws)], minlength=7
    )
    expected = draws * np.exp(exponents) / np.exp(exponents).sum()
    assert (
        chi2.sf(np.sum((found - expected)[:5] ** 2 / expected[:5]), 4) > ENOUGH
        and found[5:].sum() == 0
    )


def test_clocks_that_ring_together_are_told_apart(monkeypatch):
    deviates = [Fraction(10**30 + 1, 10**30), Fraction(1), Fraction(2)]
    monkeypatch.setattr(exact_sampling, "exponentials", lambda size, fresh: deviates)
    assert exact_sampling.first_of_race(np.zeros(3), words_from(0)) == 1


def test_words_are_fresh_in_every_call_and_every_process():
    assert not np.array_equal(exact_sampling.system_words(4), exact_sampling.system_words(4))
    with pytest.raises(ValueError, match="between 1 and"):
        exact_sampling.normals(1, exact_sampling.MOST + 1, exact_sampling.system_words)
