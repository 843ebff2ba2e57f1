"""The known mistakes: each replaces a correct function by a wrong one.

As a pytest plugin (`-p tools.mutants`) it applies the mistake that BNNZOO_MUTANT names, before any test is imported.
Mistakes change arguments and results of functions, so the table below stays valid if the source is rewritten.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

IDENTITIES, INVARIANCE, SGLD, LANGEVIN = (
    f"tests/samplers/test_{name}.py" for name in ("penalty_identities", "penalty_invariance", "sgld_bias", "langevin")
)
BALANCE = f"{IDENTITIES}::test_the_penalised_acceptance_is_in_detailed_balance[float64-1e-06]"
RATIO = f"{IDENTITIES}::test_a_step_accepts_with_its_penalised_ratio"
ESTIMATE = f"{IDENTITIES}::test_delta_and_its_variance_are_unbiased_over_all_batches"
STILL = f"{IDENTITIES}::test_a_step_of_length_zero_has_no_difference"
MEMORY = f"{IDENTITIES}::test_a_step_depends_only_on_the_position_and_the_proposal"
KEEPS = f"{INVARIANCE}::test_pooled_variance_keeps_the_posterior[replacement-1]"
FORMULA = f"{SGLD}::test_the_stationary_variance_is_the_formula[10-replacement]"

MALA = f"{LANGEVIN}::test_mala_is_in_detailed_balance[float64-1e-09]"
OWN_KEY = f"{LANGEVIN}::test_the_drift_has_a_key_of_its_own[langevin]"
DRIFT = f"{LANGEVIN}::test_a_drift_on_any_mini_batch_is_in_detailed_balance"
SKEWED = f"{LANGEVIN}::test_langevin_samplers_keep_the_skewed_target[langevin]"

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    """A mistake: the function that applies it, and the tests that must fail with it."""

    name: str
    make: Callable[[Patch], None]
    tests: tuple[str, ...]


def pytest_configure() -> None:
    # Not at import, because the import hook that checks shapes (in the tests' conftest) must be installed first.
    if name := os.environ.get("BNNZOO_MUTANT"):
        (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
        mutant.make(Patch())


# ---- the penalty ---------------------------------------------------------------------------------


def _penalty(wrong: Callable[[Any, Any], Any]) -> Callable[[Patch], None]:
    """`wrong(right penalty, sigma2)`."""

    def make(patch: Patch) -> None:
        from bnnzoo.samplers.subsampled import metropolis as penalty
        from bnnzoo.samplers.subsampled import noise_penalty as _noise_penalty

        original = _noise_penalty.noise_penalty
        for module in (_noise_penalty, penalty):
            patch.setattr(
                module, "noise_penalty", lambda sigma2, dof, terms: wrong(original(sigma2, dof, terms), sigma2)
            )

    return make


def _difference(wrong: Callable[..., Any]) -> Callable[[Patch], None]:
    """`wrong(right difference, sampler, known change, n, M, N)`."""

    def make(patch: Patch) -> None:
        from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty

        original = AbstractPenalty.difference

        def difference(self: Any, posterior: Any, d: Any, known_change: Any) -> Any:
            result = original(self, posterior, d, known_change)
            return wrong(result, self, known_change, *self.plan(posterior.num_data)[:2], posterior.num_data)

        patch.setattr(AbstractPenalty, "difference", difference)

    return make


def _sigma2(variance: str, factor: Callable[[int, int], float]) -> Callable[[Patch], None]:
    """The variance of one kind times `factor(n, M)`."""

    def wrong(result: Any, sampler: Any, fixed: Any, size: int, batches: int, total: int) -> Any:
        return result._replace(sigma2=result.sigma2 * (factor(size, batches) if sampler.variance == variance else 1))

    return _difference(wrong)


def _not_scaled(result: Any, sampler: Any, fixed: Any, size: int, batches: int, total: int) -> Any:
    share = size * batches / total
    return result._replace(delta=(result.delta + fixed) * share - fixed, sigma2=result.sigma2 * share**2)


def _prior_scaled(result: Any, sampler: Any, fixed: Any, size: int, batches: int, total: int) -> Any:
    return result._replace(delta=result.delta + fixed - fixed * (total / (size * batches)))


def _infinite_population(result: Any, sampler: Any, fixed: Any, size: int, batches: int, total: int) -> Any:
    correction = 1 - size * batches / total if sampler.sampling == "disjoint" else 1
    return result._replace(sigma2=result.sigma2 / correction)


def _ratio(wrong: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """`wrong(right proposal ratio)`."""

    def make(patch: Patch) -> None:
        from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty

        original = AbstractPenalty._propose

        def propose(self: Any, posterior: Any, state: Any, *, key: Any) -> Any:
            proposal, log_ratio, number = original(self, posterior, state, key=key)
            return proposal, wrong(log_ratio), number

        patch.setattr(AbstractPenalty, "_propose", propose)

    return make


def _outside(patch: Patch) -> None:
    """exp(min(log ratio, 0) - u) for exp(min(log ratio - u, 0))."""
    import jax.numpy as jnp

    from bnnzoo.samplers.subsampled import metropolis as penalty

    noise_penalty, metropolis, last = penalty.noise_penalty, penalty.metropolis, []

    def outside_regime(sigma2: Any, dof: Any, terms: int) -> Any:
        last[:] = [noise_penalty(sigma2, dof, terms)]
        return last[0]

    patch.setattr(penalty, "noise_penalty", outside_regime)
    patch.setattr(
        penalty, "metropolis", lambda ratio, *, key: metropolis(jnp.minimum(ratio + last[0], 0) - last[0], key=key)
    )


def _during_steps(patch: Patch, begin: Callable[..., None]) -> None:
    """Call `begin(sampler, posterior, state, key)` at the start of every step of the penalty."""
    from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty

    original = AbstractPenalty.step

    def step(self: Any, posterior: Any, state: Any, *, key: Any) -> Any:
        begin(self, posterior, state, key)
        return original(self, posterior, state, key=key)

    patch.setattr(AbstractPenalty, "step", step)


def _one_key(patch: Patch) -> None:
    """Draw the noise of the proposal and the uniform number of the acceptance from the same bits.

    With `standard_normal`, which hashes its key, one key would give two numbers that no test can tell from independent.
    """
    import jax

    from bnnzoo.samplers.subsampled import metropolis as penalty

    metropolis, keys = penalty.metropolis, []

    def begin(sampler: Any, posterior: Any, state: Any, key: Any) -> None:
        keys[:] = [jax.random.split(jax.random.split(key, 3)[0], 3)[0]]  # the noise of the proposal

    _during_steps(patch, begin)
    patch.setattr(penalty, "metropolis", lambda log_ratio, *, key: metropolis(log_ratio, key=keys[0]))
    patch.setattr(penalty, "standard_normal", lambda like, *, key: jax.random.normal(key, like.shape, like.dtype))


def _one_batch(patch: Patch) -> None:
    """Use the batch of the drift for the acceptance."""
    from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty

    original, keys = AbstractPenalty._batch, []
    _during_steps(patch, lambda *_: keys.clear())

    def batch(self: Any, posterior: Any, rows: Any, *, key: Any) -> Any:
        keys.append(key)
        return original(self, posterior, rows, key=keys[0])

    patch.setattr(AbstractPenalty, "_batch", batch)


def _other_batch(patch: Patch) -> None:
    """Evaluate theta and theta' on different data."""
    import jax

    from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty

    original = AbstractPenalty.step

    def step(self: Any, posterior: Any, state: Any, *, key: Any) -> Any:
        # Not `fold_in(key, 1)`, which is the second of the keys into which the step splits its key.
        other, _ = self._batch(posterior, state.rows, key=jax.random.fold_in(jax.random.split(key)[0], 1))
        kind, calls = type(posterior), []
        plain = kind.log_likelihood

        def log_likelihood(posterior: Any, theta: Any, batch: Any) -> Any:
            calls.append(theta)
            return plain(posterior, theta, other if len(calls) == 1 else batch)

        with Patch.context() as inside:
            inside.setattr(kind, "log_likelihood", log_likelihood)
            return original(self, posterior, state, key=key)

    patch.setattr(AbstractPenalty, "step", step)


