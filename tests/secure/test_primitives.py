"""Sharing, streams, exact draws and graphs, each against a slow or known truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

from privfed.foundation.errors import ConfigError
from privfed.privacy import quantile_sampling
from privfed.privacy.quantile_sampling import rounded_normals
from privfed.secure.graph import degrees, neighbours, second_eigenvalue
from privfed.secure.keys import NodeKey, derived, encoded, opened, seal, stream
from privfed.secure.noise_shares import Levels, chain, component
from privfed.secure.shamir import TIMES, combine, split


def slow_product(a: int, b: int) -> int:
    """Multiply in GF(2^8), bit by bit."""
    total = 0
    for bit in range(8):
        if b >> bit & 1:
            total ^= a << bit
    for bit in range(15, 7, -1):
        if total >> bit & 1:
            total ^= 0x11B << (bit - 8)
    return total


def slow_share(secret: int, coefficients: list[int], x: int) -> int:
    value, power = secret, 1
    for c in coefficients:
        power = slow_product(power, x)
        value ^= slow_product(c, power)
    return value


def test_products_are_those_of_the_field():
    rng = np.random.default_rng(0)
    for a, b in rng.integers(0, 256, (2000, 2)).tolist():
        assert TIMES[a, b] == slow_product(a, b)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=40), st.integers(1, 20), st.integers(0, 20), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, more, data):
    count = threshold + more
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    randomness = rng.integers(0, 256, (threshold - 1) * len(secret)).astype(np.uint8)
    shares = split(secret, threshold, count, randomness)
    table = randomness.reshape(threshold - 1, len(secret))
    x = data.draw(st.integers(1, count))
    slow = [slow_share(byte, table[:, i].tolist(), x) for i, byte in enumerate(secret)]
    assert shares[x - 1].tolist() == slow
    places = data.draw(st.permutations(range(1, count + 1)))[:threshold]
    assert combine(shares[[p - 1 for p in places]], tuple(places)) == secret


def test_fewer_shares_say_nothing():
    """Given t - 1 shares every secret is equally likely: the map to coefficients is one-to-one."""
    seen = {split(b"\x07", 2, 3, np.array([c], dtype=np.uint8))[0, 0] for c in range(256)}
    assert len(seen) == 256


def test_the_stream_is_chacha20():
    """Test vector of RFC 7539, section 2.3.2 has another nonce; this one is of appendix A.1."""
    expected = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert stream(bytes(32), 4).tobytes().hex() == expected


def test_a_short_seed_is_refused():
    with pytest.raises(ValueError):
        stream(b"\0\0\0\1", 4)


def test_encodings_of_different_parts_differ():
    parts = [("a", "b"), ("ab",), ("a", b"b"), (1,), ("1",), ("", "ab"), ("ab", "")]
    assert len({encoded(*each) for each in parts}) == len(parts)
    assert derived(bytes(32), "a", 1) != derived(bytes(32), "a", 2)


def test_a_sealed_share_opens_for_its_sender_and_step_only():
    sealed = seal(bytes(32), 3, 7, b"share")
    assert opened(bytes(32), 3, 7, sealed) == b"share"
    assert opened(bytes(32), 3, 8, sealed) is None
    assert opened(bytes(32), 2, 7, sealed) is None
    assert opened(b"\1" * 32, 3, 7, sealed) is None


def test_a_key_is_kept_for_its_owner_only(tmp_path):
    key = NodeKey.fresh()
    key.save(tmp_path / "me.key")
    assert (tmp_path / "me.key").stat().st_mode & 0o777 == 0o600
    assert NodeKey.read(tmp_path / "me.key").public == key.public
    (tmp_path / "me.key").write_text("rubbish")
    with pytest.raises(ConfigError, match="holds no key"):
        NodeKey.read(tmp_path / "me.key")


def test_draws_are_rounded_gaussians():
    s = 3
    words = np.random.default_rng(1).integers(0, 2**64, 200_000, dtype=np.uint64)
    drawn = rounded_normals(words, s, lambda i: 0)
    edges = np.arange(-9, 11) - 0.5
    counts = np.histogram(drawn, [-np.inf, *edges, np.inf])[0]
    expected = np.diff(norm.cdf(np.array([-np.inf, *edges, np.inf]) / s)) * len(words)
    assert chisquare(counts, expected).pvalue > 1e-4


def test_a_draw_does_not_depend_on_how_well_quantiles_are_computed(monkeypatch):
    """With a quantile that is wrong by almost the stated error, the same numbers are drawn."""
    words = np.random.default_rng(2).integers(0, 2**64, 300, dtype=np.uint64)
    s = 1 << 20
    usual = rounded_normals(words, s, lambda i: 5)
    monkeypatch.setattr(quantile_sampling, "ERROR", 1e-5)
    true = quantile_sampling.ndtri
    monkeypatch.setattr(quantile_sampling, "ndtri", lambda p: true(p) + 0.9e-5)
    assert (rounded_normals(words, s, lambda i: 5) == usual).all()


def test_bits_beyond_the_first_word_decide_where_they_have_to():
    """The border 1/2 of s = 1 lies inside the cell of one word: later bits choose the side."""
    from fractions import Fraction

    edge = quantile_sampling.tail(Fraction(1, 2), 60)
    v = int(edge * 2**64)
    word = np.array([2 * v], dtype=np.uint64)
    assert v < 2**63
    assert rounded_normals(word, 1, lambda i: 0)[0] == 1
    assert rounded_normals(word, 1, lambda i: 2**64 - 1)[0] == 0


def test_quantiles_are_within_the_stated_error():
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(50):
        for bits in range(1, 63):
            v = (1 << bits) + 12345 % (1 << bits) + 0.5
            z = float(-quantile_sampling.ndtri(v * 2.0**-64))
            miss = (mpmath.ncdf(-z) - mpmath.mpf(v) / 2**64) / mpmath.npdf(z)
            assert abs(miss) < quantile_sampling.ERROR / 10


@pytest.mark.parametrize("nodes", [3, 4, 12, 30, 100, 1000, 10_000])
def test_degrees_keep_what_they_promise(nodes):
    lost, colluding = nodes // 10, nodes // 100
    found = degrees(nodes, lost, colluding)
    assert found.threshold <= found.neighbours <= nodes - 1
    assert 2 * found.threshold > found.neighbours + found.colluding
    assert found.neighbours <= 12 * np.log2(nodes)


def test_neighbours_grow_like_the_logarithm():
    k = [degrees(n, n // 10, 0).neighbours for n in (100, 1000, 10_000)]
    assert k[2] - k[1] <= k[1] - k[0] + 4 and k[2] < 60


def test_a_graph_is_regular_symmetric_and_follows_from_its_seed():
    graph = neighbours(60, 10, b"s" * 32)
    assert graph.shape == (60, 10)
    for i, mine in enumerate(graph.tolist()):
        assert mine == sorted(set(mine)) and i not in mine
        assert all(i in graph[j] for j in mine)
    assert second_eigenvalue(graph) < 1.06 * 2 * 3
    assert not np.array_equal(graph, neighbours(60, 10, b"t" * 32))


def test_the_second_eigenvalue_is_that_of_the_matrix():
    graph = neighbours(40, 8, b"u" * 32)
    matrix = np.zeros((40, 40))
    for i, mine in enumerate(graph):
        matrix[i, mine] = 1
    assert second_eigenvalue(graph) == pytest.approx(
        sorted(abs(np.linalg.eigvalsh(matrix)))[-2], rel=3e-3
    )


def test_too_few_nodes_and_too_many_lost_are_one_line():
    with pytest.raises(ConfigError, match="at least 3 nodes"):
        degrees(2, 0, 0)
    with pytest.raises(ConfigError, match=r"privacy\.honest"):
        degrees(10, 6, 0)


@pytest.mark.parametrize("lost", [0, 3, 5, 10])
def test_honest_survivors_carry_the_whole_noise(lost):
    levels, s = Levels(100, 5, 10, 5), 1 << 24
    kept = levels.level(lost) + 1
    honest = 100 - 5 - lost
    each = sum(c**2 for c in levels.components(s, 1)[:kept])
    assert honest * each >= s**2
    if lost in (0, 10):  # these losses are levels of their own
        assert honest * each == pytest.approx(s**2, rel=1e-4)


def test_components_follow_from_their_seeds():
    seeds = chain(b"a" * 32, 4)
    assert chain(seeds[1], 3) == seeds[1:]
    drawn = component(seeds[0], 0, 1000, 1 << 12)
    assert (component(seeds[0], 0, 1000, 1 << 12) == drawn).all()
    assert abs(np.corrcoef(drawn, component(seeds[0], 1, 1000, 1 << 12))[0, 1]) < 0.15
