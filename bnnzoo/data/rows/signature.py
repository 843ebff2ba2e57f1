"""The properties that new data must share with the training data."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import FailFast, TypeAdapter

from bnnzoo.data.columns.bounds import are_bounds
from bnnzoo.data.columns.reading_options import PLAIN, Reading
from bnnzoo.data.encoding.input_encoding import Encoding
from bnnzoo.data.encoding.targets import Task

_Names = Annotated[tuple[str, ...], FailFast()]
"""A tuple of names. Its validation stops at the first error, because a forged file may contain a million errors."""


class Signature(NamedTuple):
    """The properties that new data must share with the training data.

    Attributes:
        feature_names: the names of the D inputs; () for images.
        shape: the shape of the inputs of one row.
        dtype: the type of the inputs; uint8 only for images.
        target_names: the names of the T targets.
        task: the task of the model.
        class_names: the names of the classes; () for regression and density.
        encoding: the encoding of the columns of a table; None if every column is used as an input without change.
        reading: the options for the notation of the cells of a table.
    """

    feature_names: _Names
    shape: Annotated[tuple[int, ...], FailFast()]
    dtype: Literal["float32", "uint8"]
    target_names: _Names
    task: Task
    class_names: _Names = ()
    encoding: Encoding | None = None
    reading: Reading = PLAIN

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for regression and density."""
        return len(self.class_names)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of a table that determine the inputs, in the order of the table; () for images."""
        if self.encoding is None:
            return self.feature_names
        return tuple(self.encoding.in_table_order([column.name for column in self.encoding.columns]))

    @property
    def exposure(self) -> str:
        """Name of the exposure, the last input, to which expected counts are proportional; empty if there is none."""
        return "" if self.encoding is None else self.encoding.exposure

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the targets of one row. A censored target has two values, the smallest and the largest possible."""
        if self.task == "classification":
            return ()
        return (len(self.target_names), 2) if self.reading.censored else (len(self.target_names),)

    @property
    def num_targets(self) -> int:
        """Number of classes for classification, otherwise the number of target columns."""
        return self.num_classes or len(self.target_names)

    def to_json(self) -> str:
        """Return the signature as JSON, for the file of a run."""
        fields = {**self._asdict(), "encoding": None if self.encoding is None else self.encoding.to_dict()}
        del fields["reading"]
        return json.dumps(fields | ({"reading": reading} if (reading := self.reading.to_dict()) else {}))

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Return the signature of a JSON text from `to_json`.

        Raises:
            ValueError: if the text is not a valid signature.
        """
        signature = TypeAdapter(cls).validate_json(text, strict=True)
        signature.reading.check()
        if signature.encoding is not None and signature.encoding.inputs != signature.feature_names:
            raise ValueError("its encoding does not give the names of its inputs")
        if signature.encoding is not None and any(column.exposure for column in signature.encoding.columns[:-1]):
            raise ValueError("its exposure is not the last column")
        is_table = bool(signature.feature_names) or len(signature.shape) == 1
        has_valid_shape = signature.shape == (len(signature.feature_names),) if is_table else len(signature.shape) <= 3
        has_matching_classes = bool(signature.class_names) == (signature.task == "classification")
        if (
            not has_valid_shape
            or min(signature.shape, default=1) < 0
            or not has_matching_classes
            or len(signature.class_names) == 1
            or (signature.task == "density" and signature.feature_names != signature.target_names)
        ):
            raise ValueError("its names, classes and shape contradict each other")
        for names in (signature.feature_names, signature.target_names, signature.class_names):
            if len(set(names)) < len(names):
                raise ValueError("two of its inputs, targets or classes have the same name")
        if not signature.target_names or (signature.class_names and len(signature.target_names) > 1):
            raise ValueError("it has no target, or class names with several targets")
        return signature

    def inputs(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return inputs x unchanged after checks.

        Raises:
            ValueError: if the inputs do not match the signature, or if they are not finite.
        """
        if x.shape[1:] != self.shape or x.dtype != self.dtype or not np.isfinite(x).all():
            raise ValueError(f"inputs {x.dtype}{list(x.shape)} do not match the data")
        return x

    def targets(self, y: NDArray[Any], rows: int) -> NDArray[Any]:
        """Return targets y unchanged after checks; `rows` is their required number of rows.

        Raises:
            ValueError: if the targets do not match the signature, or if they are not valid numbers or labels.
        """
        has_right_shape = y.shape == (rows, *self.target_shape)
        has_right_shape = has_right_shape and y.dtype == ("int32" if self.task == "classification" else "float32")
        has_known_labels = not self.class_names or ((y >= 0) & (y < self.num_classes)).all()
        is_finite = are_bounds(y) if has_right_shape and self.reading.censored else np.isfinite(y).all()
        if not has_right_shape or not has_known_labels or not is_finite:
            raise ValueError(f"targets {y.dtype}{list(y.shape)} do not match the data")
        return y
