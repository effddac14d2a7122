"""Play every planted bug against every checker: python scripts/planted_bugs.py [--write].

The bugs are those of tests/privacy/bugs.py. Each bug is planted in a process of its own, and each
checker is run there: the replay, the audit, the audit in one run, and the other tests of the
privacy mechanism. One line per bug says who caught it. --write puts the table into
docs/audit-bugs.md. The same command continues after an interruption if --keep names a file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "privacy")]

from bugs import (  # type: ignore[import-not-found]  # noqa: E402  found by the path above
    AUDIT,
    LIST,
    ONE_RUN,
    REPLAY,
    TESTS,
    Bug,
)

NONE = Bug("no bug", contextlib.nullcontext, "none")
CAUGHT, MISSED, UNABLE, SPARED = "caught", "missed", "does not apply", "not played"
CHECKERS = (REPLAY, AUDIT, ONE_RUN, TESTS)
TRIES = 30
TEST_FILES = (
    "tests/privacy/test_gate.py",
    "tests/privacy/test_ledger.py",
    "tests/privacy/test_side_doors.py",
    "tests/privacy/test_quantile.py",
    "tests/strategies/test_base.py",
    "tests/clients/test_contributions.py",
    "tests/clients/test_linear_algorithms.py",
)
"""Other tests that concern privacy, and that neither plant bugs nor replay."""
PAGE = ROOT / "docs" / "audit-bugs.md"
LISTS = {"first": "first list", "second": "second list", "own": "our own"}
INTRODUCTION = """\
# Planted bugs, and who catches them

{count} bugs are planted in the real code, one at a time (`tests/privacy/bugs.py`), and every
checker is run: `privfed replay`, `python -m privfed.audit`, `python -m privfed.audit --one-run`,
and the other tests of the privacy mechanism. A dash means that the checker does not apply, as an
audit does not to sampled users. The checker in bold must catch the bug; CI runs it for every bug.
An empty cell was not played: with `--until-caught` the next checker is asked only where none before
it has caught the bug.

No row is missed by everything. `python scripts/planted_bugs.py --write` plays all of it again and
writes this page.

| bug | list | replay | audit | one run | tests |
|---|---|---|---|---|---|
"""
AUDIT_LINE = ("--quiet", "--repetitions", "400", "--client-repetitions", "60")
ONE_RUN_LINE = ("--quiet", "--one-run", "--canaries", "200")


def sizes(bug: Bug) -> list[str]:
    """Return the settings of a bug for an audit, which has its own number of users."""
    kept = [s for s in bug.settings if not s.startswith(("data.n=", "eps=", "rounds="))]
    return [*kept, "rounds=4", "eps=4"]


def by_replay(bug: Bug) -> str:
    from privfed.audit.replay_checks import replay
    from privfed.config.composition import compose

    return CAUGHT if replay(compose(bug.line), TRIES).findings else MISSED


def by_command(arguments: list[str]) -> str:
    from privfed.commands.audit import main

    with tempfile.TemporaryDirectory() as folder:
        code = main([*arguments, f"out={folder}/out"])
    return {0: MISSED, 2: UNABLE, 4: CAUGHT}[code]


def by_audit(bug: Bug) -> str:
    return by_command([*sizes(bug), *AUDIT_LINE])


def by_one_run(bug: Bug) -> str:
    return by_command([*sizes(bug), *ONE_RUN_LINE])


def by_tests(bug: Bug) -> str:
    import pytest

    files = [str(ROOT / name) for name in TEST_FILES]
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    code = pytest.main([*options, "-k", "not independent_standard_normals", *files])
    return {0: MISSED, 1: CAUGHT, 2: CAUGHT}[int(code)]


PLAY: dict[str, Callable[[Bug], str]] = {
    REPLAY: by_replay,
    AUDIT: by_audit,
    ONE_RUN: by_one_run,
    TESTS: by_tests,
}


def played(bug: Bug, checker: str) -> str:
    """Return whether a checker catches a bug, from a process of its own."""
    read, write = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                with bug.plant():
                    write.send(PLAY[checker](bug))
            except BaseException as error:
                write.send(f"failed: {type(error).__name__}: {error}")

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    write.close()
    outcome = read.recv() if read.poll(3600) else "failed: no answer"
    process.join()
    return str(outcome)


def row(bug: Bug, outcomes: dict[str, str]) -> str:
    """Return one row of the table."""
    must = REPLAY if "replay" in bug.caught_by else bug.caught_by

    def cell(checker: str) -> str:
        words = {CAUGHT: "caught", MISSED: "missed", UNABLE: "-", SPARED: ""}.get(
            outcomes[checker], "?"
        )
        return f"**{words}**" if checker == must else words

    return f"| {bug.name} | {LISTS[bug.list]} | {' | '.join(map(cell, CHECKERS))} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="play only these bugs")
    parser.add_argument("--checkers", nargs="+", choices=CHECKERS, default=CHECKERS)
    parser.add_argument(
        "--until-caught",
        action="store_true",
        help="play no further checker of a bug that is caught",
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="file of outcomes so far")
    options = parser.parse_args(arguments)
    if options.write and (options.only or set(options.checkers) != set(CHECKERS)):
        parser.error("--write needs all bugs and all checkers")
    bugs = [bug for bug in LIST if not options.only or bug.name in options.only]
    kept: dict[str, Any] = {}
    if options.keep is not None and options.keep.exists():
        kept = json.loads(options.keep.read_text())
    for checker in options.checkers:
        alarm = kept.setdefault(f"no bug/{checker}", played(NONE, checker))
        if alarm == CAUGHT or alarm.startswith("failed"):
            print(f"{checker} gives alarm without a bug: {alarm}", file=sys.stderr)
            return 1
    outcomes: dict[str, dict[str, str]] = {}
    for bug in bugs:
        outcomes[bug.name] = {}
        for checker in options.checkers:
            key, started = f"{bug.name}/{checker}", time.perf_counter()
            if options.until_caught and key not in kept and CAUGHT in outcomes[bug.name].values():
                outcomes[bug.name][checker] = SPARED
                continue
            if key not in kept:
                kept[key] = played(bug, checker)
                if options.keep is not None:
                    options.keep.write_text(json.dumps(kept, indent=1))
            outcomes[bug.name][checker] = kept[key]
            seconds = time.perf_counter() - started
            print(f"{bug.name:<44} {checker:<8} {kept[key]:<16} {seconds:6.1f} s", flush=True)
    missed = [name for name, seen in outcomes.items() if CAUGHT not in seen.values()]
    if options.write and not missed:
        table = "\n".join(row(bug, outcomes[bug.name]) for bug in bugs)
        PAGE.write_text(INTRODUCTION.format(count=len(bugs)) + table + "\n", encoding="utf-8")
    caught = {c: sum(o.get(c) == CAUGHT for o in outcomes.values()) for c in options.checkers}
    print(", ".join(f"{c}: {count} of {len(bugs)}" for c, count in caught.items()))
    for name in missed:
        print(f"missed by everything: {name}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
