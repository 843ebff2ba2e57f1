"""Statistics that samplers declare are the ones that they report, and they are used correctly."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo.errors import UsageError
from bnnzoo.plugins import registry
from bnnzoo.samplers.statistics import Statistic, attributes, reductions
from bnnzoo.sampling.devices import jax_settings


@tiny.EACH
def test_every_statistic_is_declared(sampler):
    problem = tiny.problem(sampler)
    chosen_sampler, posterior = problem.sampler, problem.posterior
    theta, key = jnp.zeros(posterior.layout.dim), jax.random.key(0)

    def reported(theta):
        state = chosen_sampler.init(posterior, theta, num_warmup=10, key=key)
        state, warm = chosen_sampler.warmup_step(posterior, state, key=key)
        return warm | chosen_sampler.step(posterior, state, key=key)[1]

    names = [statistic.name for statistic in chosen_sampler.statistics]
    assert len(names) == len(set(names))
    assert set(eqx.filter_eval_shape(reported, theta)) <= set(names)


def test_every_registered_sampler_declares_some():
    for name in registry.entries("samplers"):
        assert registry.load("samplers", name).statistics, name


def test_statistics_have_their_limits_and_labels_in_the_file():
    result = attributes(bnnzoo.Penalty())
    assert result["sigma2"]["limit"] == 2.0
    assert result["sigma2"]["long_name"]
    assert result["sigma2"]["limit_label"]
    assert result["delta"] == {"reduce": "last"}
    assert reductions(bnnzoo.Penalty())["diverging"] == "mean"


AVERAGED = {"acceptance_rate", "accepted", "diverging", "grown", "n_steps", "penalty", "regime_dof", "regime_skew"}
AVERAGED |= {"rows_seen", "sigma2", "skew_bias", "test_error", "tree_depth"}


def test_statistics_are_averaged_or_taken_from_the_last_step():
    """Costs, acceptance and statistics of verdicts include all steps of a thinned draw."""
    for name in registry.entries("samplers"):
        for statistic, reduce in reductions(registry.load("samplers", name)).items():
            assert reduce == ("mean" if statistic in AVERAGED else "last"), (name, statistic)


class Named(NamedTuple):
    position: jax.Array
    step_size: jax.Array


class Module(eqx.Module):
    position: jax.Array
    step_size: jax.Array
    anchor: jax.Array | None = None


@pytest.mark.parametrize("kind", [Named, Module])
def test_replace_changes_a_number_of_a_state(kind):
    state = kind(jnp.zeros(2), jnp.ones(()))
    changed = jax.jit(lambda s: bnnzoo.replace(s, step_size=s.step_size + 1))(state)
    assert isinstance(changed, kind)
    assert (changed.step_size, state.step_size) == (2, 1)
    assert (changed.position == state.position).all()
    with pytest.raises(AttributeError, match="stepsize"):
        bnnzoo.replace(state, stepsize=1.0)


def test_replace_sets_a_field_that_was_none():
    state = Module(jnp.zeros(2), jnp.ones(()))
    changed = bnnzoo.replace(state, anchor=jnp.ones(2))
    assert changed.anchor is not None
    assert changed.anchor.sum() == 2


def test_a_statistic_that_is_reduced_as_none_can_be_is_refused():
    class Odd:
        statistics = (Statistic("diverging", "any"),)

    with pytest.raises(UsageError, match=r"Odd: statistic diverging: reduce must be 'mean' or 'last' \(got 'any'\)"):
        attributes(Odd())


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["random-walk", "mala", "gibbs", "mams", "mclmc", "hmc", "nuts"])
def test_lp_is_the_log_density_of_the_draw(sampler):
    """It is the log density of the sampled posterior, with the likelihood power."""
    posterior = eqx.tree_at(lambda p: p.likelihood_power, tiny.problem(sampler).posterior, np.float32(0.6))
    run_chunks = tiny.joined(tiny.run(sampler, posterior=posterior))
    with jax_settings.arithmetic("float32"):
        expected = jax.vmap(jax.vmap(posterior.log_density))(jnp.asarray(run_chunks["theta"]))
    np.testing.assert_allclose(run_chunks["lp"], expected, rtol=1e-4)
