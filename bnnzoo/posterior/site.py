"""The observed site of a NumPyro model: what it says of a row's target, given the row's inputs and a draw."""

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
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from numpyro import handlers

from bnnzoo.errors import UsageError
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.numpyro import NumpyroPosterior, is_observation
from bnnzoo.posterior.predicting import Task

_TRIED_ROWS = 50
"""At how many rows the site is held to the model's likelihood."""
_LABELS = (dist.BernoulliLogits, dist.BernoulliProbs, dist.CategoricalLogits, dist.CategoricalProbs)


class Argument(NamedTuple):
    """An argument of the model, with a row for each datum."""

    number: int
    """Which of the posterior's `data` it is."""
    name: str
    shape: tuple[int, ...]
    """Of one row."""
    dtype: Any

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def columns(self) -> tuple[str, ...]:
        """What the numbers of a row are called."""
        return tuple(f"{self.name}{i}" for i in range(self.size)) if self.shape else (self.name,)

    def of(self, row: Shaped[Array, "..."]) -> Shaped[Array, "1 ..."]:
        """The argument for one row alone."""
        return row.reshape(1, *self.shape).astype(jax.dtypes.canonicalize_dtype(self.dtype))


class Site(eqx.Module):
    """A NumPyro model as what predicts: the distribution of its one observed site, row by row.

    A row of inputs holds those of the model's arguments side by side; where there are none, it says nothing.
    """

    row: NumpyroPosterior
    """The posterior of one row, whose target stands in for those to be predicted."""
    layout: Layout = eqx.field(static=True)
    """The latent sites on their natural scale, as the file holds them."""
    name: str = eqx.field(static=True)
    observed: Argument = eqx.field(static=True)
    inputs: tuple[Argument, ...] = eqx.field(static=True)
    num_classes: int = eqx.field(static=True)
    """0 for numbers."""

    @classmethod
    def of(cls, posterior: NumpyroPosterior) -> Site:
        """What a posterior's predictions are of.

        Raises:
            UsageError: unless one site is observed, as its argument was given, whose rows each have a distribution of
                their own, of a label or with a mean and a variance.
        """
        if not posterior.by_row:
            raise UsageError(
                "predictions are of single rows, and the model's are not independent, or are no arguments of it: write "
                "it as model(x, y), where row i of y depends on row i of x and on what all rows share"
            )
        theta = posterior.start(key=jax.random.key(0))
        sites, _ = posterior.sites_at(theta, posterior.all_rows())
        seen, *others = [site for site in sites.values() if is_observation(site)]
        if others:
            names = " and ".join(site["name"] for site in (seen, *others))
            raise UsageError(
                f"predictions are of one observed site, and {names} are observed: observe the columns of one array"
            )
        arguments = _arguments(posterior)
        target = _observed(seen, arguments, posterior)
        blocks: list[Block] = []
        for name in (block.name for block in posterior.layout.blocks):
            blocks.append(Block(name, np.shape(sites[name]["value"]), blocks[-1].stop if blocks else 0))
        found = cls(
            row=dataclasses.replace(posterior, data=tuple(leaf[:1] for leaf in posterior.data)),
            layout=Layout(tuple(blocks)),
            name=seen["name"],
            observed=target,
            inputs=tuple(one for one in arguments if one is not target),
            num_classes=_num_classes(seen, target),
        )
        found._check(posterior, theta, {block.name: jnp.asarray(sites[block.name]["value"]) for block in blocks})
        return found

    @property
    def task(self) -> Task:
        return "classification" if self.num_classes else "regression"

    def predictive(
        self, natural: Float[Array, " dim"], x: Shaped[Array, "batch ..."]
    ) -> tuple[Given, Shaped[Array, "batch ..."]]:
        """The site by one draw on its natural scale, flattened; its outputs are the rows themselves."""
        return Given(self, self.layout.unflatten(natural)), x

    def x(self, posterior: NumpyroPosterior) -> Shaped[np.ndarray, "num_data ..."]:
        """The inputs of a posterior's rows; the targets where there are no inputs.

        Raises:
            UsageError: where an argument of more than two axes is not the only one.
        """
        given = {one.name: np.asarray(posterior.data[one.number]) for one in self.inputs or (self.observed,)}
        if len(given) == 1:
            return next(iter(given.values()))
        if wide := [name for name, values in given.items() if values.ndim > 2]:
            raise UsageError(f"argument {wide[0]} has more than two axes, and is not the only input: flatten its rows")
        return np.concatenate([values.reshape(len(values), -1) for values in given.values()], 1)

    def y(self, posterior: NumpyroPosterior) -> Shaped[np.ndarray, "num_data ..."]:
        """The targets of a posterior's rows."""
        return np.asarray(posterior.data[self.observed.number])

    def _check(self, posterior: NumpyroPosterior, theta: Float[Array, " dim"], values: dict[str, Array]) -> None:
        """Hold the distributions of single rows to the likelihood of all.

        Raises:
            UsageError: where they are not the same, or have no mean or variance.
        """
        some = np.arange(min(posterior.num_data, _TRIED_ROWS))
        x, y, given = jnp.asarray(self.x(posterior)[some]), jnp.asarray(self.y(posterior)[some]), Given(self, values)
        try:
            alone = jax.vmap(given.log_prob)(x, y)
            moments = jax.vmap(lambda row: (given.distribution(row).mean, given.distribution(row).variance))
            means = jnp.zeros(1) if self.num_classes else moments(x)[0]
        except NotImplementedError:
            alone, means = None, jnp.full(1, jnp.nan)
        except Exception as error:  # whatever a model of one row raises: an assertion of its own, a shape
            raise UsageError(
                f"predictions are of single rows, and the model cannot take one ({type(error).__name__}: "
                f"{' '.join(str(error).split())[:100]}): write it for any number of rows"
            ) from error
        if alone is None or jnp.isnan(means).any():
            raise UsageError(
                f"site {self.name}: its distribution has no mean or no variance, and predictions tell both: use "
                "another, such as StudentT with more than 2 degrees of freedom"
            )
        together = posterior.log_likelihood(theta, posterior.take(jnp.asarray(some)))
        if not np.allclose(alone, together, rtol=1e-3, atol=1e-3):
            raise UsageError(
                f"site {self.name}: a row's density is another alone than in the model: let its distribution depend on "
                "the row's other arguments, not on what is observed there, and leave scale and mask out"
            )


