"""Names, types and limits of the root attributes of a run. All attributes are checked before any value is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    FiniteFloat,
    Json,
    StringConstraints,
    ValidationError,
)

from bnnzoo.finding import Finding
from bnnzoo.recipe import recipe_from
from bnnzoo.store.schema import Attributes

DIGESTS = "digests"

_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Seed = Annotated[int, Field(ge=0, lt=2**32)]
_Name = Annotated[str, StringConstraints(max_length=200)]
_NotNegative = Annotated[FiniteFloat, Field(ge=0)]

_MAX_TEXT = 2**22
"""Largest total length of the root attributes in characters.

The attribute `signature` is not counted, because its length depends on the data.
"""
_MAX_NAMES = 10_000


def _limit_names(value: Any) -> Any:
    # Without this check, pydantic would write a message for each wrong value, and a file may have a million of them.
    if isinstance(value, dict) and len(value) > _MAX_NAMES:
        raise ValueError(f"more than {_MAX_NAMES} names")
    return value


_LimitedNames = BeforeValidator(_limit_names)


class _DeclaredStatistic(BaseModel):
    """Declaration of one statistic that a sampler reports in each step."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reduce: Literal["mean", "last"]
    long_name: str = ""
    limit: float = 0.0
    limit_label: str = ""
    limit_unless: str = ""


class _Subspace(BaseModel):
    """The subspace of parameters that a run with `--stochastic identified` or `linearised` samples."""

    model_config = ConfigDict(extra="allow", strict=True)

    kind: Literal["identified", "linearised"]
    directions: _Count
    parameters: _Count
    tau: FiniteFloat
    variance_fraction: FiniteFloat
    rows_needed: FiniteFloat
    mode_distance: FiniteFloat


class _RowSource(BaseModel):
    """The data file that contains the training rows, if the file of the run does not contain the rows."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: str
    bytes: _Count


class _LengthPlan(BaseModel):
    """Lengths (`warmup`, `thin`, `draws`) that the time budget may change, and seconds spent on initial positions."""

    model_config = ConfigDict(extra="forbid", strict=True)

    open: list[Literal["warmup", "thin", "draws"]]
    start_seconds: _NotNegative


class _RootAttributes(BaseModel):
    """Root attributes (see docs/files.md). An attribute without a default is required in every file of bnnzoo."""

    model_config = ConfigDict(extra="allow", strict=True)

    recipe: str
    model: _Name
    sampler: _Name
    exactness: Literal["exact", "noise-corrected", "biased", "approximate"]
    versions: Json[Annotated[dict[str, str], _LimitedNames]]
    device: _Name
    placement: _Name
    precision: Literal["float32", "float64"]
    likelihood_power: _NotNegative
    seed: _Seed
    complete: Literal[0, 1]
    draws_requested: _Count
    draws_done: _Count
    regime_ok: Literal[0, 1, "not-applicable"]
    seconds_compile: FiniteFloat
    seconds_warmup: FiniteFloat
    seconds_sampling: FiniteFloat
    seconds_start: FiniteFloat = 0.0
    seconds_judging: FiniteFloat = 0.0
    seconds_writing: FiniteFloat = 0.0
    target_evaluations: FiniteFloat
    start_evaluations: FiniteFloat = 0.0
    tuned: Json[Annotated[dict[str, Any], _LimitedNames]]

    regime: str = ""
    findings: Json[Annotated[tuple[Finding, ...], FailFast()]] = ()
    statistics: Json[Annotated[dict[str, _DeclaredStatistic], _LimitedNames]] = {}
    stuck_chains: Json[Annotated[list[_Count], FailFast()]] = []
    inspected: Json[Annotated[dict[str, Annotated[list[float], Field(min_length=1), FailFast()]], _LimitedNames]] = {}
    restarted: _Count = 0
    verdict: str = ""
    verdict_in_python: str = ""
    continuation: Json[dict[Literal["budget", "draws"], str | int]] = {}
    absurd: str = ""
    noise_remark: str = ""
    chain_weights: Json[Annotated[list[FiniteFloat], FailFast()]] = []
    chain_weights_gain: FiniteFloat = 0.0
    chain_weights_error: FiniteFloat = 0.0
    converged: Literal[0, 1, "not-applicable"] = 0
    rhat: float = 0.0
    ess_bulk: float = 0.0
    signature: str = ""
    data_sha256: _Name = ""
    task: Literal["regression", "classification", "density"] = "regression"
    likelihood: _Name = ""
    rows: _Count = 0
    padded_rows: _Count = 0
    row_source: Json[_RowSource] | None = None
    rows_in_files: Literal[1] | None = None
    inexact_resume: str = ""
    ended: _Name = ""
    stops: Json[Annotated[list[_Count], FailFast()]] = []
    budget: _Name = ""
    length_plan: Json[_LengthPlan] | None = None
    plugins: Json[Annotated[dict[str, str], _LimitedNames]] = {}
    plugin_sources: Json[Annotated[dict[str, str], _LimitedNames]] = {}
    seeds: Json[Annotated[list[_Seed], FailFast()]] = []
    subspace: Json[_Subspace] | None = None
    prior_from: str = ""
    federated: Json[Annotated[dict[str, dict[str, Any]], _LimitedNames]] = {}
    asked_again: Json[Annotated[dict[str, _Count], _LimitedNames]] = {}
    digests: Json[Annotated[dict[str, str], _LimitedNames]] = {}


def find_fault(attributes: Mapping[str, Any]) -> str:
    """Return a message about the first invalid root attribute of a run; empty if all are valid."""
    values = {str(name): plain(value) for name, value in attributes.items()}
    text_lengths = {name: len(text) for name, text in values.items() if isinstance(text, str) and name != "signature"}
    if sum(text_lengths.values()) > _MAX_TEXT:
        longest = max(text_lengths, key=text_lengths.__getitem__)
        return f"its attribute {ascii(longest[:80])[1:-1]} is too long ({text_lengths[longest]} characters)"
    try:
        _RootAttributes.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(key)[:80] for key in first["loc"])
        return f"its attribute {ascii(place)[1:-1]}: {ascii(first['msg'])[1:-1]}"
    return _changed_attribute(values)


def with_digests(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the root attributes and a further one, `digests`: a JSON object with the digest of each attribute.

    Digests are needed because the checksums of HDF5 do not cover attributes.
    """
    return {**attributes, DIGESTS: json.dumps({name: _digest(value) for name, value in attributes.items()})}


