"""Simulation-based calibration of a model and a sampler.

Parameters are drawn from the prior, data are simulated with them, and the posterior is sampled. The rank of the true
parameters among the draws must be uniform (Talts et al. 2018, Validating Bayesian Inference Algorithms with
Simulation-Based Calibration). The joint log-likelihood is ranked too. Otherwise a sampler that returns the prior would
pass (Modrak et al. 2023).

A replicate is one simulated data set. The replicates are the chains of one run: each chain simulates its own data when
it starts. Uniform noise is added to the ranks, so that their distribution is continuous and the significance levels of
the tests are exact.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped
from scipy import stats

from bnnzoo.errors import UsageError
from bnnzoo.models import AbstractModel
from bnnzoo.models._base import Task
from bnnzoo.plugins import registry
from bnnzoo.posterior import AbstractPosterior, Data, NetworkPosterior
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.posterior.priors import AbstractPrior, FanIn
from bnnzoo.progress import Observer, Progress
from bnnzoo.samplers import AbstractSampler, Stats
from bnnzoo.sampling.devices import jax_settings
from bnnzoo.sampling.devices.placement import place_chains
from bnnzoo.sampling.keys import Keys, keys_by_chain
from bnnzoo.sampling.loop.loop import chunks
from bnnzoo.testing.calibration_report import CalibrationReport, Quantity
from bnnzoo.testing.example_targets import supported_count

LEVEL = 1e-5
"""Probability that any test of a check rejects a correct sampler. Each test has this level / number of tests."""

_PROBES = 3
_TARGETS, _CLASSES = 1, 3
_MAX_DEPENDENT = 0.3
"""Largest acceptable lag-1 autocorrelation of the draws.