class Given(eqx.Module):
    """What the site says of the target of a row, by one draw."""

    site: Site
    values: dict[str, Array]
    """The latent sites."""

    def distribution(self, output: Shaped[Array, "..."]) -> dist.Distribution:
        """Of the target of one row of inputs: event shape `[target]`, or `[]` for a label."""
        row, flat, start = self.site.row, jnp.ravel(output), 0
        rows: list[Any] = list(row.data)
        for one in self.site.inputs:
            rows[one.number] = one.of(flat[start : start + one.size])
            start += one.size
        args, kwargs = row.arguments(tuple(rows))
        model = handlers.substitute(handlers.seed(row.model, 0), data=self.values)
        site = handlers.trace(model).get_trace(*args, **kwargs)[self.site.name]
        return _OneRow(site["fn"], self.site.observed, () if self.site.num_classes else (self.site.observed.size,))

    def log_prob(self, output: Shaped[Array, "..."], target: Shaped[Array, "*target"]) -> Float[Array, ""]:
        return jnp.asarray(self.distribution(output).log_prob(target))

    def sample(self, output: Shaped[Array, "..."], *, key: PRNGKeyArray) -> Shaped[Array, "*target"]:
        return jnp.asarray(self.distribution(output).sample(key))

    def class_probabilities(self, output: Shaped[Array, "..."]) -> Float[Array, " classes"]:
        labels = jnp.arange(self.site.num_classes)
        return jnp.exp(jax.vmap(self.distribution(output).log_prob)(labels))


class _OneRow(dist.Distribution):
    """The distribution of a batch of one row, as that of the row's target."""

    arg_constraints: Mapping[str, Any] = {}

    def __init__(self, rows: dist.Distribution, target: Argument, event_shape: tuple[int, ...]):
        # One distribution may be said of all rows: then it has no axis of them.
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
        return jnp.sum(jnp.asarray(self.rows.log_prob(self.target.of(jnp.asarray(value)))))

    def sample(self, key: PRNGKeyArray | None, sample_shape: tuple[int, ...] = ()) -> Array:
        return jnp.reshape(jnp.asarray(self.rows.sample(key, sample_shape)), sample_shape + self.event_shape)


def _arguments(posterior: NumpyroPosterior) -> list[Argument]:
    """Those with a row for each datum, in the order of the posterior's `data`."""
    marks = tuple(np.zeros(0) for _ in posterior.data)  # to be told apart by identity
    args, kwargs = posterior.arguments(marks)
    bound = inspect.signature(posterior.model).bind(*args, **kwargs).arguments
    paths = {id(leaf): path for path, leaf in jax.tree_util.tree_flatten_with_path(dict(bound))[0]}
    names = [jax.tree_util.keystr(paths[id(mark)], simple=True, separator="_") for mark in marks]
    leaves = [np.asarray(leaf) for leaf in posterior.data]
    return [Argument(i, name, a.shape[1:], a.dtype) for i, (name, a) in enumerate(zip(names, leaves, strict=True))]


def _observed(site: Mapping[str, Any], arguments: list[Argument], posterior: NumpyroPosterior) -> Argument:
    """The argument that a site observes.

    Raises:
        UsageError: where it is none, as it was given, or two.
    """
    value = np.asarray(site["value"])
    same = [one for one in arguments if np.array_equal(np.asarray(jnp.asarray(posterior.data[one.number])), value)]
    if len(same) != 1:
        raise UsageError(
            f"site {site['name']} observes none of the arguments as it was given, or two that are the same: give what "
            "it observes as one argument, obs=y"
        )
    return same[0]


def _num_classes(site: Mapping[str, Any], target: Argument) -> int:
    """Of a site of labels; 0 of one of numbers.

    Raises:
        UsageError: where a row has several labels, or numbers in more than one axis.
    """
    plain = site["fn"]
    while hasattr(plain, "base_dist") and not isinstance(plain, dist.TransformedDistribution):
        plain = plain.base_dist
    is_label = isinstance(plain, _LABELS)
    if len(target.shape) > 1 or (is_label and target.size > 1):
        raise UsageError(
            f"site {site['name']}: a row of {target.name} has shape {list(target.shape)}, and predictions are of one "
            "label, or of a vector of numbers: give each row one"
        )
    return len(plain.enumerate_support(expand=False)) if is_label else 0
