"""The model of a round's cost: its arithmetic, the simulated tree, and what it refuses."""

from __future__ import annotations

import math

import bench_scaling
import numpy as np
import pytest
import scaling
import scaling_page
from conftest import ROOT
from scaling import (
    DATA_CENTRE,
    Costs,
    Hop,
    Line,
    Network,
    best_fan_out,
    closed_form,
    parents,
    simulated,
    summed,
)

COSTS = Costs(
    user=Line(1e-7, 1e-9),
    node=1e-4,
    reply=Line(1e-5, 1e-8),
    fixed={"Ray": 2e-3, "gRPC": 3e-3},
    overhead={"Ray": 2e-4, "gRPC": 1e-3},
    down=Line(300, 8),
    up=Line(200, 8),
    memory=2040.0,
)


def test_a_line_is_found_again_and_has_no_negative_part():
    x = [1.0, 10.0, 100.0]
    found = Line.through(x, [3 + 2 * each for each in x])
    assert (found.base, found.each) == (pytest.approx(3), pytest.approx(2)) and found(
        5
    ) == pytest.approx(13)
    assert Line.through([1, 2], [1, 3]).base == 0 and Line.through([1, 2], [3, 1]).each == 0


@pytest.mark.parametrize(
    ("x", "y"), [([1, 1], [2, 3]), ([1], [2]), ([1, 2], [0, 1]), ([1, 2], [1])]
)
def test_points_that_make_no_line_are_refused(x, y):
    with pytest.raises(ValueError, match=r"line|positive"):
        Line.through(x, y)


def test_a_flat_round_is_the_sum_of_its_parts():
    round = COSTS.flat(10_000, nodes=20, machines=10, cores=1, runtime="Ray", P=100)
    assert round.compute == pytest.approx((20 * 1e-4 + 10_000 * 2e-7) / 10)
    assert round.server == pytest.approx(2e-3 + 20 * (2e-4 + 1.1e-5))
    assert round.network == pytest.approx(1e-3 + 20 * (1100 + 1000) / 1.25e9)
    assert round.total == pytest.approx(round.compute + round.server + round.network)
    assert COSTS.flat(10_000, 20, 10, 1, "Ray", 100, network=None).network == 0


def test_more_users_cost_more_and_more_machines_compute_faster_but_the_server_does_not():
    users = [COSTS.flat(n, 1000, 1000, 1, "Ray", 100).total for n in (10**6, 10**7, 10**8, 10**9)]
    assert users == sorted(users)
    rounds = [
        COSTS.flat(10**9, machines, machines, 1, "Ray", 100) for machines in (1, 10, 100, 1000)
    ]
    assert [r.compute for r in rounds] == sorted((r.compute for r in rounds), reverse=True)
    assert [r.server for r in rounds] == sorted(r.server for r in rounds)
    idle = COSTS.flat(1000, 2, machines=100, cores=8, runtime="Ray", P=100)
    assert idle.compute == COSTS.flat(1000, 2, machines=2, cores=1, runtime="Ray", P=100).compute, (
        "two nodes keep two cores busy"
    )


