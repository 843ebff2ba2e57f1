"""Construction and checks of the parts of a recipe: model, sampler, likelihood and prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.data import Dataset, Signature
from bnnzoo.data.checks.check import refuse_equal_columns
from bnnzoo.errors import UsageError
from bnnzoo.finding import setting
from bnnzoo.models import AbstractModel
from bnnzoo.models.own import PREFIX as OWN
from bnnzoo.models.own import Own
from bnnzoo.plugins import registry
from bnnzoo.posterior.censored import Censored, has_rates, uncensored
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.likelihoods import AbstractLikelihood, Parameter
from bnnzoo.posterior.priors import AbstractPrior
from bnnzoo.recipe import Part, Recipe, build_all
from bnnzoo.samplers import AbstractSampler

P = TypeVar("P", bound=eqx.Module)

_TRACING_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors that JAX raises if traced Python code needs the value of an argument, which is unknown during tracing."""


class Parts(NamedTuple):
    """The parts of a recipe as objects."""

    model: AbstractModel
    sampler: AbstractSampler
    likelihood: AbstractLikelihood
    prior: AbstractPrior


def make_parts(recipe: Recipe, signature: Signature, own_model: AbstractModel | None = None) -> Parts:
    """Build the parts of a recipe for data with this signature.

    Args:
        recipe: the recipe.
        signature: the properties of the data.
        own_model: a model that is not registered; by default the model that the recipe names.

    Raises:
        UsageError: if fields are invalid, or if a part cannot be combined with another part or with the data.
    """
    task = signature.task
    if own_model is None and recipe.model.name.startswith(OWN):
        name = recipe.model.name.removeprefix(OWN)
        raise UsageError(
            "the run's model is a network made in Python; open the run in Python with "
            f"bnnzoo.open(path, model={name}), or continue it with bnnzoo.resume(path, model={name})"
        )
    model_class: Any = type(own_model) if own_model is not None else registry.load("models", recipe.model.name)
    sampler_class = registry.load("samplers", recipe.sampler.name)
    prior_part = with_default_name(recipe.prior, "normal")
    prior_class = registry.load("priors", prior_part.name)
    default = model_class.default_likelihood(task)
    likelihood_part = with_default_name(recipe.likelihood, default)
    likelihood_class = registry.load("likelihoods", likelihood_part.name)
    *built, sampler, prior, likelihood = build_all(
        [
            *([] if own_model is not None else [(model_class, recipe.model, "model")]),
            (sampler_class, recipe.sampler, "sampler"),
            (prior_class, prior_part, "prior"),
            (likelihood_class, likelihood_part, "likelihood"),
        ]
    )
    model: Any = own_model if own_model is not None else built[0]
    if model.brings_likelihood:
        if recipe.likelihood is not None:
            raise UsageError(
                f"model {recipe.model.name} has its own likelihood ({default}) and accepts no other; remove "
                f"[[likelihood]], or use model mlp with {setting('likelihood', likelihood_part.name)}"
            )
        likelihood = model.own_likelihood()
    if likelihood.task != ("regression" if task == "density" else task):
        raise UsageError(
            f"likelihood {likelihood_part.name} is for {likelihood.task}, but the task of the data is {task}; use "
            f"another [[likelihood]], or {setting('task', likelihood.task)}"
        )
    likelihood = likelihood.of_targets(signature.num_targets)
    return Parts(model, sampler, Censored(likelihood) if signature.reading.censored else likelihood, prior)


def with_default_name(part: Part | None, default: str) -> Part:
    """Return the part, with the name `default` if the user gave no name."""
    if part is None:
        return Part(default, {}, {})
    return part if part.name else dataclasses.replace(part, name=default)


def likelihood_task(recipe: Recipe) -> str | None:
    """Return the task of the likelihood that the recipe names, or None if it names no likelihood."""
    if recipe.likelihood is None or not recipe.likelihood.name:
        return None
    return registry.load("likelihoods", recipe.likelihood.name).task


