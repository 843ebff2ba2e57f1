"""Checks that a model has the properties that samplers, `evaluate` and `--stochastic last` assume.

Each case is an input shape and a likelihood. A network is built as in a run, and tested with its initial weights and
with draws from the prior. One of the rows consists of zeros, like an empty image or a standardised input at its mean.
Most of the time is spent on compiling four programs per case, and on starting runs as `sample` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.errors import UsageError
from bnnzoo.models import AbstractModel
from bnnzoo.models._base import Task
from bnnzoo.models.building import Architecture
from bnnzoo.plugins import registry
from bnnzoo.posterior import Data, NetworkPosterior
from bnnzoo.posterior.layout import leaf_name, named_leaves
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.posterior.priors import FanIn
from bnnzoo.posterior.stochastic import last_names, with_leaves
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.testing.check_report import NOT_APPLICABLE, attempt, describe_error, state_of
from bnnzoo.testing.example_targets import supported_count
from bnnzoo.testing.model_report import ModelReport, Result
from bnnzoo.testing.model_start import start_fault

INPUTS = ((5,), (8, 8), (3, 7, 6))
"""Shapes of one input: a vector of features, a grey image, and an image with channels.

A shape is skipped if the method `arrange` of the model raises an error for it.
"""

_TASKS: tuple[Task, ...] = ("regression", "classification", "density")
_ROWS = 6
_CLASSES, _TARGETS = 3, 2
_TOLERANCE = 1e-4
"""Largest accepted difference of two arrays, divided by 1 + the largest absolute value of the first array.

Differences that only come from the order of additions in float32 are smaller.
"""


def check_model(
    model: AbstractModel,
    *,
    inputs: Sequence[tuple[int, ...]] = INPUTS,
    seed: int = 0,
) -> ModelReport:
    """Test the networks of a model for errors that make the draws wrong, or a run fail.

    Args:
        model: the model to test.
        inputs: shapes of one input, without the row axis.
        seed: seed of the rows and the weights.
    """
    results: list[Result] = []
    refused: dict[str, str] = {}
    task_likelihoods = list(_likelihoods(model, refused))
    likelihoods = {name: likelihood for _, name, likelihood in task_likelihoods}
    tasks: dict[str, Task] = {name: task for task, name, _ in task_likelihoods}
    with jax_settings.arithmetic("float32"):
        for i, shape in enumerate(inputs):
            x = np.random.default_rng((seed, i)).standard_normal((_ROWS, *shape)).astype(np.float32)
            x[1] = 0.0
            shape_text = " x ".join(map(str, shape))
            try:
                arranged = model.arrange(x)
            except UsageError as error:
                refused[f"input {shape_text}"] = str(error)
                continue
            fault = attempt(lambda x=x, arranged=arranged: _inputs(model, x, arranged))
            is_first = not results
            results.append(Result("inputs", shape_text, "", *state_of(fault)))
            # The checks of a likelihood depend little on the input shape, so only the first input shape is tested with
            # all likelihoods.
            for name in list(likelihoods) if is_first else list(likelihoods)[:1]:
                columns = int(np.prod(shape)) if tasks[name] == "density" else _TARGETS
                counts = (_CLASSES, 2) if tasks[name] == "classification" else (columns, 1)
                count = supported_count(likelihoods[name], counts)
                likelihood = likelihoods[name].of_targets(count)
                case = _Case(model, likelihood, arranged, count, jax.random.fold_in(jax.random.key(seed), i))
                results += [Result(check, shape_text, name, *state_of(fault)) for check, fault in _checks(case)]
                # After a failed check, a run would probably fail for the same reason.
                if not any(result.state == "failed" for result in results):
                    train = is_first and name == next(iter(likelihoods))
                    fault = start_fault(model, tasks[name], x, likelihood, count, train=train, seed=seed)
                    results.append(Result("start", shape_text, name, *state_of(fault)))
    return ModelReport(type(model).__name__, tuple(results), refused)


def _likelihoods(model: AbstractModel, refused: dict[str, str]) -> Iterator[tuple[Task, str, AbstractLikelihood]]:
    """Yield each task that the model supports, with the name and the object of its likelihood.

    The task `density` is only yielded if the model supports no other task.
    """
    for task in _TASKS:
        if task == "density" and len(refused) < 2:
            return
        try:
            name = model.default_likelihood(task)
        except UsageError as error:
            refused[task] = str(error)
            continue
        own_likelihood = model.own_likelihood()
        yield task, name, registry.load("likelihoods", name)() if own_likelihood is None else own_likelihood


class _Case(NamedTuple):
    """A model, a likelihood, and inputs that the method `arrange` of the model has prepared."""

    model: AbstractModel
    likelihood: AbstractLikelihood
    x: Float[np.ndarray, "row ..."]
    num_targets: int
    """Number of targets of a regression, classes of a classification, or columns of a density."""
    key: PRNGKeyArray

    def build(self, number: int) -> Any:
        """Build a network; `number` selects the random key."""
        num_outputs = self.likelihood.num_outputs(self.num_targets)
        return _build_compiled(
            Architecture.from_model(self.model, self.x.shape[1:], num_outputs), jax.random.fold_in(self.key, number)
        )

    def posterior(self, network: Any) -> NetworkPosterior:
        """Return the posterior of a network for the rows `x`. The targets are 0; `_density` replaces these targets."""
        is_classification = self.likelihood.task == "classification"
        y = (
            np.zeros(len(self.x), np.int32)
            if is_classification
            else np.zeros((len(self.x), self.num_targets), np.float32)
        )
        # With the prior FanIn, outputs of deep networks are finite. Weights from N(0, 1) would overflow.
        return NetworkPosterior.of(network, self.likelihood, FanIn(), self.x, y)


@eqx.filter_jit
def _build_compiled(architecture: Architecture, key: PRNGKeyArray) -> Any:
    """Build a network in a compiled program, as a run does."""
    return architecture.build(key=key)


def _checks(case: _Case) -> Iterator[tuple[str, str]]:
    """Yield the name and the fault of each check (empty if it passed). Skip checks that depend on a failed check."""
    networks: list[Any] = []
    fault = attempt(lambda: networks.append(case.build(0)) or _parameters(case, networks[0]))
    yield "parameters", fault
    if fault:
        return
    network = networks[0]
    for name, check in (("outputs", _outputs), ("jit", _jit)):
        fault = attempt(lambda check=check: check(case, network))
        yield name, fault
        if fault:
            return
    posterior = case.posterior(network)
    thetas = _positions(posterior, network, case.key)
    yield from _check_pair(("rows", "draws"), lambda: _forward(posterior, thetas))
    yield from _check_pair(("gradient", "likelihood"), lambda: _density(posterior, thetas, case.key))
    yield "split", attempt(lambda: _split(case, posterior.network_at(thetas[-1])))


def _check_pair(names: tuple[str, str], check: Callable[[], tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the results of two checks that share a compiled program.

    If the program raises an exception, this exception is the fault of the first check, and the second check is skipped.
    """
    try:
        yield from zip(names, check(), strict=True)
    except Exception as error:
        yield names[0], describe_error(error)


