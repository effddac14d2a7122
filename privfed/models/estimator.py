"""Published model as an estimator in the style of scikit-learn; a user's rows stay local.

model = privfed.load("runs/mine")
model.predict(X)                        # the global model: the same for all users
model.personalize(X, y).predict(X)      # with a head fitted to one user's rows
"""

from __future__ import annotations

import copy
import os
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.tables.in_memory import encode_rows
from privfed.data.tables.ragged_cohort import TableRows
from privfed.data.tables.schema import Schema, plain_text
from privfed.foundation.errors import ConfigError, nearest
from privfed.foundation.linalg import Array
from privfed.models.head_fitting import fit_head, no_heads, scores
from privfed.models.linear_model import LinearModel
from privfed.models.logistic_heads import probabilities
from privfed.models.published_model import Model, Published, read_published
from privfed.privacy.statement import exposes, exposure_in_words


class PersonalModel:
    """Model that a run published and, once fitted, the head of one user, `head_`.

    For a run on a table, X has raw values: a mapping {column: values}, a data frame, or an array
    (m, features) in the order of `feature_names_in_`. For other runs, X is an array (m, d). y has
    numbers or labels, (m,). X and y may have no rows; the head is then 0.

    Args:
        run: folder of the run.
    """

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self.run = run

    @cached_property
    def published(self) -> Published:
        """Return the published content of the run's folder."""
        return read_published(Path(self.run))

    @property
    def model(self) -> Model:
        """Return the published arrays as a model."""
        return self.published.model

    def fit(self, X: Any, y: Any) -> PersonalModel:
        """Fit the head to one user's rows.

        Args:
            X: rows of the user; see the class.
            y: targets, (m,).

        Returns:
            This object.

        Raises:
            ConfigError: X and y do not fit the model.
        """
        if y is None:
            raise ConfigError("y: must be given to fit a head")
        self.head_ = fit_head(self.model, self._rows(X, y, fitting=True))
        return self

    def personalize(self, X: Any, y: Any) -> PersonalModel:
        """Return a copy with the head of one user; this object does not change.

        Args:
            X: rows of the user; see the class.
            y: targets, (m,).
        """
        return copy.copy(self).fit(X, y)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return targets in the table's units, or labels, (t,).

        If no head was fitted, the global model predicts alone.
        """
        answers = self.model.answers(self._scores(self._rows(X)))
        labels = self._labels
        return answers if labels is None else labels[answers.astype(np.intp)]

    def decision_function(self, X: Any) -> Array:
        """Return logits of labels.

        Returns:
            (t,), positive for the second of two labels, or (t, C) for more labels.

        Raises:
            ConfigError: the target is a number.
        """
        if self._labels is None:
            raise ConfigError("decision_function: the target is a number, not a label; use predict")
        scores = self._scores(self._rows(X))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities (t, C) of labels, in the order of `classes_`.

        Raises:
            ConfigError: the target is a number.
        """
        if self._labels is None:
            raise ConfigError("predict_proba: the target is a number, not a label; use predict")
        return probabilities(self._scores(self._rows(X)))

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy for labels, or R^2 for numbers.

        R^2 is the fraction of the variance of y that is predicted.
        """
        rows = self._rows(X, y)
        if not len(rows):
            raise ConfigError("X: there is no row to score")
        losses = self.model.losses(self._scores(rows), rows.y)
        if self._labels is not None:
            return float(1.0 - np.mean(losses))
        total = np.sum((rows.y - np.mean(rows.y)) ** 2)
        if total == 0:
            return float(np.sum(losses) == 0)
        return float(1.0 - np.sum(losses) / total)

    def _scores(self, rows: TableRows) -> Array:
        head = getattr(self, "head_", None)
        if head is None and isinstance(self.model, LinearModel):
            raise ConfigError(
                f"{self.run}: has no global model; fit(X, y) a head before you predict"
            )
        heads = no_heads(self.model, len(rows))
        if head is not None:
            heads[:] = head
        return scores(self.model, rows, heads)

    def _rows(self, X: Any, y: Any = None, fitting: bool = False) -> TableRows:
        if isinstance(self.model, LinearModel):
            return _plain_rows(X, y, len(self.model.U))
        return encode_rows(self._schema, X, y, fitting)

    @property
    def _schema(self) -> Schema:
        assert self.published.schema is not None
        return self.published.schema

    # Attributes and methods that scikit-learn expects.

    @property
    def classes_(self) -> NDArray[Any]:
        """Return the labels (C,) in the order of scores.

        They are whole numbers or truth values if all labels are, otherwise text.
        """
        if self._labels is None:
            raise AttributeError("classes_: the target is a number, not a label")
        return self._labels

    @cached_property
    def _labels(self) -> NDArray[Any] | None:
        if isinstance(self.model, LinearModel) or self._schema.target.labels is None:
            return None
        texts = [plain_text(label) for label in self._schema.target.labels]
        if set(texts) == {"true", "false"}:
            return np.array([text == "true" for text in texts])
        whole = all(text.lstrip("-").isdecimal() and str(int(text)) == text for text in texts)
        return np.array([int(text) for text in texts] if whole else self._schema.target.labels)

    @property
    def n_features_in_(self) -> int:
        """Return the number of columns of X."""
        return (
            len(self.model.U) if isinstance(self.model, LinearModel) else len(self._schema.columns)
        )

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Return the names of a table's columns."""
        if isinstance(self.model, LinearModel):
            raise AttributeError("feature_names_in_: the columns of this run have no names")
        return np.array(self._schema.columns, dtype=object)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the run's folder."""
        return {"run": self.run}

    def set_params(self, **params: Any) -> PersonalModel:
        """Set another run, and forget the fitted head."""
        for name in params:
            if name != "run":
                raise ConfigError(f"{name}: is no parameter; {nearest(name, ['run'])}")
        if params:
            self.__dict__.clear()
            self.run = params["run"]
        return self

    @property
    def _estimator_type(self) -> str:
        return "regressor" if self._labels is None else "classifier"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        kind: dict[str, Any] = (
            {"regressor_tags": RegressorTags()}
            if self._labels is None
            else {"classifier_tags": ClassifierTags()}
        )
        takes = InputTags(two_d_array=True, string=True, categorical=True, allow_nan=True)
        return Tags(self._estimator_type, TargetTags(required=True), input_tags=takes, **kind)

    def export(self, path: str | os.PathLike[str], simulation: bool = False) -> None:
        """Write the shared part, without any head, as .safetensors, .onnx or .pt2.

        Args:
            path: file to write.
            simulation: whether to write a simulation on a real table, which protects nobody.

        Raises:
            ConfigError: see :func:`privfed.models.export.export`.
        """
        from privfed.models.export import export

        export(self.published, Path(path), simulation)

    def __repr__(self) -> str:
        return f"privfed.load({os.fspath(self.run)!r})" + (
            " with a head" if hasattr(self, "head_") else ""
        )