If the autocorrelation is larger, the ranks are not uniform even for a correct sampler.
"""


def check_calibration(
    model: AbstractModel,
    sampler: AbstractSampler,
    *,
    likelihood: AbstractLikelihood | None = None,
    prior: AbstractPrior | None = None,
    input_shape: tuple[int, ...] = (2,),
    rows: int = 10,
    replicates: int = 128,
    warmup: int = 300,
    draws: int = 63,
    thin: int = 4,
    seed: int = 0,
    observer: Observer | None = None,
) -> CalibrationReport:
    """Test a sampler on a model by simulation-based calibration.

    For each simulated data set, the check draws parameters from the prior and data from the likelihood, and samples the
    posterior. It then ranks the true values of four quantities among their values for the draws. The quantities are the
    predictions at three inputs outside the data, and the log-likelihood of all data.

    The methods `choose` and `tune` of the sampler are not called, so fields with the value `auto` keep their fallback
    values.

    Args:
        model: the model that builds the networks.
        sampler: the sampler to test.
        likelihood: the likelihood of the data. By default it is the model's own likelihood. A model without one uses
            the default likelihood for regression, or for classification if the model does not support regression.
        prior: the prior of the weights. The default is `fan-in`: the scale of the network's outputs is then the same
            for all widths of the layers.
        input_shape: shape of one input.
        rows: number of rows in each data set. With more rows, the posterior differs more from the prior. The chains
            start at draws from the prior, and then need a longer warm-up.
        replicates: number of simulated data sets, one chain each.
        warmup: number of warm-up steps.
        draws: number of draws per simulated data set.
        thin: number of sampler steps per draw.
        seed: seed of the data, the initial positions and the chains.
        observer: a function that is called with the progress.

    Raises:
        UsageError: if the model does not accept inputs of this shape, if the sampler does not support the posterior, or
            if the model supports neither regression nor classification and no likelihood is given.
    """
    likelihood = likelihood or _default_likelihood(model)
    with jax_settings.arithmetic("float32"):
        posterior, probes = _posterior(model, likelihood, prior or FanIn(), input_shape, rows, seed)
        sampler.check(posterior)
        states, thetas = _run(posterior, sampler, replicates, warmup, draws, thin, seed, observer)
        values = np.asarray(_all_quantities(posterior, probes, states, thetas))
    rng = np.random.default_rng((seed, 1))
    truth, drawn_values = values[:, :1], values[:, 1:]
    num_below, num_equal = (drawn_values < truth).sum(1), (drawn_values == truth).sum(1)
    # Some draws can equal the true value, for example because of dead units. The rank among equal values is random.
    ranks = num_below + rng.integers(0, num_equal + 1)
    uniform = (ranks + rng.uniform(size=ranks.shape)) / (draws + 1)
    names = [*(f"prediction at probe {i + 1}" for i in range(_PROBES)), "log-likelihood"]
    limit = LEVEL / (2 * len(names))
    dependence = _dependence(drawn_values)
    quantities = [_test_ranks(name, uniform[:, i], float(dependence[i]), limit) for i, name in enumerate(names)]
    return CalibrationReport(type(model).__name__, type(sampler).__name__, draws, uniform, tuple(quantities))


class _Replicate(eqx.Module):
    """State of one replicate: the state of the tested sampler, the true parameters and the simulated targets."""

    inner: Any
    truth: Float[Array, " dim"]
    y: Shaped[Array, "row ..."]

    # These are properties, not fields, because the function `replace` can temporarily put a placeholder into `inner`.
    @property
    def position(self) -> Any:
        """Position of the tested sampler."""
        return self.inner.position

    @property
    def step_size(self) -> Any:
        """Step size of the tested sampler."""
        return self.inner.step_size


class _SimulatingSampler(AbstractSampler[_Replicate]):
    """The tested sampler, changed so that each chain simulates and uses its own data.

    The method `tune` of the tested sampler is not called, because it combines all chains.
    """

    inner: AbstractSampler

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> _Replicate:
        key_truth, key_data, key_inner = jax.random.split(key, 3)
        truth = posterior.sample_prior(key=key_truth)
        y = _simulate_targets(posterior, truth, key_data)
        inner = self.inner.init(_with_targets(posterior, y), theta, num_warmup=num_warmup, key=key_inner)
        return _Replicate(inner, truth, y)

    def step(self, posterior: AbstractPosterior, state: _Replicate, *, key: PRNGKeyArray) -> tuple[_Replicate, Stats]:
        inner, stats = self.inner.step(_with_targets(posterior, state.y), state.inner, key=key)
        return _Replicate(inner, state.truth, state.y), stats

    def warmup_step(
        self, posterior: AbstractPosterior, state: _Replicate, *, key: PRNGKeyArray
    ) -> tuple[_Replicate, Stats]:
        inner, stats = self.inner.warmup_step(_with_targets(posterior, state.y), state.inner, key=key)
        return _Replicate(inner, state.truth, state.y), stats

    def settle(self, posterior: AbstractPosterior, state: _Replicate, *, final: bool, key: PRNGKeyArray) -> _Replicate:
        inner = self.inner.settle(_with_targets(posterior, state.y), state.inner, final=final, key=key)
        return _Replicate(inner, state.truth, state.y)

    def headroom(self, stats: Stats) -> Float[Array, " constraint"]:
        return self.inner.headroom(stats)


def _run(
    posterior: NetworkPosterior,
    sampler: AbstractSampler,
    replicates: int,
    warmup: int,
    draws: int,
    thin: int,
    seed: int,
    observer: Observer | None,
) -> tuple[_Replicate, Float[np.ndarray, "replicate draw dim"]]:
    """Return the final states and the draws of all replicates.

    The chains start at draws from the prior that are independent of the true parameters.
    """
    keys = Keys.from_seed(seed)
    draw = jax.vmap(lambda key: posterior.sample_prior(key=key))
    starts = eqx.filter_jit(draw)(keys_by_chain(keys.positions, replicates))
    stream = chunks(
        posterior,
        _SimulatingSampler(sampler),
        starts,
        keys=keys,
        num_warmup=warmup,
        num_draws=draws,
        thin=thin,
        placement=place_chains("vectorized", replicates),
    )
    draws_of_chunks: list[np.ndarray] = []
    states: Any = None
    for chunk in stream:
        states = chunk.carry.states
        if chunk.phase == "sampling":
            draws_of_chunks.append(chunk.draws)
        if observer is not None:
            observer(Progress("calibration", chunk.next_step, warmup + draws * thin))
    return states, np.concatenate(draws_of_chunks, 1)


def _default_likelihood(model: AbstractModel) -> AbstractLikelihood:
    tasks: tuple[Task, ...] = ("regression", "classification")
    for task in tasks:
        # The method is also called for a model with its own likelihood, because it refuses tasks.
        with contextlib.suppress(UsageError):
            name = model.default_likelihood(task)
            return model.own_likelihood() or registry.load("likelihoods", name)()
    raise UsageError(
        f"{registry.describe_part('models', model)}: simulation-based calibration requires a model for regression or "
        "classification; use another model, such as mlp"
    )


def _posterior(
    model: AbstractModel,
    likelihood: AbstractLikelihood,
    prior: AbstractPrior,
    shape: tuple[int, ...],
    rows: int,
    seed: int,
) -> tuple[NetworkPosterior, Float[np.ndarray, "probe ..."]]:
    """Return a posterior whose targets are all 0, and the probes: the inputs at which predictions are ranked."""
    inputs = np.random.default_rng((seed, 0)).standard_normal((rows + _PROBES, *shape)).astype(np.float32)
    arranged = model.arrange(inputs)
    is_classification = likelihood.task == "classification"
    count = supported_count(likelihood, (_CLASSES, 2) if is_classification else (_TARGETS,))
    likelihood = likelihood.of_targets(count)
    network = model.build(arranged.shape[1:], likelihood.num_outputs(count), key=jax.random.key(seed))
    y = np.zeros(rows, np.int32) if is_classification else np.zeros((rows, _TARGETS), np.float32)
    return NetworkPosterior.of(network, likelihood, prior, arranged[:rows], y), arranged[rows:]


def _with_targets(posterior: Any, y: Shaped[Array, "row ..."]) -> NetworkPosterior:
    """Return the posterior with the targets `y`."""
    return dataclasses.replace(posterior, data=Data(posterior.data.x, y))


def _simulate_targets(posterior: Any, truth: Float[Array, " dim"], key: PRNGKeyArray) -> Shaped[Array, "row ..."]:
    """Draw the targets of all rows for the parameters `truth`."""
    x = jnp.asarray(posterior.data.x)
    outputs, likelihood = posterior.outputs(truth, x), posterior.likelihood_at(truth)
    return jax.vmap(lambda output, key: likelihood.sample(output, key=key))(outputs, jax.random.split(key, len(x)))


@eqx.filter_jit
def _all_quantities(
    posterior: NetworkPosterior,
    probes: Float[np.ndarray | Array, "probe ..."],
    states: _Replicate,
    thetas: Float[np.ndarray | Array, "replicate draw dim"],
) -> Float[Array, "replicate one_and_draw quantity"]:
    """Return the ranked quantities of each replicate. The true parameters come first, and then the draws."""

    def replicate_quantities(parts: tuple[Array, Array, Array]) -> Array:
        truth, y, draws = parts
        return _quantities(_with_targets(posterior, y), probes, jnp.concatenate([truth[None], draws]))

    return jax.lax.map(replicate_quantities, (states.truth, states.y, jnp.asarray(thetas)))


def _quantities(
    posterior: NetworkPosterior, probes: Float[np.ndarray | Array, "probe ..."], thetas: Float[Array, "draw dim"]
) -> Float[Array, "draw quantity"]:
    """Return a prediction at each probe, and the log-likelihood of all data.

    A prediction is the mean of the first target, or the probability of the first class.
    """

    def draw_quantities(theta: Float[Array, " dim"]) -> Float[Array, " quantity"]:
        likelihood = posterior.likelihood_at(theta)

        def prediction(output: Float[Array, " output"]) -> Float[Array, ""]:
            if likelihood.task == "classification":
                return likelihood.class_probabilities(output)[0]
            return jnp.asarray(likelihood.distribution(output).mean).reshape(-1)[0]

        at_probes = jax.vmap(prediction)(posterior.outputs(theta, jnp.asarray(probes)))
        return jnp.append(at_probes, jnp.sum(posterior.log_likelihood(theta, posterior.data)))

    return jax.vmap(draw_quantities)(thetas)


def _dependence(values: Float[np.ndarray, "replicate draw quantity"]) -> Float[np.ndarray, " quantity"]:
    """Return the lag-1 autocorrelation of each quantity, averaged over the replicates. It is 1 for a stuck chain."""
    centred = values - values.mean(1, keepdims=True)
    variance = (centred**2).sum(1)
    products = (centred[:, 1:] * centred[:, :-1]).sum(1)
    return np.where(variance > 0, products / np.where(variance > 0, variance, 1.0), 1.0).mean(0)


def _test_ranks(name: str, uniform: Float[np.ndarray, " replicate"], dependence: float, limit: float) -> Quantity:
    """Apply two Kolmogorov-Smirnov tests: one to the ranks, and one to their distances from the middle rank.

    The second test detects draws whose variance is too small or too large.
    """
    shift = stats.kstest(uniform, "uniform").pvalue
    width = stats.kstest(np.abs(2 * uniform - 1), "uniform").pvalue
    distance = float(np.abs(2 * uniform - 1).mean())
    independent = dependence <= _MAX_DEPENDENT
    return Quantity(name, float(uniform.mean()), distance, float(min(shift, width)), limit, dependence, independent)
