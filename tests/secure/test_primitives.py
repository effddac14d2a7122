"""Sharing, streams, exact draws and graphs, each against a slow or known truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

from privfed.foundation.errors import ConfigError
from privfed.privacy import quantile_sampling
from privfed.privacy.quantile_sampling import rounded_normals
from privfed.secure.graph import degrees, mirrored, neighbours, second_eigenvalue
from privfed.secure.keys import NodeKey, PairKeys, derived, encoded, opened, seal, stream
from privfed.secure.noise_shares import Levels, chain, components_sum
from privfed.secure.shamir import (
    NUMBERS,
    PRIME,
    SHARE,
    coefficients,
    combine,
    product,
    split,
    uniform,
)


def test_products_are_those_of_the_field():
    rng = np.random.default_rng(0)
    for inner in (1, 64, 65, 300):
        A, B = (rng.integers(PRIME - 99, PRIME, shape) for shape in ((3, inner), (inner, 4)))
        exact = [
            [sum(a * b for a, b in zip(r, c, strict=True)) for c in B.T.tolist()]
            for r in A.tolist()
        ]
        assert product(A, B).tolist() == [[x % PRIME for x in row] for row in exact]


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 90), st.integers(0, 20), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, threshold, more, data):
    count, secrets = threshold + more, secret + secret[::-1]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    words = rng.integers(0, 2**64, coefficients(2, threshold), dtype=np.uint64)
    shares = split(secrets, threshold, count, words)
    x = data.draw(st.integers(1, count))
    rest = uniform(words).reshape(threshold - 1, 2 * NUMBERS)[:, 0].tolist()
    first = int.from_bytes(secret, "little") % 2**30
    slow = sum(c * x**power for power, c in enumerate([first, *rest])) % PRIME
    assert int.from_bytes(shares[x - 1][:4], "little") == slow
    places = data.draw(st.permutations(range(1, count + 1)))[:threshold]
    assert combine([shares[p - 1] for p in places], tuple(places)) == [secret, secret[::-1]]


def test_fewer_shares_say_nothing():
    """One share of two: bytes of all numbers are uniform, whatever the secret is."""
    rng = np.random.default_rng(0)
    for secret in (bytes(32), b"\xff" * 32):
        words = rng.integers(0, 2**64, (400, coefficients(1, 2)), dtype=np.uint64)
        shares = b"".join(split(secret, 2, 3, each)[0] for each in words)
        numbers = np.frombuffer(shares, dtype="<u4")
        assert len(numbers) == 400 * SHARE // 4
        assert chisquare(np.bincount(numbers >> 26, minlength=32)).pvalue > 1e-4


def test_numbers_of_the_field_are_uniform_where_a_word_holds_none():
    none = np.uint64(PRIME)
    assert uniform(np.array([none, none | np.uint64(5 << 33), 7], dtype=np.uint64)).tolist() == [
        0,
        5,
        7,
    ]


def test_the_stream_is_chacha20():
    """Test vector 2 of appendix A.1 of RFC 8439: zero key and nonce, block 1."""
    expected = "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    assert stream(bytes(32), 4).tobytes().hex() == expected


def test_a_short_seed_is_refused():
    with pytest.raises(ValueError):
        stream(b"\0\0\0\1", 4)


def test_encodings_of_different_parts_differ():
    parts = [("a", "b"), ("ab",), ("a", b"b"), (1,), ("1",), ("", "ab"), ("ab", "")]
    assert len({encoded(*each) for each in parts}) == len(parts)
    assert derived(bytes(32), "a", 1) != derived(bytes(32), "a", 2)


def test_a_sealed_share_opens_for_its_sender_and_step_only():
    box, other = (PairKeys.of(key, 2, 3).box for key in (bytes(32), b"\1" * 32))
    sealed = seal(box, 3, 7, b"share")
    assert opened(box, 3, 7, sealed) == b"share"
    assert opened(box, 3, 8, sealed) is None
    assert opened(box, 2, 7, sealed) is None
    assert opened(other, 3, 7, sealed) is None


def test_two_nodes_derive_the_same_keys_from_what_they_agreed():
    mine, theirs = PairKeys.of(bytes(32), 2, 5), PairKeys.of(bytes(32), 5, 2)
    assert (mine.masks, mine.said, mine.heard) == (theirs.masks, theirs.heard, theirs.said)
    assert len({mine.masks, mine.said, mine.heard}) == 3


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
        assert all(graph[j, at] == i for j, at in zip(mine, mirrored(graph)[i], strict=True))
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
    drawn = components_sum(seeds[:1], [1 << 12], 0, 1000)
    assert (components_sum(seeds[:1], [1 << 12], 0, 1000) == drawn).all()
    other = components_sum(seeds[:1], [1 << 12], 1, 1000)
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.15
    both = components_sum(seeds[:3], [1 << 12, 0, 1 << 14], 0, 1000)
    assert (both == drawn + components_sum(seeds[2:3], [1 << 14], 0, 1000)).all()
