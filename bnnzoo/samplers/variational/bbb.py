"""Bayes by Backprop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from annotated_types import Ge, Gt
from jaxtyping import Array, Float, PRNGKeyArray, UInt32
from numpyro.distributions.kl import kl_divergence
from typing_extensions import Doc

from bnnzoo.errors import UsageError
from bnnzoo.finding import Finding, setting
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.posterior.permutation import distinct_indices
from bnnzoo.posterior.subspace import SubspaceNetwork
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.kernel import replace, standard_normal
from bnnzoo.samplers.statistics import DIVERGING, Statistic
from bnnzoo.samplers.variational import pre_activations, training

_PAIRS = 2
"""Number of pairs of antithetic draws in `Bbb.inspect`. A pair costs two passes over all data."""
_MAX_DISTANCE = 0.25
"""Largest accepted `mean_distance` of `Bbb.inspect`, divided by the number of parameters: the square of 0.5 standard
deviations."""


class BbbState(eqx.Module):
    """State of a chain: its latest draw, the parameters `mean` and `rho` of q, and the state of the training."""

    position: Float[Array, " dim"]
    mean: Float[Array, " dim"]
    rho: Float[Array, " dim"]
    adam: training.Adam
    seed: UInt32[Array, ""]
    """Seed of the random partitions of the rows."""
    first: Float[Array, ""]
    """Number of warm-up steps that the averages of mean and rho leave out at the beginning."""
    average: tuple[Float[Array, " dim"], Float[Array, " dim"]]
    """Averages of mean and rho over the warm-up steps after the first `first` steps."""


class Bbb(training.AbstractTrainedSampler[BbbState]):
    """Independent draws from q = N(mean, diag(softplus(rho)^2)), the Gaussian that minimises KL(q || posterior).

    Blundell, Cornebise, Kavukcuoglu and Wierstra 2015, Weight Uncertainty in Neural Networks. Warm-up trains q by Adam
    on mini-batches of n of the N rows. A pass over the data has M = ceil(N/n) batches. With beta the likelihood power,
    the step on batch i of a pass (i = 1..M) reduces the free energy

        F_i / N = [ M pi_i KL(q || prior) - beta (N/n) sum_batch E_q log p(y | x, theta) ] / N

    - `samples`: the expectation E_q is estimated by the mean over this number of draws of q.
    - `sampling`: with `replacement` the rows of a batch are drawn independently. With `partition` each pass uses a new
      random partition of the rows (equation 9 of Blundell et al.). The last batch can then be smaller, so the factor
      N/n is replaced by M.
    - `kl_weights`: with `uniform` pi_i is 1/M. With `blundell` pi_i is 2^(M-i) / (2^M - 1), so that the first batches
      of a pass have almost all of the weight.
    - `reparameterisation`: with `weights` one theta is drawn for the whole batch. With `local` the pre-activations of
      dense layers are drawn instead, for each datum. The expectation is the same, with less noise. One draw of the
      weights for the whole batch remains for layers that the network uses more than once per datum, or other than by a
      call.

    The closed form of KL(q || prior) is used if NumPyro knows it, as for normal priors. Otherwise only the entropy of q
    is in closed form, and the log prior is evaluated at a draw of q. At the end of warm-up, mean and rho are replaced
    by averages over their values in the last steps (Polyak and Juditsky 1992). With a constant learning rate these
    steps are the second half of warm-up. With a falling rate they are the last eighth. The draws are from q, which is
    too narrow where the posterior is correlated.
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (Statistic("elbo_estimate"), DIVERGING, Statistic("log_q"))

    learning_rate: Annotated[Number, Gt(0), Doc("learning rate of Adam")] = number(1e-2)
    schedule: Annotated[
        Literal["cosine", "constant"], Doc("cosine: the learning rate falls to 0 over warm-up; constant: it is fixed")
    ] = "cosine"
    batch_size: Annotated[int, Ge(1), Doc("n: number of rows per warm-up step")] = 128
    scale: Annotated[Number, Gt(0), Doc("initial standard deviation of q")] = number(0.05)
    reparameterisation: Annotated[
        Literal["weights", "local"],
        Doc("weights: one theta per batch; local: for dense layers that a row uses once, pre-activations per row"),
    ] = "weights"
    samples: Annotated[int, Ge(1), Doc("number of draws of q that estimate the expectation in a step")] = 1
    sampling: Annotated[
        Literal["replacement", "partition"],
        Doc("replacement: rows are drawn independently; partition: each pass splits the rows at random into batches"),
    ] = "replacement"
    kl_weights: Annotated[
        Literal["uniform", "blundell"],
        Doc("uniform: every batch of a pass has the same weight of the KL; blundell: it halves from batch to batch"),
    ] = "uniform"

    def evaluations(self, posterior: AbstractPosterior, means: Mapping[str, float], *, warmup: bool = False) -> float:
        """Return the number of evaluations of a step.

        A warm-up step evaluates each row of the batch once for each of `samples` draws of q. A step after warm-up
        evaluates no row.
        """
        return self.samples * super().evaluations(posterior, means, warmup=warmup)

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> BbbState:
        """Return the state in which q has the mean `theta` and the standard deviation `scale` for every parameter."""
        del posterior
        # The inverse of softplus. Its rounded value is `scale` above 40, and exp overflows float32 above 88.
        rho = jnp.full_like(theta, jnp.where(self.scale > 40, self.scale, jnp.log(jnp.expm1(self.scale))))
        adam = training.Adam.start((theta, rho), num_warmup, constant=self.schedule == "constant")
        # While the learning rate is large, q still moves, and an average would lag behind it. A falling rate is small
        # only near the end of warm-up.
        averaged = num_warmup - num_warmup // 2 if self.schedule == "constant" else -(-num_warmup // 8)
        first = jnp.asarray(num_warmup - averaged, adam.done.dtype)
        return BbbState(theta, theta, rho, adam, jax.random.bits(key, dtype=jnp.uint32), first, (theta, rho))

    def warmup_step(
        self, posterior: AbstractPosterior, state: BbbState, *, key: PRNGKeyArray
    ) -> tuple[BbbState, Stats]:
        """Make one Adam step on the free energy F_i / N."""
        key_batch, key_fit, key_prior = jax.random.split(key, 3)
        rows, weights = self._rows(posterior, state, key=key_batch)
        batches = -(-posterior.num_data // self.batch_size)
        kl_weight = 1.0 if self.kl_weights == "uniform" else batches * blundell_weight(state.adam.done, batches)

        def free_energy(parameters: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
            mean, scale = parameters[0], jax.nn.softplus(parameters[1])

            def sample_terms(key_fit: PRNGKeyArray, key_prior: PRNGKeyArray) -> tuple[Array, Array, Array]:
                fit = self._fit(posterior, mean, scale, rows, weights, key=key_fit)
                return *fit, kl(posterior, mean, scale, key=key_prior) / posterior.num_data

            if self.samples == 1:
                theta, log_likelihood, cost = sample_terms(key_fit, key_prior)
            else:
                keys = (jax.random.split(k, self.samples) for k in (key_fit, key_prior))
                thetas, log_likelihoods, costs = jax.vmap(sample_terms)(*keys)
                theta, log_likelihood, cost = thetas[-1], jnp.mean(log_likelihoods), jnp.mean(costs)
            return kl_weight * cost - log_likelihood, (theta, cost - log_likelihood)

        (_, (theta, cost)), gradient = jax.value_and_grad(free_energy, has_aux=True)((state.mean, state.rho))
        adam, (mean, rho), finite = state.adam.descend((state.mean, state.rho), gradient, self.learning_rate)
        stats = {"elbo_estimate": -posterior.num_data * cost, "diverging": ~finite}
        count = jnp.maximum(state.adam.done + 1 - state.first, 1.0)
        average = jax.tree.map(lambda old, new: old + (new - old) / count, state.average, (mean, rho))
        values = {"position": theta, "mean": mean, "rho": rho, "adam": adam, "average": average}
        return replace(state, **values), stats

    def settle(self, posterior: AbstractPosterior, state: BbbState, *, final: bool, key: PRNGKeyArray) -> BbbState:
        """Replace mean and rho by their averages at the end of warm-up.

        The values of mean and rho fluctuate from step to step because of the noise of the batches. For a narrow
        posterior these fluctuations can be larger than the posterior's width. The averages have a much smaller error.
        """
        del posterior, key
        if not final:
            return state
        mean, rho = state.average
        return replace(state, mean=mean, rho=rho)

    def inspect(self, posterior: AbstractPosterior, state: BbbState, *, key: PRNGKeyArray) -> Stats:
        """Estimate `mean_distance`, the squared distance of q's mean to the best mean, in standard deviations of q.

        The best mean is the mean that minimises KL(q || posterior). `mean_distance` is a sum over the parameters, and
        about 0 at the best mean. It is computed from the expectation of the gradient of the log posterior under q.
        Pairs of draws theta = mean +- scale eps estimate this expectation. The bias due to the noise of the pairs is
        subtracted.
        """
        scale = jax.nn.softplus(state.rho)
        slope = jax.grad(posterior.log_density)

        def pair(key: PRNGKeyArray) -> Float[Array, " dim"]:
            eps = standard_normal(state.mean, key=key)
            return scale * (slope(state.mean + scale * eps) + slope(state.mean - scale * eps)) / 2

        slopes = jax.lax.map(pair, jax.random.split(key, _PAIRS))
        noise = jnp.sum(jnp.var(slopes, 0, ddof=1)) / _PAIRS
        return {"mean_distance": jnp.sum(jnp.mean(slopes, 0) ** 2) - noise}

    def findings(self, posterior: AbstractPosterior, means: Mapping[str, float]) -> tuple[Finding, ...]:
        """Report a mean of q that is too far from the best mean (see `inspect`)."""
        distance = means.get("mean_distance", 0.0) / posterior.layout.dim
        if distance <= _MAX_DISTANCE:
            return ()
        label = (
            "squared distance of the fitted mean to the mean that minimises the KL divergence, per parameter, in "
            "standard deviations"
        )
        advice = f"use a longer {setting('warmup')}, or a larger {setting('sampler.batch_size')}"
        return (Finding("validity", "mean", label, distance, _MAX_DISTANCE, advice),)

    def step(self, posterior: AbstractPosterior, state: BbbState, *, key: PRNGKeyArray) -> tuple[BbbState, Stats]:
        """Draw theta from q."""
        del posterior
        scale = jax.nn.softplus(state.rho)
        position = state.mean + scale * standard_normal(state.mean, key=key)
        log_q = jnp.sum(jnp.asarray(dist.Normal(state.mean, scale).log_prob(position)))
        stats = training.draw_statistics(position) | {"log_q": log_q}
        return replace(state, position=position), stats

    def _rows(
        self, posterior: AbstractPosterior, state: BbbState, *, key: PRNGKeyArray
    ) -> tuple[Any, Float[Array, " batch"] | None]:
        """Return the rows of a step, and their weights in a mean over the batch (None if all weights are equal)."""
        if self.sampling == "replacement":
            return training.batch(posterior, self.batch_size, key=key), None
        total = posterior.num_data
        size, batches = min(self.batch_size, total), -(-total // self.batch_size)
        steps_done = state.adam.done.astype(jnp.uint32)
        pass_key = jax.random.fold_in(jax.random.key(state.seed), steps_done // batches)
        first_row = steps_done % batches * size
        # The last batch of a pass overlaps the batch before it. Rows of the overlap have weight 0.
        start = jnp.minimum(first_row, total - size)
        is_new = start + jnp.arange(size, dtype=jnp.uint32) >= first_row
        rows = posterior.take(distinct_indices(size, total, start=start, key=pass_key))
        return jax.lax.optimization_barrier(rows), jnp.where(is_new, size * batches / total, 0.0)

    def _fit(
        self,
        posterior: AbstractPosterior,
        mean: Float[Array, " dim"],
        scale: Float[Array, " dim"],
        rows: Any,
        weights: Float[Array, " batch"] | None,
        *,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """Return a draw of q, and an estimate of E_q log p(y | x, theta) per datum, times the likelihood power."""
        key_theta, key_local = jax.random.split(key)
        theta = mean + scale * standard_normal(mean, key=key_theta)
        # In a subspace, the weights of a layer are not independent, so its outputs cannot be drawn separately.
        if (
            self.reparameterisation == "local"
            and isinstance(posterior, NetworkPosterior)
            and not isinstance(posterior.network, SubspaceNetwork)
        ):
            outputs = pre_activations.outputs(posterior, mean, scale, theta, jnp.asarray(rows.x), key=key_local)
            values = jax.vmap(posterior.likelihood_at(theta).log_prob)(outputs, jnp.asarray(rows.y))
        else:
            values = posterior.log_likelihood(theta, rows)
        return theta, posterior.likelihood_power * jnp.mean(values if weights is None else weights * values)


def kl(
    posterior: AbstractPosterior, mean: Float[Array, " dim"], scale: Float[Array, " dim"], *, key: PRNGKeyArray
) -> Float[Array, ""]:
    """Return KL(N(mean, diag(scale^2)) || prior). If no closed form is known, return an unbiased estimate."""
    q = dist.Normal(mean, scale)
    theta = mean + scale * standard_normal(mean, key=key)
    prior, network = posterior.fixed_prior(), posterior.layout.network
    if prior is None:
        return -jnp.sum(q.entropy()) - posterior.log_prior(theta)
    likelihood_part = slice(network.dim, None)
    weights = dist.Normal(mean[: network.dim], scale[: network.dim])
    try:
        network_kl = jnp.sum(kl_divergence(weights, prior.distribution(network)))
    except (NotImplementedError, UsageError):  # no closed form, or dependent weights
        return -jnp.sum(q.entropy()) - posterior.log_prior(theta)
    # The KL of the network's parameters is exact. The rest of the log prior is that of the likelihood's parameters; it
    # is evaluated at the draw.
    other_log_prior = posterior.log_prior(theta) - prior.log_prob(theta[: network.dim], network)
    return network_kl - jnp.sum(dist.Normal(mean[likelihood_part], scale[likelihood_part]).entropy()) - other_log_prior


def blundell_weight(steps_done: Float[Array, ""], batches: int) -> Float[Array, ""]:
    """Return the weight 2^(M-i) / (2^M - 1) of the KL in batch i of a pass with M = `batches` batches.

    `steps_done` is the number of steps before this batch, which gives i = `steps_done` mod M + 1. The code computes
    2^-i / (1 - 2^-M), because 2^M overflows float32 at M = 128.
    """
    i = jnp.mod(steps_done, batches) + 1
    return jnp.exp2(-i) / (1 - 2.0**-batches)
