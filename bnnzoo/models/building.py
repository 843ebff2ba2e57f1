"""A model and the sizes that its networks are built for, ready to be built inside compiled programs."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray, Shaped

from bnnzoo.models._base import AbstractModel


class _Numbers:
    """Values of a model's numeric fields. Equal and of one hash where types and bits agree, as a program's key."""

    def __init__(self, model: AbstractModel):
        leaves, self._tree = jax.tree.flatten(eqx.filter(model, _is_number))
        self._values = tuple((leaf.dtype.str, leaf.tobytes()) for leaf in leaves)

    def __hash__(self) -> int:
        return hash((self._tree, self._values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and (self._tree, self._values) == (other._tree, other._values)

    def put_back(self, rest: AbstractModel) -> AbstractModel:
        """The model whose other fields are those of `rest`."""
        leaves = [np.frombuffer(bits, dtype)[0] for dtype, bits in self._values]
        return eqx.combine(jax.tree.unflatten(self._tree, leaves), rest)


class Architecture(eqx.Module):
    """A model with the shape of one input and the number of outputs.

    An argument of compiled programs in which `build` finds the model's `number()` fields as the numbers that they are:
    a model's author may use `float(self.frequency)`, or decide by it. So each new value is another program, as each new
    size is; a network of one's own keeps its arrays as arguments, and none of them is kept alive by a program.
    """

    _rest: AbstractModel
    _numbers: _Numbers = eqx.field(static=True)
    input_shape: tuple[int, ...] = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)

    @classmethod
    def of(cls, model: AbstractModel, input_shape: tuple[int, ...], num_outputs: int) -> Architecture:
        """The architecture of a model for such inputs, as `arrange` leaves them, and outputs."""
        rest = eqx.filter(model, _is_number, inverse=True)
        return cls(rest, _Numbers(model), tuple(input_shape), num_outputs)

    @property
    def model(self) -> AbstractModel:
        """The model, with its numbers."""
        return self._numbers.put_back(self._rest)

    def build(self, *, key: PRNGKeyArray) -> Any:
        """A network from that key."""
        return self.model.build(self.input_shape, self.num_outputs, key=key)

    def arrange(self, x: Shaped[Any, "batch ..."]) -> Shaped[Any, "batch ..."]:
        """Inputs as its networks take them."""
        return self.model.arrange(x)


def _is_number(leaf: Any) -> bool:
    """Whether a field holds what `number()` makes of a number."""
    return isinstance(leaf, np.generic)
