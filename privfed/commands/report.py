"""Write the page of a run again, or one that compares several: `privfed report RUN ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from privfed.commands.parsing import Parser, guarded
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError
from privfed.report.past_runs import find
from privfed.report.run_files import page_again


def _execute(paths: Sequence[Path], out: Path | None) -> None:
    """Write the page of the runs in some folders."""
    from privfed.report.comparison_page import comparison_page
    from privfed.report.console import PatientConsole

    runs = find(paths)
    alone = len(paths) == 1 and (paths[0] / "result.json").exists()
    if out is None:
        out = paths[0] / "report.html" if len(paths) == 1 else Path("comparison.html")
    if alone:
        page = page_again(runs[0])
    else:
        page = comparison_page(
            runs, out.resolve().parent, paths[0].resolve().name if len(paths) == 1 else ""
        )
    try:
        write_atomically(out, page.encode())
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot write there ({error.strerror})") from error
    what = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    PatientConsole(highlight=False).print(f"{what}: written to {out}", soft_wrap=True, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a page; return the exit code."""
    about = (
        "Write the page of a run again, or one that compares several runs or the runs of a sweep."
    )
    parser = Parser(prog="privfed report", description=about)
    parser.hint = "see --help"
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folder of a run, or one with runs below it",
    )
    where = "the page; otherwise report.html in the one folder that is given, or comparison.html"
    parser.add_argument("--out", type=Path, metavar="PAGE", help=where)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _execute(options.runs, options.out), "interrupted")
