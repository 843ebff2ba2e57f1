"""From words to objects: a recipe and its data -> the posterior, the sampler and where the chains start."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo import registry
from bnnzoo.data import Dataset, Scaler, Signature, load, split
from bnnzoo.errors import UsageError
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import NetworkPosterior, stochastic
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.posterior.priors import AbstractPrior
from bnnzoo.recipe import Part, Recipe, as_dict, build_all, fields_of
from bnnzoo.samplers import AbstractSampler


class Parts(NamedTuple):
    """The objects a recipe names."""

    model: AbstractModel
    sampler: AbstractSampler
    likelihood: AbstractLikelihood
    prior: AbstractPrior


class Problem(NamedTuple):
    """A recipe with its data, ready to run. `train` and `test` are in original units."""

    recipe: Recipe
    parts: Parts
    train: Dataset
    test: Dataset | None
    scaler: Scaler
    posterior: NetworkPosterior


def assemble(recipe: Recipe, dataset: Dataset | None = None) -> Problem:
    """Everything a run needs, with everything wrong found first.

    Args:
        dataset: data in memory, instead of the recipe's.

    Raises:
        UsageError: one line for each problem.
    """
    if dataset is None:
        if recipe.data is None:
            raise UsageError("no data: name a data set or a file with --data (bnnzoo list datasets)")
        task = recipe.task or _named_task(recipe)
        dataset = load(recipe.data, target=recipe.target, task=task)
    parts = make_parts(recipe, dataset.task)
    train, test = split(dataset, test_fraction=recipe.test_fraction, seed=recipe.split_seed)
    scaler = fit_scaler(train, parts.likelihood, standardise=recipe.standardise)
    posterior = make_posterior(recipe, parts, train.signature, scaler, train)
    parts.sampler.check(posterior)
    return Problem(recipe, parts, train, test, scaler, posterior)


def make_parts(recipe: Recipe, task: str) -> Parts:
    """The objects of a recipe for data of that task, all problems of their fields reported together."""
    model_class = registry.load("models", recipe.model.name)
    sampler_class = registry.load("samplers", recipe.sampler.name)
    prior_part = _named(recipe.prior, "normal")
    prior_class = registry.load("priors", prior_part.name)
    default = model_class.default_likelihood(task)
    likelihood_part = _named(recipe.likelihood, default)
    likelihood_class = registry.load("likelihoods", likelihood_part.name)
    model, sampler, prior, likelihood = build_all(
        [
            (model_class, recipe.model, "model"),
            (sampler_class, recipe.sampler, "sampler"),
            (prior_class, prior_part, "prior"),
            (likelihood_class, likelihood_part, "likelihood"),
        ]
    )
    if model.brings_likelihood:
        if recipe.likelihood is not None:
            raise UsageError(
                f"model {recipe.model.name} brings its own likelihood ({default}); leave --likelihood out "
                f"(its fields are the model's), or use mlp with --likelihood {likelihood_part.name}"
            )
        likelihood = model.own_likelihood()
    if likelihood.task != task:
        raise UsageError(
            f"likelihood {likelihood_part.name} is for {likelihood.task}, the data are for {task}; "
            f"use another --likelihood, or --task {likelihood.task}"
        )
    return Parts(model, sampler, likelihood, prior)


def fit_scaler(train: Dataset, likelihood: AbstractLikelihood, *, standardise: bool) -> Scaler:
    """The scaler of the training rows; targets that are counts or labels keep their units."""
    scaler = Scaler.fit(train, standardise)
    if likelihood.scales_targets:
        return scaler
    targets = len(train.target_names)
    return dataclasses.replace(scaler, y_mean=np.zeros(targets, np.float32), y_sd=np.ones(targets, np.float32))


def make_posterior(
    recipe: Recipe,
    parts: Parts,
    signature: Signature,
    scaler: Scaler,
    train: Dataset | None,
    fixed: Mapping[str, Array | np.ndarray] | None = None,
) -> NetworkPosterior:
    """The posterior on the training rows, or one without data that only predicts.

    Args:
        fixed: the trained values of what is not sampled, by name. With them, and nothing but the last layer sampled,
            the posterior on the training rows is that of the last layer, given the features.

    Raises:
        UsageError: if the recipe's `stochastic` names no parameter.
    """
    example = np.zeros((1, *signature.shape), signature.dtype)
    arranged = parts.model.arrange(example)
    num_targets = signature.num_classes or len(signature.target_names)
    network = parts.model.build(arranged.shape[1:], parts.likelihood.num_outputs(num_targets), key=jax.random.key(0))
    if train is None:
        x, y = arranged[:0], np.zeros((0,), np.float32)
    else:
        parts.likelihood.check(train.y, num_targets)
        scaled = scaler.apply(train)
        x, y = parts.model.arrange(scaled.x), scaled.y
    images = signature.dtype == "uint8"
    network = stochastic.with_leaves(network, fixed or {})
    split = parts.model.split(network)
    try:
        names = stochastic.sampled_names(recipe.stochastic, network, split and split[1])
    except UsageError as error:
        raise UsageError(f"{recipe.where.get('stochastic', 'stochastic')}: {error}") from None
    chosen = [leaf for name, leaf in named_leaves(network).items() if name in names]
    make = functools.partial(
        NetworkPosterior.of,
        likelihood=parts.likelihood,
        prior=parts.prior,
        y=_precise(y, recipe.precision),
        likelihood_power=recipe.likelihood_power,
        sampled=lambda leaf: any(leaf is one for one in chosen),
    )
    posterior = make(
        network,
        x=_precise(x, recipe.precision),
        input_mean=float(scaler.x_mean) if images else 0.0,
        input_sd=float(scaler.x_sd) if images else 1.0,
    )
    if not fixed or train is None or split is None:
        return posterior
    features, last = split
    if not names <= stochastic.last_names(network, last):
        return posterior
    # Parameters keep the names that they have in the whole network.
    return dataclasses.replace(make(last, x=np.asarray(posterior.features(features))), layout=posterior.layout)


def whole(problem: Problem) -> Problem:
    """The problem of one chain in which everything is sampled: what the fixed part is trained on."""
    recipe = dataclasses.replace(problem.recipe, stochastic="all", chains=1)
    posterior = make_posterior(recipe, problem.parts, problem.train.signature, problem.scaler, problem.train)
    return problem._replace(recipe=recipe, posterior=posterior)


def fix(problem: Problem, fixed: Mapping[str, Array | np.ndarray]) -> Problem:
    """The problem with trained values of what is not sampled."""
    recipe, parts, train, _, scaler, _ = problem
    return problem._replace(posterior=make_posterior(recipe, parts, train.signature, scaler, train, fixed))


def initial_positions(problem: Problem, *, trained: bool, key: PRNGKeyArray) -> Float[Array, "chain dim"]:
    """Where training starts (each chain's own initialisation of the network), or draws of the prior."""
    posterior, signature = problem.posterior, problem.train.signature
    shape = problem.parts.model.arrange(np.zeros((1, *signature.shape), signature.dtype)).shape[1:]
    num_outputs = problem.parts.likelihood.num_outputs(signature.num_classes or len(signature.target_names))

    def one(chain: Array) -> Float[Array, " dim"]:
        own = jax.random.fold_in(key, chain)
        if trained:
            return posterior.position(problem.parts.model.build(shape, num_outputs, key=own))
        return posterior.start(key=own)

    return jax.jit(jax.vmap(one))(jnp.arange(problem.recipe.chains, dtype=jnp.uint32))


def resolved(problem: Problem) -> dict[str, Any]:
    """The recipe with every field of every part written out: what the file stores and a repeat needs."""
    recipe, parts = problem.recipe, problem.parts
    fields: dict[str, Part | None] = {
        "model": _written(recipe.model.name, parts.model),
        "sampler": _written(recipe.sampler.name, parts.sampler),
        "prior": _written(_named(recipe.prior, "normal").name, parts.prior),
        "likelihood": None,
    }
    if not parts.model.brings_likelihood:
        name = _named(recipe.likelihood, type(parts.model).default_likelihood(problem.train.task)).name
        fields["likelihood"] = _written(name, parts.likelihood)
    whole: Any = {**fields, "task": problem.train.task, "init": recipe.init or "map"}
    return as_dict(dataclasses.replace(recipe, **whole))


def _written(name: str, part: Any) -> Part:
    return Part(name, {f.name: _plain(getattr(part, f.name)) for f in fields_of(type(part))}, {})


def _plain(value: Any) -> Any:
    if isinstance(value, np.floating):
        return float(str(value))  # the shortest text of a float32, not its float64 digits
    return list(value) if isinstance(value, tuple) else value


def _named(part: Part | None, default: str) -> Part:
    """A part with its name filled in where only fields were given."""
    if part is None:
        return Part(default, {}, {})
    return part if part.name else dataclasses.replace(part, name=default)


def _named_task(recipe: Recipe) -> str | None:
    """The task that an asked-for likelihood implies."""
    if recipe.likelihood is None or not recipe.likelihood.name:
        return None
    return registry.load("likelihoods", recipe.likelihood.name).task


def _precise(array: np.ndarray, precision: str) -> np.ndarray:
    return array.astype(precision) if np.issubdtype(array.dtype, np.floating) else array


def signature_words(signature: Signature) -> Mapping[str, Any]:
    """A signature as JSON can hold it."""
    return signature._asdict()


def signature_from(words: Mapping[str, Any]) -> Signature:
    """The signature that `signature_words` wrote."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in words.items()}
    return Signature(**values)