def test_where_the_server_takes_as_long_as_computing_both_together_take_least():
    n, P = 10**8, 100
    nodes = round(COSTS.balance(n, "Ray", P))

    def both(nodes):
        found = COSTS.flat(n, nodes, nodes, 1, "Ray", P)
        return found.compute + found.server

    at = COSTS.flat(n, nodes, nodes, 1, "Ray", P)
    assert at.compute - COSTS.node == pytest.approx(at.server - COSTS.fixed["Ray"], rel=0.02)
    assert both(nodes) < both(nodes // 2) and both(nodes) < both(2 * nodes)
    assert COSTS.balance(4 * n, "Ray", P) == pytest.approx(2 * COSTS.balance(n, "Ray", P))


@pytest.mark.parametrize(
    "sizes",
    [
        {"n": 0},
        {"nodes": 0},
        {"machines": -1},
        {"cores": 1.5},
        {"P": True},
        {"nodes": 101},
        {"runtime": "pigeon"},
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes):
    given = {"n": 100, "nodes": 10, "machines": 1, "cores": 1, "runtime": "Ray", "P": 100} | sizes
    with pytest.raises(ValueError, match=str(next(iter(sizes)))):
        COSTS.flat(**given)


def test_networks_and_trees_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="bandwidth"):
        Network("none", 0.1, 0)
    for leaves, fan_out in ((0, 2), (10, 1), (10, 2.5), (10, True)):
        with pytest.raises(ValueError, match=r"leaves|fan_out"):
            parents(leaves, fan_out)


@pytest.mark.parametrize(
    ("leaves", "fan_out"), [(1, 2), (2, 2), (7, 3), (64, 4), (65, 4), (1000, 10), (1000, 1000)]
)
def test_every_node_of_a_tree_is_heard_once_and_nobody_hears_more_than_the_fan_out(leaves, fan_out):
    levels, width = parents(leaves, fan_out), leaves
    for level in levels:
        assert [child for children in level for child in children] == list(range(width))
        assert max(map(len, level)) <= fan_out
        width = len(level)
    assert width == 1 and len(levels) == max(1, math.ceil(math.log(leaves, fan_out) - 1e-9))


@pytest.mark.parametrize(
    "hop",
    [Hop(0.01, 0.002, 0.005), Hop(0.01, 0.005, 0.002), Hop(0.0, 0.001, 0.001), Hop(1.0, 0.0, 0.0)],
)
@pytest.mark.parametrize(("fan_out", "depth"), [(2, 1), (2, 6), (3, 4), (10, 3), (50, 1)])
def test_the_simulated_tree_takes_what_the_closed_form_says(hop, fan_out, depth):
    assert simulated(fan_out**depth, fan_out, hop, 0.3) == pytest.approx(
        closed_form(depth, fan_out, hop, 0.3), rel=1e-12
    )


def test_a_tree_waits_for_its_slowest_leaf_and_larger_trees_take_longer():
    hop = Hop(0.01, 0.001, 0.002)
    even = simulated(100, 10, hop, 1.0)
    assert simulated(100, 10, hop, lambda leaf: 5.0 if leaf == 37 else 1.0) > even + 3.9
    assert simulated(100, 10, hop, lambda leaf: 0.5 if leaf == 37 else 1.0) <= even
    times = [simulated(leaves, 8, hop, 0.0) for leaves in (1, 8, 9, 64, 65, 512, 4096)]
    assert times == sorted(times)


@pytest.mark.parametrize("fan_out", [2, 7, 32, 1000])
def test_a_tree_gives_the_sum_of_a_flat_server(fan_out):
    values = np.random.default_rng(fan_out).standard_normal((1000, 50))
    flat = np.zeros(50)
    for value in values:
        flat += value
    assert np.linalg.norm(summed(values, fan_out) - flat) <= 1e-12 * np.linalg.norm(flat)
    assert (summed(values[:1], fan_out) == values[0]).all()


def test_few_nodes_need_no_tree_and_many_do():
    hop = COSTS.hop("Ray", 100, DATA_CENTRE)
    assert best_fan_out(4, hop)[0] == 4
    fan_out, seconds = best_fan_out(10_000, hop)
    assert fan_out < 100 and seconds < simulated(10_000, 10_000, hop, 0.0) / 10
    slow = scaling.Network("slow", 1.0, 1e9)
    assert best_fan_out(10_000, COSTS.hop("Ray", 100, slow))[0] > fan_out


def test_tables_and_picture_are_made_and_only_the_numbers_of_a_page_are_replaced(tmp_path):
    page = "# Title\n\nprose\n\n<!-- numbers: {} -->\nold\n<!-- end -->\n\nmore prose\n"
    row = {
        "runtime": "Ray",
        "n": 100,
        "nodes": 2,
        "predicted": 0.01,
        "measured": 0.02,
        "busy_predicted": 0.01,
        "busy": 0.008,
    }
    blocks = scaling_page.blocks(COSTS, [row], {"cores": 2, "load": 0.0, "networks": {"MLP": 1000}})
    assert "| 10 ms | 20 ms | 0.50 | 10 ms | 8 ms | 1.25 |" in blocks["validation"]
    for name, text in blocks.items():
        written = scaling_page.replaced(page.format(name), {name: text})
        assert "old" not in written and text in written and written.startswith("# Title\n\nprose\n")
        assert (
            written.endswith("<!-- end -->\n\nmore prose\n")
            and scaling_page.replaced(written, {name: text}) == written
        )
    with pytest.raises(ValueError, match="constants"):
        scaling_page.replaced("# nothing\n", {"constants": "1"})
    scaling_page.drawn(COSTS).savefig(tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_the_page_has_every_block_of_numbers():
    text = (ROOT / "docs/scaling.md").read_text()
    for name in scaling_page.blocks(COSTS, [], {"cores": 2, "load": 0.0, "networks": {}}):
        assert f"<!-- numbers: {name} -->" in text


@pytest.mark.slow
def test_constants_are_measured_on_the_real_paths():
    sizes = bench_scaling.message_bytes((10, 1000))
    assert sizes["down"].each == pytest.approx(8, rel=0.01) and sizes["up"].each == pytest.approx(
        8, rel=0.01
    )
    assert 100 < sizes["up"].base < sizes["down"].base < 1000
    reply = bench_scaling.reply_seconds(sizes=(20, 2000), nodes=(2, 10), rounds=2)
    assert reply.base >= 0 and reply(2000) > 0
    node, user, memory = bench_scaling.client_seconds(d=10, users=(1, 500), tries=2)
    assert node + 500 * user > 0 and memory in (10 * 11 * 4, 10 * 11 * 8)
    each, fixed = bench_scaling.round_costs("in process", nodes=(2, 20), rounds=3)
    assert each > 0 and fixed >= 0
