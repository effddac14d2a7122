"""Fit personal models after training, to users' own rows on their own machine.

privfed personalize --model RUN --data mine.csv --predict new.csv
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privfed.commands.parsing import Parser, add_general, add_simulation, guarded
from privfed.data.cohort import Ids
from privfed.data.tables.encoding import EncodedTable
from privfed.data.tables.ragged_cohort import TableRows
from privfed.data.tables.schema import Numeric, Schema, Target, plain_text
from privfed.data.tables.schema_inference import require
from privfed.data.tables.table_loading import read_rows_for
from privfed.data.tables.table_opening import open_table
from privfed.foundation.atomic_files import write_output
from privfed.foundation.errors import ConfigError, nearest
from privfed.models.head_fitting import Fitted, arrays_of, fit_users, predict
from privfed.models.linear_model import LinearModel
from privfed.models.published_model import Model, Published, read_published
from privfed.models.table_model import TableModel
from privfed.privacy.statement import exposes, exposure_in_words

EXAMPLES = """
examples:
  privfed personalize --model runs/mine --data ann.csv
      rows without a target are predicted
  privfed personalize --model runs/mine --data ann.csv --predict new.csv
      rows of another file are predicted
  privfed personalize --model runs/mine --data all.csv --user ann --head ann.npz

The file of predictions has the number of each row, its user, the prediction, what it is based on,
and the probability of each label. The basis is `personal`, a head; `global`, the model of
everybody, as the user has no row with a target; `fitted`, a head that was fitted to this very row,
so it looks better than it is. Nothing is sent anywhere, and no privacy is spent.