def _remembered(patch: Patch) -> None:
    """Keep the mean log-likelihood of theta from the batch on which theta was accepted."""
    import equinox as eqx
    import jax.numpy as jnp

    from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty
    from bnnzoo.samplers.subsampled.penalty_state import PenaltyState

    class Remembering(PenaltyState):
        old: Any = eqx.field(default_factory=lambda: jnp.full((), jnp.nan))

    init, step, difference, current = AbstractPenalty.init, AbstractPenalty.step, AbstractPenalty.difference, {}

    def wrong_init(self: Any, *args: Any, **named: Any) -> Any:
        state = init(self, *args, **named)
        return Remembering(*(getattr(state, field.name) for field in dataclasses.fields(state)))

    def wrong_step(self: Any, posterior: Any, state: Any, *, key: Any) -> Any:
        kind, means = type(posterior), []
        plain = kind.log_likelihood

        def log_likelihood(posterior: Any, theta: Any, batch: Any) -> Any:
            values = plain(posterior, theta, batch)
            means.append(jnp.mean(values))
            return values

        current.update(means=means, old=state.old)
        with Patch.context() as inside:
            inside.setattr(kind, "log_likelihood", log_likelihood)
            moved, stats = step(self, posterior, state, key=key)
        theta_mean, proposal = means
        old = jnp.where(jnp.isnan(state.old), theta_mean, state.old)
        return eqx.tree_at(lambda s: s.old, moved, jnp.where(stats["accepted"], proposal, old)), stats

    def wrong_difference(self: Any, posterior: Any, d: Any, known_change: Any) -> Any:
        theta_mean = current["means"][0]
        return difference(
            self,
            posterior,
            d + theta_mean - jnp.where(jnp.isnan(current["old"]), theta_mean, current["old"]),
            known_change,
        )

    for name, wrong in (("init", wrong_init), ("step", wrong_step), ("difference", wrong_difference)):
        patch.setattr(AbstractPenalty, name, wrong)


