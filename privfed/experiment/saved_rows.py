"""Split, predictions and heads of a simulation on a table, for its owner: none of it is private."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import numpy as np

from privfed.data.evaluation_metrics import HeldOut
from privfed.data.tables.table_source import Table
from privfed.models.head_fitting import arrays_of, fit_heads
from privfed.models.table_model import KINDS, MIXTURE, NAMES, TableModel

if TYPE_CHECKING:
    from privfed.experiment.wiring import Experiment

PREDICTIONS, HEADS = "held_out.csv", "heads.npz"
_HEAD = "# simulation, not private: rows of users\n"


def saved_files(experiment: Experiment, held: dict[str, HeldOut]) -> dict[str, bytes]:
    """Return what `data.save` asks for, by name of the file; nothing unless it does.

    Args:
        experiment: a finished simulation.
        held: predictions for held-out rows by predictor, '' for the run itself.
    """
    data = experiment.data
    if not (isinstance(data, Table) and data.save and held):
        return {}
    return {PREDICTIONS: _predictions(data, held), HEADS: _heads(experiment, data)}


def _predictions(data: Table, held: dict[str, HeldOut]) -> bytes:
    """Return the held-out rows: user, number among the rows read, target, and predictions."""
    own, labels = held[""], data.schema.target.labels
    text = io.StringIO()
    text.write(_HEAD)
    writer = csv.writer(text, lineterminator="\n")
    chances = [] if own.P is None else [f"P({label})" for label in labels or ()]
    names = [name or "personal" for name in held]
    writer.writerow([data.schema.user, "row", data.schema.target.name, *names, *chances])

    def said(answers: object) -> list[str]:
        numbers = np.asarray(answers)
        if labels is None:
            return [f"{number:.9g}" for number in numbers]
        return [labels[int(number)] for number in numbers]

    columns = [said(own.y), *(said(told.answers) for told in held.values())]
    if own.P is not None:
        columns += [[f"{chance:.6g}" for chance in column] for column in own.P.T]
    users = [data.frame.names[user] for user in own.user]
    writer.writerows(zip(users, data.held_places(own.user) + 1, *columns, strict=True))
    return text.getvalue().encode()


def _heads(experiment: Experiment, data: Table) -> bytes:
    """Return the heads of all users, with their names."""
    kind = experiment.cfg.algo.get("head")
    model = TableModel.of(
        data.schema, experiment.strategy.shared[: len(NAMES)], kind if kind in KINDS else MIXTURE
    )
    heads = fit_heads(model, data.cohort(0, data.n), data.n)
    content = io.BytesIO()
    names = np.array(data.frame.names, dtype=np.str_)
    np.savez(content, **arrays_of(heads), users=names)  # type: ignore[arg-type]
    return content.getvalue()
