"""Provenance of a run's draws: the attributes of its file, and their comparison with the current machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from bnnzoo.assembly import Problem
from bnnzoo.models.own import PREFIX
from bnnzoo.plugins import registry
from bnnzoo.plugins.registry import Registered
from bnnzoo.posterior.censored import uncensored
from bnnzoo.recipe import to_yaml
from bnnzoo.sampling import chain_findings
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import Placement
from bnnzoo.store import Attributes
from bnnzoo.store.schema import SECONDS


def attributes(problem: Problem, placement: Placement) -> Attributes:
    """Return the root attributes at the start of a run."""
    recipe = problem.recipe
    return {
        "bnnzoo_version": jax_settings.versions()["bnnzoo"],
        "exactness": problem.sampler.stated_exactness,
        "likelihood_power": float(problem.posterior.likelihood_power),
        "regime_ok": chain_findings.regime_ok(problem.sampler, ()),
        "complete": 0,
        "draws_requested": recipe.draws,
        "draws_done": 0,
        "seed": recipe.seed,
        "versions": json.dumps(jax_settings.versions()),
        "plugins": json.dumps(_plugins(problem)),
        "plugin_sources": json.dumps(_sources(problem)),
        "device": jax_settings.device(prod(placement.axes)),
        "placement": str(placement),
        "precision": recipe.precision,
        "tuned": "{}",
        **{f"seconds_{part}": 0.0 for part in SECONDS},
        "start_evaluations": 0.0,
        "target_evaluations": 0.0,
        **_problem_attributes(problem),
    }


def differences(start_attributes: Mapping[str, Any], current_attributes: Mapping[str, Any]) -> list[str]:
    """Compare two environments. Return a text for each difference that could change further draws.

    Args:
        start_attributes: attributes of the file, from the start of the run.
        current_attributes: attributes of the current environment.
    """
    differences_found = [
        f"{k} was {start_attributes[k]}, is {current_attributes[k]}"
        for k in ("device", "placement", "precision")
        if start_attributes[k] != current_attributes[k]
    ]
    old, new = (json.loads(attributes["versions"]) for attributes in (start_attributes, current_attributes))
    differences_found += [f"{k} was {old.get(k)}, is {new[k]}" for k in new if old.get(k) != new[k]]
    return differences_found + registry.plugin_differences(
        start_attributes.get("plugins", "{}"), start_attributes.get("plugin_sources", "{}")
    )


def _plugins(problem: Problem) -> dict[str, str]:
    """Return the packages besides bnnzoo that provide parts of the problem, with their versions."""
    return {entry.distribution: entry.version for entry in _plugin_entries(problem)}


def _sources(problem: Problem) -> dict[str, str]:
    """Return the SHA-256 of the source of each part from a plugin, with keys such as `samplers/PACKAGE:NAME`."""
    entries = {f"{entry.kind}/{entry.full_name}": entry for entry in _plugin_entries(problem)}
    return {part: registry.source_sha256(entry.kind, entry.full_name) for part, entry in entries.items()}


def _plugin_entries(problem: Problem) -> list[Registered]:
    if problem.description is None:
        return []
    problem_parts = problem.description.parts
    parts = {
        "models": problem_parts.model,
        "samplers": problem.sampler,
        "likelihoods": uncensored(problem_parts.likelihood),
        "priors": problem_parts.prior,
    }
    entries = [registry.get(kind, name) for kind, part in parts.items() if (name := registry.name_of(kind, part))]
    return [entry for entry in entries if entry is not None and entry.distribution != registry.OWN]


def _requested_name(kind: str, name: str) -> str:
    """Return the name of a part as the recipe gives it. A name with a package (`PACKAGE:NAME`) is normalised."""
    return registry.full_name(kind, name) if ":" in name and not name.startswith(PREFIX) else name


def _problem_attributes(problem: Problem) -> Attributes:
    rows = problem.train
    row_attributes = {} if rows is None else {"task": rows.task, "rows": rows.num_data, "data_sha256": rows.sha256()}
    if problem.description is None:
        part_attributes = {
            "recipe": "",
            "model": type(problem.posterior).__name__,
            "sampler": type(problem.sampler).__name__,
        }
        return part_attributes | row_attributes
    likelihood = uncensored(problem.description.parts.likelihood)
    return {
        "model": _requested_name("models", problem.recipe.model.name),
        "sampler": _requested_name("samplers", problem.recipe.sampler.name),
        "recipe": to_yaml(problem.resolved_recipe()),
        "likelihood": registry.name_of("likelihoods", likelihood) or type(likelihood).__name__.casefold(),
        "signature": problem.description.signature.to_json(),
        **({} if problem.recipe.prior_from is None else {"prior_from": problem.recipe.prior_from}),
        **row_attributes,
    }
