"""Conversion of likelihood fields that are in the units of the target, such as the scale of the noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bnnzoo.data import Scaler
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting, spell_settings, spelling
from bnnzoo.plugins import registry
from bnnzoo.posterior.censored import Censored, uncensored
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.recipe import Field, Recipe, fields_of

_MAX_TARGETS = 4
"""Largest number of targets for which a sentence states the converted value."""


def fields_in_target_units(likelihood: type) -> list[Field]:
    """Return the fields that a likelihood marks with `TargetUnits`."""
    return [field for field in fields_of(likelihood) if field.in_target_units]


def in_network_units(likelihood: AbstractLikelihood, scaler: Scaler, units: str) -> AbstractLikelihood:
    """Return the likelihood with its fields in the units of the network.

    Args:
        likelihood: the likelihood to convert.
        scaler: the scaler of the data.
        units: the units of the given fields, `data` or `standardised`. With `data` and several targets, a field becomes
            an array [target], because each target has its own standard deviation.
    """
    if units == "standardised" or np.all(scaler.y_sd == 1):
        return likelihood
    if isinstance(likelihood, Censored):
        return Censored(in_network_units(likelihood.likelihood, scaler, units))
    values = _fixed_fields(likelihood)
    scaled = {name: (np.float64(value) / scaler.y_sd).astype(np.float32) for name, value in values.items()}
    has_single_target = len(scaler.y_sd) == 1
    return dataclasses.replace(
        likelihood,
        **{name: value_scaled[0] if has_single_target else value_scaled for name, value_scaled in scaled.items()},
    )


def sentences(likelihood: AbstractLikelihood, scaler: Scaler, recipe: Recipe, targets: Sequence[str]) -> list[str]:
    """Return one sentence for each likelihood field that is fixed and in target units; none if no target is scaled.

    A sentence states the value in the units of the data and as a multiple of the target's standard deviation.
    """
    if np.all(scaler.y_sd == 1):
        return []
    sentences_found: list[str] = []
    for name, value in _fixed_fields(uncensored(likelihood)).items():
        field = setting(f"likelihood.{name}", f"{value:g}")
        if recipe.units == "data":
            converted = _format_values(np.asarray(value / scaler.y_sd.astype(np.float64)), targets)
            sentences_found.append(
                f"{field} is in the data's units; it is {converted} times the standard deviation of the target"
            )
        else:
            converted = _format_values(np.asarray(value * scaler.y_sd.astype(np.float64)), targets)
            remedy = f"if {value:g} is in the data's units, use [[units=data]]"
            sentences_found.append(
                f"{field} is a multiple of the target's standard deviation ({converted} in the data's units); {remedy}"
            )
    return [spell_settings(sentence, spelling()) for sentence in sentences_found]


def _fixed_fields(likelihood: AbstractLikelihood) -> dict[str, float]:
    """Return the values of the fields in target units, without the fields that have the value "learned" or None.

    Raises:
        UsageError: if the value of another field is not a number.
    """
    values = {field.name: getattr(likelihood, field.name) for field in fields_in_target_units(type(likelihood))}
    fixed_values = {name: value for name, value in values.items() if value is not None and not isinstance(value, str)}
    for name, value in fixed_values.items():
        if np.ndim(value):
            raise UsageError(
                f"{registry.describe_part('likelihoods', likelihood)}: {name}: a field that is marked with TargetUnits "
                f"must be a number (got {value}); remove TargetUnits()"
            )
    return {name: float(value) for name, value in fixed_values.items()}


def _format_values(values: Float[np.ndarray, " target"], targets: Sequence[str]) -> str:
    """Return the value as text; for several targets, the first four values, each with the name of the target."""
    if len(values) == 1:
        return f"{values[0]:.4g}"
    texts = [f"{value:.4g} ({target})" for value, target in zip(values, targets, strict=True)]
    return ", ".join([*texts[:_MAX_TARGETS], *(["..."] if len(texts) > _MAX_TARGETS else [])])