@eqx.filter_jit
def _positions(posterior: NetworkPosterior, network: Any, key: PRNGKeyArray) -> Float[Array, "draw dim"]:
    """Return the initial weights of the network, and two draws from the prior."""
    keys = jax.random.split(jax.random.fold_in(key, 9), 2)
    draws = jax.vmap(lambda key: posterior.sample_prior(key=key))(keys)
    return jnp.concatenate([posterior.position(network)[None], draws])


def _inputs(model: AbstractModel, x: Shaped[np.ndarray, "row ..."], arranged: Shaped[np.ndarray, "row ..."]) -> str:
    if len(arranged) != len(x):
        return f"arrange returns {len(arranged)} rows for {len(x)} rows"
    single_rows = np.concatenate([model.arrange(row[None]) for row in x])
    return _difference("an arranged row changes by {:.2g} if the other rows are left out", arranged, single_rows)


def _parameters(case: _Case, network: Any) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(network, eqx.is_inexact_array))
    if not leaves:
        return "the network has no array of floating-point numbers, so there is nothing to sample"
    names = [leaf_name(path) for path, _ in leaves]
    if repeated_names := sorted({name for name in names if names.count(name) > 1}):
        return f"two parameters have the name {repeated_names[0]}"
    if wrong_types := [f"{leaf_name(path)} is {leaf.dtype}" for path, leaf in leaves if leaf.dtype != jnp.float32]:
        return f"{wrong_types[0]}, expected float32"
    other_leaves = named_leaves(case.build(1))
    if all(np.array_equal(leaf, other_leaves[leaf_name(path)]) for path, leaf in leaves):
        return "another key gives the same values, so all chains would start at the same network"
    return ""


def _outputs(case: _Case, network: Any) -> str:
    expected_shape = (case.likelihood.num_outputs(case.num_targets),)
    for row, row_name in zip(case.x, ("a row of standard normal numbers", "the row of zeros"), strict=False):
        output = network(jnp.asarray(row))
        if getattr(output, "shape", None) != expected_shape or output.dtype != jnp.float32:
            description = f"{output.dtype}{list(output.shape)}" if hasattr(output, "shape") else type(output).__name__
            return f"one input gives {description}, but the likelihood needs float32{list(expected_shape)}"
        if not np.isfinite(output).all():
            return f"{row_name} gives {np.asarray(output)[~np.isfinite(output)][0]}"
        if fault := _difference("the same row gives outputs that differ by {:.2g}", output, network(jnp.asarray(row))):
            return fault
    return ""


def _jit(case: _Case, network: Any) -> str:
    row = jnp.asarray(case.x[0])
    compiled = eqx.filter_jit(lambda network, x: network(x))(network, row)
    return _difference("outputs differ by {:.2g} when compiled", network(row), compiled)