# ---- MALA, SGLD ----------------------------------------------------------------------------------


def _mala(patch: Patch) -> None:
    import jax.numpy as jnp

    from bnnzoo.samplers.mcmc import mala

    density, metropolis, step, current = mala.density, mala.metropolis, mala.Mala.step, {}

    def wrong_step(self: Any, posterior: Any, state: Any, *, key: Any) -> Any:
        current.update(posterior=posterior, state=state)
        return step(self, posterior, state, key=key)

    def score(posterior: Any, theta: Any) -> Any:
        current["proposal"] = density(posterior, theta)
        return current["proposal"]

    def reversed_ratio(log_ratio: Any, *, key: Any) -> Any:
        (prior, likelihoods, _), state = current["proposal"], current["state"]
        change = jnp.sum(likelihoods - state.log_likelihoods) * current["posterior"].likelihood_power
        # log_ratio = change + q, and change - q is twice the change less that.
        return metropolis(2 * (prior - state.log_prior + change) - log_ratio, key=key)

    patch.setattr(mala.Mala, "step", wrong_step)
    patch.setattr(mala, "density", score)
    patch.setattr(mala, "metropolis", reversed_ratio)


def _noise_of_sgld(factor: float) -> Callable[[Patch], None]:
    def make(patch: Patch) -> None:
        from bnnzoo.samplers.sgmcmc import sgld

        original = sgld.standard_normal
        patch.setattr(sgld, "standard_normal", lambda like, *, key: factor * original(like, key=key))

    return make


def _gradient_of_sgld(wrong: Callable[[Any, Any], Any]) -> Callable[[Patch], None]:
    """`wrong(right gradient, the prior's)`."""

    def make(patch: Patch) -> None:
        import jax

        from bnnzoo.samplers.sgmcmc.sgld import Sgld

        original = Sgld.gradient

        def gradient(self: Any, posterior: Any, theta: Any, anchor: Any, batch: Any) -> Any:
            value, result = original(self, posterior, theta, anchor, batch)
            return value, wrong(result, jax.grad(posterior.log_prior)(theta))

        patch.setattr(Sgld, "gradient", gradient)

    return make


# ---- the likelihood power, and what trains -------------------------------------------------------


def _without_power(place: Callable[[], tuple[Any, str]]) -> Callable[[Patch], None]:
    """Return the named function of a class or module, called with a posterior of likelihood power 1."""

    def make(patch: Patch) -> None:
        import equinox as eqx
        import numpy as np

        from bnnzoo.posterior import AbstractPosterior

        owner, name = place()
        original = getattr(owner, name)

        def without_power(args: Any) -> Any:
            if not isinstance(args, AbstractPosterior):
                return args
            return eqx.tree_at(lambda p: p.likelihood_power, args, np.float32(1.0))

        patch.setattr(owner, name, lambda *args, **named: original(*map(without_power, args), **named))

    return make


def _of_sampler(name: str, method: str) -> Callable[[Patch], None]:
    def place() -> tuple[Any, str]:
        from bnnzoo import samplers

        return getattr(samplers, name), method

    return _without_power(place)


