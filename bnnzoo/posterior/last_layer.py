"""Coordinates u in which the conditional posterior of a network's last layer is about N(0, I).

With Gaussian noise and a normal prior, the weights w of the last layer have the conditional posterior N(m, P^-1) given
all other parameters. Both m and P depend on the weights of the hidden layers and on the noise scale, so the posterior
of all parameters is a narrow curved ridge, along which chains move slowly. In the coordinates z with
w = m + L^-T z, P = L L', the ridge is straight. A sampler draws from the density of u = (all other parameters, z):

    log p(theta(u) | data) + log |det d theta / d u|,   log |det d theta / d u| = -sum over targets and j of log L_jj.

The map is exact for every choice of m and P, because the density contains its Jacobian. For Student's t, P uses the
expected curvature of the log density. If the network has outputs for the noise scales (`Heteroscedastic`), only the
weights of the means are replaced by z, and the weights of the noise scales are among the other parameters.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from bnnzoo.posterior.base import AbstractPosterior, CountedData
from bnnzoo.posterior.likelihoods import Gaussian, Heteroscedastic, StudentT
from bnnzoo.posterior.network import NetworkPosterior

_MAX_FEATURES, _MAX_ELEMENTS = 32, 2**21
"""Largest number of features of the last layer (with the constant 1), and largest number of features times rows.

For larger matrices, LAPACK starts several threads. These threads wait for each other while other chains run. A gradient
with 33 features took ten times as long as a gradient with 31 features.
"""
_PRIOR_SCALE = 2.0
"""Scale of the `fan-in` prior that P assumes, even if the run has another prior.

The scale only matters for directions that the data do not determine.
"""
_MIN_CURVATURE = 1e-5
"""Number added to the diagonal of P, relative to the diagonal's mean, so that the Cholesky factor exists."""


