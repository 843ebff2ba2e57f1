"""After warm-up a sampler changes only its position and its declared chain state; other changes are adaptation."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jaxtyping import Array, Float

from bnnzoo.plugins import registry
from bnnzoo.posterior.hyperparameter import number
from bnnzoo.samplers import AbstractSampler, Hmc, choose, metropolis, standard_normal
from bnnzoo.samplers.base import Exactness
from bnnzoo.testing import check_sampler
from bnnzoo.testing.chain_state import adaptation, changed_fields


class State(NamedTuple):
    position: Float[Array, " dim"]
    log_density: Float[Array, ""]
    step_size: Float[Array, ""]
    count: Float[Array, ""]


class Walk(AbstractSampler[State]):
    """Random-walk Metropolis that changes its step size in every `every`-th step, also after warm-up."""

    exactness: ClassVar[Exactness] = "exact"
    chain_state: ClassVar[tuple[str, ...]] = ("log_density", "count")
    every: Any = number(1.0)

    def init(self, posterior: Any, theta: Any, *, num_warmup: int, key: Any) -> State:
        return State(theta, posterior.log_density(theta), jnp.asarray(1.0), jnp.asarray(0.0))

    def step(self, posterior: Any, state: State, *, key: Any) -> tuple[State, dict[str, Array]]:
        key_propose, key_accept = jax.random.split(key)
        position = state.position + state.step_size * standard_normal(state.position, key=key_propose)
        log_density = posterior.log_density(position)
        accepted, rate, _ = metropolis(log_density - state.log_density, key=key_accept)
        state = choose(accepted, state._replace(position=position, log_density=log_density), state)
        count = state.count + 1
        grown = jnp.where(jnp.mod(count, self.every) == 0, 1 + 0.1 * (rate - 0.4), 1.0)
        return state._replace(count=count, step_size=state.step_size * grown), {"acceptance_rate": rate}


@pytest.mark.parametrize("every", [1.0, 60.0])
def test_check_sampler_refuses_one_that_adapts_for_ever_and_names_the_field(every):
    """It adapts in every step, or so rarely that most steps change nothing."""
    report = check_sampler(Walk(every=every), targets=["skewed"], chains=32, warmup=10, draws=256)
    assert not report.passed
    assert (
        "a step after warm-up changes state.step_size; if this is an adaptation, move it to warmup_step or settle"
        in report.verdict
    )
    assert "chain_state = ('log_density', 'count', 'step_size',)" in report.verdict


def test_check_sampler_accepts_the_same_sampler_with_a_fixed_step():
    report = check_sampler(Walk(every=1e9), targets=["skewed"], chains=32, warmup=10, draws=256)
    assert "changes" not in report.verdict


def test_the_default_declares_nothing_and_any_change_beside_the_position_is_named():
    before = State(*(jnp.zeros(2),) * 4)
    after = before._replace(position=jnp.ones(2), log_density=jnp.ones(2))
    assert AbstractSampler.chain_state == ()
    assert changed_fields(before, after) == ["log_density"]
    assert "state.log_density" in adaptation(Hmc(), before, after)
    assert adaptation(Walk(), before, after) == ""
    nan = before._replace(count=jnp.full(2, np.nan))
    assert changed_fields(nan, nan._replace(count=jnp.full(2, np.nan))) == []


def test_the_parts_of_a_declared_field_are_declared():
    class Outer(NamedTuple):
        position: Any
        inner: Any

    before = Outer(np.zeros(2), {"momentum": np.zeros(2), "metric": np.ones(2)})
    after = Outer(np.ones(2), {"momentum": np.ones(2), "metric": np.full(2, 2.0)})
    assert changed_fields(before, after) == ["inner.metric", "inner.momentum"]

    class Part(Walk):
        chain_state: ClassVar[tuple[str, ...]] = ("inner.momentum",)

    class Whole(Walk):
        chain_state: ClassVar[tuple[str, ...]] = ("inner",)

    assert "changes state.inner.metric;" in adaptation(Part(), before, after)
    assert adaptation(Whole(), before, after) == ""


@pytest.mark.long
@tiny.EACH
def test_every_registered_sampler_declares_what_its_steps_change(sampler):
    """Compares the states after one draw and after twenty."""
    first, twenty = (
        [chunk for chunk in tiny.run(sampler, num_draws=count) if chunk.phase == "sampling"][-1].carry.states
        for count in (1, tiny.DRAWS)
    )
    assert adaptation(registry.load("samplers", sampler)(), first, twenty) == ""
    assert not np.array_equal(first.position, twenty.position) or sampler == "ensemble"