def check_columns(likelihood: AbstractLikelihood, signature: Signature) -> None:
    """Check the names of the targets, and the exposure if there is one.

    An exposure requires a likelihood with a rate, because a rate is the only quantity that an exposure multiplies.

    Raises:
        UsageError: if two targets would share a column of predictions, or if there is an exposure but the likelihood
            has no rate. The message names likelihoods that have a rate.
    """
    if signature.task == "regression":
        refuse_equal_columns(signature.target_names)
    if signature.exposure and not has_rates(likelihood):
        name = registry.describe_part("likelihoods", uncensored(likelihood))
        raise UsageError(
            f"{setting('exposure', signature.exposure)}: {name} has no rate that an exposure could multiply; use "
            "[[likelihood=poisson]], negative-binomial or zero-inflated-poisson"
        )


def check_prior(prior: AbstractPrior, layout: Layout) -> None:
    """Check that the methods of a prior return arrays of the right shapes. Only shapes are computed.

    The log density must be a single number that counts the density of each parameter exactly once.

    Args:
        prior: the prior to check.
        layout: the layout of the network's sampled parameters.

    Raises:
        UsageError: if a shape is wrong. The message names the method, its result and the expected result.
    """
    name = registry.describe_part("priors", prior)
    initial = _at_start_values(prior, prior.parameters(layout))
    if type(initial).log_prob is AbstractPrior.log_prob:
        distribution = initial.distribution(layout)
        shapes = getattr(distribution, "batch_shape", None), getattr(distribution, "event_shape", None)
        if shapes not in (((), ()), ((layout.dim,), ())):
            # JAX would broadcast another shape against the parameters without an error, and the posterior would be
            # wrong.
            raise UsageError(
                f"{name}: distribution must return a univariate distribution with batch shape () or "
                f"{(layout.dim,)} (got a {type(distribution).__name__} with batch shape {shapes[0]} and event shape "
                f"{shapes[1]})"
            )
    theta = jax.ShapeDtypeStruct((layout.dim,), "f4")
    log_prob_shape = jax.eval_shape(lambda position: initial.log_prob(position, layout), theta)
    draw_shape = jax.eval_shape(lambda key: initial.sample(layout, key=key), jax.random.key(0))
    for method, result, expected in (("log_prob", log_prob_shape, ()), ("sample", draw_shape, (layout.dim,))):
        shape = getattr(result, "shape", None)
        if shape != expected:
            description = f"an array of shape {shape}" if shape is not None else f"a {type(result).__name__}"
            raise UsageError(f"{name}: {method} must return an array of shape {expected} (got {description})")


def _compilable(part: P, use: Callable[[P], Any]) -> P:
    """Return `part` with NumPy numbers if JAX can trace the methods of `part`, otherwise with Python numbers.

    A NumPy number is traced: it is an argument of the compiled program, so that another value needs no new compilation.
    A Python number is a constant of the program. Some plugins need Python numbers, for example for `float(self.scale)`.

    Args:
        part: the part to convert.
        use: a function that calls the methods of a part that compiled programs call. The function is only traced.
    """
    try:
        eqx.filter_eval_shape(use, part)
    except _TRACING_ERRORS:
        return jax.tree.map(lambda leaf: leaf.item() if isinstance(leaf, np.generic) else leaf, part)
    return part


def compilable_prior(prior: AbstractPrior, layout: Layout) -> AbstractPrior:
    """Return the prior with numbers that JAX can trace, or with Python numbers if JAX cannot trace its methods.

    `layout` describes the sampled parameters of the network.
    """

    def use(prior: AbstractPrior) -> Any:
        initial = _at_start_values(prior, prior.parameters(layout))
        theta = jnp.zeros(layout.dim)
        return initial.log_prob(theta, layout), initial.sample(layout, key=jax.random.key(0))

    return _compilable(prior, use)


def compilable_likelihood(likelihood: AbstractLikelihood, signature: Signature) -> AbstractLikelihood:
    """Return the likelihood with numbers that JAX can trace, or with Python numbers if JAX cannot trace its methods.

    `signature` describes the data.
    """
    is_classification = likelihood.task == "classification"
    shape, dtype = signature.target_shape, np.int32 if is_classification else np.float32

    def use(likelihood: AbstractLikelihood) -> Any:
        initial = _at_start_values(likelihood, likelihood.parameters())
        output, target = jnp.zeros(likelihood.num_outputs(signature.num_targets)), jnp.zeros(shape, dtype)
        bound, draw = likelihood.upper_bound(target), initial.sample(output, key=jax.random.key(0))
        if is_classification:
            return initial.log_prob(output, target), bound, draw, initial.class_probabilities(output)
        distribution = initial.distribution(output)
        return initial.log_prob(output, target), bound, draw, distribution.mean, distribution.variance

    return _compilable(likelihood, use)