def _of_gradients() -> tuple[Any, str]:
    from bnnzoo.samplers.sgmcmc.stochastic_gradient import AbstractStochasticGradientSampler

    return AbstractStochasticGradientSampler, "gradient"


def _of_training() -> tuple[Any, str]:
    from bnnzoo.samplers.variational import training

    return training, "loss"


def _of_proposals() -> tuple[Any, str]:
    from bnnzoo.samplers.independent import rejection

    return rejection, "_proposals"


def _sum_without_power(patch: Patch) -> None:
    """The sum over all data in a control variate."""
    from bnnzoo.samplers.common.control_variate import Anchor

    original, powers = Anchor.whole_part, [1.0]

    def begin(sampler: Any, posterior: Any, state: Any, key: Any) -> None:
        powers[0] = posterior.likelihood_power

    _during_steps(patch, begin)
    patch.setattr(Anchor, "whole_part", lambda self, start, end: original(self, start, end) / powers[0])


def _loss(wrong: Callable[..., Any]) -> Callable[[Patch], None]:
    """`wrong(right loss, posterior, theta, rows, keyword arguments)`."""

    def make(patch: Patch) -> None:
        from bnnzoo.samplers.variational import training

        original = training.loss
        patch.setattr(
            training, "loss", lambda posterior, theta, rows, **kwargs: wrong(original, posterior, theta, rows, kwargs)
        )

    return make


def _without_prior(original: Any, posterior: Any, theta: Any, rows: Any, kwargs: dict[str, Any]) -> Any:
    return original(posterior, theta, rows, **kwargs) + posterior.log_prior(theta) / posterior.num_data


def _gibbs_for_ever(patch: Patch) -> None:
    from bnnzoo.samplers import Gibbs

    patch.setattr(Gibbs, "step", Gibbs.warmup_step)


def _forgotten_weights(patch: Patch) -> None:
    import jax.numpy as jnp

    from bnnzoo.samplers.subsampled.row_probabilities import RowProbabilities

    original = RowProbabilities.draw

    def draw(self: Any, size: int, *, key: Any) -> Any:
        rows, weights = original(self, size, key=key)
        return rows, jnp.ones_like(weights)

    patch.setattr(RowProbabilities, "draw", draw)


def _without_density(patch: Patch) -> None:
    from bnnzoo.samplers.independent import proposals

    patch.setattr(proposals, "log_prior_ratio", lambda posterior, density, theta: posterior.log_prior(theta))


def _trapezoids_alone(patch: Patch) -> None:
    from bnnzoo.evaluation.evidence import power_path

    original = power_path._weights
    patch.setattr(power_path, "_weights", lambda powers: original(powers) * [1.0, 0.0])


def _all_seen(patch: Patch) -> None:
    from bnnzoo.samplers.subsampled import influence

    patch.setattr(influence, "effective_contribution", lambda d, probability, *, disjoint: d)


def _sees_itself(patch: Patch) -> None:
    import numpy as np

    from bnnzoo.models.autoregressive import Masked

    def mask(self: Any) -> Any:
        before, after = self.degrees
        return np.array(after)[:, None] + 1 >= np.array(before)

    patch.setattr(Masked, "mask", property(mask))


ADAPTS = "tests/sampling/test_run.py::test_a_step_of_gibbs_adapts_nothing"
POWER = "tests/samplers/test_likelihood_power.py::test_"
LOSS = f"{POWER}the_training_loss_is_the_log_density_for_each_datum"
ROWS_DRAWN = "tests/samplers/test_row_probabilities.py::test_rows_are_drawn_with_their_probabilities"
SEES = "tests/models/test_autoregressive.py::test_the_outputs_of_a_column_see_the_columns_before_it[hidden1]"
WEIGHTED = "tests/samplers/test_proposals.py::test_weights_make_the_law_of_the_closed_form[own]"
KEPT = "tests/samplers/test_proposals.py::test_accepted_draws_have_the_law_of_the_closed_form"
CORRECTED = "tests/evaluation/test_evidence.py::test_the_correction_of_the_path_is_of_higher_order"
UNSEEN = "tests/samplers/test_guard.py::test_a_row_missed_by_the_batches_is_found[OneRow]"


def _steps(*names: str) -> tuple[str, ...]:
    return tuple(f"{POWER}steps_go_by_the_power[{name}]" for name in names)


