"""Construction of the posterior of a network from a recipe and its training rows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from math import prod

import jax
import numpy as np
from jaxtyping import Array

from bnnzoo.assembly import units
from bnnzoo.assembly.description import Description, with_precision
from bnnzoo.assembly.recipe_parts import (
    check_likelihood,
    check_prior,
    compilable_likelihood,
    compilable_prior,
)
from bnnzoo.data import Dataset
from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.files import mapped
from bnnzoo.models import network_checks, network_size
from bnnzoo.posterior import NetworkPosterior, stochastic
from bnnzoo.posterior.censored import uncensored
from bnnzoo.posterior.layout import named_leaves, network_layout
from bnnzoo.posterior.subspace import COORDINATES, InducedNormal, SubspaceChoice, SubspaceNetwork
from bnnzoo.recipe import Recipe


def subspace_choice(recipe: Recipe) -> SubspaceChoice | None:
    """Return the subspace in which the recipe samples, or None if the recipe samples the parameters themselves.

    Raises:
        UsageError: if the threshold in the option `stochastic`, which determines the subspace, is invalid.
    """
    with _naming_the_option(recipe):
        return SubspaceChoice.from_option(recipe.stochastic)


@contextlib.contextmanager
def _naming_the_option(recipe: Recipe) -> Iterator[None]:
    """Return a context that puts the place of the option `stochastic` before the message of a `UsageError`."""
    try:
        yield
    except DamagedError:
        raise
    except UsageError as error:
        raise UsageError(f"{recipe.where.get('stochastic', 'stochastic')}: {error}") from None


def build_posterior(
    recipe: Recipe, description: Description, train: Dataset | None, fixed: Mapping[str, Array | np.ndarray]
) -> NetworkPosterior:
    """Return the posterior given the training rows, or a posterior without data, which can only predict.

    If only the last layer is sampled and `fixed` contains the other parameters, the result is the posterior of the last
    layer alone. The data of this posterior are the inputs of the last layer (the features). Without training rows, and
    for rows in temporary files, the result is always the posterior of the full network.

    Args:
        recipe: the resolved recipe.
        description: the parts, the signature and the scaler.
        train: the training rows; None for a posterior without data.
        fixed: the values of the parameters that are trained but not sampled, by name. If a subspace is sampled, `fixed`
            contains the arrays that define the subspace.

    Raises:
        UsageError: if a part cannot be used for the data, if `stochastic` names no parameter of the network, or if
            `other_directions` is set without a subspace.
        DamagedError: if the arrays in `fixed` do not define a subspace of the network.
    """
    parts, signature, scaler = description
    likelihood = units.in_network_units(parts.likelihood, scaler, recipe.units)
    architecture = description.architecture
    network_size.check(recipe.model.name, lambda: architecture.build(key=jax.random.key(0)))
    network = architecture.build(key=jax.random.key(0))
    network_checks.check(parts.model, network, architecture, type(uncensored(parts.likelihood)).__name__)
    subspace, prior = subspace_choice(recipe), parts.prior
    if subspace is None and recipe.other_directions != "fixed":
        raise UsageError(
            f"[[other_directions={recipe.other_directions}]]: requires [[stochastic=identified]] or linearised"
        )
    if subspace is None:
        network = stochastic.with_leaves(network, fixed)
    if train is None:
        x, y = description.example[:0], np.zeros((0,), np.float32)
    else:
        parts.likelihood.check(train.y, signature.num_targets)
        scaled = scaler.apply(train)
        x, y = parts.model.arrange(scaled.x), scaled.y
        check_likelihood(likelihood, signature.num_targets, y)
    split = parts.model.split(network) if subspace is None else None
    with _naming_the_option(recipe):
        if subspace is None:
            names = stochastic.sampled_names(recipe.stochastic, network, split and split[1])
        else:
            check_prior(prior, network_layout(network))
            num_own = sum(prod(parameter.shape) for parameter in likelihood.parameters())
            network = SubspaceNetwork.restrict(network, fixed, num_own=num_own, is_linearised=subspace.is_linearised)
            prior, names = InducedNormal.of_subspace(prior, network), frozenset({COORDINATES})
    sampled_leaves = [leaf for name, leaf in named_leaves(network).items() if name in names]

    def is_sampled(leaf: object) -> bool:
        return any(leaf is sampled_leaf for sampled_leaf in sampled_leaves)

    sampled = network_layout(network, is_sampled)
    check_prior(prior, sampled)
    build = functools.partial(
        NetworkPosterior.of,
        likelihood=compilable_likelihood(likelihood, signature),
        prior=compilable_prior(prior, sampled),
        y=with_precision(y, recipe.precision),
        likelihood_power=recipe.likelihood_power,
        sampled=is_sampled,
        has_exposure=bool(signature.exposure),
    )
    # Images in uint8 keep this type on the device, because float32 needs four times the memory. The posterior scales
    # the images.
    has_byte_images = signature.dtype == "uint8"
    has_mapped_rows = train is not None and mapped.is_mapped(train.x)
    posterior = build(
        network,
        x=with_precision(x, recipe.precision),
        input_mean=float(scaler.x_mean) if has_byte_images else 0.0,
        input_sd=float(scaler.x_sd) if has_byte_images else 1.0,
    )
    if has_mapped_rows:
        # The features of all rows would take more memory than the inputs.
        return dataclasses.replace(posterior, adds_by_block=True)
    if not fixed or train is None or split is None:
        return posterior
    features, last = split
    if not names <= stochastic.last_names(network, last):
        return posterior
    # The parameters of the last layer have the names that they have in the full network.
    return dataclasses.replace(build(last, x=np.asarray(posterior.features(features))), layout=posterior.layout)