def _changed_attribute(values: Mapping[str, Any]) -> str:
    """Return a message about the first attribute that differs from its digest; empty if there is none.

    An attribute without a digest is not checked.
    """
    for name, digest in json.loads(values.get(DIGESTS, "{}")).items():
        if name not in values or _digest(values[name]) != digest:
            return f"its attribute {ascii(name[:80])[1:-1]} was changed after it was written"
    return ""


def storable(attributes: Mapping[Any, Any]) -> Attributes:
    """Return the root attributes that are numbers or texts; a boolean becomes an integer.

    Users may add attributes of other types to a file, such as lists. The header of an unfinished run cannot store them.
    """
    plain_values = {str(name): plain(value) for name, value in attributes.items()}
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in plain_values.items()
        if isinstance(value, str | int | float)
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain(value)).encode()).hexdigest()[:16]


def are_equal(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether `first` has every attribute of `second` with the same value; NaN equals NaN."""
    return all(name in first and str(plain(first[name])) == str(plain(value)) for name, value in second.items())


def find_contradiction(attributes: Mapping[str, Any]) -> str:
    """Return a message about the first root attribute that contradicts the recipe of the run; empty if there is none.

    A run of a posterior made in Python is not checked, because no recipe describes its posterior.

    Raises:
        UsageError: if the recipe is invalid.
    """
    if not attributes.get("signature"):
        return ""
    recipe = recipe_from(str(attributes["recipe"]))
    recipe_values = {
        "model": recipe.model.name,
        "sampler": recipe.sampler.name,
        "precision": recipe.precision,
        "likelihood_power": float(np.float32(recipe.likelihood_power)),
        "seed": recipe.seed,
    }
    for name, value in recipe_values.items():
        # In the recipe, the name of a plugin's part may be PACKAGE:NAME.
        if plain(attributes[name]) not in (value, str(value).rpartition(":")[2]):
            return f"its attribute {name} contradicts its recipe"
    return ""


def plain(value: Any) -> Any:
    """Return a Python scalar for a NumPy scalar or an array with one element; return other values unchanged."""
    return value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
