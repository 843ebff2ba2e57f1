"""Description of a problem: its model, likelihood and prior, the form of its data (`Signature`), and the scaler."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from bnnzoo.assembly.recipe_parts import Parts
from bnnzoo.data import Scaler, Signature
from bnnzoo.models.building import Architecture


class Description(NamedTuple):
    """The model, likelihood and prior (`parts`), the signature of the data, and the scaler.

    A description and the values of the parameters are sufficient to predict in the units of the data.
    """

    parts: Parts
    signature: Signature
    scaler: Scaler

    @property
    def architecture(self) -> Architecture:
        """The model with the numbers of inputs and outputs of its networks. An exposure does not count as an input."""
        width, *rest = self.example.shape[1:]
        num_outputs = self.parts.likelihood.num_outputs(self.signature.num_targets)
        return Architecture.from_model(self.parts.model, (width - bool(self.signature.exposure), *rest), num_outputs)

    @property
    def example(self) -> np.ndarray:
        """Array [1, ...] of zeros: one row of inputs in the shape that the network expects."""
        return self.parts.model.arrange(np.zeros((1, *self.signature.shape), self.signature.dtype))

    def inputs(self, x: Shaped[np.ndarray, "row ..."], precision: str) -> Shaped[np.ndarray, "row ..."]:
        """Convert rows of inputs in original units to inputs of the posterior with this precision."""
        return with_precision(self.parts.model.arrange(self.scaler.scale_inputs(x)), precision)


def with_precision(array: np.ndarray, precision: str) -> np.ndarray:
    """Convert an array of floating-point numbers to a precision, such as "float32". Other arrays are unchanged."""
    return array.astype(precision, copy=False) if np.issubdtype(array.dtype, np.floating) else array