def load_model(run: str | os.PathLike[str], simulation: bool = False) -> PersonalModel:
    """Return the model in a finished run's folder; warn if it exposes real users.

    Args:
        run: folder of the run.
        simulation: whether the caller knows that the run is a simulation; no warning then.

    Raises:
        ConfigError: the folder has no model that can be personalised.
    """
    personal = PersonalModel(run)
    personal.model  # noqa: B018
    published = personal.published
    if exposes(published.result, published.real) and not simulation:
        warnings.warn(exposure_in_words(os.fspath(run)), stacklevel=3)
    return personal


def _plain_rows(X: Any, y: Any, d: int) -> TableRows:
    """Return numbers X (m, d) and y (m,), checked."""
    try:
        numbers = np.asarray(X, dtype=np.float64)
        targets = np.full(len(numbers), np.nan) if y is None else np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"X, y: must be arrays of numbers ({error})") from error
    if numbers.ndim == 1 and not numbers.size:
        numbers = numbers.reshape(0, d)
    if numbers.ndim != 2 or numbers.shape[1] != d:
        raise ConfigError(f"X: must be of shape (rows, {d}), and is of {numbers.shape}")
    if targets.shape != (len(numbers),):
        raise ConfigError(
            f"y: must be of shape ({len(numbers)},) as X is of {numbers.shape}, and is of "
            f"{targets.shape}"
        )
    for name, array in (("X", numbers), *(() if y is None else (("y", targets),))):
        if not np.isfinite(array).all():
            raise ConfigError(
                f"{name}: row {int(np.argwhere(~np.isfinite(array))[0][0]) + 1} has a value that "
                "is not finite"
            )
    return TableRows(numbers, np.empty((len(numbers), 0), np.int32), targets)
