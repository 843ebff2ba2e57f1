"""The observed site of a NumPyro model (`numpyro.sample(..., obs=y)`), for predictions of a target from its row."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped
from numpyro import handlers

from bnnzoo.errors import UsageError
from bnnzoo.posterior import marginals
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.numpyro import NumpyroPosterior, is_observation
from bnnzoo.posterior.predicting import Task

_TRIED_ROWS = 50
"""Largest number of rows at which the density of the site is compared with the likelihood of the model."""
_LABELS = (dist.BernoulliLogits, dist.BernoulliProbs, dist.CategoricalLogits, dist.CategoricalProbs)


class Argument(NamedTuple):
    """An argument of the model that has one row for each datum."""

    number: int
    """Index of the argument in the posterior's `data`."""
    name: str
    shape: tuple[int, ...]
    """Shape of one row."""
    dtype: Any

    @property
    def size(self) -> int:
        """Number of values in a row."""
        return prod(self.shape)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the values of a row."""
        return tuple(f"{self.name}{i}" for i in range(self.size)) if self.shape else (self.name,)

    def of_row(self, row: Shaped[Array, "..."]) -> Shaped[Array, "1 ..."]:
        """Return the row as an argument for a model that is called with this row only."""
        return row.reshape(1, *self.shape).astype(jax.dtypes.canonicalize_dtype(self.dtype))


class Site(eqx.Module):
    """The observed site of a NumPyro model, which predicts the distribution of each row's target.

    A row of inputs is the concatenation of the rows of the model's input arguments. If the model has no input
    arguments, inputs are ignored.
    """

    row: NumpyroPosterior
    """Posterior with a single row as data. A prediction replaces the inputs of this row by those of the new row."""
    layout: Layout = eqx.field(static=True)
    """Layout of the latent sites on their natural scale, as the result file stores them."""
    name: str = eqx.field(static=True)
    observed: Argument = eqx.field(static=True)
    inputs: tuple[Argument, ...] = eqx.field(static=True)
    num_classes: int = eqx.field(static=True)
    """Number of classes; 0 for a numeric target."""

    @classmethod
    def from_posterior(cls, posterior: NumpyroPosterior) -> Site:
        """Construct the site of a posterior.

        Raises:
            UsageError: if the rows are not independent, if several sites are observed, or if the observed values are
                not exactly one of the arguments. Also if the targets or one of several inputs have more than two axes,
                if a row has several labels, or if a numeric target has no mean or variance. Also if the model fails for
                a single row, or if the density of a row then changes.
        """
        if not posterior.by_row:
            raise UsageError(
                "cannot predict single rows: the rows of the model are not independent, or are not arguments of the "
                "model; write the model as model(x, y), where row i of y depends only on row i of x and on parameters "
                "that all rows share"
            )
        theta = posterior.start(key=jax.random.key(0))
        sites, _ = posterior.sites_at(theta, posterior.all_rows())
        observed_site, *other_sites = [site for site in sites.values() if is_observation(site)]
        if other_sites:
            names = " and ".join(site["name"] for site in (observed_site, *other_sites))
            raise UsageError(
                f"cannot predict several observed sites ({names}); observe all targets at one site, as one array"
            )
        arguments = _arguments(posterior)
        target = _observed(observed_site, arguments, posterior)
        blocks: list[Block] = []
        for name in (block.name for block in posterior.layout.blocks):
            blocks.append(Block(name, np.shape(sites[name]["value"]), blocks[-1].stop if blocks else 0))
        site = cls(
            row=dataclasses.replace(posterior, data=tuple(leaf[:1] for leaf in posterior.data)),
            layout=Layout(tuple(blocks)),
            name=observed_site["name"],
            observed=target,
            inputs=tuple(argument for argument in arguments if argument is not target),
            num_classes=_num_classes(observed_site, target),
        )
        site._check(posterior, theta, {block.name: jnp.asarray(sites[block.name]["value"]) for block in blocks})
        return site

    @property
    def task(self) -> Task:
        """Kind of the target: classification if the site has classes, else regression."""
        return "classification" if self.num_classes else "regression"

    def predictive(
        self, natural: Float[Array, " dim"], x: Shaped[Array, "batch ..."]
    ) -> tuple[SiteDistribution, Shaped[Array, "batch ..."]]:
        """Return two values: the distribution of the site given a draw, and `x` in place of network outputs."""
        return SiteDistribution(self, self.layout.unflatten(natural)), x

    def x(self, posterior: NumpyroPosterior) -> Shaped[np.ndarray, "num_data ..."]:
        """Return the inputs of a posterior's rows. If the model has no inputs, return the targets instead.

        Raises:
            UsageError: if there are several inputs and one of them has more than two axes.
        """
        input_arrays = {
            argument.name: np.asarray(posterior.data[argument.number]) for argument in self.inputs or (self.observed,)
        }
        if len(input_arrays) == 1:
            return next(iter(input_arrays.values()))
        if wide_inputs := [name for name, values in input_arrays.items() if values.ndim > 2]:
            raise UsageError(
                f"argument {wide_inputs[0]} has more than two axes and is not the only input; reshape it "
                "to [row, column]"
            )
        return np.concatenate([values.reshape(len(values), -1) for values in input_arrays.values()], 1)

    def y(self, posterior: NumpyroPosterior) -> Shaped[np.ndarray, "num_data ..."]:
        """Return the targets of a posterior's rows."""
        return np.asarray(posterior.data[self.observed.number])

    def _check(self, posterior: NumpyroPosterior, theta: Float[Array, " dim"], values: dict[str, Array]) -> None:
        """Check that the density of a row is the same if the model is called with this row only.

        At most `_TRIED_ROWS` rows are checked.

        Raises:
            UsageError: if a density differs, if the model fails for a single row, or if a numeric target has no mean or
                variance.
        """
        checked_rows = np.arange(min(posterior.num_data, _TRIED_ROWS))
        x, y = (jnp.asarray(rows[checked_rows]) for rows in (self.x(posterior), self.y(posterior)))
        distribution = SiteDistribution(self, values)
        try:
            single_densities = jax.vmap(distribution.log_prob)(x, y)
            moments = jax.vmap(
                lambda row: (distribution.distribution(row).mean, distribution.distribution(row).variance)
            )
            means = jnp.zeros(1) if self.num_classes else moments(x)[0]
        except NotImplementedError:
            single_densities, means = None, jnp.full(1, jnp.nan)
        except Exception as error:  # a model may raise any error if it is called with one row
            raise UsageError(
                f"cannot predict single rows: the model fails if it is called with one row ({type(error).__name__}: "
                f"{' '.join(str(error).split())[:100]}); change the model so that the number of rows may be 1"
            ) from error
        if single_densities is None or jnp.isnan(means).any():
            raise UsageError(
                f"site {self.name}: its distribution must have a mean and a variance, because predictions "
                "report both; use another distribution, such as StudentT with more than 2 degrees of freedom"
            )
        joint_densities = posterior.log_likelihood(theta, posterior.take(jnp.asarray(checked_rows)))
        if not np.allclose(single_densities, joint_densities, rtol=1e-3, atol=1e-3):
            raise UsageError(
                f"site {self.name}: the density of a row changes if the model is called with this row only; its "
                "distribution must depend only on the inputs of the row, not on observed values; remove "
                "handlers.scale and handlers.mask"
            )


