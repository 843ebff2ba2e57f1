"""Outputs of a network at given inputs. With `--keep predictions` a run stores outputs instead of parameters."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from bnnzoo.posterior import passes
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.network import NetworkPosterior


class Table(eqx.Module):
    """A network that looks up its outputs. The input is a row index, and the parameters are the outputs of all rows."""

    f: Float[Array, "row output"]

    def __call__(self, row: Shaped[Array, ""]) -> Float[Array, " output"]:
        return self.f[row.astype(jnp.int32)]


class Outputs(eqx.Module):
    """The values to store for a position: the network's outputs at `x`, then the other sampled parameters.

    The other parameters belong to the likelihood and the prior.
    """

    posterior: NetworkPosterior
    x: Shaped[Array | np.ndarray, "row ..."]
    layout: Layout = eqx.field(static=True)

    @classmethod
    def at_inputs(cls, posterior: NetworkPosterior, x: Shaped[np.ndarray, "row ..."]) -> Outputs:
        """Construct the outputs of a posterior's network at the inputs `x`, in the form of `posterior.data.x`."""
        theta = jax.ShapeDtypeStruct((posterior.layout.dim,), posterior.dtype)
        shape = jax.eval_shape(lambda t: posterior.predictive(t, jnp.asarray(x))[1], theta).shape
        blocks = [Block("f", shape, 0)]
        for block in posterior.layout.blocks:
            if block.owner != "network":
                blocks.append(block._replace(start=blocks[-1].stop))
        return cls(posterior, x, Layout(tuple(blocks)))

    def values_at(
        self, theta: Float[Array, " dim"], mode: Float[Array, " dim"] | None = None
    ) -> Float[Array, " value"]:
        """Return the values to store for one position. If a `mode` is given, the network is linearised at the mode."""
        theta_and_mode = theta if mode is None else jnp.concatenate([theta, mode])
        # `predictive` expects the natural scale. Only the own parameters of the likelihood and the prior have another
        # scale in `theta`. The outputs do not depend on these parameters, so `theta` can be passed here.
        outputs = passes.over_blocks(self.x, len(self.x), lambda x: self.posterior.predictive(theta_and_mode, x)[1])
        return jnp.concatenate([jnp.ravel(outputs), theta[self.posterior.layout.network.dim :]]).astype(theta.dtype)

    def table(self) -> NetworkPosterior:
        """Return a posterior whose network looks up the stored outputs. The network's input is a row index of `x`."""
        network = Table(jnp.zeros(self.layout.blocks[0].shape, self.posterior.dtype))
        sampled_part, fixed_part = eqx.partition(network, eqx.is_inexact_array)
        return dataclasses.replace(
            self.posterior,
            network=fixed_part,
            input_mean=np.float32(0),
            input_sd=np.float32(1),
            layout=self.layout,
            _tree=jax.tree.structure(sampled_part),
            has_exposure=False,  # the stored outputs include it
        )

    def natural(self, draws: Float[np.ndarray, "*lead value"]) -> dict[str, np.ndarray]:
        """Return stored values by name: `f` [..., row, output], and the other parameters on their natural scale."""
        values = self.layout.unflatten(draws)
        return values | {name: p.natural(values[name]) for name, p in self.posterior.own_parameters().items()}
