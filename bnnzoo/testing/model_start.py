"""A check that runs with a model can start, with each kind of initial positions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from bnnzoo.assembly import Problem
from bnnzoo.data import Dataset
from bnnzoo.data.rows.dataset import from_arrays, from_rows
from bnnzoo.models import AbstractModel
from bnnzoo.models._base import Task
from bnnzoo.models.own import Own
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.progress import ignore
from bnnzoo.recipe import resolve
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.initial import positions
from bnnzoo.testing import own_parameters
from bnnzoo.testing.check_report import attempt

_CHAINS, _STEPS = 2, 250


def start_fault(
    model: AbstractModel,
    task: Task,
    x: Shaped[np.ndarray, "row ..."],
    likelihood: AbstractLikelihood,
    num_targets: int,
    *,
    train: bool,
    seed: int,
) -> str:
    """Start runs with the model, and end each run before the first step of the sampler.

    Args:
        model: the model to test.
        task: the task of the run.
        x: inputs as in a data file. The targets are generated.
        likelihood: the likelihood of the model for `num_targets` targets. Targets of a regression are drawn from it.
        num_targets: number of targets of a regression, or of classes of a classification.
        train: whether to train the initial positions of all chains, and to start another run with `--stochastic last`,
            which also trains the fixed parameters.
        seed: seed of the targets and the networks.

    Returns:
        the options of the first run that fails, with the error; empty if all runs can start.
    """
    rows = _rows(x, task, likelihood, num_targets, seed)
    start_options: list[dict[str, Any]] = [{"init": "prior"}, {"init": "map"}]
    for options in [*start_options, {"init": "map", "stochastic": "last"}] if train else start_options:
        if fault := attempt(lambda options=options: _start_run(model, rows, options, train=train, seed=seed) or ""):
            return f"{' '.join(f'--{name} {value}' for name, value in options.items())}: {fault}"
    return ""


def _start_run(model: AbstractModel, rows: Dataset, options: dict[str, Any], *, train: bool, seed: int) -> None:
    lengths = {"chains": _CHAINS, "start_steps": _STEPS, "test_fraction": 0.0, "task": rows.task}
    recipe = resolve(Own(model).name, "random-walk", [], {**lengths, **options}, in_memory=True)
    problem, key = Problem.from_recipe(recipe, rows, model), jax.random.key(seed)
    placement = place_chains("vectorized", _CHAINS)
    work = positions.StartWork(ignore)
    if train:
        problem = problem.with_fixed(positions.fixed_values(problem, work=work, key=key))
        thetas = positions.initial_positions(problem, placement, given_positions=None, work=work, key=key)
    else:
        thetas = problem.initial_positions(trained=options["init"] == "map", key=key)
    if options["init"] == "map":  # a draw from a wide prior can make a deep network overflow
        positions.check_start(problem.posterior, placement, thetas)


def _rows(
    x: Shaped[np.ndarray, "row ..."], task: Task, likelihood: AbstractLikelihood, num_targets: int, seed: int
) -> Dataset:
    """Return the inputs with targets for the task. All classes occur."""
    if task == "density":
        return from_rows(x.reshape(len(x), -1))
    if task == "classification":
        return from_arrays(x, np.arange(len(x)) % num_targets, task=task)
    likelihood = likelihood.with_parameters(own_parameters.start_values(likelihood.parameters()))
    key_outputs, key_targets = jax.random.split(jax.random.key(seed))
    outputs = jax.random.normal(key_outputs, (len(x), likelihood.num_outputs(num_targets)))
    targets = jax.vmap(lambda output, key: likelihood.sample(output, key=key))(
        outputs, jax.random.split(key_targets, len(x))
    )
    return from_arrays(x, np.asarray(targets), task=task)
