"""A normal prior with the moments of the draws of an earlier run, for sequential updating."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.likelihoods import Parameter
from bnnzoo.posterior.priors import AbstractPrior

Values = Mapping[str, Float[Array | np.ndarray, "..."]]


class Moments(AbstractPrior):
    """N(mean, sd^2) for each parameter, with the moments of the draws of an earlier run.

    The moments have the names of the blocks. Those of the likelihood's own parameters refer to unconstrained values. A
    block without moments, which the earlier run did not sample, has the prior N(0, 1).
    """

    means: Values
    sds: Values

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return the normal distributions of the parameters, batch shape `[dim]`."""
        means = {block.name: self.means.get(block.name, np.zeros(block.shape)) for block in layout.blocks}
        sds = {block.name: self.sds.get(block.name, np.ones(block.shape)) for block in layout.blocks}
        return dist.Normal(layout.flatten(means), layout.flatten(sds))

    def of_likelihood(self, name: str, parameter: Parameter) -> Parameter:
        """Return the parameter with a normal prior of its unconstrained value, if the block `name` has moments."""
        if name not in self.means:
            return parameter
        normal = dist.Normal(jnp.asarray(self.means[name]), jnp.asarray(self.sds[name]))
        return parameter._replace(
            log_prior=lambda u: jnp.sum(normal.log_prob(u)), draw=lambda key: jnp.asarray(normal.sample(key))
        )
