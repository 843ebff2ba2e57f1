"""Report of `check_model`: one result per check and case, and one verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from bnnzoo.testing.check_report import AbstractCheckReport, Checks, State

CHECKS: Checks = {
    "inputs": (
        "arrange prepares each row independently of the other rows",
        "let arrange use one row at a time, and leave scaling to [[standardise=True]]",
    ),
    "parameters": (
        "parameters are float32 arrays with different names, and the key determines their values",
        "store each array in a field of the network with its own name, and draw it with the key that build receives",
    ),
    "outputs": (
        "outputs are finite, equal at every call with the same input, and as many as the likelihood needs",
        "let the last layer have num_outputs units, and keep no state between calls",
    ),
    "rows": (
        "the outputs of a row depend on that row alone",
        "use only statistics of the row itself (LayerNorm or GroupNorm of equinox), never of the batch",
    ),
    "jit": ("outputs are the same when compiled", "branch with jnp.where and jax.lax, not with Python's if on values"),
    "draws": (
        "outputs of many draws computed at once equal the outputs of each draw",
        "compute with jax.numpy, and only from the arrays in the fields of the network",
    ),
    "gradient": (
        "gradients are finite for every parameter, also if all inputs of a row are 0",
        "avoid square roots, logarithms and divisions at 0, also inside jnp.where",
    ),
    "split": (
        "network(x) = last(features(x)), and features do not depend on the last layer",
        "return two functions of the given network: features (all layers but the last) and last (the last layer)",
    ),
    "likelihood": (
        "the likelihood gives one finite number per row",
        "let the network return the outputs that the likelihood's distribution needs",
    ),
    "start": (
        "a run can start: a compiled program can build networks, the weights of all layers or of the last layer can be "
        "trained, and all weights can be drawn from the prior",
        "let build depend only on its arguments and the fields, and use jax.numpy for values drawn with the key",
    ),
}
"""The tested property and the remedy of each check, by the name of the check."""


class Result(NamedTuple):
    """Result of one check on one case. A case is an input shape and a likelihood.

    Attributes:
        found: the fault of a failed check, or the reason why the check is not applicable; otherwise empty.
    """

    check: str
    input: str
    likelihood: str
    state: State
    found: str = ""

    @property
    def case(self) -> str:
        """The input shape and the likelihood, as text."""
        return ", ".join(filter(None, (f"input {self.input}", self.likelihood)))


@dataclass(frozen=True)
class ModelReport(AbstractCheckReport):
    """Report on one model; `str(report)` is a table."""

    checks: ClassVar[Checks] = CHECKS
    model: str
    results: tuple[Result, ...]
    refused: dict[str, str]
    """The error message of each input shape or task that the model does not support."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary."""
        return {"model": self.model, **self.outcome(), "refused": self.refused}