exit codes: 0 done; 2 bad setting, run or data; 1 anything else
"""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="privfed personalize",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Fit heads to users' own rows on top of a published model, and predict.",
        epilog=EXAMPLES,
    )
    parser.hint = "see --help"
    parser.add_argument(
        "--model", required=True, type=Path, metavar="RUN", help="folder of a finished run"
    )
    parser.add_argument(
        "--data",
        required=True,
        type=Path,
        metavar="FILE",
        help="CSV or Parquet file: users' rows with targets",
    )
    parser.add_argument(
        "--predict",
        type=Path,
        metavar="FILE",
        help="rows to predict; otherwise those of --data without target",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("predictions.csv"),
        metavar="FILE",
        help="default: predictions.csv",
    )
    parser.add_argument(
        "--head",
        type=Path,
        metavar="FILE",
        help="keep the heads in this .npz, readable by you alone",
    )
    parser.add_argument(
        "--user",
        metavar="NAME",
        help="only this user's rows; otherwise everybody in the file has a head",
    )
    parser.add_argument(
        "--target",
        metavar="COLUMN",
        help="for runs that were not on a table: what to predict (default: target)",
    )
    add_simulation(parser, "do not warn that the model is a simulation on a real table")
    add_general(parser, quiet="errors only")
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class Source:
    """TableRows of a file.

    Attributes:
        path: the file.
        frame: the N rows, encoded.
        places: places of the rows in the file (N,).
        named: whether a column says whose row each is.
    """

    path: Path
    frame: EncodedTable
    places: Ids
    named: bool

    @property
    def rows(self) -> TableRows:
        """The rows, without the names of their users."""
        return TableRows(self.frame.numbers, self.frame.codes, self.frame.target)

    def only(self, kept: Any) -> Source:
        """Return some of the rows, with the names of all users."""
        arrays = {
            name: getattr(self.frame, name)[kept] for name in ("who", "numbers", "codes", "target")
        }
        return replace(self, frame=replace(self.frame, **arrays), places=self.places[kept])


def schema_for(published: Published, path: Path, target: str | None) -> Schema:
    """Return what the columns mean.

    That is the schema of the table the run was on. For other runs it is columns of numbers, as many
    as the model takes.

    Raises:
        ConfigError: if the target or the number of columns does not fit the model.
    """
    if published.schema is not None:
        if target not in (None, published.schema.target.name):
            raise ConfigError.of(
                "--target", target, f"the run predicts {published.schema.target.name!r}"
            )
        return replace(published.schema, time=None)  # heads do not depend on the order of rows
    user, target, d = "user", target or "target", len(published.model.U)
    names = [name for name in open_file("--data", path).header if name not in (user, target)]
    if len(names) != d:
        raise ConfigError(
            f"{path}: has {len(names)} columns beside {user!r} and {target!r}; the model takes {d}"
        )
    return Schema(user, Target(target), tuple(map(Numeric, names)), missing="refuse")


def open_file(option: str, path: Path) -> Any:
    """Open the table in a file.

    Args:
        option: option of the command line that names the file, for messages.
        path: the file.

    Raises:
        ConfigError: if there is no such file.
    """
    if not path.exists():
        raise ConfigError(f"{option} {path}: there is no such file")
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder; give one CSV or Parquet file")
    return open_table(path)


def read_source(
    option: str, path: Path, schema: Schema, user: str | None, need_target: bool = False
) -> Source:
    """Read all rows of a file, or those of one user.

    Args:
        option: see :func:`open_file`.
        path: the file.
        schema: what the columns mean.
        user: name of the only user whose rows are read; all users if None.
        need_target: leave out rows without a target.

    Raises:
        ConfigError: if the file does not fit the schema, or has no rows of the user.
    """
    table = open_file(option, path)
    named = schema.user in table.header
    if not need_target and schema.missing == "drop":
        schema = replace(schema, missing="mean")  # every row gets an answer
    frame = read_rows_for(schema, path, need_target=need_target, strict=True)
    source = Source(path, frame, np.arange(len(frame)), named)
    if user is None or not named:
        return source
    if plain_text(user) not in frame.names:
        known = (
            nearest(user, frame.names)
            if len(frame.names) < 30
            else f"it has {len(frame.names):,} others"
        )
        raise ConfigError(f"{path}: has no rows of user {user!r}; {known}")
    return source.only(frame.who == frame.names.index(plain_text(user)))


def read_own(path: Path, schema: Schema, user: str | None) -> tuple[Source, Source]:
    """Read the rows of --data: those with a target, to which heads are fitted, and all."""
    table = open_file("--data", path)
    require(table, schema.target.name, "the target")
    if user is not None:
        require(table, schema.user, "--user")
    whole = read_source("--data", path, schema, user)
    known = np.isfinite(whole.frame.target)
    # Only the reader knows which rows have missing values.
    if schema.missing == "drop" and known.any():
        return read_source("--data", path, schema, user, need_target=True), whole
    return whole.only(known), whole


def heads_for(model: Model, asked: Source, own: Source, users: Ids) -> Ids:
    """Return, per row to predict, the place of its user among those of --data.

    Args:
        model: the published model.
        asked: the N rows to predict.
        own: rows that heads are fitted to.
        users: places of the users who have such rows.

    Returns:
        Places (N,), -1 for users who have no row in --data.

    Raises:
        ConfigError: if it is not clear whose the rows are, or nothing can predict them.
    """
    if not own.named:
        return (
            np.zeros(len(asked.frame), dtype=np.int64)
            if len(users)
            else np.full(len(asked.frame), -1)
        )
    if not asked.named:
        if len(users) > 1:
            raise ConfigError(
                f"{asked.path}: does not say whose rows it has, "
                f"and {own.path} is of {len(users):,} users; give --user"
            )
        return np.full(len(asked.frame), users[0] if len(users) else -1)
    known = {own.frame.names[user]: int(user) for user in users}
    place = np.array([known.get(name, -1) for name in asked.frame.names])
    whose = place[asked.frame.who]
    if isinstance(model, LinearModel) and (whose < 0).any():
        stranger = asked.frame.names[asked.frame.who[np.argmax(whose < 0)]]
        raise ConfigError(
            f"{asked.path}: user {stranger!r} has no row with a target in {own.path}, "
            "and the run no global model"
        )
    return whose


def predictions_file(
    schema: Schema,
    asked: Source,
    answers: Any,
    whose: Ids,
    fitted: bool,
    chances: Any = None,
) -> bytes:
    """Return the content of the file of predictions.

    Args:
        schema: what the columns mean.
        asked: the N rows to predict.
        answers: predictions (N,).
        whose: see :func:`heads_for`.
        fitted: whether heads were fitted to these very rows.
        chances: probabilities (N, C) of labels, a column per label; None for numbers.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    labels = schema.target.labels
    P = np.empty((len(answers), 0)) if chances is None else chances
    names = [] if chances is None else [f"P({label})" for label in labels or ()]
    writer.writerow(["row", *([schema.user] if asked.named else []), "prediction", "basis", *names])
    for place, who, answer, head, each in zip(
        asked.places, asked.frame.who, answers, whose, P, strict=True
    ):
        said = f"{answer:.9g}" if labels is None else labels[int(answer)]
        basis = "global" if head < 0 else "fitted" if fitted else "personal"
        writer.writerow(
            [
                place + 1,
                *([asked.frame.names[who]] if asked.named else []),
                said,
                basis,
                *(f"{chance:.4g}" for chance in each),
            ]
        )
    return text.getvalue().encode()


