"""Networks whose parameters are restricted to an affine subspace mode + basis z, and the prior of z."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PyTree, Shaped

from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.posterior.hashing import hash_key
from bnnzoo.posterior.layout import Layout, network_layout
from bnnzoo.posterior.likelihoods import Parameter
from bnnzoo.posterior.priors import AbstractPrior

_KINDS = {"identified": False, "linearised": True}
"""Values of `--stochastic` that sample a subspace. True if the value also linearises the network at the mode."""
COORDINATES = "z"
"""Name of the block of the coordinates z in the parameter vector."""


class SubspaceChoice(NamedTuple):
    """A value of `--stochastic` that names a subspace: `identified` or `linearised`, with or without `:TAU`."""

    kind: str
    tau: float | None
    """Threshold for the ratio of the posterior's curvature to the prior's curvature in a direction.

    Directions with a larger ratio are sampled. None means that the threshold is chosen automatically.
    """

    @property
    def is_linearised(self) -> bool:
        """Whether the network is replaced by its first-order Taylor polynomial at the mode."""
        return _KINDS[self.kind]

    @classmethod
    def from_option(cls, stochastic: str) -> SubspaceChoice | None:
        """Return the subspace that `--stochastic` names, or None if it names parameters.

        Raises:
            UsageError: if TAU is not a finite number >= 0. The caller must add the option or file that contains TAU.
        """
        kind, separator, text = (part.strip() for part in stochastic.partition(":"))
        if kind not in _KINDS:
            return None
        if not separator:
            return cls(kind, None)
        try:
            tau = float(text)
        except ValueError:
            tau = -1.0
        if not 0 <= tau < np.inf:
            raise UsageError(
                f"{kind}: the threshold after the colon must be a number >= 0 (got {text!r}), such as {kind}:1000"
            )
        return cls(kind, tau)


class SubspaceNetwork(eqx.Module):
    """A network with the parameters theta = mode + basis z. Its only sampled leaf is z.

    If the network is linearised, its outputs are f(x, mode) + J(x, mode) basis z, where J is the Jacobian. These
    outputs are affine in z, so the model is a generalised linear model.
    """

    z: Float[Array, " direction"]
    mode: Float[Array, " parameter"]
    basis: Float[Array, "parameter direction"]
    centre: Float[Array, " dim"]
    """Mode of the posterior in this subspace: zeros for z, followed by the sampled parameters of the likelihood."""
    others: Float[Array, "parameter other"] | None
    """Factor F of the covariance along the other directions, which are not sampled.

    In Laplace's approximation, given z, the deviation from the mode along these directions is N(0, F F'). None if the
    parameters stay at the mode along these directions.
    """
    rest: PyTree
    """The leaves of the network that are not parameters, such as functions."""
    layout: Layout = eqx.field(static=True)
    tree: Any = eqx.field(static=True)
    is_linearised: bool = eqx.field(static=True)

    @classmethod
    def restrict(
        cls, network: PyTree, fixed: Mapping[str, Array | np.ndarray], *, num_own: int, is_linearised: bool
    ) -> SubspaceNetwork:
        """Restrict a network to the subspace in `fixed`. If `fixed` is empty, the subspace is a placeholder.

        Args:
            network: the whole network.
            fixed: the arrays `mode`, `basis` and `centre`, and `others` if predictions include the other directions;
                empty before these arrays are known.
            num_own: number of sampled parameters of the likelihood.
            is_linearised: whether outputs are linearised at the mode.

        Raises:
            DamagedError: if the arrays do not fit the network.
        """
        parameters, rest = eqx.partition(network, eqx.is_inexact_array)
        layout, dtype = network_layout(network), jnp.result_type(*jax.tree.leaves(parameters))
        # Some samplers need two parameters; the number of directions is checked again when it is known.
        num_placeholders = min(2, layout.dim)
        placeholder = {
            "mode": np.zeros(layout.dim),
            "basis": np.zeros((layout.dim, num_placeholders)),
            "centre": np.zeros(num_placeholders + num_own),
        }
        arrays = {name: np.asarray(fixed.get(name, value)) for name, value in placeholder.items()}
        num_directions = arrays["basis"].shape[-1] if arrays["basis"].ndim else 0
        expected = [(layout.dim,), (layout.dim, num_directions), (num_directions + num_own,)]
        others = np.asarray(fixed["others"]) if "others" in fixed else None
        fits = others is None or others.shape == (layout.dim, layout.dim - num_directions)
        if not fits or [array.shape for array in arrays.values()] != expected:
            raise DamagedError("the file is damaged: the sampled subspace does not fit the network")
        return cls(
            z=jnp.zeros(num_directions, dtype),
            **{name: jnp.asarray(array, dtype) for name, array in arrays.items()},
            others=None if others is None else jnp.asarray(others, dtype),
            rest=rest,
            layout=layout,
            tree=jax.tree.structure(parameters),
            is_linearised=is_linearised,
        )

    def __call__(self, x: Array) -> Array:
        """Return the outputs for one input."""
        return self._outputs(lambda network: network(x))

    def outputs_of_rows(self, x: Shaped[Array, "row ..."]) -> Float[Array, "output row"]:
        """Return the outputs for a batch of rows, by the whole network's `outputs_of_rows` if it has this method."""

        def outputs(network: Any) -> Array:
            return network.outputs_of_rows(x) if hasattr(network, "outputs_of_rows") else jax.vmap(network)(x).T

        return self._outputs(outputs)

    def change_by_others(self, x: Shaped[Array, "row ..."]) -> Float[Array, "row output"]:
        """Return J(x, mode) F eps, the change of the outputs by one draw of the other directions.

        J is the Jacobian of the outputs, and F is `others`. In the Laplace approximation the other directions are
        independent of z. The random key of eps ~ N(0, I) is a hash of z. So equal draws of z have equal eps, and
        different draws of z have independent eps.
        """
        assert self.others is not None
        eps = jax.random.normal(hash_key(self.z), self.others.shape[1:], self.z.dtype)
        return jax.jvp(self._outputs_at(lambda n: jax.vmap(n)(x)), (self.mode,), (self.others @ eps,))[1]

    def _outputs(self, outputs: Callable[[Any], Array]) -> Array:
        """Return `outputs(network)` of the whole network at mode + basis z, or its linearisation at the mode."""
        outputs_at, step = self._outputs_at(outputs), self.basis @ self.z
        if not self.is_linearised:
            return outputs_at(self.mode + step)
        values, change = jax.jvp(outputs_at, (self.mode,), (step,))
        return values + change

    def _outputs_at(self, outputs: Callable[[Any], Array]) -> Callable[[Float[Array, " parameter"]], Array]:
        """Return `outputs(network)` as a function of the parameters of the whole network."""

        def outputs_at(theta: Float[Array, " parameter"]) -> Array:
            values = self.layout.unflatten(theta)
            parameters = jax.tree.unflatten(self.tree, [values[block.name] for block in self.layout.blocks])
            return outputs(eqx.combine(parameters, self.rest))

        return outputs_at


