"""Check what an experiment claims by running it on neighbouring data sets.

privfed replay algo=fedrep eps=1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from privfed.commands.parsing import (
    Parser,
    add_settings,
    check_trusted,
    failures_refute,
    guarded,
    use_config_dir,
)
from privfed.foundation.errors import RefutedError

if TYPE_CHECKING:
    from privfed.audit.replay_checks import Report

SMALL = ("data.n=200",)
"""Sensitivities do not depend on the number of users, but blocks of users should be full."""
EXAMPLES = """
examples:
  privfed replay algo=altmin init=pairs neighbouring=zero-out
  privfed replay --config-dir mine algo=shared_model        an algorithm of your own
  privfed replay data=table                                 people with names and any number of rows
  privfed replay algo=expmech rounds=2 --tries 2000         search longer for the worst user

It takes the keys of privfed run (data.n is 200 unless given). Every release is compared between
neighbouring data sets: strange users, users found by a search, users who are absent, nodes that
lie. Everything that nodes send and that the server publishes is compared, too. A run that fails on
some user's data is refuted. Simulated data only; nothing is written. data=table takes a made-up
table of named people, who are renamed, replaced and given other numbers of rows.

exit codes: 0 nothing speaks against the claims; 4 a claim is refuted; 2 bad configuration;
1 anything else
"""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="privfed replay",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run an experiment on neighbouring data sets "
        "and compare what passes the noise gate with the ledger.",
        epilog=EXAMPLES,
    )
    add_settings(parser)
    parser.add_argument(
        "--tries",
        type=int,
        default=300,
        help="changes that each search for a worst user may make (300)",
    )
    return parser.parse_intermixed_args(arguments)


def _in_words(report: Report) -> str:
    """Say what was done and how far apart neighbours were."""
    lines = [
        f"{report.runs} runs, {report.releases} releases each, {report.neighbouring}, "
        f"guarantee: {report.guarantee}"
    ]
    if report.nearest:
        lines.append(
            "largest distance of neighbours, as a part of what the ledger claims "
            "(users; nodes that lie):"
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


def _execute(options: argparse.Namespace) -> None:
    from privfed.audit.replay_checks import replay
    from privfed.config.composition import compose

    use_config_dir(options.config_dir)
    cfg = compose(options.overrides, options.config_dir)
    check_trusted(cfg)
    if "n" in cfg.data:
        cfg = compose([*SMALL, *options.overrides], options.config_dir)
    with failures_refute(f"a replay of {cfg.algo.name}"):
        report = replay(cfg, options.tries)
    print(_in_words(report))
    for finding in report.findings:
        print(f"REFUTED ({finding.claim}): {finding.words}")
    if report.findings:
        claims = sorted({finding.claim for finding in report.findings})
        raise RefutedError(f"what {cfg.algo.name} claims about {', '.join(claims)} does not hold")
    print("Nothing was found that speaks against what the ledger claims.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay an experiment; return the exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _execute(options), "interrupted")