def _forward(posterior: NetworkPosterior, thetas: Float[Array, "draw dim"]) -> tuple[str, str]:
    """Return the faults of the checks `rows` and `draws`.

    The outputs of the rows are compared in order, in reverse order and one by one. The outputs of the draws are
    compared together and one by one.
    """

    @eqx.filter_jit
    def outputs(posterior, thetas):
        x, theta = jnp.asarray(posterior.data.x), thetas[0]
        outputs_at = lambda rows: posterior.outputs(theta, rows)  # noqa: E731
        outputs_of_draw = lambda theta: posterior.outputs(theta, x)  # noqa: E731
        alone, each = jax.lax.map(lambda row: outputs_at(row[None])[0], x), jax.lax.map(outputs_of_draw, thetas)
        return outputs_at(x), outputs_at(x[::-1])[::-1], alone, jax.vmap(outputs_of_draw)(thetas), each

    joint_outputs, reversed_outputs, single_outputs, vmapped_draws, single_draws = outputs(posterior, thetas)
    rows = _difference("a row's outputs change by {:.2g} if the rows are reversed", joint_outputs, reversed_outputs)
    rows = rows or _difference(
        "a row's outputs change by {:.2g} if the other rows are left out", joint_outputs, single_outputs
    )
    return rows, _difference("outputs change by {:.2g} if vmap computes several draws", single_draws, vmapped_draws)


def _density(posterior: NetworkPosterior, thetas: Float[Array, "draw dim"], key: PRNGKeyArray) -> tuple[str, str]:
    """Return the faults of the checks `gradient` and `likelihood`.

    The targets are drawn from the likelihood at the first position.
    """

    @eqx.filter_jit
    def evaluate(posterior, thetas, key):
        x, likelihood = jnp.asarray(posterior.data.x), posterior.likelihood_at(thetas[0])
        outputs = posterior.outputs(thetas[0], x)
        key_targets, key_weights = jax.random.split(key)
        keys = jax.random.split(key_targets, len(outputs))
        y = jax.vmap(lambda output, key: likelihood.sample(output, key=key))(outputs, keys)
        posterior = dataclasses.replace(posterior, data=Data(x, y))
        gradients = jax.vmap(jax.grad(posterior.log_density))(thetas)
        # The outputs are summed with random weights, so that they do not cancel.
        weights = jax.random.normal(key_weights, outputs.shape)
        effects = jax.vmap(jax.grad(lambda theta: jnp.sum(weights * posterior.outputs(theta, x))))(thetas)
        return gradients, effects, jax.vmap(lambda theta: posterior.log_likelihood(theta, posterior.data))(thetas)

    gradients, effects, values = map(np.asarray, evaluate(posterior, thetas, key))
    invalid_places = np.argwhere(~np.isfinite(gradients))
    gradient = likelihood = ""
    if len(invalid_places):
        parameter_name = posterior.layout.name_of(int(invalid_places[0][1]))
        gradient = (
            f"the gradient of the log density with respect to {parameter_name} is {gradients[tuple(invalid_places[0])]}"
        )
    elif unused := [
        block.name for block in posterior.layout.network.blocks if not effects[:, block.start : block.stop].any()
    ]:
        gradient = f"no output depends on {unused[0]}, so its posterior would be its prior"
    if values.shape[1:] != posterior.data.x.shape[:1]:
        likelihood = f"log p(y | x) has shape {list(values.shape[1:])} for {len(posterior.data.x)} rows"
    elif not np.isfinite(values).all():
        likelihood = f"log p(y | x) is {values[~np.isfinite(values)][0]} for a target that the likelihood drew itself"
    return gradient, likelihood


def _split(case: _Case, network: Any) -> str:
    """Check the model's method `split` on a network whose weights were replaced after `build`.

    A `split` that copies the weights of the network that was built is thus detected.
    """
    parts = case.model.split(network)
    if parts is None:
        return f"{NOT_APPLICABLE}split returns None, so the last layer is the module that contains the last parameter"
    names = last_names(network, parts[1])
    if not names or len(names) != len(named_leaves(parts[1])):
        return "the parameters of the last layer that split returns are not arrays of the network"

    @eqx.filter_jit
    def outputs(network, x):
        halves: Any = case.model.split(network)
        features = jax.vmap(halves[0])(x)
        return jax.vmap(network)(x), jax.vmap(halves[1])(features), features

    x = jnp.asarray(case.x)
    network_outputs, split_outputs, features = outputs(network, x)
    if fault := _difference("last(features(x)) differs from network(x) by {:.2g}", network_outputs, split_outputs):
        return fault
    changed_network = with_leaves(
        network, {name: 2 * leaf + 1 for name, leaf in named_leaves(network).items() if name in names}
    )
    return _difference(
        "the features change by {:.2g} if the last layer changes", features, outputs(changed_network, x)[2]
    )


def _difference(template: str, first: Any, second: Any) -> str:
    """Return `template` with the largest difference between two arrays; empty if the difference is a rounding error."""
    first, second = np.asarray(first), np.asarray(second)
    if first.shape != second.shape:
        return f"arrays that must be equal have different shapes: {list(first.shape)} and {list(second.shape)}"
    if not first.size:
        return ""
    with np.errstate(invalid="ignore"):
        distance = float(np.abs(first - second).max())
        scale = 1 + float(np.abs(first).max())
    return "" if distance <= _TOLERANCE * scale else template.format(distance)  # NaN is a difference too
