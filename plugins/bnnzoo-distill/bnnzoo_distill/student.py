"""The student: a small network in NumPy that predicts with one forward pass per row."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import special

from bnnzoo import UsageError
from bnnzoo.data import Signature, load_inputs
from bnnzoo.data.formats.frames import is_frame, with_index_of

Layer = tuple[Float[np.ndarray, "output input"], Float[np.ndarray, " output"]]
Array = Float[np.ndarray, "..."]
_MAX_TAIL = 0.49
"""Largest value of 1 / degrees of freedom; below 0.5, Student's t has a variance."""


@dataclass(frozen=True, eq=False)
class Student:
    """A trained student. Inputs and predictions have the units of the data.

    Inputs `x` are an array [row, feature], a single row [feature], a data frame, or any value that `--data` of
    `bnnzoo predict` accepts. An array must have the columns of the training inputs. Arrays are only possible if all
    columns of the training inputs are numbers. A value outside the range of its column in the training inputs is
    replaced by the nearest end of this range.

    Attributes:
        signature: names and encoding of the columns, task and names of the classes.
        layers: weights and biases of each layer, float32; the activation between layers is SiLU.
        x_mean: numbers that are subtracted from the inputs [feature].
        x_sd: numbers by which the inputs are then divided [feature].
        x_low: smallest training input of each column [feature].
        x_high: largest training input of each column [feature].
        y_mean: mean of the target, which is added to the scaled output; 0 for classes.
        y_sd: standard deviation of the target, by which the outputs are multiplied; 1 for classes.
        tail: coefficients for the degrees of freedom, see `tail_of`; zeros for classes.
        report: results of the check with held-out inputs; the README explains their names.
        about: the run and the settings of the training.
    """

    signature: Signature
    layers: tuple[Layer, ...]
    x_mean: Float[np.ndarray, " feature"]
    x_sd: Float[np.ndarray, " feature"]
    x_low: Float[np.ndarray, " feature"]
    x_high: Float[np.ndarray, " feature"]
    y_mean: float
    y_sd: float
    tail: Float[np.ndarray, " 2"]
    report: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def classifies(self) -> bool:
        """Whether the student predicts class probabilities."""
        return self.signature.task == "classification"

    def mean(self, x: Any) -> Float[np.ndarray, " row"]:
        """Return the predictive mean of each row.

        Raises:
            UsageError: if the student predicts classes, or if the inputs do not match the training data.
        """
        self._require("mean", classes=False)
        return self.y_mean + self.y_sd * self._outputs(x)[:, 0].astype(np.float64)

    def aleatoric_sd(self, x: Any) -> Float[np.ndarray, " row"]:
        """Return the aleatoric standard deviation of each row, due to the noise of the target.

        Raises:
            UsageError: as for `mean`.
        """
        self._require("aleatoric_sd", classes=False)
        return self._sds(self._outputs(x))[0]

    def epistemic_sd(self, x: Any) -> Float[np.ndarray, " row"]:
        """Return the epistemic standard deviation of each row: the sd of the mean over the draws of the run.

        Raises:
            UsageError: as for `mean`.
        """
        self._require("epistemic_sd", classes=False)
        return self._sds(self._outputs(x))[1]

    def sd(self, x: Any) -> Float[np.ndarray, " row"]:
        """Return the predictive standard deviation of each row, sqrt(aleatoric_sd^2 + epistemic_sd^2).

        Raises:
            UsageError: as for `mean`.
        """
        self._require("sd", classes=False)
        return np.hypot(*self._sds(self._outputs(x)))

    def probabilities(self, x: Any) -> Float[np.ndarray, "row class"]:
        """Return the probability of each class, in the order of `signature.class_names`.

        Raises:
            UsageError: if the student predicts a number, or if the inputs do not match the training data.
        """
        self._require("probabilities", classes=True)
        return special.softmax(self._outputs(x)[:, :-1].astype(np.float64), 1)

    def mutual_information(self, x: Any) -> Float[np.ndarray, " row"]:
        """Return the mutual information between class label and posterior draw for each row, in nats (BALD).

        Raises:
            UsageError: as for `probabilities`.
        """
        self._require("mutual_information", classes=True)
        return np.logaddexp(0.0, self._outputs(x)[:, -1].astype(np.float64)) ** 2

    def log_prob(self, x: Any, y: ArrayLike) -> Float[np.ndarray, " row"]:
        """Return the log density of the target number, or the log probability of the target class, of each row.

        The density of a number is Student's t with the predictive mean and standard deviation (sd) of the row. The
        degrees of freedom depend on the ratio of the epistemic sd to the predictive sd.

        Args:
            x: inputs.
            y: for each row, the number in original units, or the index of the class in `signature.class_names`.

        Raises:
            UsageError: if `y` does not have one target per row or contains an unknown class, or if the inputs do not
                match the training data.
        """
        outputs, values = self._outputs(x), np.asarray(y).reshape(-1)
        if len(values) != len(outputs):
            raise UsageError(f"log_prob: {len(values)} targets for {len(outputs)} rows; expected one target per row")
        if self.classifies:
            logs = special.log_softmax(outputs[:, :-1].astype(np.float64), 1)
            known = np.isin(values, np.arange(logs.shape[1]))
            if not known.all():
                raise UsageError(
                    f"log_prob: targets must be indices of classes, 0 to {logs.shape[1] - 1} (got {values[~known][0]})"
                )
            values = values.astype(int)
            return logs[np.arange(len(values)), values]
        aleatoric, epistemic = self._sds(outputs)
        mean, sd = self.y_mean + self.y_sd * outputs[:, 0].astype(np.float64), np.hypot(aleatoric, epistemic)
        return log_t((values - mean) / sd, tail_of(self.tail, epistemic / sd)) - np.log(sd)

    def predict(self, x: Any) -> pd.DataFrame:
        """Return a table of predictions with the columns of `Run.predict`, but without quantiles.

        For classes, the table has the column `mutual_information` instead of `entropy`. If the inputs are a data frame
        of pandas, the table has the same index.

        Raises:
            UsageError: if the inputs do not match the training data.
        """
        outputs = self._outputs(x)
        if self.classifies:
            probabilities = special.softmax(outputs[:, :-1].astype(np.float64), 1)
            columns = {f"p_{name}": probabilities[:, i] for i, name in enumerate(self.signature.class_names)}
            information = np.logaddexp(0.0, outputs[:, -1].astype(np.float64)) ** 2
            likeliest = np.asarray(self.signature.class_names)[probabilities.argmax(1)]
            table = pd.DataFrame({**columns, "mutual_information": information, "predicted": likeliest})
            return with_index_of(x, table)
        aleatoric, epistemic = self._sds(outputs)
        mean, sd = self.y_mean + self.y_sd * outputs[:, 0].astype(np.float64), np.hypot(aleatoric, epistemic)
        table = pd.DataFrame({"mean": mean, "sd": sd, "aleatoric_sd": aleatoric, "epistemic_sd": epistemic})
        return with_index_of(x, table)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the student to a .nc or .onnx file and return its path.

        Raises:
            UsageError: if the path has another extension, if the folder does not exist, if the file exists and `force`
                is false, or if a .onnx file is requested and the package onnx is not installed.
            BnnzooError: if the file cannot be written.
        """
        from bnnzoo_distill import files

        return files.save(self, path, force=force)

    def _require(self, member: str, *, classes: bool) -> None:
        if self.classifies != classes:
            remedy = "mean, sd, aleatoric_sd or epistemic_sd" if classes else "probabilities or mutual_information"
            raise UsageError(f"{member}: is not supported for {self.signature.task}; use {remedy} instead")

    def _sds(self, outputs: Float[np.ndarray, "row output"]) -> tuple[Array, Array]:
        aleatoric, epistemic = self.y_sd * np.exp(outputs[:, 1:3].T.astype(np.float64))
        return aleatoric, epistemic

    def _inputs(self, x: Any) -> Float[np.ndarray, "row feature"]:
        is_plain = self.signature.encoding is None or self.signature.encoding.is_plain
        if isinstance(x, str | Path) or is_frame(x) or not is_plain:
            return load_inputs(x, self.signature)
        # Fast path for arrays of numbers: the general reader takes longer than the network.
        rows = np.asarray(x, np.float32)
        rows = rows[None] if rows.ndim == 1 else rows
        if rows.shape[1:] != self.signature.shape or not np.isfinite(rows).all():
            raise UsageError(
                f"x: expected finite numbers of shape [row, {self.signature.shape[0]}], got shape {list(rows.shape)}"
            )
        return rows

    def _outputs(self, x: Any) -> Float[np.ndarray, "row output"]:
        hidden = (np.clip(self._inputs(x), self.x_low, self.x_high) - self.x_mean) / self.x_sd
        for weight, bias in self.layers[:-1]:
            hidden = hidden @ weight.T + bias
            hidden *= 0.5 + 0.5 * np.tanh(0.5 * hidden)  # SiLU; unlike exp, tanh cannot overflow
        weight, bias = self.layers[-1]
        return hidden @ weight.T + bias


def tail_of(tail: Float[np.ndarray, " 2"], fraction: Float[np.ndarray, " row"]) -> Float[np.ndarray, " row"]:
    """Return 1 / degrees of freedom of each row, 0.49 / (1 + exp(-tail[0] - tail[1] fraction)).

    `fraction` is the epistemic standard deviation (sd) divided by the predictive sd. The noise of the target can have
    heavy tails. If the epistemic sd is large, the mixture over all draws is closer to a normal distribution.
    """
    return _MAX_TAIL * special.expit(tail[0] + tail[1] * fraction)


def log_t(z: Float[np.ndarray, "..."], tail: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return the log density at z of Student's t with variance 1, where `tail` is 1 / degrees of freedom, below 0.5."""
    df = 1 / np.maximum(tail, 1e-6)
    constant = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - 0.5 * np.log(np.pi * (df - 2))
    return constant - (df + 1) / 2 * np.log1p(z**2 / (df - 2))