class SiteDistribution(eqx.Module):
    """The distribution of a row's target given one draw."""

    site: Site
    values: dict[str, Array]
    """Values of the latent sites."""

    def distribution(self, output: Shaped[Array, "..."]) -> dist.Distribution:
        """Return the distribution of one row's target, with event shape `[target]`, or `[]` for a label."""
        row, flat_output, start = self.site.row, jnp.ravel(output), 0
        rows: list[Any] = list(row.data)
        for argument in self.site.inputs:
            rows[argument.number] = argument.of_row(flat_output[start : start + argument.size])
            start += argument.size
        args, kwargs = row.arguments(tuple(rows))
        model = handlers.substitute(handlers.seed(row.model, 0), data=self.values)
        site = handlers.trace(model).get_trace(*args, **kwargs)[self.site.name]
        return _OneRow(site["fn"], self.site.observed, () if self.site.num_classes else (self.site.observed.size,))

    def log_prob(self, output: Shaped[Array, "..."], target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        """Return the log density of one row's target."""
        return jnp.asarray(self.distribution(output).log_prob(target))

    def sample(self, output: Shaped[Array, "..."], *, key: PRNGKeyArray) -> Shaped[Array, "*target"]:
        """Draw one row's target."""
        return jnp.asarray(self.distribution(output).sample(key))

    def class_probabilities(self, output: Shaped[Array, "..."]) -> Float[Array, " classes"]:
        """Return the probability of each class."""
        labels = jnp.arange(self.site.num_classes)
        return jnp.exp(jax.vmap(self.distribution(output).log_prob)(labels))


class _OneRow(dist.Distribution):
    """The distribution of one row's target, without the row axis of the batch that contains only this row."""

    arg_constraints: Mapping[str, Any] = {}

    def __init__(self, rows: dist.Distribution, target: Argument, event_shape: tuple[int, ...]):
        # If the model gives one distribution for all rows, this distribution has no row axis.
        batch = (1, *target.shape)[: 1 + len(target.shape) - rows.event_dim]
        self.rows, self.target = rows if rows.batch_shape == batch else rows.expand(batch), target
        super().__init__(batch_shape=(), event_shape=event_shape)

    @property
    def mean(self) -> Array:
        return jnp.reshape(self.rows.mean, self.event_shape)

    @property
    def variance(self) -> Array:
        return jnp.reshape(self.rows.variance, self.event_shape)

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        del intermediates
        return jnp.sum(jnp.asarray(self.rows.log_prob(self.target.of_row(jnp.asarray(value)))))

    @property
    def is_discrete(self) -> bool:
        return marginals.is_discrete(self.rows)

    def marginal_cdf(self, value: Float[Array, " target"]) -> Float[Array, " target"]:
        """Return P(Y <= value) of each target."""
        cdf = marginals.marginal_cdf(self.rows, jnp.reshape(value, (1, *self.target.shape)))
        return jnp.reshape(cdf, self.event_shape)

    def in_support(self, value: Float[Array, " target"]) -> Bool[Array, " target"]:
        """Whether each value is in the support of the site."""
        is_inside = marginals.in_support(self.rows, jnp.reshape(value, (1, *self.target.shape)))
        return jnp.reshape(is_inside, self.event_shape)

    def sample(self, key: PRNGKeyArray | None, sample_shape: tuple[int, ...] = ()) -> Array:
        return jnp.reshape(jnp.asarray(self.rows.sample(key, sample_shape)), sample_shape + self.event_shape)


def _arguments(posterior: NumpyroPosterior) -> list[Argument]:
    """Return the arguments that have a row for each datum, in the order of the posterior's `data`."""
    placeholders = tuple(np.zeros(0) for _ in posterior.data)  # identified by `id`
    args, kwargs = posterior.arguments(placeholders)
    bound_arguments = inspect.signature(posterior.model).bind(*args, **kwargs).arguments
    paths = {id(leaf): path for path, leaf in jax.tree_util.tree_flatten_with_path(dict(bound_arguments))[0]}
    names = [jax.tree_util.keystr(paths[id(placeholder)], simple=True, separator="_") for placeholder in placeholders]
    leaves = [np.asarray(leaf) for leaf in posterior.data]
    return [Argument(i, name, a.shape[1:], a.dtype) for i, (name, a) in enumerate(zip(names, leaves, strict=True))]


def _observed(site: Mapping[str, Any], arguments: list[Argument], posterior: NumpyroPosterior) -> Argument:
    """Return the argument that a site observes.

    Raises:
        UsageError: if no argument equals the observed values, or if several arguments do.
    """
    value = np.asarray(site["value"])
    matching = [
        argument
        for argument in arguments
        if np.array_equal(np.asarray(jnp.asarray(posterior.data[argument.number])), value)
    ]
    if len(matching) != 1:
        raise UsageError(
            f"site {site['name']}: the observed values must equal exactly one argument y of the model; pass y to the "
            "model only once, and observe it unchanged, as obs=y"
        )
    return matching[0]


def _num_classes(site: Mapping[str, Any], target: Argument) -> int:
    """Return the number of classes of a site; 0 if its values are numeric.

    Raises:
        UsageError: if the target of a row is several labels, or an array of numbers with more than one axis.
    """
    base_distribution = site["fn"]
    while hasattr(base_distribution, "base_dist") and not isinstance(base_distribution, dist.TransformedDistribution):
        base_distribution = base_distribution.base_dist
    is_label = isinstance(base_distribution, _LABELS)
    if len(target.shape) > 1 or (is_label and target.size > 1):
        raise UsageError(
            f"site {site['name']}: a row of {target.name} has shape {list(target.shape)}, but predictions need "
            f"one label or a vector of numbers per row; reshape {target.name} to [row] (labels) or [row, target]"
        )
    return len(base_distribution.enumerate_support(expand=False)) if is_label else 0
