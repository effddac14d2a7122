"""Measure privfed against the machine's limits and against others.

    make bench, or python benchmarks/bench.py [options]

One run measures all sections, shows them as tables, and compares them with the last committed
figures. --write (make benchmarks) also adds the figures to docs/benchmarks.jsonl and writes
docs/benchmarks.md again. Sections that were not measured keep their last figures.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PRIVFED_COMPILE": os.environ.get("PRIVFED_COMPILE", "always"),
}  # set before the imports below read them

import bench_curves
import bench_history
import bench_initialiser
import bench_limits
import bench_linear
import bench_networks
import bench_numpy
import bench_page
import bench_rivals
import bench_runtimes
import bench_whole
from bench_table import Effort, Section
from rich.console import Console

from privfed.commands.parsing import Parser

SECTIONS: dict[str, Section] = {
    section.name: section
    for section in (
        bench_limits.SECTION,
        bench_rivals.SECTION,
        bench_curves.SECTION,
        bench_initialiser.SECTION,
        bench_whole.SCALE,
        bench_whole.COMMAND,
        bench_whole.SWEEP,
        *bench_numpy.SECTIONS,
        *bench_linear.SECTIONS,
        *bench_networks.SECTIONS,
        *bench_runtimes.SECTIONS,
    )
}


class Options(Parser):
    """The command line."""

    hint = "see --help"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; refuse a section that does not exist in one line."""
    parser = Options(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", metavar="SECTION", help="these sections; --list names them"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, everything once: to see that all works"
    )
    parser.add_argument("--long", action="store_true", help="ten million users, too")
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep the figures: docs/benchmarks.jsonl, .md and the picture",
    )
    parser.add_argument(
        "--page", action="store_true", help="make the page anew from the history; measure nothing"
    )
    parser.add_argument("--list", action="store_true", help="name the sections, and stop")
    options = parser.parse_args(arguments)
    for name in options.only or ():
        if name not in SECTIONS:
            parser.error(
                f"--only {name}: there is no such section; choose among {', '.join(SECTIONS)}"
            )
    return options


def measure(
    names: Sequence[str], effort: Effort, console: Console
) -> tuple[bench_history.Entry, list[str]]:
    """Measure the sections one after the other, and show each when it is done.

    A section that fails does not stop the others.

    Args:
        names: names of the sections.
        effort: how much to measure.
        console: where tables are shown.

    Returns:
        The entry of the history, and the names of the sections that failed.
    """
    entry, failed = bench_history.begin(effort), []
    machine = entry["machine"]
    console.print(
        f"{machine['cores']} cores ({machine['cpu']}), load {machine['load']}, {effort.size} sizes"
    )
    bench_numpy.our_rounds("data.n=1000")  # compile and load before anything is timed
    for i, name in enumerate(names, 1):
        console.print(f"[{i}/{len(names)}] {name} ...", markup=False)
        start = time.perf_counter()
        try:
            rows = SECTIONS[name].work(effort)
        except Exception as error:
            console.print(
                f"{name} failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
                markup=False,
            )
            failed.append(name)
            continue
        spent = time.perf_counter() - start
        entry["sections"][name] = {"seconds": round(spent, 1), "rows": rows}
        console.print(SECTIONS[name].table(rows))
        console.print(f"[{i}/{len(names)}] {name} took {spent:.0f} s", markup=False)
    return entry, failed


def conclude(entry: bench_history.Entry, console: Console) -> None:
    """Show the bounds, and the comparison with the last committed figures."""
    if bench_history.busy(entry):
        load, cores = entry["machine"]["load"], entry["machine"]["cores"]
        console.print(
            f"The machine was busy (load {load} on {cores} cores): these figures are provisional, "
            "ratios and bounds, too."
        )
    if entry["size"] == "full":
        measured = bench_page.measured_of(dict.fromkeys(entry["sections"], entry), SECTIONS)
        bounds = bench_page.targets_table(bench_page.targets(measured))
        if bounds.row_count:
            console.print(bounds)
    found, new, dates = bench_history.compare(
        entry, bench_history.committed(bench_history.HISTORY), SECTIONS
    )
    if found:
        console.print(bench_history.shown(found, dates))
        console.print(
            "Above the line: ratios to a reference of the same run, which a busy machine changes "
            "less. Below it: seconds and speeds as they were. Machines are noisy: measure again, "
            "on an idle one, before you believe a change."
        )
        slow = sum(change.slow for change in found)
        console.print(
            f"{slow} of {len(found)} quantities are below {bench_history.SLOW} of their speed then."
        )
    if new:
        words = (
            f"{len(new)} quantities have no committed figure of this kind of machine and these "
            "sizes to be compared with"
        )
        console.print(f"{words}{': ' + ', '.join(new) if len(new) < 8 else ''}.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 a section failed, 2 bad options."""
    options = parse(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    if options.list:
        for name, section in SECTIONS.items():
            console.print(f"{name:<12} {section.heading}", markup=False, soft_wrap=True)
        return 0
    failed: list[str] = []
    start = time.perf_counter()
    if not options.page:
        entry, failed = measure(
            options.only or list(SECTIONS), Effort(options.quick, options.long), console
        )
        conclude(entry, console)
        console.print(f"{time.perf_counter() - start:.0f} s in all")
        if options.write and entry["sections"]:
            bench_history.append(entry, bench_history.HISTORY)
    if options.write or options.page:
        bench_page.write(bench_history.read(bench_history.HISTORY), SECTIONS, bench_page.PAGE)
        console.print(f"written: docs/{bench_page.PAGE.name}, docs/{bench_page.PICTURE}")
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
