"""A normal prior with the means and (co)variances of the draws of an earlier run, for sequential updating."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from bnnzoo.errors import UsageError
from bnnzoo.posterior.layout import Layout
from bnnzoo.posterior.likelihoods import Parameter
from bnnzoo.posterior.priors import AbstractPrior

Values = Mapping[str, Float[Array | np.ndarray, "..."]]


class Moments(AbstractPrior):
    """A normal prior with the moments (means and covariances) of the draws of an earlier run.

    For the likelihood's parameters, the moments are those of the unconstrained values. A block of the network
    without moments has the prior N(0, 1). A parameter of the likelihood without moments keeps its own prior.
    """

    means: Values
    """Means of the draws, by the name of the block."""
    sds: Values
    """Standard deviations of the draws, by the name of the block."""
    factor: Float[Array | np.ndarray, "dim dim"] | None = None
    """Cholesky factor of the covariance of the network's sampled parameters; None if they are independent.

    The factor is only used for a layout with the same number of parameters. For any other layout, the parameters are
    independent, for example while all parameters of a partly sampled network are trained.
    """

    def distribution(self, layout: Layout) -> dist.Distribution:
        """Return the normal distributions of the parameters, batch shape `[dim]`.

        Raises:
            UsageError: if the parameters are dependent.
        """
        if self._is_dependent(layout):
            raise UsageError(
                "[[prior_from]]: the parameters are dependent in this prior, but this sampler requires independent "
                "parameters; use another sampler, such as nuts"
            )
        sds = {block.name: self.sds.get(block.name, np.ones(block.shape)) for block in layout.blocks}
        return dist.Normal(self._mean(layout), layout.flatten(sds))

    def log_prob(self, theta: Float[Array, " dim"], layout: Layout) -> Float[Array, ""]:
        """Return the log density of the network's parameters."""
        return self._joint(layout).log_prob(theta) if self._is_dependent(layout) else super().log_prob(theta, layout)

    def sample(self, layout: Layout, *, key: PRNGKeyArray) -> Float[Array, " dim"]:
        """Return one draw of the network's parameters from the prior."""
        return self._joint(layout).sample(key) if self._is_dependent(layout) else super().sample(layout, key=key)

    def of_likelihood(self, name: str, parameter: Parameter) -> Parameter:
        """Return `parameter` with a normal prior in unconstrained space; unchanged if block `name` has no moments."""
        if name not in self.means:
            return parameter
        normal = dist.Normal(jnp.asarray(self.means[name]), jnp.asarray(self.sds[name]))
        return parameter._replace(
            log_prior=lambda u: jnp.sum(normal.log_prob(u)), draw=lambda key: jnp.asarray(normal.sample(key))
        )

    def _is_dependent(self, layout: Layout) -> bool:
        return self.factor is not None and len(self.factor) == layout.dim

    def _joint(self, layout: Layout) -> dist.MultivariateNormal:
        return dist.MultivariateNormal(self._mean(layout), scale_tril=jnp.asarray(self.factor))

    def _mean(self, layout: Layout) -> Float[Array, " dim"]:
        return layout.flatten(
            {block.name: self.means.get(block.name, np.zeros(block.shape)) for block in layout.blocks}
        )
