"""Small test posteriors (targets) with known moments. A sampler step on a target is fast."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

from bnnzoo.models import Linear
from bnnzoo.posterior import AbstractPosterior, Data, NetworkPosterior
from bnnzoo.posterior.hyperparameter import Number
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal


@dataclasses.dataclass(frozen=True)
class Target:
    """A test posterior, the quantities that are computed from its draws, and their exact moments.

    Attributes:
        look: a function that computes the quantities `[..., quantity]` from positions `[..., dim]`.
        start: a function that returns initial positions `[chain, dim]`. They are overdispersed relative to the
            posterior, so that stuck chains are detected.
        cdf: the exact distribution function of each quantity; None if it is unknown.
        log_evidence: log p(D); None if it is unknown.
    """

    name: str
    posterior: AbstractPosterior
    quantities: tuple[str, ...]
    mean: Float[np.ndarray, " quantity"]
    covariance: Float[np.ndarray, "quantity quantity"]
    start: Callable[[np.random.Generator, int], Float[np.ndarray, "chain dim"]]
    look: Callable[[np.ndarray], np.ndarray] = lambda theta: theta
    cdf: Callable[[np.ndarray], np.ndarray] | None = None
    log_evidence: float | None = None

    @property
    def sd(self) -> Float[np.ndarray, " quantity"]:
        """Standard deviations of the quantities."""
        return np.sqrt(np.diag(self.covariance))


class AbstractStandardNormal(AbstractPosterior):
    """A posterior with the prior N(0, I)."""

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return log N(theta; 0, I) up to a constant."""
        return -jnp.sum(theta**2) / 2

    def sample_prior(self, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Draw theta from N(0, I)."""
        return jax.random.normal(key, (self.layout.dim,))


class GaussianMean(AbstractStandardNormal):
    """Posterior of the mean theta of a Gaussian: x_i ~ N(theta, (W' W)^-1) with theta ~ N(0, I).

    W is the matrix `whitening`. `data` contains the columns of the whitened data x W'.
    """

    data: tuple[Float[np.ndarray | Array, " num_data"], ...]
    likelihood_power: Number
    layout: Layout = eqx.field(static=True)
    whitening: Float[np.ndarray | Array, "dim dim"]

    def log_likelihood(
        self, theta: Float[Array, " dim"], batch: tuple[Float[np.ndarray | Array, " batch"], ...]
    ) -> Float[Array, " batch"]:
        """Return the log-likelihood of each datum up to a constant."""
        # The columns are computed separately, because a short last axis would make the gradient ten times slower.
        centre = self.whitening @ theta
        squares = [(jnp.asarray(column) - centre[i]) ** 2 for i, column in enumerate(batch)]
        return -sum(squares[1:], squares[0]) / 2

    def log_likelihood_bounds(self, batch: tuple[Float[np.ndarray | Array, " batch"], ...]) -> Float[Array, " batch"]:
        """Return an upper bound of the log-likelihood of each datum: 0."""
        return jnp.zeros(batch[0].shape[0])


class Skewed(AbstractPosterior):
    """Posterior of one datum with log-likelihood theta - e^theta and a flat prior. e^theta is distributed as Exp(1)."""

    data: Float[np.ndarray | Array, "one one"]
    likelihood_power: Number
    layout: Layout = eqx.field(static=True)

    def log_prior(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """Return 0: the prior is flat."""
        return jnp.zeros((), theta.dtype) * theta[0]

    def log_likelihood(
        self, theta: Float[Array, " dim"], batch: Float[np.ndarray | Array, "batch one"]
    ) -> Float[Array, " batch"]:
        """Return theta - e^theta for each datum."""
        return (theta[0] - jnp.exp(theta[0])) * jnp.ones(batch.shape[0], theta.dtype)


HIDDEN, NOISE = 16, 0.2
NETWORK_AT = np.array([-0.25, 0.25, 1.0, 1.5], np.float32)
NETWORK_MEAN = np.array([0.03063, 0.30810, 0.19962, 0.13584])
NETWORK_SD = np.array([0.15634, 0.15104, 0.17460, 0.30148])
NETWORK_CORRELATION = np.array(
    [
        [1.0, 0.37867, -0.03522, -0.03434],
        [0.37867, 1.0, 0.10776, -0.08136],
        [-0.03522, 0.10776, 1.0, 0.77791],
        [-0.03434, -0.08136, 0.77791, 1.0],
    ]
)
"""Posterior moments of f at the inputs `NETWORK_AT`, with standard errors of at most 5e-5.

For fixed u and a, `SmallNetwork` is linear in v and b, so the moments given (u, a) have a closed form. These moments
were averaged over 2e7 prior draws of (u, a). The weight of each draw is the evidence given (u, a).
"""


class SmallNetwork(AbstractStandardNormal):
    """Posterior of a network f(x) = b + sum_j v_j tanh(u_j x + a_j) with 16 hidden units, for five rows of data.

    The noise of the targets has the sd 0.2. The priors are u, a ~ N(0, 2^2), v ~ N(0, 1/16) and b ~ N(0, 1). theta
    contains the parameters divided by their prior standard deviations, so its prior is N(0, I).
    """

    data: Data
    likelihood_power: Number
    layout: Layout = eqx.field(static=True)

    def log_likelihood(self, theta: Float[Array, " dim"], batch: Data) -> Float[Array, " batch"]:
        """Return the Gaussian log-likelihood of each datum up to a constant."""
        return -((jnp.asarray(batch.y) - network(theta, jnp.asarray(batch.x), jnp)) ** 2) / (2 * NOISE**2)

    def log_likelihood_bounds(self, batch: Data) -> Float[Array, " batch"]:
        """Return an upper bound of the log-likelihood of each datum: 0."""
        return jnp.zeros(batch.y.shape[0])


def network(theta: Any, x: Any, xp: Any = np) -> Any:
    """Return f(x) with shape `[..., point]` for positions `[..., 49]` and inputs `[point]`.

    `xp` is numpy or jax.numpy.
    """
    u, a, v = (theta[..., i * HIDDEN : (i + 1) * HIDDEN] for i in range(3))
    hidden = xp.tanh(2 * (u[..., None, :] * x[:, None] + a[..., None, :]))
    return theta[..., -1:] + xp.sum(hidden * v[..., None, :], -1) / HIDDEN**0.5


def gaussian() -> Target:
    """Return a target: the mean of N = 1000 points of variance 1. The posterior is N(0.3 N / (N + 1), 1 / (N + 1))."""
    return _gaussian_mean("gaussian", np.eye(1), 1000)


def correlated_gaussian() -> Target:
    """Return a target: the mean of 200 two-dimensional data points with correlation 0.8."""
    return _gaussian_mean("correlated-gaussian", np.array([[1.0, 0.8], [0.8, 1.0]]), 200)


def tempered() -> Target:
    """Return a target: the mean of 400 data points with variance 100. The likelihood is raised to the power 1/4.

    Half of the posterior precision comes from the prior. A sampler that ignores the power or the prior therefore has a
    large error.
    """
    return _gaussian_mean("tempered", 100 * np.eye(1), 400, power=0.25)


def skewed() -> Target:
    """Return a target with density proportional to exp(theta - e^theta).

    The density is skewed, so that an error in the ratio of proposal densities is detected.
    """
    mean, sd = np.array([-np.euler_gamma]), np.pi / 6**0.5
    return Target(
        "skewed",
        Skewed(np.zeros((1, 1), np.float32), np.float32(1), _layout(theta=1)),
        ("theta",),
        mean,
        np.array([[sd**2]]),
        _box(mean, np.array([sd])),
        cdf=lambda theta: -np.expm1(-np.exp(theta)),
        log_evidence=0.0,
    )


def regression() -> Target:
    """Return a target: Bayesian linear regression with two correlated inputs, noise of sd 0.5 and prior N(0, I)."""
    rng, rows, noise = np.random.default_rng(11), 200, 0.5
    x = rng.normal(size=(rows, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]]) + [0.5, -0.3]
    y = x @ [0.8, -0.4] + 0.3 + noise * rng.normal(size=rows)
    x, y = x.astype(np.float32), y.astype(np.float32)
    line = Linear().build((2,), 1, key=jax.random.key(0))
    posterior = NetworkPosterior.of(line, Gaussian(scale=noise), Normal(), x, y[:, None])
    mean, covariance, log_evidence = conjugate_line(x, y, noise=noise)
    names = ("weight[0, 0]", "weight[0, 1]", "bias[0]")
    target = _normal("regression", posterior, names, mean, covariance)
    return dataclasses.replace(target, log_evidence=log_evidence)


def conjugate_line(
    x: Float[np.ndarray, "row feature"],
    y: Float[np.ndarray, " row"],
    *,
    noise: float,
    scale: float = 1.0,
    power: float = 1.0,
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim dim"], float]:
    """Return the posterior mean and covariance of Bayesian linear regression, and log p(D), in closed form.

    The model is y_i ~ N(w . x_i + b, noise^2) with theta = (w, b) ~ N(0, scale^2 I) (Bishop 2006, sections 3.3 and
    3.5). If `power` is not 1, the third value is the log of the integral of prior times likelihood^power.

    Args:
        x: inputs.
        y: targets.
        noise: standard deviation of the targets around the line.
        scale: standard deviation of the prior.
        power: power of the likelihood.
    """
    design, y = np.column_stack([x, np.ones(len(x))]).astype(float), y.astype(float)
    precision = power * design.T @ design / noise**2 + np.eye(design.shape[1]) / scale**2
    covariance = np.linalg.inv(precision)
    mean = power * covariance @ design.T @ y / noise**2
    misfit = power * np.sum((y - design @ mean) ** 2) / noise**2 + np.sum(mean**2) / scale**2
    log_volumes = np.linalg.slogdet(precision)[1] + 2 * len(mean) * np.log(scale)
    log_evidence = -(power * len(y) * np.log(2 * np.pi * noise**2) + log_volumes + misfit) / 2
    return mean, covariance, float(log_evidence)


def small_network() -> Target:
    """Return a target: the posterior `SmallNetwork`, with the values f(x) at four inputs as quantities.

    The weights are not tested, because different weights give the same function.
    """
    x = np.array([-1.0, -0.5, 0.0, 0.5, 1.0], np.float32)
    y = np.array([-0.6, -0.2, 0.3, 0.4, 0.1], np.float32)
    return Target(
        "network",
        SmallNetwork(Data(x, y), np.float32(1), _layout(u=HIDDEN, a=HIDDEN, v=HIDDEN, b=1)),
        tuple(f"f({point:g})" for point in NETWORK_AT),
        NETWORK_MEAN,
        NETWORK_SD * NETWORK_CORRELATION * NETWORK_SD[:, None],
        lambda rng, chains: rng.normal(size=(chains, 3 * HIDDEN + 1)),
        look=lambda theta: network(theta, NETWORK_AT),
    )


TARGETS: dict[str, Callable[[], Target]] = {
    "gaussian": gaussian,
    "correlated-gaussian": correlated_gaussian,
    "tempered": tempered,
    "skewed": skewed,
    "regression": regression,
    "network": small_network,
}
"""Functions that return the targets, by name."""


def _gaussian_mean(name: str, spread: np.ndarray, rows: int, power: float = 1.0) -> Target:
    """Return a Gaussian target. The sample mean of its data is 0.3, and their sample covariance is `spread`."""
    dim = len(spread)
    x = np.random.default_rng(1).normal(size=(rows, dim))
    x = x - x.mean(0)
    x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / rows)).T @ np.linalg.cholesky(spread).T + 0.3
    precision = np.linalg.inv(spread)
    covariance = np.linalg.inv(np.eye(dim) + power * rows * precision)
    whitening = np.linalg.cholesky(precision).T
    columns = tuple((x @ whitening.T).T.astype(np.float32))
    posterior = GaussianMean(columns, np.float32(power), _layout(theta=dim), whitening.astype(np.float32))
    names = tuple(f"theta[{i}]" for i in range(dim)) if dim > 1 else ("theta",)
    return _normal(name, posterior, names, power * covariance @ precision @ x.sum(0), covariance)


def _layout(**sizes: int) -> Layout:
    starts = np.cumsum([0, *sizes.values()]).tolist()
    return Layout(
        tuple(Block(name, (size,), start) for (name, size), start in zip(sizes.items(), starts, strict=False))
    )


def _normal(
    name: str, posterior: AbstractPosterior, quantities: tuple[str, ...], mean: np.ndarray, covariance: np.ndarray
) -> Target:
    sd = np.sqrt(np.diag(covariance))
    start, cdf = _box(mean, sd), stats.norm(mean, sd).cdf
    return Target(name, posterior, quantities, mean, covariance, start, cdf=cdf)


def _box(mean: np.ndarray, sd: np.ndarray) -> Callable[[np.random.Generator, int], np.ndarray]:
    """Return a function that draws initial positions uniformly, within four sds of the mean in each coordinate."""
    return lambda rng, chains: mean + sd * rng.uniform(-4, 4, size=(chains, len(mean)))
