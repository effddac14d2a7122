"""The numbers and the picture of docs/scaling.md, from the constants of `bench_scaling.py`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from bench_history import ROOT
from plotting import plt
from scaling import DATA_CENTRE, WIDE_AREA, Costs, best_fan_out, simulated, summed

K, D, CORES = 2, 50, 16
P = K * D
USERS = tuple(10**e for e in range(4, 10))
MACHINES = (1, 10, 100, 1000)
PICTURE = ROOT / "docs/figures/scaling.png"
PAGE = ROOT / "docs/scaling.md"
Row = dict[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is aligned left, all others right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def short(seconds: float) -> str:
    """Return the time with three digits and a unit."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * size:  # less would be rounded to 1000 of the next smaller unit
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def power(n: int) -> str:
    return f"10^{round(np.log10(n))}"


def constants(costs: Costs, facts: Row) -> str:
    rows = [
        ["a user's part of a round, one core, P=100", short(costs.user(P))],
        ["the same as a function of P", f"{short(costs.user.base)} + {short(costs.user.each)} P"],
        ["a node's call, whoever it serves", short(costs.node)],
        [
            "the server's work an answer (decode, check, clip, add)",
            f"{short(costs.reply.base)} + {short(costs.reply.each)} P",
        ],
    ]
    rows += [
        [f"{name}: to ask a node and hear it", short(each)] for name, each in costs.overhead.items()
    ]
    rows += [
        [f"{name}: a round with any number of nodes", short(each)]
        for name, each in costs.fixed.items()
    ]
    rows += [
        ["a message to a node", f"{costs.down.base:.0f} + {costs.down.each:.3f} P bytes"],
        ["its answer", f"{costs.up.base:.0f} + {costs.up.each:.3f} P bytes"],
    ]
    rows += [
        [f"its answer, {name} (P={size:,})", f"{costs.up(size) / 1e6:.2f} MB"]
        for name, size in facts["networks"].items()
    ]
    rows += [["a user's data in memory", f"{costs.memory:,.0f} bytes"]]
    said = (
        f"Measured on {facts['cores']} cores at a load of {facts['load']:.1f}; d={D}, k={K}, m=10."
    )
    return f"{table(['constant', 'measured'], rows)}\n\n{said}"


def validation(rows: Sequence[Row]) -> str:
    if not rows:
        return "Nothing was measured."
    head = [
        "runtime",
        "users",
        "nodes",
        "predicted",
        "measured",
        "ratio",
        "processor s predicted",
        "measured",
        "ratio",
    ]
    lines, ratios = [], {name: list[float]() for name in ("Seconds a round", "Processor seconds")}
    for row in rows:
        cells = [row["runtime"], f"{row['n']:,}", f"{row['nodes']:,}"]
        for keys, found in zip(
            (("predicted", "measured"), ("busy_predicted", "busy")), ratios.values(), strict=True
        ):
            if keys[0] in row:
                found.append(row[keys[0]] / row[keys[1]])
                cells += [short(row[keys[0]]), short(row[keys[1]]), f"{found[-1]:.2f}"]
            else:
                cells += ["", "", ""]
        lines.append(cells)
    said = [
        f"{name}: predicted / measured is {statistics.median(each):.2f} in the middle, from "
        f"{min(each):.2f} to {max(each):.2f}."
        for name, each in ratios.items()
        if each
    ]
    return f"{table(head, lines)}\n\n{' '.join(said)}"


def predictions(costs: Costs, cores: int = CORES) -> str:
    """Return seconds per round by users and machines, one table per way to spread users."""
    ways: dict[str, tuple[str, Callable[[int, int], tuple[int, int]]]] = {
        "One cohort a machine, on one core of it (Ray)": ("Ray", lambda n, M: (M, 1)),
        f"One cohort a core, {cores} cores a machine (Ray)": (
            "Ray",
            lambda n, M: (min(n, M * cores), cores),
        ),
        f"One user a node, {cores} cores a machine (gRPC)": ("gRPC", lambda n, M: (n, cores)),
    }
    parts = []
    for title, (runtime, spread) in ways.items():
        lines = []
        for n in USERS:
            rounds = {
                M: costs.flat(n, spread(n, M)[0], M, spread(n, M)[1], runtime, P) for M in MACHINES
            }
            cells = [
                f"{short(each.total)}{' *' if each.server > each.compute else ''}"
                for each in rounds.values()
            ]
            lines.append([power(n), *cells, f"{costs.memory * n / 1e9:,.2f} GB"])
        head = ["users", *(f"M={M:,}" for M in MACHINES), "data in all"]
        parts.append(f"**{title}**\n\n{table(head, lines)}")
    lines = []
    for n in USERS:
        spreads = [costs.flat(n, min(n, M * cores), M, cores, "Ray", P) for M in MACHINES]
        hop = costs.hop("Ray", P, DATA_CENTRE)
        sums = [best_fan_out(min(n, M * cores), hop)[1] for M in MACHINES]
        lines.append(
            [
                power(n),
                *(
                    short(r.compute + costs.fixed["Ray"] + s)
                    for r, s in zip(spreads, sums, strict=True)
                ),
            ]
        )
    title = f"One cohort a core, {cores} cores a machine, sums through the best tree (simulated)"
    parts.append(f"**{title}**\n\n{table(['users', *(f'M={M:,}' for M in MACHINES)], lines)}")
    return "\n\n".join([*parts, "\\* the server's part is longer than computing."])


