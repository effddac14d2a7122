"""Command line: check what an experiment claims by running it on neighbouring data sets.

privfed replay algo=fedrep eps=1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privfed.commands.parsing import Parser, guarded
from privfed.foundation.errors import ConfigError, RefutedError

if TYPE_CHECKING:
    from privfed.audit.claims import Report

SMALL = ("data.n=24",)
"""Sensitivities do not depend on the number of users, so a few are enough unless one asks for more."""
EXAMPLES = """
examples:
  privfed replay algo=altmin init=pairs neighbouring=add-remove
  privfed replay --config-dir mine algo=shared_model        an algorithm of your own
  privfed replay algo=expmech rounds=2 --tries 2000         search longer for the worst user

It takes the keys of privfed run (data.n is 24 unless given). Every release is compared between neighbouring data sets: strange
users, users found by a search, users who are absent, nodes that lie. Simulated data only; nothing is written.

exit codes: 0 nothing speaks against the claims; 4 a claim is refuted; 2 bad configuration; 1 anything else
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of the command line; everything else is key=value."""
    parser = Parser(
        prog="privfed replay",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run an experiment on neighbouring data sets and compare what passes the noise gate with the ledger.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, for example algo=fedrep eps=1"
    )
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        help="a folder with configs of your own (algo/mine.yaml, ...)",
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=300,
        help="changes that each search for a worst user may make (300)",
    )
    return parser.parse_intermixed_args(arguments)


def in_words(report: Report) -> str:
    """What was done and how near neighbours came, for a person."""
    lines = [
        f"{report.runs} runs, {report.releases} releases each, {report.neighbouring}, guarantee: {report.guarantee}"
    ]
    if report.nearest:
        lines.append(
            "largest distance of neighbours, as a part of what the ledger claims (users; nodes that lie):"
        )
    for name, (ratio, who) in report.nearest.items():
        lies = f"{report.lying[name][0]:8.5f}" if name in report.lying else "       -"
        lines.append(f"  {name:<22} {ratio:8.5f} {lies}   {who}")
    if report.guarantee.startswith("under"):
        lines.append(
            f"Sensitivities are claimed {report.guarantee} only; they were not put to the test."
        )
    if not report.releases:
        lines.append("Nothing was released.")
    return "\n".join(lines)


def execute(options: argparse.Namespace) -> None:
    """Replay what was asked for; raises where a claim does not hold."""
    from privfed.audit.claims import replay
    from privfed.config.composition import compose

    if "data=table" in options.overrides:
        raise ConfigError(
            "data=table: a replay changes users' data, so it needs simulated ones, as data=synthetic has them"
        )
    cfg = compose([*SMALL, *options.overrides], options.config_dir)
    if options.config_dir is not None:
        sys.path.insert(0, options.config_dir)
    report = replay(cfg, options.tries)
    print(in_words(report))
    for finding in report.findings:
        print(f"REFUTED ({finding.claim}): {finding.words}")
    if report.findings:
        claims = sorted({finding.claim for finding in report.findings})
        raise RefutedError(f"what {cfg.algo.name} claims about {', '.join(claims)} does not hold")
    print("Nothing was found that speaks against what the ledger claims.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of one command."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: execute(options), "interrupted")
