"""Report of `check_model`: one result per check and case, and one verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from bnnzoo.testing.check_report import AbstractCheckReport, Checks, State

CHECKS: Checks = {
    "inputs": (
        "each row is arranged independently of the others",
        "let arrange use one row at a time, and leave scaling to [[standardise=True]]",
    ),
    "parameters": (
        "parameters are float32 arrays with different names, and the key determines their values",
        "store them in fields of the network with different names, drawn with the key that build receives",
    ),
    "outputs": (
        "outputs are finite, as many as the likelihood needs, and the same at every call",
        "let build end in a layer of num_outputs units, and keep no state between calls",
    ),
    "rows": (
        "a row's outputs depend on that row alone",
        "use statistics of the row itself (equinox's LayerNorm, GroupNorm), never of the batch",
    ),
    "jit": ("outputs are the same when compiled", "branch with jnp.where and jax.lax, not with Python's if on values"),
    "draws": (
        "outputs of many draws at once are those of each draw",
        "compute with jax.numpy, on the arrays in the fields alone",
    ),
    "gradient": (
        "gradients are finite for every parameter, also if a row is all zeros",
        "avoid square roots, logarithms and divisions at 0, also inside jnp.where",
    ),
    "split": (
        "network(x) = last(features(x)), and features do not depend on the last layer",
        "return the two halves of the given network: last is a part of it, features is everything before",
    ),
    "likelihood": (
        "the likelihood gives one finite number per row",
        "match num_outputs and the likelihood's distribution",
    ),
    "start": (
        "runs start, with networks built in a compiled program, trained, with only the last layer sampled, or "
        "drawn from the prior",
        "build from the sizes and fields alone, with jax.numpy on values that are drawn with the key",
    ),
}
"""Each check by name, in order: the property that must hold, and the remedy if it does not."""


class Result(NamedTuple):
    """One check on one case: an input shape and a likelihood.

    Attributes:
        found: the fault if the check failed, or the reason if it is not applicable.
    """

    check: str
    input: str
    likelihood: str
    state: State
    found: str = ""

    @property
    def case(self) -> str:
        """The input shape and the likelihood, in words."""
        return ", ".join(filter(None, (f"input {self.input}", self.likelihood)))


@dataclass(frozen=True)
class ModelReport(AbstractCheckReport):
    """Report on one model; `str` of it is a table."""

    checks: ClassVar[Checks] = CHECKS
    model: str
    results: tuple[Result, ...]
    refused: dict[str, str]
    """Inputs or tasks that the model does not support, with its messages."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary."""
        return {"model": self.model, **self.outcome(), "refused": self.refused}
