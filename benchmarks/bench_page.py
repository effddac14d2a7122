"""Write docs/benchmarks.md and its picture from the history alone.

They show the last figures of every section, whenever those were measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_history import ROOT, Entry, busy, last, rows_of
from bench_picture import draw
from bench_table import Measurement, Section, markdown_table
from rich.table import Table

PAGE = ROOT / "docs/benchmarks.md"
PICTURE = "figures/benchmarks.png"
HEAD = """
How fast privfed is, measured against what it cannot beat (memory bandwidth, matrix products) and
against others that compute the same. `make bench` measures everything and compares it with the last
committed figures; `make benchmarks` also writes this page and adds a line to
[the history](benchmarks.jsonl). `python benchmarks/bench.py --list` names the sections, `--only`
chooses some, `--quick` takes small sizes once, `--long` adds ten million users.

Machines are noisy, those with neighbours more than others. Ratios are to a reference measured in
the same run and say more than seconds, but a busy machine changes them, too: references whose
threads wait for each other suffer more than privfed does. Only figures of an idle machine count.
"""


@dataclass(frozen=True)
class Target:
    """What a quantity of a full run should reach.

    Attributes:
        words: the quantity in words.
        name: name of the measurement.
        bound: the bound.
        form: format of the number.
        better: `higher` (at least `bound`), `lower` (at most), or `near` (within `within` of it).
        within: allowed distance from `bound` with `near`.
    """

    words: str
    name: str
    bound: float
    form: str = ",.2f"
    better: str = "lower"
    within: float = 0.0

    @property
    def asked(self) -> str:
        """The bound in words."""
        number = format(self.bound, self.form)
        return {"higher": f"at least {number}", "lower": f"at most {number}"}.get(
            self.better, f"{self.bound:g} +- {self.within:g}"
        )

    def met(self, value: float) -> bool:
        """Return whether the value meets the bound."""
        if self.better == "near":
            return abs(value - self.bound) <= self.within
        return value >= self.bound if self.better == "higher" else value <= self.bound


TARGETS = (
    Target(
        "a round at n=1,000,000, part of the memory bandwidth (triad)",
        "limits/triad/fraction",
        1 / 3,
        better="higher",
    ),
    Target("the whole command at n=1,000,000, seconds", "scale/1,000,000/wall_s", 60, ",.0f"),
    Target("the whole command at n=1,000,000, MB", "scale/1,000,000/peak_mb", 8000, ",.0f"),
    Target(
        "the whole command at n=10,000,000, streamed, seconds",
        "scale/10,000,000, streamed/wall_s",
        600,
        ",.0f",
    ),
    Target(
        "the whole command at n=10,000,000, streamed, MB",
        "scale/10,000,000, streamed/peak_mb",
        4000,
        ",.0f",
    ),
    Target(
        "users a second against pfl in one process",
        "rivals/pfl, 1 process/ratio_n",
        200,
        ",.0f",
        "higher",
    ),
    Target(
        "users a second against pfl in two processes",
        "rivals/pfl, 2 processes/ratio_n",
        200,
        ",.0f",
        "higher",
    ),
    Target(
        "users a second against stock Flower and Ray",
        "rivals/Flower and Ray/ratio_n",
        5000,
        ",.0f",
        "higher",
    ),
    *(
        Target(
            f"growth of cost in {over}, exponent",
            f"curves/{over}/slope",
            1,
            better="near",
            within=0.1,
        )
        for over in ("n", "d", "k", "m", "rounds")
    ),
    Target("the initialiser at d=500 against the gemm of its vectors", "initialiser/500/ratio", 5),
    Target(
        "the initialiser at d=500 against the same product by symmetry (syrk)",
        "initialiser/500/ratio_symmetric",
        5,
    ),
    Target(
        "cores busy in a sweep, start-up and summary included",
        "sweep/all/busy",
        0.9,
        ".0%",
        "higher",
    ),
)
Line = tuple[str, str, str, str]


def targets(measured: Mapping[str, Measurement]) -> list[Line]:
    """Return per target: the quantity, the bound, the measured value, and whether it is met."""
    lines = []
    for target in TARGETS:
        found = measured.get(target.name)
        value, met = (
            ("-", "not measured")
            if found is None
            else (format(found.value, target.form), target.met(found.value))
        )
        lines.append(
            (
                target.words,
                target.asked,
                value,
                met if isinstance(met, str) else "yes" if met else "NO",
            )
        )
    return lines


def targets_table(lines: Sequence[Line]) -> Table:
    """Return a table for the terminal, with the targets that were measured."""
    table = Table(title="what it is to reach", title_justify="left")
    for heading in ("quantity", "bound", "measured", "met"):
        table.add_column(heading, justify="left" if heading in ("quantity", "met") else "right")
    for line in lines:
        if line[2] != "-":
            table.add_row(*line)
    return table


def newest(history: Sequence[Entry], sections: Mapping[str, Section]) -> dict[str, Entry]:
    """Return per section the entry to show: the last of full size, else the last quick one."""
    full = [entry for entry in history if entry["size"] == "full"]
    found = {name: last(full, name) or last(history, name) for name in sections}
    return {name: entry for name, entry in found.items() if entry is not None}


def measured_of(
    shown: Mapping[str, Entry], sections: Mapping[str, Section]
) -> dict[str, Measurement]:
    """Return all quantities of full size on the page by name; bounds apply only to those."""
    full = {name: entry for name, entry in shown.items() if entry["size"] == "full"}
    every = [
        each
        for name, entry in full.items()
        for each in sections[name].measurements(rows_of(entry, name))
    ]
    return {each.name: each for each in every}


def origin(entry: Entry) -> str:
    """Return when, of which commit and on which machine an entry was measured."""
    machine = entry["machine"]
    commit = (
        f"commit {entry['commit']}{' with changes' if entry.get('dirty') else ''}"
        if entry.get("commit")
        else "no commit"
    )
    text = (
        f"{entry['date'][:10]}, {commit}, {machine.get('cores')} cores ({machine.get('cpu')}), "
        f"load {machine.get('load')}"
    )
    text += ", **quick: small sizes, measured once**" if entry["size"] == "quick" else ""
    return text + (", **on a busy machine: provisional**" if busy(entry) else "")


def wrapped(text: str) -> str:
    """Return the text as one paragraph, wrapped."""
    return textwrap.fill(
        " ".join(text.split()), 128, break_long_words=False, break_on_hyphens=False
    )


def page(history: Sequence[Entry], sections: Mapping[str, Section]) -> str:
    """Return the text of the page, which depends on the history alone."""
    shown = newest(history, sections)
    latest = max(shown.values(), key=lambda entry: str(entry["date"]), default=None)
    parts = ["# Benchmarks", *(wrapped(part) for part in HEAD.strip().split("\n\n"))]
    if latest is not None:
        packages = ", ".join(
            f"{name} {version}" for name, version in latest.get("versions", {}).items()
        )
        parts.append(
            wrapped(
                f"Measured {origin(latest)}; {packages}. Sections measured at another time say so."
            )
        )
        parts.append(
            "![Users a second of privfed and others; how cost grows; a round against "
            f"limits]({PICTURE})"
        )
    head = ["what it is to reach", "bound", "measured", "met"], ["---", "--:", "--:", "---"]
    parts.append(markdown_table([*head, *targets(measured_of(shown, sections))]))
    for name, section in sections.items():
        entry = shown.get(name)
        rows = rows_of(entry, name) if entry else []
        parts += [f"## {section.heading}", wrapped(section.about)]
        parts += (
            [f"**{section.titled(rows)}**", section.markdown(rows)]
            if rows
            else ["Not measured yet."]
        )
        if entry is not None and entry is not latest:
            parts.append(wrapped(f"Measured {origin(entry)}."))
    return "\n\n".join(parts) + "\n"


def write(history: Sequence[Entry], sections: Mapping[str, Section], path: Path) -> None:
    """Write page and picture."""
    shown = newest(history, sections)
    path.parent.joinpath(PICTURE).parent.mkdir(parents=True, exist_ok=True)
    draw({name: rows_of(entry, name) for name, entry in shown.items()}, path.parent / PICTURE)
    path.write_text(page(history, sections))