def _in_words(model: Model, schema: Schema, fitted: Fitted) -> str:
    """Say how well heads do on rows that they were not fitted to."""
    judged = np.isfinite(fitted.own)
    if not judged.any():
        return "too few rows to judge a head by a row that it was not fitted to"
    own, base = float(np.mean(fitted.own[judged])), float(np.mean(fitted.base[judged]))
    what, form = ("wrong answers", ".1%") if schema.classes else ("mean squared error", ".4g")
    rival = f", {base:{form}} by the global model alone" if isinstance(model, TableModel) else ""
    return f"{what} on rows left out one at a time: {own:{form}} with a head{rival}"


def _count(number: int, what: str) -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _execute(options: argparse.Namespace) -> None:
    published = read_published(options.model)
    model = published.model
    if exposes(published.result, published.real) and not options.simulation:
        print(f"privfed: {exposure_in_words(str(options.model))}", file=sys.stderr)
    paths = [
        ("--data", options.data),
        ("--predict", options.predict),
        ("--out", options.out),
        ("--head", options.head),
    ]
    for i, (option, path) in enumerate(paths[2:], 2):
        if path is not None and path.resolve() in [
            other.resolve() for _, other in paths[:i] if other is not None
        ]:
            raise ConfigError(f"{option} {path}: is given as another file, too")
    schema = schema_for(published, options.data, options.target)
    own, whole = read_own(options.data, schema, options.user)
    users = np.unique(own.frame.who).astype(np.int64)
    if isinstance(model, LinearModel) and not len(users):
        raise ConfigError(f"{options.data}: no row has a target, and the run has no global model")
    unknown = np.isnan(whole.frame.target)
    if options.predict is not None:
        asked = read_source("--predict", options.predict, schema, options.user)
    else:
        asked = whole.only(unknown) if unknown.any() else whole
    whose = heads_for(model, asked, own, users)
    fitted = fit_users(model, own.rows, own.frame.who, len(own.frame.names))
    answers, chances = predict(model, asked.rows, fitted.heads, whose)
    again = options.predict is None and not unknown.any()
    content = predictions_file(schema, asked, answers, whose, again, chances)
    write_output("--out", options.out, content)
    if options.head is not None:
        heads = io.BytesIO()
        np.savez(
            heads,
            **arrays_of(fitted.heads[users]),  # type: ignore[arg-type]
            users=np.array([own.frame.names[user] for user in users], dtype=np.str_),
        )
        write_output("--head", options.head, heads.getvalue(), mode=0o600)
    if options.quiet:
        return
    rows, people = _count(len(own.frame), "row"), _count(len(users), "user")
    lines = [f"{options.data}: {rows} with a target, of {people}"]
    lines += [
        *(own.frame.notes if options.user is None else ()),
        _in_words(model, schema, fitted) if len(users) else "no head: the global model answers",
    ]
    where = f"{options.out}: {_count(len(answers), 'prediction')} for {asked.path}"
    strangers = int(np.sum(whose < 0))
    lines.append(
        where
        + (
            " (rows that heads were fitted to)"
            if again
            else f", {strangers:,} by the global model" * (strangers > 0)
        )
    )
    if options.head is not None:
        lines.append(f"{options.head}: {_count(len(users), 'head')}, readable by you alone")
    print("\n".join(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit heads and predict; return the exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _execute(options), "interrupted; nothing is half written")