def _at_start_values(part: Any, parameters: tuple[Parameter, ...]) -> Any:
    """Return the prior or likelihood `part` with the start values of its sampled `parameters`."""
    return part.with_parameters({p.name: p.natural(jnp.full(p.shape, p.start)) for p in parameters})


def check_likelihood(likelihood: AbstractLikelihood, num_targets: int, targets: np.ndarray) -> None:
    """Check that the methods of a likelihood return arrays of the right shapes. Only shapes are computed.

    Args:
        likelihood: the likelihood to check.
        num_targets: the number of targets, or of classes.
        targets: the targets of the training rows.

    Raises:
        UsageError: if a shape is wrong, or if the method for predictions is missing. The message names the method.
    """
    name = registry.describe_part("likelihoods", uncensored(likelihood))
    initial = _at_start_values(likelihood, likelihood.parameters())
    output = jax.ShapeDtypeStruct((likelihood.num_outputs(num_targets),), "f4")
    log_prob_shape = jax.eval_shape(initial.log_prob, output, jax.ShapeDtypeStruct(targets.shape[1:], targets.dtype))
    if not hasattr(log_prob_shape, "shape"):
        raise UsageError(f"{name}: log_prob must return one number for one row (got a {type(log_prob_shape).__name__})")
    if log_prob_shape.shape != ():
        # Without this check, a mean over rows would also average over targets, and the posterior would be wrong.
        raise UsageError(
            f"{name}: log_prob must return one number for one row (got shape {log_prob_shape.shape}); end the "
            "distribution of several targets with .to_event(1)"
        )
    if likelihood.task != "classification":

        def moments_of(output: jax.Array) -> tuple[jax.Array, jax.Array]:
            distribution = initial.distribution(output)
            return distribution.mean, distribution.variance

        try:
            moments = jax.eval_shape(moments_of, output)
        except NotImplementedError as error:
            raise UsageError(
                f"{name}: its distribution must have a mean and a variance, because predictions report both"
            ) from error
        if any(moment.shape != targets.shape[1:2] for moment in moments):
            shapes = " and ".join(str(moment.shape) for moment in moments)
            raise UsageError(f"{name}: mean and variance must have shape {targets.shape[1:2]} (got {shapes})")
        return
    try:
        classes = jax.eval_shape(initial.class_probabilities, output).shape
    except NotImplementedError as error:
        raise UsageError(f"{name}: a likelihood for classification needs the method class_probabilities") from error
    if classes != (num_targets,):
        raise UsageError(f"{name}: class_probabilities must have shape {(num_targets,)} (got {classes})")


def check_targets(likelihood: AbstractLikelihood, rows: Dataset) -> None:
    """Check that all targets of a data set are in the support of the likelihood.

    Raises:
        UsageError: if a target is invalid. The message names the data and the first invalid row.
    """
    try:
        likelihood.check(rows.y, rows.signature.num_targets)
    except UsageError as error:
        place = f"of the {rows.num_data} rows without missing cells, " if rows.left_out else ""
        raise UsageError(f"{rows.name}: {place}{error}") from None


def check_init(recipe: Recipe, model: AbstractModel) -> None:
    """Check that the recipe's `init` is a known word or a file of a known kind, and that the model supports it.

    Raises:
        UsageError: if `init` has another value, or if it is `given` and the model is not an Equinox module of the user.
    """
    if recipe.init_file is not None and recipe.init_file.suffix not in (".nc", ".eqx"):
        raise UsageError(
            f"{recipe.where.get('init', 'init')}: must be map, prior, given, the .nc file of a run, or the .eqx file "
            f"of a network (got {recipe.init!r})"
        )
    if recipe.init == "given" and not isinstance(model, Own):
        raise UsageError(
            "[[init=given]]: requires an Equinox module of your own as the model, in Python; use [[init=map]]"
        )
