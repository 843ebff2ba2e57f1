"""Conversion of the state of all chains (`Carry`) to named arrays and back, and a check of a loaded checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bnnzoo.assembly import Problem
from bnnzoo.errors import UsageError
from bnnzoo.files.shell import resume_call
from bnnzoo.finding import setting
from bnnzoo.recipe import Part, fields_of
from bnnzoo.recipe.parts import validate
from bnnzoo.sampling.seconds import Seconds
from bnnzoo.store import Checkpoint, checkpoint, schema
from bnnzoo.store.run_parts import Unfinished


def flatten(carry: PyTree) -> dict[str, np.ndarray]:
    """Return the arrays of a carry by their path, such as `states.position`. Random keys are converted to numbers."""
    return {name: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for name, leaf in _named(carry)}


def restore(arrays: Mapping[str, np.ndarray], template: PyTree) -> PyTree:
    """Return the carry that `flatten` converted to arrays.

    Args:
        arrays: the arrays by name.
        template: a carry with the same structure, and with leaves of the same shapes and types.

    Raises:
        UsageError: if names, shapes or types differ from the template's.
    """
    expected_leaves = _named(template)
    if set(arrays) != {name for name, _ in expected_leaves}:
        raise UsageError("checkpoint: its arrays do not match the recipe; start the run again with [[force=True]]")
    leaves: list[Any] = []
    for name, leaf in expected_leaves:
        array = arrays[name]
        if _is_key(leaf):
            if array.shape != (*leaf.shape, 2) or array.dtype != np.uint32:
                raise UsageError(
                    f"checkpoint: {name} is {array.dtype}{list(array.shape)}, expected a random key; start the run "
                    "again with [[force=True]]"
                )
            leaves.append(jax.random.wrap_key_data(jnp.asarray(array), impl="threefry2x32"))
            continue
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise UsageError(
                f"checkpoint: {name} is {array.dtype}{list(array.shape)}, expected {leaf.dtype}{list(leaf.shape)}; "
                "start the run again with [[force=True]]"
            )
        leaves.append(array)
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def check(saved: Checkpoint, run: Unfinished, problem: Problem) -> None:
    """Check that the numbers in a checkpoint are consistent with the run. Call this before anything is written.

    Raises:
        UsageError: if the numbers are not consistent; the message names the run's folder and the remedy.
    """
    recipe, manifest = problem.recipe, run.manifest
    draws = {
        schema.POSTERIOR: max(0, saved.next_step - recipe.warmup) // recipe.thin,
        schema.WARMUP + schema.POSTERIOR: min(saved.next_step, recipe.warmup) if recipe.keep_warmup else 0,
    }
    fields = [field for field in fields_of(type(problem.sampler)) if field.name in saved.tuned]
    parts = manifest.parts[: max(0, saved.num_parts)]
    layout = (problem.outputs or problem.posterior).layout
    blocks = {f"{schema.POSTERIOR}/{block.name}": list(block.shape) for block in layout.blocks}
    drawn_shapes = {
        key: description[1] for key, description in manifest.variables.items() if key.startswith(f"{schema.POSTERIOR}/")
    }
    draws_in_parts = {group: sum(part.draws.get(group, 0) for part in parts) for group in draws}
    faults = {
        "next step": not 0 <= saved.next_step <= recipe.warmup + recipe.draws * recipe.thin,
        "number of parts": not 0 <= saved.num_parts <= len(manifest.parts) or draws_in_parts != draws,
        "chains": bool(parts) and manifest.chains != recipe.chains,
        "parameters": draws[schema.POSTERIOR] > 0 and drawn_shapes != blocks,
        "tuned fields": bool(validate(fields, Part("", dict(saved.tuned)), "")[1]),
        "seconds": set(saved.seconds) != {field.name for field in dataclasses.fields(Seconds)}
        or not all(0 <= value < np.inf for value in saved.seconds.values()),
        "sums of statistics": any(len(sums) != recipe.chains for sums in saved.totals.values()),
    }
    if reasons := [name for name, is_wrong in faults.items() if is_wrong]:
        max_parts = min(saved.num_parts, len(manifest.parts) + 1) - 1
        earlier_checkpoint = next(
            checkpoint.readable_checkpoints(run.folder, run=manifest.header, max_parts=max_parts), None
        )
        remedy = "start the run again with [[force=True]]"
        if earlier_checkpoint is not None:
            call = resume_call(run.out, setting("from_part", earlier_checkpoint.num_parts))
            remedy = f"go back to an earlier checkpoint with {call}, or {remedy}"
        raise UsageError(
            f"{run.folder}: damaged: its checkpoint's {' and '.join(reasons)} do not match this run; {remedy}"
        )


def _named(tree: PyTree) -> list[tuple[str, Any]]:
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
