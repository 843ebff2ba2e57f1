"""Noise scale of a run's likelihood, in original units."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from bnnzoo import registry
from bnnzoo.assembly.units import fields_in_target_units
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.record import Record
from bnnzoo.recipe import Field, recipe_from
from bnnzoo.store.schema import CONSTANT_DATA, POSTERIOR


def noise_scales(record: Record) -> dict[str, float | list[float]]:
    """Return the likelihood's fields that have the target's units, by `noise_FIELD`; a list for several targets.

    A learned field is given by its posterior mean.
    """
    about, found = record.attributes, dict[str, float | list[float]]()
    if "signature" not in about:
        return found
    recipe = recipe_from(str(about["recipe"]))
    if recipe.likelihood is None or not recipe.likelihood.name:
        return found
    fields: list[Field] = []
    with suppress(UsageError):  # a plugin that is not installed here
        fields = fields_in_target_units(registry.load("likelihoods", recipe.likelihood.name))
    for field in fields:
        sd = np.asarray(record.array(CONSTANT_DATA, "y_sd"), np.float64)
        asked = recipe.likelihood.fields.get(field.name, field.default)
        with suppress(ValueError):  # a value other than `learned` that is not a number
            if f"likelihood_{field.name}" in record.variables:
                values = np.mean(record.array(POSTERIOR, f"likelihood_{field.name}"), (0, 1), dtype=np.float64) * sd
            else:
                values = float(asked) * (np.ones_like(sd) if recipe.units == "data" else sd)
            found[f"noise_{field.name}"] = values.item() if values.size == 1 else values.tolist()
    return found
