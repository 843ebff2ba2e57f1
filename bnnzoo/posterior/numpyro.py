"""The posterior of a NumPyro model function, for any sampler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.distribution import Unit
from numpyro.distributions.util import sum_rightmost
from numpyro.infer.util import initialize_model

from bnnzoo.errors import UsageError
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.posterior.layout import Block, Layout

_REACH = 2.0
"""Largest absolute coordinate of an initial position in unconstrained space, as in Stan."""


_FILE_NAME = re.compile(r"(?!(?:chain|draw)$)[^/.\x00][^/\x00]{0,179}")


class NumpyroPosterior(AbstractPosterior):
    """The posterior of the latent sites of a NumPyro model, sampled in unconstrained space.

    Construct it with `NumpyroPosterior.of(model, *args, **kwargs)`. The result file stores the latent sites on their
    natural scale, and the sites of `numpyro.deterministic`. If the observations in different rows of the model's
    arguments are independent, each row is a datum. Otherwise all observations form a single datum, and mini-batches are
    not possible.
    """

    data: tuple[Array | np.ndarray, ...]
    others: Any
    """Leaves of the model's arguments, with None in place of the leaves in `data`."""
    likelihood_power: Number
    model: Callable = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)
    by_row: bool = eqx.field(static=True)
    """Whether each row is a datum; if false, all observations form a single datum."""
    _tree: Any = eqx.field(static=True)
    _is_row: tuple[bool, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, model: Callable, *args: Any, **kwargs: Any) -> NumpyroPosterior:
        """Construct the posterior of `model(*args, **kwargs)`, given its observed sites.

        Raises:
            UsageError: if a latent site is discrete, if no site is observed, or if the model contains a subsampled
                plate, a parameter without a prior (`numpyro.param`) or an invalid name of a site. Also if an argument
                contains values that are not finite, if no argument is an array, or if NumPyro finds no initial position
                with a finite density.
        """
        trace = handlers.trace(handlers.seed(model, 0)).get_trace(*args, **kwargs)
        _check_sites(trace.values())
        sites = [site for site in trace.values() if site["type"] == "sample"]
        discrete = [site["name"] for site in sites if not site["is_observed"] and site["fn"].support.is_discrete]
        if discrete:
            raise UsageError(f"site {discrete[0]} is discrete and has no gradient; sum over its values in the model")
        observed = [site for site in sites if is_observation(site)]
        if not observed:
            raise UsageError(
                "the model has no observed site; set obs=y for a site, and pass y to the model as an argument"
            )
        for name, argument in {**{str(place): value for place, value in enumerate(args, 1)}, **kwargs}.items():
            for leaf in jax.tree.leaves(argument):
                if isinstance(leaf, jax.Array | np.ndarray) and leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                    raise UsageError(
                        f"argument {name}: contains values that are not finite numbers; remove the rows with "
                        "these values"
                    )
        try:
            initial = initialize_model(jax.random.key(0), model, model_args=args, model_kwargs=kwargs)
        except RuntimeError as error:
            raise UsageError(
                f"the model has no finite density at any initial position that NumPyro tried ({error}); check the "
                "priors, and that the data are in the support of the observed site"
            ) from error
        unconstrained = initial.param_info.z
        blocks: list[Block] = []
        for name, value in unconstrained.items():
            blocks.append(Block(name, np.shape(value), blocks[-1].stop if blocks else 0))
        layout = Layout(tuple(blocks))

        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        rows = {np.shape(site["value"])[:1] for site in observed}
        count = rows.pop() if len(rows) == 1 else ()
        is_row = tuple(is_array and np.shape(leaf)[:1] == count for is_array, leaf in zip(arrays, leaves, strict=True))

        def build(by_row: bool, is_row: tuple[bool, ...]) -> NumpyroPosterior:
            rows, others = eqx.partition(leaves, list(is_row))
            row_leaves = map(np.asarray, filter(lambda leaf: leaf is not None, rows))
            return cls(
                data=tuple(row_leaves if by_row else (leaf[None] for leaf in row_leaves)),
                others=others,
                likelihood_power=np.float32(1.0),
                model=model,
                layout=layout,
                by_row=by_row,
                _tree=tree,
                _is_row=is_row,
            )

        if count and any(is_row):
            candidate = build(True, is_row)
            if candidate._rows_are_independent():
                return candidate
        if not any(arrays):
            argument_types = ", ".join(type(leaf).__name__ for leaf in (*args, *kwargs.values())) or "none"
            raise UsageError(
                "the arguments of the model must contain the data as arrays, as in NumpyroPosterior.of(model, x, y) "
                f"(got {argument_types})"
            )
        return build(False, tuple(arrays))

    def _rows_are_independent(self) -> bool:
        """Whether the prior and the log-likelihood of each row stay the same if other rows are removed."""
        if self.num_data < 2:
            return False
        # Every parameter is tested at two nonzero values with opposite signs, because a term that couples rows may be
        # proportional to a parameter.
        key_size, key_sign = jax.random.split(jax.random.key(0))
        size = jax.random.uniform(key_size, (self.layout.dim,), minval=0.5, maxval=1.5)
        theta = size * jax.random.rademacher(key_sign, size.shape, size.dtype)
        try:
            return all(self._rows_are_independent_at(place) for place in (theta, -theta))
        except (ValueError, TypeError, KeyError):
            return False  # the model fails on a part of the rows: it has one latent site per row, or a fixed length

    def _rows_are_independent_at(self, theta: Float[Array, " dim"]) -> bool:
        halves = [np.arange(first, self.num_data, 2) for first in (0, 1)]
        subsets = [self.data, *(self.take(jnp.asarray(half)) for half in halves)]
        all_values, *parts = (self.log_likelihood(theta, rows) for rows in subsets)
        prior, *priors = (self._densities(theta, rows)[0] for rows in subsets)
        return all_values.shape == (self.num_data,) and all(
            part.shape == half.shape
            and np.allclose(all_values[half], part, rtol=1e-4, atol=1e-5)
            and np.allclose(prior, subset_prior, rtol=1e-5, atol=1e-5)
            for half, part, subset_prior in zip(halves, parts, priors, strict=True)
        )

    def arguments(self, rows: tuple[Array | np.ndarray, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the model's arguments, with `rows` in place of `data`."""
        remaining_rows = iter(rows)
        leaves = [
            next(remaining_rows) if is_row_leaf else fixed_leaf
            for is_row_leaf, fixed_leaf in zip(self._is_row, self.others, strict=True)
        ]
        return jax.tree.unflatten(self._tree, leaves)

    def sites_at(
        self, theta: Float[Array, " dim"], rows: tuple[Array | np.ndarray, ...]
    ) -> tuple[dict[str, Any], list[Array]]:
        """Return the model's sites at the position `theta`, and the log Jacobian determinants of their transforms."""
        values = self.layout.unflatten(theta)
        determinants: list[Array] = []

        def constrained(site: Mapping[str, Any]) -> Array | None:
            if site["type"] != "sample" or site["name"] not in values:
                return None
            transform = biject_to(site["fn"].support)
            u = values[site["name"]]
            value = transform(u)
            determinants.append(jnp.sum(jnp.asarray(transform.log_abs_det_jacobian(u, value))))
            return value

        args, kwargs = self.arguments(rows)
        model = handlers.substitute(handlers.seed(self.model, 0), substitute_fn=constrained)
        return handlers.trace(model).get_trace(*args, **kwargs), determinants

    def _densities(
        self, theta: Float[Array, " dim"], rows: tuple[Array | np.ndarray, ...]
    ) -> tuple[Float[Array, ""], list[Float[Array, "..."]]]:
        """Return the log prior of the unconstrained position, and the log density of each observed site."""
        sites, determinants = self.sites_at(theta, rows)
        prior = jnp.sum(jnp.asarray(determinants))
        observed: list[Array] = []
        for site in sites.values():
            if site["type"] != "sample":
                continue
            density = jnp.asarray(site["fn"].log_prob(site["value"]))
            density = density if site["scale"] is None else site["scale"] * density
            if is_observation(site):
                observed.append(density)
            else:
                prior = prior + jnp.sum(density)
        return prior, observed

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return the log prior of the unconstrained position, including Jacobians and `numpyro.factor` terms."""
        return self._densities(theta, self._all_arguments())[0]

    def log_likelihood(
        self, theta: Float[Array, " dim"], batch: tuple[Array | np.ndarray, ...]
    ) -> Float[Array, " batch"]:
        """Return the log-likelihood of each row. If the rows are not independent, return one value for all of them."""
        if self.by_row:
            _, observed = self._densities(theta, batch)
            return sum(
                (sum_rightmost(site_density, site_density.ndim - 1) for site_density in observed[1:]),
                sum_rightmost(observed[0], observed[0].ndim - 1),
            )

        def total_density(rows: tuple[Array | np.ndarray, ...]) -> Float[Array, ""]:
            return sum((jnp.sum(d) for d in self._densities(theta, rows)[1]), jnp.zeros(()))

        return jax.vmap(total_density)(batch)

    def minibatch(self, size: int, *, replace: bool = True, key: PRNGKeyArray) -> Any:
        """Draw `size` rows uniformly, with or without replacement.

        Raises:
            UsageError: if the model's rows are not independent.
        """
        if not self.by_row:
            raise UsageError(
                "the model's rows are not independent, so mini-batches are not possible; use a sampler that "
                "uses all data at each step, such as nuts"
            )
        return super().minibatch(size, replace=replace, key=key)

    def _all_arguments(self) -> tuple[Array, ...]:
        """Return the arguments that are data, in their original shape."""
        return tuple(jnp.asarray(leaf) if self.by_row else jnp.asarray(leaf)[0] for leaf in self.data)

    def natural(self, draws: Float[np.ndarray, "*lead dim"]) -> dict[str, np.ndarray]:
        """Return the values of the latent and deterministic sites for each draw, on their natural scale."""
        lead = draws.shape[:-1]
        values = _natural(self, jnp.asarray(draws).reshape(-1, draws.shape[-1]))
        return {name: np.asarray(value).reshape(*lead, *value.shape[1:]) for name, value in values.items()}

    def start(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Draw an initial position uniformly on [-2, 2] in unconstrained space."""
        return jax.random.uniform(key, (self.layout.dim,), self.dtype, -_REACH, _REACH)


@eqx.filter_jit
def _natural(posterior: NumpyroPosterior, draws: Float[Array, "draw dim"]) -> dict[str, Array]:
    """Return the values of the latent and deterministic sites for each draw."""

    def natural_sites(theta: Float[Array, " dim"]) -> dict[str, Array]:
        sites, _ = posterior.sites_at(theta, posterior._all_arguments())
        stored_sites = {name: site for name, site in sites.items() if site["type"] == "deterministic" or name in names}
        return {name: jnp.asarray(site["value"]) for name, site in stored_sites.items()}

    names = {block.name for block in posterior.layout.blocks}
    return jax.lax.map(natural_sites, draws, batch_size=64)


def is_observation(site: Mapping[str, Any]) -> bool:
    """Whether a site is an observation. A `numpyro.factor` is not an observation; its terms belong to the prior."""
    return site["type"] == "sample" and site["is_observed"] and not isinstance(site["fn"], Unit)


def _check_sites(sites: Iterable[Mapping[str, Any]]) -> None:
    """Check the sites of a model.

    Raises:
        UsageError: if a plate is subsampled, if a parameter has no prior, or if a result file cannot contain the name
            of a site.
    """
    for site in sites:
        name = site["name"]
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise UsageError(
                f"plate {name}: subsample_size is not supported; remove it, because the sampler draws the mini-batches"
            )
        if site["type"] == "param":
            raise UsageError(f"param {name} has no prior; use numpyro.sample({name!r}, ...) instead")
        if site["type"] in ("sample", "deterministic") and not _FILE_NAME.fullmatch(name):
            raise UsageError(
                f"site {name!r}: a result file cannot contain this name; use at most 180 characters, no /, and "
                "no dot at the start; the names chain and draw are reserved; with handlers.scope, set divider='_'"
            )
