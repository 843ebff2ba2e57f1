"""Provenance of a run's draws in its file, and a comparison with the current machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from bnnzoo import registry
from bnnzoo.assembly import Problem
from bnnzoo.models.own import PREFIX
from bnnzoo.posterior.censored import uncensored
from bnnzoo.recipe import to_yaml
from bnnzoo.registry import Registered
from bnnzoo.sampling import backend, judgement
from bnnzoo.sampling.placement import Placement
from bnnzoo.store import Attributes
from bnnzoo.store.schema import SECONDS


def attributes(problem: Problem, placement: Placement) -> Attributes:
    """Return the root attributes at the start of a run."""
    recipe = problem.recipe
    return {
        "bnnzoo_version": backend.versions()["bnnzoo"],
        "exactness": problem.sampler.stated_exactness,
        "likelihood_power": float(problem.posterior.likelihood_power),
        "regime_ok": judgement.regime_ok(problem.sampler, ()),
        "complete": 0,
        "draws_requested": recipe.draws,
        "draws_done": 0,
        "seed": recipe.seed,
        "versions": json.dumps(backend.versions()),
        "plugins": json.dumps(_plugins(problem)),
        "plugin_sources": json.dumps(_sources(problem)),
        "device": backend.device(prod(placement.axes)),
        "placement": str(placement),
        "precision": recipe.precision,
        "tuned": "{}",
        **{f"seconds_{part}": 0.0 for part in SECONDS},
        "target_evaluations": 0.0,
        **_words(problem),
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what would change the draws of a resumed run: its attributes against those of the current machine."""
    changed = [f"{k} was {then[k]}, is {now[k]}" for k in ("device", "placement", "precision") if then[k] != now[k]]
    old, new = (json.loads(about["versions"]) for about in (then, now))
    changed += [f"{k} was {old.get(k)}, is {new[k]}" for k in new if old.get(k) != new[k]]
    return changed + registry.changed(then.get("plugins", "{}"), then.get("plugin_sources", "{}"))


def _plugins(problem: Problem) -> dict[str, str]:
    """Return the packages besides bnnzoo that provide parts of the problem, with their versions."""
    return {entry.distribution: entry.version for entry in _of_plugins(problem)}


def _sources(problem: Problem) -> dict[str, str]:
    """Return the digest of each such part's module, under samplers/PACKAGE:NAME."""
    found = {f"{entry.kind}/{entry.full_name}": entry for entry in _of_plugins(problem)}
    return {part: registry.source_sha256(entry.kind, entry.full_name) for part, entry in found.items()}


def _of_plugins(problem: Problem) -> list[Registered]:
    if problem.description is None:
        return []
    used = problem.description.parts
    parts = {
        "models": used.model,
        "samplers": problem.sampler,
        "likelihoods": uncensored(used.likelihood),
        "priors": used.prior,
    }
    found = [registry.get(kind, name) for kind, part in parts.items() if (name := registry.name_of(kind, part))]
    return [entry for entry in found if entry is not None and entry.distribution != registry.OWN]


def _called(kind: str, name: str) -> str:
    """Return a part's name as it was requested; a name with a package is normalised."""
    return registry.full_name(kind, name) if ":" in name and not name.startswith(PREFIX) else name


def _words(problem: Problem) -> Attributes:
    rows = problem.train
    of_rows = {} if rows is None else {"task": rows.task, "rows": rows.num_data, "data_sha256": rows.sha256()}
    if problem.description is None:
        made = {"recipe": "", "model": type(problem.posterior).__name__, "sampler": type(problem.sampler).__name__}
        return made | of_rows
    likelihood = uncensored(problem.description.parts.likelihood)
    return {
        "model": _called("models", problem.recipe.model.name),
        "sampler": _called("samplers", problem.recipe.sampler.name),
        "recipe": to_yaml(problem.resolved()),
        "likelihood": registry.name_of("likelihoods", likelihood) or type(likelihood).__name__.casefold(),
        "signature": problem.description.signature.to_json(),
        **of_rows,
    }
