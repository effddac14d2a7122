"""Replay on a made-up table of named people: renaming, reordering, more rows, fewer rows.

In a table users are known by their names, and have any number of rows. Neighbouring tables replace
one person, name included, by another. Whatever is drawn for a person (which rows are used, batches,
groups) has to follow from that person alone. Otherwise a new name would move everybody.

The table is made up, so that a replay needs no real data, and may print what it finds.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig

from privfed.audit.guise import Guise, People
from privfed.audit.replay import Theatre, resolved
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Roster
from privfed.foundation.errors import ConfigError
from privfed.foundation.seeding import generator
from privfed.privacy.gate import NoiseGate

PERSON = "kim-41"
"""Name of the person who is replaced; it stands in the middle of the sorted names."""
PEOPLE, NODES = 90, 3
MOST_ROWS = 5
"""Rows that are used per person. Most people have more, so that some have to be chosen."""
HEADER = ("user", "age", "income", "city", "target")
SCHEMA = """
user: user
target: {column: target, kind: numeric}
missing: mean
columns:
  age: {kind: numeric, bounds: [0, 100]}
  income: {kind: numeric}
  city: {kind: categorical, values: [Bern, Basel]}
"""


def people() -> People:
    """Return made-up people with 2 to 9 rows each, whose targets follow age or income."""
    rng = generator(0, "named people")
    made: People = {}
    for i in range(PEOPLE):
        slopes = 3.0 * rng.standard_normal(2)
        rows = rng.standard_normal((2 + i % 8, 2))
        made[f"kim-{i:02}"] = [
            (
                f"{40 + 10 * age:.3f}",
                f"{5000 + 999 * income:.3f}",
                "Bern" if (i + j) % 3 else "Basel",
                f"{slopes @ (age, income) + 0.1 * rng.standard_normal():.4f}",
            )
            for j, (age, income) in enumerate(rows)
        ]
    return made


def named_guises() -> Iterator[Guise]:
    """Yield tables in which one person is another, absent or renamed, or the order differs."""
    rng = generator(0, "other people")

    def rows(count: int, scale: float = 1.0) -> list[tuple[str, ...]]:
        numbers = scale * rng.standard_normal((count, 3))
        return [(f"{40 + a:.5g}", f"{b:.5g}", "Bern", f"{c:.5g}") for a, b, c in numbers]

    def other(mine: Sequence[tuple[str, ...]], name: str = PERSON) -> Callable[[People], People]:
        def changed(all_people: People) -> People:
            return {
                (name if who == PERSON else who): (list(mine) if who == PERSON else theirs)
                for who, theirs in all_people.items()
            }

        return changed

    def renamed(name: str) -> Callable[[People], People]:
        return lambda all_people: other(all_people[PERSON], name)(all_people)

    strange = [("x", "--", "Atlantis", "0"), ("1e400", "inf", "", "1"), ("-1e38", "", "?", "9")]
    nothing = [("", "1234.5", "Bern", "?")] * 3
    for name, change in {
        "renamed to the first name": renamed("a-person"),
        "renamed to the last name": renamed("z-person"),
        "another with the first name": other(rows(7), "a-person"),
        "one row": other(rows(1)),
        "many rows": other(rows(137)),
        "huge numbers": other(rows(6, 1e30)),
        "tiny numbers": other(rows(6, 1e-30)),
        "strange cells": other(strange * 2),
        "the same row 200 times": other(rows(1) * 200),
        "opposite targets": other([("0", "0", "Bern", "1e6"), ("0", "0", "Bern", "-1e6")] * 4),
    }.items():
        yield Guise(name, table=change)
    yield Guise("absent", table=other(nothing), absent=True)
    yield Guise(
        "rows in another order",
        table=lambda all_people: dict(sorted(all_people.items(), key=lambda item: item[0][::-1])),
        family="the same people",
    )


class NamedTheatre(Theatre):
    """Experiment on the made-up table, as it would be run for release.

    Args:
        cfg: configuration with data=table and without a file.
        folder: folder for the table.

    Raises:
        ConfigError: a file is given: real data are not replayed.
    """

    shares_answers = False

    def __init__(self, cfg: DictConfig, folder: Path) -> None:
        if cfg.data.path is not None:
            raise ConfigError.of(
                "data.path",
                cfg.data.path,
                "a replay changes users' data and says what it found, so it takes a made-up table; "
                "leave data.path out",
            )
        self.folder, self.cfg = folder, cfg.copy()
        (folder / "schema.yaml").write_text(SCHEMA)
        self.cfg.data.path = str(folder / "people.csv")
        self.cfg.data.schema = str(folder / "schema.yaml")
        self.cfg.data.evaluate, self.cfg.data.most_rows = False, MOST_ROWS
        self.roster = Roster.of_simulated(PEOPLE, NODES)
        self.experiment = self.dressed(Guise("itself"))
        self.gate: NoiseGate = self.experiment.federation.gate
        self.guarantee = self.experiment.strategy.guarantee or cfg.algo.guarantee
        self._client, self._init = resolved(self.experiment.factory.client), lambda: None
        self._known = {}

    def dressed(self, guise: Guise) -> Experiment:
        """See :class:`Theatre`; the table of the guise is read anew."""
        with (self.folder / "people.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(HEADER)
            for name, rows in guise.table(people()).items():
                writer.writerows([name, *row] for row in rows)
        experiment = Experiment(self.cfg, self.roster)
        experiment.federation.strict = False
        return experiment
