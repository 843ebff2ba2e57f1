"""A check that a run with a model can start: initial networks, training, a trained last layer, and prior draws."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from bnnzoo.assembly import Problem
from bnnzoo.data import Dataset
from bnnzoo.data.dataset import from_arrays, from_rows
from bnnzoo.models import AbstractModel
from bnnzoo.models._base import Task
from bnnzoo.models.own import Own
from bnnzoo.progress import Progress
from bnnzoo.recipe import resolve
from bnnzoo.sampling import origin
from bnnzoo.sampling.placement import place

_CHAINS, _STEPS = 2, 250


def start_fault(model: AbstractModel, task: Task, x: Shaped[np.ndarray, "row ..."], *, train: bool, seed: int) -> str:
    """Start runs with the model, up to the sampler's first step, and return what makes them fail.

    Args:
        model: the model to test.
        task: the task of the run.
        x: inputs as in a data file; targets are drawn.
        train: also train the starts of all chains and the part that `--stochastic last` fixes.
        seed: seed of the targets and the networks.

    Returns:
        an empty string if every way to start works; otherwise the first failing options and the error.
    """
    rows = _rows(x, task, seed)
    ways: list[dict[str, Any]] = [{"init": "prior"}, {"init": "map"}]
    for way in [*ways, {"init": "map", "stochastic": "last"}] if train else ways:
        try:
            _begin(model, rows, way, train=train, seed=seed)
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return f"{' '.join(f'--{name} {value}' for name, value in way.items())}: {said}"
    return ""


def _begin(model: AbstractModel, rows: Dataset, way: dict[str, Any], *, train: bool, seed: int) -> None:
    lengths = {"chains": _CHAINS, "start_steps": _STEPS, "test_fraction": 0.0, "task": rows.task}
    recipe = resolve(Own(model).name, "random-walk", [], {**lengths, **way}, in_memory=True)
    problem, key = Problem.of(recipe, rows, model), jax.random.key(seed)
    placement = place("vectorized", _CHAINS)
    how: dict[str, Any] = {"tell": _silent, "stop": None, "spent": origin.Spent(), "key": key}
    if train:
        problem = problem.with_fixed(origin.fixed_values(problem, **how))
        thetas = origin.positions(problem, placement, given=None, **how)
    else:
        thetas = problem.initial_positions(trained=way["init"] == "map", key=key)
    if way["init"] == "map":  # a draw of a wide prior may overflow a deep network, so only trained starts are checked
        origin.check_start(problem.posterior, placement, thetas)


def _rows(x: Shaped[np.ndarray, "row ..."], task: Task, seed: int) -> Dataset:
    """Return the inputs with targets for the task."""
    rng = np.random.default_rng(seed)
    if task == "density":
        return from_rows(x.reshape(len(x), -1))
    targets = rng.standard_normal((len(x), 2)) if task == "regression" else np.arange(len(x)) % 3
    return from_arrays(x, targets, task=task)


def _silent(progress: Progress) -> None:
    del progress
