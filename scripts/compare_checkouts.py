"""Show that two checkouts of privfed compute the same numbers.

    python scripts/compare_checkouts.py BEFORE AFTER [--only PATTERN] [--keep DIR]

Every case in the tables below is run in both checkouts with `python -m privfed.run`. The files of
the two runs are compared: the published model, the releases in the ledger, the result and the table
of rounds. One line per case gives the largest relative difference. The exit code is 1 if a case
differs or if a run fails. With --keep, the runs of BEFORE are reused while its commit is the same.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TABLE_FILE = ROOT / "examples" / "coffee.csv.gz"
"""Copied to where the runs start, so that both checkouts read the same table."""

SMALL = "data.n=200 data.d=6"
LINEAR = f"{SMALL} rounds=3"
SELECT = f"{LINEAR} algo.candidates=20"
SKETCH = "data.n=200 data.d=12 data.m=8 algo.candidates=20 algo.sketch=6"
TRACE = "data.n=200 data.d1=5 data.d2=4 rounds=3"
PUBLIC = "data.n=60 data.m=6 model=features model.pictures=300 model.patches=32 model.k=20"
COFFEE = "data=table data.path=coffee.csv.gz data.user=person"
RATING = f"{COFFEE} data.target=rating eps=2"
LIMITS = "data.bounds={roast:[0,10],acidity:[0,10],price:[0,20],rating:[0,10]}"
PATTERNS = "data.n=60 data.m=6 data.size=6 model.module.hidden=[8,5]"
MLP = f"{PATTERNS} rounds=3"
LENET = "data.n=20 data.m=6 model.module.channels=[2,3] model.module.hidden=[5] rounds=3"
COLOURS = f"data=patterns data.channels=3 data.size=32 {LENET}"
GREYS = "data=patterns data.size=28 data.n=40 data.m=6 model.module.hidden=[8,5] rounds=3"

# A name starts with the file in conf/algo, or with "preset" and the file in conf/preset. What a
# variant changes follows a comma. `key=new|old` stands for two spellings; the first one that a
# checkout accepts is used.
DOUBLE = {
    "fedrep": f"algo=fedrep {LINEAR}",
    "fedrep, defaults": "eps=1 data.n=2000",
    "fedrep, another seed": f"algo=fedrep {LINEAR} seed=7",
    "fedrep, one node": f"algo=fedrep {LINEAR} runtime.nodes=1",
    "fedrep, three nodes": f"algo=fedrep {LINEAR} runtime.nodes=3",
    "fedrep, clip=auto": f"algo=fedrep {LINEAR} privacy.clip=auto",
    "fedrep, clip=0.02": f"algo=fedrep {LINEAR} privacy.clip=0.02",
    "fedrep, zero-out": f"algo=fedrep {LINEAR} neighbouring=zero-out",
    "fedrep, clip=auto zero-out": f"algo=fedrep {LINEAR} privacy.clip=auto neighbouring=zero-out",
    "fedrep, eps=inf": f"algo=fedrep {LINEAR} eps=inf",
    "fedrep, fixed noise": f"algo=fedrep {LINEAR} eps=20 privacy.noise_multiplier=2",
    "fedrep, two-batches": f"algo=fedrep {LINEAR} algo.estimator=two-batches",
    "fedrep, halves of the data": f"algo=fedrep {LINEAR} algo.train=s0 algo.heads=s1",
    "fedrep, eta": f"algo=fedrep {LINEAR} algo.eta=2.5",
    "fedrep, more features than examples": "algo=fedrep data.n=300 data.d=12 data.m=8 rounds=3",
    "fedrep, smaller model": f"algo=fedrep {LINEAR} data.k=3 model.k=2",
    "fedrep, init=ppm": f"algo=fedrep {LINEAR} init=ppm",
    "fedrep, init=ppm clip=auto": f"algo=fedrep {LINEAR} init=ppm init.clip=auto",
    "fedrep, init=pairs": f"algo=fedrep {LINEAR} init=pairs",
    "fedrep, init=random": f"algo=fedrep {LINEAR} init=random",
    "fedrep, mixed features": f"algo=fedrep {LINEAR} data.features=mixed data.condition=2",
    "fedrep, stream": f"algo=fedrep {LINEAR} data.stream=true",
    "fedrep, stream three nodes": f"algo=fedrep {LINEAR} data.stream=true runtime.nodes=3",
    "centaur": f"algo=centaur {LINEAR}",
    "centaur, init=ppm": f"algo=centaur {LINEAR} init=ppm",
    "centaur, clip=auto": f"algo=centaur {LINEAR} privacy.clip=auto",
    "centaur, batches": f"algo=centaur {LINEAR} algo.head_batch=3 algo.batch=2 data.stream=true",
    "altmin": f"algo=altmin {LINEAR}",
    "altmin, clip=auto": f"algo=altmin {LINEAR} privacy.clip=auto",
    "altmin, zero-out": f"algo=altmin {LINEAR} neighbouring=zero-out",
    "altmin, labels halves": f"algo=altmin {LINEAR} algo.target=labels algo.estimator=halves",
    "altmin, labels": f"algo=altmin {LINEAR} algo.target=labels algo.eta_c=5 algo.zeta=3",
    "altmin, init=pairs eps=inf": f"algo=altmin {LINEAR} init=pairs eps=inf",
    "altmin, init=random": f"algo=altmin {LINEAR} init=random algo.shrink=false",
    "expmech": f"algo=expmech {SELECT}",
    "expmech, absolute": f"algo=expmech {SELECT} algo.targets=absolute runtime.nodes=3",
    "expmech, zero-out": f"algo=expmech {SELECT} neighbouring=zero-out",
    "jlmargin": f"algo=jlmargin {SKETCH} rounds=3",
    "jlmargin, eps=inf": f"algo=jlmargin {SKETCH} rounds=3 eps=inf runtime.nodes=1",
    "rgrad": f"algo=rgrad {TRACE}",
    "rgrad, clip fixed": f"algo=rgrad {TRACE} algo.clip=0.3 init.clip=0.5",
    "rgrad, paper": f"algo=rgrad {TRACE} algo.calibration=paper",
    "rgrad, paper weak": f"algo=rgrad {TRACE} algo.calibration=paper neighbouring=weak",
    "rgrad, several observations": f"algo=rgrad {TRACE} data.m=4 neighbouring=zero-out",
    "oracle": f"algo=oracle {SMALL}",
    "oracle, second half": f"algo=oracle {SMALL} algo.heads=s1",
    "standalone": f"algo=standalone {SMALL}",
    "standalone, ridge": f"algo=standalone {SMALL} algo.ridge=0.1 runtime.nodes=3",
    "features/standalone": f"algo=features/standalone|standalone {PUBLIC}",
    "headmean": f"algo=headmean {PUBLIC}",
    "headboost": f"algo=headboost {PUBLIC}",
    "headmean, zero-out": f"algo=headmean {PUBLIC} neighbouring=zero-out runtime.nodes=3",
    "table/fedrep": RATING,
    "table/fedrep, bounds": f"{RATING} {LIMITS}",
    "table/fedrep, bounds and clip": f"{RATING} {LIMITS} algo.clip.sums=1 algo.clip.slopes=1 "
    "algo.clip.gradient=1",
    "table/fedrep, k=2": f"{RATING} {LIMITS} data.k=2 rounds=3 runtime.nodes=3",
    "table/fedrep, labels": f"{COFFEE} data.target=origin eps=2",
    "table/fedrep, hashed": f"{RATING} data.categories=hash data.buckets=4 data.missing=indicator",
    "table/fedrep, eps=inf": f"{RATING} {LIMITS} eps=inf",
    "table/global": f"{RATING} algo=table/global",
    "table/offset": f"{RATING} algo=table/offset",
    "table/standalone": f"{RATING} algo=table/standalone|standalone",
    "table/standalone, labels": f"{COFFEE} data.target=origin algo=table/standalone|standalone",
    "preset pmpr": f"preset=pmpr {SMALL}",
    "preset pmpr-altmin": f"preset=pmpr-altmin {SMALL}",
    "preset pmpr-code": f"preset=pmpr-code {SMALL}",
    "preset pmpr-margin": f"preset=pmpr-margin {SKETCH}",
    "preset centaur-linear": f"preset=centaur-linear {LINEAR}",
    "preset dpmp": f"preset=dpmp {SMALL}",
    "preset dpmp-select": "preset=dpmp-select data.n=200",
    "preset theory-pmpr": f"preset=theory-pmpr {SMALL}",
    "preset theory-pmpr-margin": f"preset=theory-pmpr-margin {SKETCH}",
    "preset theory-dpmp": f"preset=theory-dpmp {SMALL}",
    "preset theory-dpmp-select": "preset=theory-dpmp-select data.n=200",
    "preset theory-centaur": f"preset=theory-centaur {LINEAR} init.copies=3 init.iterations=3",
    "preset theory-rgrad": f"preset=theory-rgrad {TRACE}",
    "preset rgrad": f"preset=rgrad {TRACE}",
}
"""Linear models, in double precision."""
SINGLE = {
    "network/centaur": f"algo=network/centaur|centaur model=mlp {MLP}",
    "network/centaur, three nodes": f"algo=network/centaur|centaur model=mlp {MLP} runtime.nodes=3",
    "network/centaur, sampling": f"algo=network/centaur|centaur model=mlp {MLP} algo.sampling=0.5",
    "network/centaur, clip=auto": f"algo=network/centaur|centaur model=mlp {MLP} privacy.clip=auto",
    "network/centaur, eps=inf": f"algo=network/centaur|centaur model=mlp {MLP} eps=inf",
    "network/centaur, momentum": f"algo=network/centaur|centaur model=mlp {MLP} "
    "algo.server_momentum=0.5 algo.average=0.5 algo.augment=always neighbouring=zero-out",
    "network/centaur, LeNet": f"algo=network/centaur|centaur model=lenet data.size=16 {LENET}",
    "network/standalone": "algo=network/standalone|standalone model=mlp algo.epochs=3 " + PATTERNS,
    "fedavg_ft": f"algo=fedavg_ft {MLP}",
    "fedavg_ft, sampling": f"algo=fedavg_ft {MLP} algo.sampling=0.5 runtime.nodes=1",
    "ppsgd": f"algo=ppsgd {MLP}",
    "ppsgd, sampling": f"algo=ppsgd {MLP} algo.sampling=0.5",
    "pmtl_ft": f"algo=pmtl_ft {MLP}",
    "pmtl_ft, sampling": f"algo=pmtl_ft {MLP} algo.sampling=0.5",
    "preset centaur-cifar10": f"preset=centaur-cifar10 {COLOURS} data.classes=10",
    "preset centaur-cifar100": f"preset=centaur-cifar100 {COLOURS} data.classes=100",
    "preset centaur-emnist": f"preset=centaur-emnist {GREYS} data.classes=47",
    "preset centaur-fashion": f"preset=centaur-fashion {GREYS}",
    "preset centaur-fashion, fedavg_ft": f"preset=centaur-fashion algo=fedavg_ft {GREYS}",
}
"""Networks, in single precision."""
CASES = DOUBLE | SINGLE

TOLERANCES = dict.fromkeys(DOUBLE, 1e-9) | dict.fromkeys(SINGLE, 1e-4)
FLOOR = 1e-3
"""Metrics below it are compared relative to it: some are differences of nearly equal numbers."""
RELEASE = (
    "mechanism", "name", "round", "size", "clip", "sensitivity", "std", "rate", "mu", "epsilon",
    "group", "sampling",
)  # fmt: skip
PRIVACY = (
    "epsilon", "delta", "target_epsilon", "neighbouring", "guarantee", "releases",
    "epsilon_by_neighbouring",
)  # fmt: skip
RESULT = ("n_users", "rounds", "judged")
FILES = ("model.npz", "ledger.jsonl", "result.json", "rounds.csv")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
TIMEOUT = 300
"""Seconds that one run may take."""


@dataclass(frozen=True)
class Difference:
    """One compared value: where it is, and the difference relative to the larger of the two.

    A relative difference of infinity means that the two cannot be compared or are not numbers.
    """

    where: str
    relative: float
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        shown = " -> ".join(f"{value!s:.60}" for value in (self.before, self.after))
        return f"{self.where}: {shown} ({self.relative:.1e})"


def differences(before: Path, after: Path) -> Iterator[Difference]:
    """Compare the files of two runs.

    Args:
        before: folder of the first run.
        after: folder of the second run.

    Returns:
        Every compared value with its relative difference, which is 0 where the two agree exactly.
    """
    for name in FILES:
        present = [(folder / name).exists() for folder in (before, after)]
        if not all(present):
            words = ["there" if there else "missing" for there in present]
            yield Difference(name, math.inf, *words)
            continue
        compare = {".npz": _models, ".jsonl": _ledgers, ".json": _results, ".csv": _rounds}
        for found in compare[Path(name).suffix](before / name, after / name):
            yield Difference(f"{name} {found.where}", found.relative, found.before, found.after)


def _models(before: Path, after: Path) -> Iterator[Difference]:
    """Compare arrays relative to their largest entry."""
    with np.load(before) as old, np.load(after) as new:
        yield _value("arrays", sorted(old), sorted(new))
        for name in sorted({*old} & {*new}):
            a, b = old[name], new[name]
            if a.shape != b.shape or a.dtype != b.dtype:
                yield Difference(name, math.inf, f"{a.dtype}{a.shape}", f"{b.dtype}{b.shape}")
            elif np.array_equal(a, b) or not a.size:
                yield Difference(name, 0.0)
            elif a.dtype.kind not in "fiu":
                yield Difference(name, math.inf, a, b)
            else:
                gap = np.abs(a.astype(np.float64) - b)
                largest = float(max(np.abs(a).max(), np.abs(b).max()))
                place = np.unravel_index(np.argmax(gap), gap.shape)
                relative = float(gap.max()) / largest
                yield Difference(name, _known(relative), float(a[place]), float(b[place]))


def _ledgers(before: Path, after: Path) -> Iterator[Difference]:
    old, new = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in (before, after)
    )
    yield _value("releases", len(old), len(new))
    for number, (a, b) in enumerate(zip(old, new, strict=False), start=1):
        yield from _entries(f"release {number}", a, b, RELEASE)


def _results(before: Path, after: Path) -> Iterator[Difference]:
    old, new = (json.loads(path.read_text()) for path in (before, after))
    yield from _entries("", old, new, RESULT)
    names = sorted({*old["metrics"], *new["metrics"]})
    yield from _entries("metrics", old["metrics"], new["metrics"], names, FLOOR)
    yield from _entries("privacy", old["privacy"], new["privacy"], PRIVACY)
    old_notes, new_notes = old.get("notes", []), new.get("notes", [])
    yield _value("number of notes", len(old_notes), len(new_notes))
    for number, (a, b) in enumerate(zip(old_notes, new_notes, strict=False), start=1):
        yield _value(f"numbers in note {number}", NUMBER.findall(a), NUMBER.findall(b))


def _rounds(before: Path, after: Path) -> Iterator[Difference]:
    """Compare every column except the time that a round took."""
    tables = []
    for path in (before, after):
        with path.open(newline="") as file:
            tables.append(list(csv.DictReader(file)))
    old, new = tables
    yield _value("rows", len(old), len(new))
    for number, (a, b) in enumerate(zip(old, new, strict=False), start=1):
        columns = sorted({*a, *b} - {"seconds"})
        yield from _entries(f"row {number}", a, b, columns, FLOOR)


def _entries(
    where: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    names: Sequence[str],
    floor: float = 0,
) -> Iterator[Difference]:
    for name in names:
        yield _value(f"{where} {name}".strip(), old.get(name), new.get(name), floor)


def _value(where: str, old: Any, new: Any, floor: float = 0) -> Difference:
    """Compare two values of a JSON or CSV file; nested ones count as their largest difference."""
    return Difference(where, _relative(old, new, floor), old, new)


def _relative(old: Any, new: Any, floor: float) -> float:
    if old == new:
        return 0.0
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        return max(_relative(old[key], new[key], floor) for key in old)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return max(_relative(*pair, floor) for pair in zip(old, new, strict=True))
    try:
        a, b = float(old), float(new)
    except (TypeError, ValueError):
        return math.inf
    return 0.0 if a == b else _known(abs(a - b) / max(abs(a), abs(b), floor))


def _known(relative: float) -> float:
    """Count a difference that is not a number as infinite, so that it cannot pass."""
    return relative if math.isfinite(relative) else math.inf


def reworded(before: Path, after: Path) -> bool:
    """Tell whether the notes of two runs have other words; their numbers are compared elsewhere.

    Args:
        before: folder of the first run.
        after: folder of the second run.

    Returns:
        Whether any note differs.
    """
    old, new = (json.loads((folder / "result.json").read_text()) for folder in (before, after))
    return bool(old.get("notes") != new.get("notes"))


def spellings(settings: str) -> list[list[str]]:
    """Expand `key=new|old` into the lists of settings that a checkout may understand.

    Args:
        settings: settings as on the command line, separated by spaces.

    Returns:
        One list of settings per spelling, the newest first.
    """
    choices = []
    for setting in settings.split():
        key, _, values = setting.partition("=")
        choices.append([f"{key}={value}" for value in values.split("|")])
    return [list(chosen) for chosen in itertools.product(*choices)]


@dataclass(frozen=True)
class Run:
    """One run of a case: its folder, and the last line it printed if it failed."""

    folder: Path
    error: str | None = None


class Checkout:
    """A checkout of privfed that runs cases in a separate folder.

    Args:
        source: the checkout's folder.
        folder: where runs and compiled kernels are written.
        reuse: keep the runs of an earlier comparison if they are of the same commit.
    """

    def __init__(self, source: Path, folder: Path, reuse: bool = False) -> None:
        self.source, self.folder = source.resolve(), folder.resolve()
        self.commit = self._commit() if reuse else None
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(TABLE_FILE, self.folder)
        threads = ("OMP", "OPENBLAS", "MKL", "NUMBA")
        self.environment = os.environ | {f"{name}_NUM_THREADS": "1" for name in threads}
        self.environment |= {
            "PYTHONPATH": str(self.source),
            "NUMBA_CACHE_DIR": str(self.folder / "kernels"),
        }
        self._check_source()

    def run(self, name: str) -> Run:
        """Run a case, or take the run that is there already if it may be reused.

        Args:
            name: the case's name in `CASES`.

        Returns:
            The run's folder, with an error if the run failed.
        """
        out = self.folder / re.sub(r"\W+", "-", name)
        stamp = out / "stamp.json"
        made_by = {"commit": self.commit, "settings": CASES[name]}
        if self.commit and stamp.exists() and json.loads(stamp.read_text()) == made_by:
            return Run(out)
        for settings in spellings(CASES[name]):
            shutil.rmtree(out, ignore_errors=True)
            try:
                code, error = self._start(
                    ["-m", "privfed.run", *settings, "--quiet", f"out={out.name}"]
                )
            except subprocess.TimeoutExpired:
                return Run(out, f"took more than {TIMEOUT} seconds")
            if code == 0:
                stamp.write_text(json.dumps(made_by))
                return Run(out)
            if code != 2:
                break
        return Run(out, f"exit code {code}: {error}")

    def _start(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run Python on the checkout; return its exit code and the last line it printed."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT,
        )  # fmt: skip
        return done.returncode, (done.stdout.strip().splitlines() or [""])[-1]

    def _check_source(self) -> None:
        """Make sure that an installed privfed does not hide the checkout."""
        for package in ("privfed", "strategies", "clients"):
            code = f"import {package}; print(*{package}.__path__)"
            if self._start(["-c", code]) != (0, str(self.source / package)):
                raise SystemExit(f"{self.source}: Python does not find {package} there")

    def _commit(self) -> str | None:
        """Return the commit that is checked out; None if unknown or if files differ from it."""
        git = ["git", "-C", str(self.source)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        changes = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True)
        clean = not (head.returncode or changes.returncode or changes.stdout)
        return head.stdout.strip() if clean else None


def verdict(name: str, before: Run, after: Run) -> tuple[bool, str]:
    """Compare the two runs of a case.

    Args:
        name: the case's name in `CASES`.
        before: its run in the first checkout.
        after: its run in the second checkout.

    Returns:
        Whether they agree, and the text to print.
    """
    errors = [
        f"\n    {side} failed: {run.error}"
        for side, run in (("before", before), ("after", after))
        if run.error
    ]
    if errors:
        return False, f"{name:38} {'':20} FAILED{''.join(errors)}"
    found = sorted(differences(before.folder, after.folder), key=lambda one: -one.relative)
    tolerance = TOLERANCES[name]
    wrong = [one for one in found if one.relative > tolerance]
    remark = "; notes have other words" if reworded(before.folder, after.folder) else ""
    lines = [
        f"{name:38} {found[0].relative:7.1e} of {tolerance:7.0e}   "
        f"{'DIFFERENT' if wrong else 'same'}{remark}",
        *(f"    {one}" for one in wrong[:5]),
        *([f"    and {len(wrong) - 5} more"] if wrong[5:] else []),
    ]
    return not wrong, "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and compare the chosen cases.

    Args:
        arguments: the command line; None takes the process's own.

    Returns:
        The exit code: 0 if all cases agree, 1 if not.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="checkout whose numbers are right")
    parser.add_argument("after", type=Path, help="checkout whose numbers are in question")
    parser.add_argument(
        "--only", metavar="PATTERN", default="", help="cases whose name contains it; * is allowed"
    )
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="keep runs there; reuse those of BEFORE"
    )
    parser.add_argument("--processes", type=int, default=2, help="runs at the same time (2)")
    options = parser.parse_args(arguments)
    names = [name for name in CASES if fnmatch(name, f"*{options.only}*")]
    if not names:
        parser.error(f"--only {options.only}: no case has such a name")
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.processes) as pool:
        folder = options.keep or Path(temporary)
        before = Checkout(options.before, folder / "before", reuse=options.keep is not None)
        after = Checkout(options.after, folder / "after")
        start = time.monotonic()
        runs: list[tuple[Future[Run], Future[Run]]] = [
            (pool.submit(before.run, name), pool.submit(after.run, name)) for name in names
        ]
        agreed = 0
        try:
            for name, (old, new) in zip(names, runs, strict=True):
                same, text = verdict(name, old.result(), new.result())
                agreed += same
                print(text, flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    print(f"{agreed} of {len(names)} cases agree ({time.monotonic() - start:.0f} s)")
    return 0 if agreed == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