class LastLayerCoordinates(eqx.Module):
    """The map between the parameters theta and the coordinates u, for one posterior."""

    posterior: NetworkPosterior
    indices: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    """For each target, the indices in theta of the weights of its output, then of its bias."""
    noise_indices: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    """The same indices for the outputs that determine the noise scales; empty if the network has no such outputs."""

    @classmethod
    def of(cls, posterior: AbstractPosterior) -> LastLayerCoordinates | None:
        """Return the map for a posterior; None if the posterior is not supported.

        The number of features must be at most `_MAX_FEATURES`, and features times rows at most `_MAX_ELEMENTS`.
        The noise must be Gaussian or Student's t. The network must end with a linear layer (`ends_with_linear_layer`)
        whose parameters are all sampled.
        """
        likelihoods = Gaussian | StudentT | Heteroscedastic
        if not isinstance(posterior, NetworkPosterior) or not isinstance(posterior.likelihood, likelihoods):
            return None
        if not getattr(posterior.network, "ends_with_linear_layer", False):
            return None
        name = f"layers_{len(posterior.network.layers) - 1}"
        blocks = {block.name: block for block in posterior.layout.network.blocks}
        weight, bias = blocks.get(f"{name}_weight"), blocks.get(f"{name}_bias")
        if weight is None or bias is None:
            return None
        num_features = weight.shape[1] + 1
        if num_features > _MAX_FEATURES or num_features * posterior.num_data > _MAX_ELEMENTS:
            return None
        rows = np.arange(weight.start, weight.stop).reshape(weight.shape)
        columns = np.arange(bias.start, bias.stop)[:, None]
        outputs = tuple(map(tuple, np.hstack([rows, columns]).tolist()))
        num_means = len(outputs) // 2 if posterior.likelihood.noise_by_row else len(outputs)
        return cls(posterior, outputs[:num_means], outputs[num_means:])

    def to_theta(self, u: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """Return theta and log |det d theta / d u|."""
        features = self._features(u)
        return self._to_theta(u, features, self._raw_scales(u, features))

    def from_theta(self, theta: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return the coordinates u of theta."""
        features = self._features(theta)
        factors = jax.vmap(_factor)(*self._conditionals(theta, features, self._raw_scales(theta, features)))
        z = jnp.einsum("tji,tj->ti", factors.root, theta[self._places] - factors.mean)
        return theta.at[self._places].set(z)

    def density(
        self, u: Float[Array, " dim"]
    ) -> tuple[Float[Array, ""], Float[Array, " num_data"], Float[Array, " dim"]]:
        """Return three values: log prior plus log Jacobian, each datum's log-likelihood, and a gradient.

        The gradient is the derivative of the log density of u with respect to u. In this density, `likelihood_power`
        multiplies the log-likelihoods.
        """

        def parts(u: Float[Array, " dim"]) -> tuple[Float[Array, ""], Float[Array, " num_data"]]:
            features = self._features(u)
            raw_scales = self._raw_scales(u, features)
            theta, log_jacobian = self._to_theta(u, features, raw_scales)
            outputs = jnp.concatenate([theta[self._places] @ features, raw_scales])
            values = self.posterior.log_likelihood_of_outputs(theta, outputs.T, self._rows)
            return self.posterior.log_prior(theta) + log_jacobian, values

        (log_prior, values), pull_back = jax.vjp(parts, u)
        (gradient,) = pull_back((jnp.ones_like(log_prior), jnp.full_like(values, self.posterior.likelihood_power)))
        return log_prior, values, gradient

    @property
    def _places(self) -> Int[np.ndarray, "target feature"]:
        return np.asarray(self.indices)

    @property
    def _rows(self) -> Any:
        return self.posterior.all_rows()

    def _features(self, theta: Float[Array, " dim"]) -> Float[Array, "feature num_data"]:
        """Return the inputs of the last layer, and the constant 1 as the last feature."""
        network: Any = self.posterior.network_at(theta)
        inputs = self.posterior.inputs(jnp.asarray(self._rows.x))
        if hasattr(network, "features_of_rows"):
            features = network.features_of_rows(inputs)
        else:
            features = jax.vmap(network.features, out_axes=1)(inputs)
        return jnp.concatenate([features, jnp.ones_like(features[:1])])

    def _raw_scales(
        self, theta: Float[Array, " dim"], features: Float[Array, "feature num_data"]
    ) -> Float[Array, "scale num_data"]:
        """Return the outputs for the noise scales, before softplus; shape (0, num_data) if the network has none."""
        return theta[np.asarray(self.noise_indices)] @ features if self.noise_indices else features[:0]

    def _to_theta(
        self,
        u: Float[Array, " dim"],
        features: Float[Array, "feature num_data"],
        raw_scales: Float[Array, "scale num_data"],
    ) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        weights, log_jacobians = jax.vmap(_unwhiten)(*self._conditionals(u, features, raw_scales), u[self._places])
        return u.at[self._places].set(weights), jnp.sum(log_jacobians)

    def _conditionals(
        self,
        theta: Float[Array, " dim"],
        features: Float[Array, "feature num_data"],
        raw_scales: Float[Array, "scale num_data"],
    ) -> tuple[Float[Array, "target feature feature"], Float[Array, "target feature"]]:
        """Return P and P m of the conditional posterior N(m, P^-1) of the last layer's weights, for each target.

        The result does not depend on the last layer's weights in `theta`.
        """
        rows, num_features = self._rows, len(features)
        y, counts = jnp.asarray(rows.y).T, jnp.ones_like(features[0])
        if isinstance(rows, CountedData):
            counts = jnp.asarray(rows.counts, features.dtype)
        curvature = self._curvature(theta, raw_scales)
        if self.noise_indices:
            # One product of matrices for each target: XLA computes the derivative of a batch of products, even of a
            # batch of one, eight times as slowly.
            weights = [counts * target_curvature for target_curvature in curvature]
            products = jnp.stack([_gram(features, target_weights) for target_weights in weights])
            shift = jnp.stack([features @ (w * targets) for w, targets in zip(weights, y, strict=True)])
        else:  # one product of matrices for all targets
            products, shift = curvature[..., None] * _gram(features, counts), curvature * ((counts * y) @ features.T)
        prior = np.append(np.full(num_features - 1, (num_features - 1) / _PRIOR_SCALE**2), 1 / _PRIOR_SCALE**2)
        mean_curvature = jnp.trace(products, axis1=1, axis2=2)[:, None] / num_features
        diagonal = prior.astype(features.dtype) + _MIN_CURVATURE * mean_curvature
        return products + jax.vmap(jnp.diag)(diagonal), shift

    def _curvature(
        self, theta: Float[Array, " dim"], raw_scales: Float[Array, "scale num_data"]
    ) -> Float[Array, "target #num_data"]:
        """Return minus the expected second derivative of each log-likelihood with respect to the mean.

        The result is multiplied by `likelihood_power`. For Student's t with scale s, minus the expected derivative is
        (df + 1) / (df + 3) / s^2 (Lange, Little and Taylor 1989), and the variance is s^2 df / (df - 2). The second
        axis of the result has size 1 if all rows have the same noise.
        """
        likelihood = cast(Any, self.posterior.likelihood_at(theta))
        df = getattr(likelihood, "df", "infinite")
        factor = 1.0 if isinstance(df, str) else (df + 1) / (df + 3) * df / (df - 2)
        if self.noise_indices:
            outputs = jnp.concatenate([jnp.zeros_like(raw_scales), raw_scales])
            variances = jax.vmap(lambda output: likelihood.distribution(output).variance, -1, -1)(outputs)
        else:
            variances = likelihood.distribution(jnp.zeros(len(self.indices), theta.dtype)).variance[:, None]
        return jnp.asarray(self.posterior.likelihood_power * factor / variances, theta.dtype)


class _Factor(NamedTuple):
    """The Cholesky factor of P, and the mean m."""

    root: Float[Array, "feature feature"]
    """Lower triangular L with P = L L'."""
    inverse_root: Float[Array, "feature feature"]
    mean: Float[Array, " feature"]


def _factor(precision: Float[Array, "feature feature"], shift: Float[Array, " feature"]) -> _Factor:
    """Return the Cholesky factor of P = `precision`, and the mean m = P^-1 `shift`."""
    root = jnp.linalg.cholesky(precision)
    inverse_root = solve_triangular(root, jnp.eye(len(root), dtype=root.dtype), lower=True)
    return _Factor(root, inverse_root, (inverse_root @ shift) @ inverse_root)


@jax.custom_vjp
def _gram(features: Float[Array, "feature row"], weights: Float[Array, " row"]) -> Float[Array, "feature feature"]:
    """Return F W F', with F = `features` and W = diag(`weights`). The derivative needs a single matrix product."""
    return (features * weights) @ features.T


def _gram_forward(features: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
    return _gram(features, weights), (features, weights)


def _gram_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Return the gradients 2 S F W of the features and diag(F' S F) of the weights; S is the symmetrised gradient."""
    features, weights = residuals
    product = ((gradient + gradient.T) / 2) @ features
    return 2 * weights * product, jnp.sum(features * product, 0)


_gram.defvjp(_gram_forward, _gram_backward)


@jax.custom_vjp
def _unwhiten(
    precision: Float[Array, "feature feature"], shift: Float[Array, " feature"], z: Float[Array, " feature"]
) -> tuple[Float[Array, " feature"], Float[Array, ""]]:
    """Return w = m + L^-T z and log |det dw / dz| = -sum_j log L_jj, where P = `precision` and P m = `shift`.

    The manual derivative is faster than the derivative that JAX generates.
    """
    return _unwhiten_forward(precision, shift, z)[0]


def _unwhiten_forward(precision: Array, shift: Array, z: Array) -> tuple[tuple[Array, Array], tuple[_Factor, Array]]:
    factor = _factor(precision, shift)
    weights = factor.mean + z @ factor.inverse_root
    return (weights, jnp.sum(jnp.log(jnp.diag(factor.inverse_root)))), (factor, z @ factor.inverse_root)


def _unwhiten_backward(residuals: tuple[_Factor, Array], gradients: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """Return the gradients with respect to the arguments of `_unwhiten`, which are P, P m and z.

    The gradient through the factor L is from Murray 2016, arXiv 1602.07527.
    """
    (root, inverse_root, mean), deviation = residuals
    weights_gradient, log_gradient = gradients
    z_gradient = inverse_root @ weights_gradient
    shift_gradient = z_gradient @ inverse_root
    inner = jnp.tril(root.T @ jnp.tril(-jnp.outer(deviation, z_gradient)))
    inner = inner - (jnp.diag(jnp.diag(inner)) + log_gradient * jnp.eye(len(root), dtype=root.dtype)) / 2
    precision_gradient = inverse_root.T @ inner @ inverse_root - jnp.outer(shift_gradient, mean)
    return (precision_gradient + precision_gradient.T) / 2, shift_gradient, z_gradient


_unwhiten.defvjp(_unwhiten_forward, _unwhiten_backward)
