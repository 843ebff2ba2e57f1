"""Eigenvalues and eigenvectors of a posterior's precision in units of the prior, and the Gaussian that they define."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bnnzoo.samplers.common import climb
from bnnzoo.samplers.common.preconditioner import Factor


class Spectrum(NamedTuple):
    """The largest eigenvalues of the posterior's precision in units of the prior, in descending order."""

    values: Float[np.ndarray, " direction"]
    vectors: Float[np.ndarray, "parameter direction"]
    """Orthonormal eigenvectors, in units of the prior."""
    total: float
    """Effective number of parameters: the sum of 1 - 1 / eigenvalue over all directions. It includes directions whose
    eigenvalue is not in `values`."""
    own_sd: Float[np.ndarray, " own"]
    """Posterior standard deviations of the parameters of the likelihood."""

    def variance_fraction(self, num_directions: int) -> float:
        """Return the fraction of the variance of the network's outputs due to the first `num_directions` directions.

        A linearised network has a Gaussian posterior. Consider the variance of each output in units of the noise. The
        sum of these variances over the data is the trace of A (I + A)^-1. An eigenvalue e of I + A contributes
        1 - 1 / e to this trace.
        """
        return float(np.sum(1 - 1 / self.values[:num_directions])) / max(self.total, np.finfo(float).tiny)

    def factor(self, sd: Float[np.ndarray, " parameter"], damping: float, dtype: Any) -> climb.Factor:
        """Return the factor F of the Gaussian whose precision has the eigenvalues `values` + `damping`.

        Args:
            sd: prior standard deviations of the network's parameters.
            damping: number that is added to all eigenvalues. Eigenvalues that are not in `values` count as 1.
            dtype: type of the numbers.
        """
        size, num_own = len(sd), len(self.own_sd)
        lengths = (self.values + damping) ** -0.5
        if len(lengths) == size:
            matrix = np.zeros((size + num_own, size + num_own))
            matrix[:size, :size] = sd[:, None] * self.vectors * lengths
            matrix[size:, size:] = np.diag(self.own_sd)
            return Factor(jnp.asarray(matrix, dtype))
        other = (1 + damping) ** -0.5
        return LowRank(
            jnp.asarray(np.concatenate([sd * other, self.own_sd]), dtype),
            jnp.asarray(np.pad(self.vectors, ((0, num_own), (0, 0))), dtype),
            jnp.asarray(lengths / other - 1, dtype),
        )


class LowRank(eqx.Module):
    """The Gaussian N(0, F F') with F = diag(scale) (I + U diag(change) U') and orthonormal columns U."""

    scale: Float[Array, " dim"]
    vectors: Float[Array, "dim direction"]
    change: Float[Array, " direction"]

    def correlate(self, eps: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F eps."""
        return self.scale * self._stretch(eps)

    def project(self, gradient: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Return F' g for a gradient g."""
        return self._stretch(self.scale * gradient)

    def _stretch(self, vector: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return vector + self.vectors @ (self.change * (self.vectors.T @ vector))
