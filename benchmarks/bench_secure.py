"""Cost of secure aggregation, beside the sums alone: per node and step, by number of nodes.

python benchmarks/bench_secure.py 10:100 100:100 1000:100 4:796032
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import numpy as np

from privfed.secure.aggregator import SecureAggregator
from privfed.secure.keys import NodeKey
from privfed.secure.node import Message, SecureNode
from privfed.secure.terms import MaskedSum, Terms

STEPS = 3


def measure(nodes: int, size: int) -> str:
    """Return a line of the table: all nodes and the server in this process, one after another."""
    keys = [NodeKey.simulated("bench", i) for i in range(nodes)]
    terms = Terms("0" * 32, tuple(key.public.hex() for key in keys), (10,) * nodes, 0.9, 0.01)
    members = [SecureNode(key) for key in keys]
    spent = {"node": 0.0}
    sent = {"bytes": 0}

    def exchange(messages: Mapping[int, Message]) -> dict[int, Message]:
        answers = {}
        for place, message in messages.items():
            before = time.perf_counter()
            answers[place] = members[place].answer(message)
            spent["node"] += time.perf_counter() - before
            sent["bytes"] += sum(len(x) for x in answers[place].values() if isinstance(x, bytes))
            sent["bytes"] += sum(len(x) for x in message.values() if isinstance(x, bytes))
        return answers

    server = SecureAggregator(terms, exchange)
    begun = time.perf_counter()
    server.agree(range(nodes), 1)
    setup = time.perf_counter() - begun
    total = MaskedSum(size, 2.0**-30, 1 << 28, "norm", 1.0)
    parts = np.random.default_rng(0).normal(size=(nodes, size)) / size
    best, trusted = [], []
    for step in range(1, STEPS + 1):
        spent["node"], sent["bytes"] = 0.0, 0
        begun = time.perf_counter()
        for place, message in server.announce(step, [total], range(nodes)).items():
            before = time.perf_counter()
            words, more = members[place].masked({**message, "step": step}, [parts[place]], b"")
            spent["node"] += time.perf_counter() - before
            server.take(place, words, more["bundle"])
            sent["bytes"] += words.nbytes + len(bytes(more["bundle"]))  # type: ignore[arg-type]
        server.close()
        server.unmask()
        best.append((time.perf_counter() - begun, spent["node"] / nodes, sent["bytes"] / nodes))
        begun = time.perf_counter()
        np.sum(parts, axis=0)
        trusted.append(time.perf_counter() - begun)
    whole, each, data = min(best)
    return (
        f"| {nodes:,} | {size:,} | {terms.degrees.neighbours} | {setup:.2f} | {whole:.3f} "
        f"| {1e3 * each:.2f} | {data / size:.1f} | {min(trusted):.4f} |"
    )


def main() -> None:
    print("| nodes | P | k | setup s | step s | ms/node/step | bytes/coordinate | plain sum s |")
    print("|---|---|---|---|---|---|---|---|")
    for text in sys.argv[1:] or ["10:100", "100:100", "1000:100"]:
        nodes, _, size = text.partition(":")
        print(measure(int(nodes), int(size)), flush=True)


if __name__ == "__main__":
    main()