class InducedNormal(AbstractPrior):
    """The density of a normal prior on the subspace theta = mode + basis z, as a function of z.

    The columns of the basis must be orthogonal after each row is divided by the prior standard deviation of its
    parameter. The coordinates of z are then independent: log p(mode + basis z) is the log density of
    N(mean, diag(scale^2)) at z, plus a constant.
    """

    mean: Float[np.ndarray, " direction"]
    scale: Float[np.ndarray, " direction"]
    prior: AbstractPrior
    """Prior of the whole network. It also determines the priors of the likelihood's parameters."""

    @classmethod
    def of_subspace(cls, prior: AbstractPrior, network: SubspaceNetwork) -> InducedNormal:
        """Return the prior on z that a prior of the whole network induces.

        Raises:
            UsageError: if the prior is not normal with fixed scales.
        """
        loc, sd = normal_moments(prior, network.layout)
        directions = np.asarray(network.basis, np.float64) / sd[:, None]
        offset = (np.asarray(network.mode, np.float64) - loc) / sd
        precision = np.sum(directions**2, 0)
        # The directions of the placeholder have length 0. Their prior is never used.
        precision = np.where(precision > 0, precision, 1.0)
        mean, scale = -(directions.T @ offset) / precision, precision**-0.5
        return cls(mean.astype(network.z.dtype), scale.astype(network.z.dtype), prior)

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return N(mean, scale^2) of each coordinate."""
        del layout
        return dist.Normal(self.mean, self.scale)

    def of_likelihood(self, name: str, parameter: Parameter) -> Parameter:
        """Return the likelihood's parameter with the same prior as if the whole network were sampled."""
        return self.prior.of_likelihood(name, parameter)


def normal_moments(
    prior: AbstractPrior, layout: Layout
) -> tuple[Float[np.ndarray, " parameter"], Float[np.ndarray, " parameter"]]:
    """Return the mean and the standard deviation of each parameter under a normal prior.

    Raises:
        UsageError: if the prior is not normal, or its scales are sampled.
    """
    distribution = None if prior.parameters(layout) else prior.distribution(layout)
    if not isinstance(distribution, dist.Normal):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(prior).__name__).lower()
        raise UsageError(
            "[[stochastic]]: the subspaces identified and linearised need a normal prior with fixed scales (got "
            f"{name}); use [[prior=normal]] or fan-in, or [[stochastic=all]]"
        )
    shape = (layout.dim,)
    return (
        np.broadcast_to(np.asarray(distribution.loc, np.float64), shape),
        np.broadcast_to(np.asarray(distribution.scale, np.float64), shape),
    )