def bottleneck(costs: Costs, facts: Row) -> str:
    """Return the number of nodes at which the server takes as long as computing.

    It is given by number of users and model size.
    """
    sizes = {f"P={P}": P, "P=10,000": 10_000, "P=1,000,000": 1_000_000}
    lines = [
        [power(n), *(f"{costs.balance(n, 'Ray', size):,.0f}" for size in sizes.values())]
        for n in USERS
    ]
    at = table(["users", *sizes], lines)
    alone = [
        [
            name,
            *(
                f"{(costs.node + costs.user(size)) / costs.message(name, size):.2f}"
                for size in sizes.values()
            ),
        ]
        for name in costs.overhead
    ]
    said = "Nodes of one user each that the server can hear while one of them computes:"
    return f"{at}\n\n{said}\n\n{table(['runtime', *sizes], alone)}"


def trees(costs: Costs) -> str:
    """Return simulated aggregation by the best tree against a flat server, and a check of sums."""
    lines = []
    for network in (DATA_CENTRE, WIDE_AREA):
        for size in (P, 1_000_000):
            for nodes in (10, 100, 1000, 16_000):
                hop = costs.hop("Ray", size, network)
                fan_out, seconds = best_fan_out(nodes, hop)
                flat = simulated(nodes, nodes, hop, 0.0)
                best = "flat" if fan_out == nodes else f"{fan_out}"
                lines.append(
                    [
                        network.name,
                        f"{size:,}",
                        f"{nodes:,}",
                        best,
                        short(seconds),
                        short(flat),
                        f"{flat / seconds:.1f}",
                    ]
                )
    values = np.random.default_rng(0).standard_normal((1000, P))
    flat_sum = np.zeros(P)
    for value in values:
        flat_sum += value
    off = max(
        np.linalg.norm(summed(values, f) - flat_sum) / np.linalg.norm(flat_sum) for f in (2, 8, 32)
    )
    head = ["network", "P", "nodes", "best fan-out", "tree", "flat", "flat / tree"]
    said = (
        "Sums of 1,000 nodes through trees of fan-out 2, 8 and 32 differ from the flat sum by at "
        f"most {off:.1e}, relatively."
    )
    return f"{table(head, lines)}\n\n{said}"


def blocks(costs: Costs, rows: Sequence[Row], facts: Row, cores: int = CORES) -> dict[str, str]:
    """Return the blocks of numbers of the page by name."""
    return {
        "constants": constants(costs, facts),
        "validation": validation(rows),
        "predictions": predictions(costs, cores),
        "bottleneck": bottleneck(costs, facts),
        "trees": trees(costs),
    }


def replaced(text: str, numbers: Mapping[str, str]) -> str:
    """Return the page with its numbers replaced, between <!-- numbers: NAME --> and <!-- end -->.

    Raises:
        ValueError: if the page has no place for a block.
    """
    for name, block in numbers.items():
        pattern = re.compile(rf"(<!-- numbers: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        found = pattern.search(text)
        if not found:
            raise ValueError(f"the page has no place for the numbers named {name}")
        text = f"{text[: found.end(1)]}\n{block}\n\n{text[found.start(2) :]}"
    return text


def drawn(costs: Costs) -> plt.Figure:
    """Return the picture.

    Left: a round by number of cores, flat (with the point of balance) and through a tree. Right:
    the part of a round that is not computing, by number of nodes.
    """
    picture, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4))
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    nodes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    hop = costs.hop("Ray", P, DATA_CENTRE)
    through = [
        best_fan_out(count, hop, tried=(4, 8, 16, 32))[1] if count > 1 else hop.take
        for count in nodes
    ]
    for n, colour in zip((10**6, 10**7, 10**8, 10**9), colours, strict=False):
        flat = [costs.flat(n, count, count, 1, "Ray", P) for count in nodes]
        left.plot(
            nodes,
            [each.total for each in flat],
            "-",
            color=colour,
            label=f"${power(n).replace('^', '^{')}}}$ users",
        )
        left.plot(
            nodes,
            [f.compute + costs.fixed["Ray"] + s for f, s in zip(flat, through, strict=True)],
            "--",
            color=colour,
        )
        at = costs.balance(n, "Ray", P)
        if at < nodes[-1]:
            left.plot(
                [at],
                [costs.flat(n, max(1, round(at)), max(1, round(at)), 1, "Ray", P).total],
                "o",
                color=colour,
            )
    left.set(
        xlabel="cores, one cohort each",
        ylabel="seconds a round",
        title=f"a round, P={P}: flat (solid), tree (dashed)",
    )
    for (size, network), colour in zip(
        ((P, DATA_CENTRE), (P, WIDE_AREA), (10**6, DATA_CENTRE)), colours[4:], strict=False
    ):
        hop = costs.hop("Ray", size, network)
        some = nodes[1::2]
        right.plot(
            some,
            [simulated(c, c, hop, 0.0) for c in some],
            "-",
            color=colour,
            label=f"P={size:,}, {network.name}",
        )
        right.plot(
            some,
            [best_fan_out(c, hop, tried=(2, 4, 8, 16, 32, 64))[1] for c in some],
            "--",
            color=colour,
        )
    right.set(
        xlabel="nodes",
        ylabel="seconds to announce and add up",
        title="without computing: flat (solid), tree (dashed)",
    )
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    picture.tight_layout()
    return picture