MUTANTS = (
    Mutant("no penalty", _penalty(lambda u, s: 0 * u), (BALANCE,)),
    Mutant("sigma2 / 4", _penalty(lambda u, s: u - s / 4), (BALANCE,)),
    Mutant("sigma2", _penalty(lambda u, s: u + s / 2), (BALANCE,)),
    Mutant("standard deviation for variance", _penalty(lambda u, s: u - s / 2 + s**0.5 / 2), (BALANCE,)),
    Mutant("pooled variance not divided by K", _sigma2("pooled", lambda n, m: n * m), (ESTIMATE,)),
    Mutant("variance not divided by M", _sigma2("batch-means", lambda n, m: m), (ESTIMATE,)),
    Mutant("pooled variance with ddof 0", _sigma2("pooled", lambda n, m: 1 - 1 / (n * m)), (ESTIMATE,)),
    Mutant("ddof 0", _sigma2("batch-means", lambda n, m: 1 - 1 / m), (ESTIMATE,)),
    Mutant("penalty outside the minimum", _outside, (RATIO,)),
    Mutant("theta's loss remembered from an older batch", _remembered, (MEMORY, KEEPS)),
    Mutant("different batches for theta and theta'", _other_batch, (STILL,)),
    Mutant("N/n missing", _difference(_not_scaled), (ESTIMATE,)),
    Mutant("prior multiplied by N/n", _difference(_prior_scaled), (ESTIMATE,)),
    Mutant("one key for proposal and acceptance", _one_key, (KEEPS,)),
    Mutant("no finite-population factor", _difference(_infinite_population), (ESTIMATE,)),
    Mutant("reversed proposal ratio", _ratio(lambda q: -q), (DRIFT, SKEWED)),
    Mutant("no proposal ratio", _ratio(lambda q: 0 * q), (DRIFT,)),
    Mutant("drift and acceptance on one batch", _one_batch, (OWN_KEY, SKEWED)),
    Mutant("MALA: reversed proposal ratio", _mala, (MALA,)),
    Mutant("SGLD: noise of half the variance", _noise_of_sgld(0.5**0.5), (FORMULA,)),
    Mutant("SGLD: twice the gradient", _gradient_of_sgld(lambda g, prior: 2 * g), (FORMULA,)),
    Mutant("SGLD: N/n a tenth too large", _gradient_of_sgld(lambda g, prior: g + 0.1 * (g - prior)), (FORMULA,)),
    Mutant("SGLD: no noise", _noise_of_sgld(0.0), (FORMULA,)),
    Mutant("MALA: no likelihood power", _of_sampler("Mala", "step"), _steps("mala")),
    Mutant("random walk: no likelihood power", _of_sampler("RandomWalk", "step"), _steps("random-walk")),
    Mutant("Gibbs: no likelihood power", _of_sampler("Gibbs", "step"), _steps("gibbs")),
    Mutant("rejection: no likelihood power", _without_power(_of_proposals), _steps("rejection")),
    Mutant(
        "importance: no likelihood power",
        _of_sampler("Importance", "step"),
        (f"{POWER}the_weights_of_importance_go_by_the_power",),
    ),
    Mutant("control variate: no likelihood power", _sum_without_power, _steps("penalty, first order")),
    Mutant(
        "stochastic gradients: no likelihood power", _without_power(_of_gradients), _steps("sgld", "sghmc", "psgld")
    ),
    Mutant("BBB: no likelihood power", _of_sampler("Bbb", "_fit"), (f"{POWER}training_goes_by_the_power[bbb]",)),
    Mutant("Laplace: no likelihood power", _of_sampler("Laplace", "_factor"), (f"{POWER}laplace_goes_by_the_power",)),
    Mutant("training: no likelihood power", _without_power(_of_training), (LOSS,)),
    Mutant("training: no prior", _loss(_without_prior), (LOSS,)),
    Mutant(
        "dropout: trained without masks",
        _loss(lambda right, posterior, theta, rows, kwargs: right(posterior, theta, rows)),
        (f"{POWER}dropout_trains_the_network_that_it_draws",),
    ),
    Mutant(
        "Gibbs: adapts for ever", _gibbs_for_ever, ("tests/sampling/test_run.py::test_a_step_of_gibbs_adapts_nothing",)
    ),
    Mutant("importance sampling of rows: weights forgotten", _forgotten_weights, (ROWS_DRAWN,)),
    Mutant("autoregression: a column sees itself", _sees_itself, (SEES,)),
    Mutant("proposals: no density in the weight", _without_density, (WEIGHTED, KEPT)),
    Mutant("path of powers: trapezoids alone", _trapezoids_alone, (CORRECTED,)),
    Mutant("guard: every row seen", _all_seen, (UNSEEN,)),
)
