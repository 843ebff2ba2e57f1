"""A model together with its numbers of inputs and outputs, so that compiled programs can build networks."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray, Shaped

from bnnzoo.models._base import AbstractModel


class _Numbers:
    """The values of the numeric fields of a model, in a hashable form.

    The values must be hashable because JAX compiles a program for each combination of values. Two objects are equal if
    all their values have equal types and equal bits.
    """

    def __init__(self, model: AbstractModel):
        leaves, self._tree = jax.tree.flatten(eqx.filter(model, _is_number))
        self._values = tuple((leaf.dtype.str, leaf.tobytes()) for leaf in leaves)

    def __hash__(self) -> int:
        return hash((self._tree, self._values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and (self._tree, self._values) == (other._tree, other._values)

    def restore_into(self, rest: AbstractModel) -> AbstractModel:
        """Return the model with these numbers, and with all non-numeric fields taken from `rest`."""
        leaves = [np.frombuffer(bits, dtype)[0] for dtype, bits in self._values]
        return eqx.combine(jax.tree.unflatten(self._tree, leaves), rest)


class Architecture(eqx.Module):
    """A model with the shape of one input and the number of outputs, as an argument of compiled programs.

    In a compiled program, the fields of a model that were declared with `number()` are concrete numbers, not traced
    numbers. Therefore `build` can call `float(self.frequency)` or branch on the value. Each new value of such a field
    needs a new compilation. The arrays of a user's own network are traced, so that no program contains a copy of them.
    """

    _rest: AbstractModel
    _numbers: _Numbers = eqx.field(static=True)
    input_shape: tuple[int, ...] = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)

    @classmethod
    def from_model(cls, model: AbstractModel, input_shape: tuple[int, ...], num_outputs: int) -> Architecture:
        """Return the architecture for a model, the shape of one input after `arrange`, and a number of outputs."""
        without_numbers = eqx.filter(model, _is_number, inverse=True)
        return cls(without_numbers, _Numbers(model), tuple(input_shape), num_outputs)

    @property
    def model(self) -> AbstractModel:
        """The model, with its numeric fields restored."""
        return self._numbers.restore_into(self._rest)

    def build(self, *, key: PRNGKeyArray) -> Any:
        """Return a network with random initial weights."""
        return self.model.build(self.input_shape, self.num_outputs, key=key)

    def arrange(self, x: Shaped[Any, "batch ..."]) -> Shaped[Any, "batch ..."]:
        """Return inputs in the shape that the networks require."""
        return self.model.arrange(x)


def _is_number(leaf: Any) -> bool:
    """Whether the value of a field is a NumPy number, as in fields that were declared with `number()`."""
    return isinstance(leaf, np.generic)
