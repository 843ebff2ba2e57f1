"""Models are built with numeric fields as concrete numbers, in programs that equal values share."""

from __future__ import annotations

import gc
import weakref
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from annotated_types import Gt

from bnnzoo import AbstractModel, AbstractPrior, number
from bnnzoo.assembly import Problem
from bnnzoo.assembly.recipe_parts import compilable_prior
from bnnzoo.data import from_arrays
from bnnzoo.models.building import Architecture
from bnnzoo.models.own import Own
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.recipe import resolve

TRACES: list[float] = []


class Scaled(AbstractModel):
    """A line whose initial weights have a size that Python code computes."""

    size: Annotated[float, Gt(0)] = number(2.0)

    def build(self, input_shape, num_outputs, *, key):
        TRACES.append(float(self.size))
        shape = (num_outputs, input_shape[0])
        line = eqx.nn.Linear(input_shape[0], num_outputs, key=key)
        return eqx.tree_at(lambda network: network.weight, line, float(self.size) * jax.random.normal(key, shape))


class Tails(AbstractPrior):
    """Student's t if Python code finds few degrees of freedom, otherwise a normal distribution."""

    df: Annotated[float, Gt(0)] = number(4.0)

    def distribution(self, layout):
        del layout
        return dist.StudentT(float(self.df)) if self.df < 30 else dist.Normal()


def problem(model: AbstractModel) -> Problem:
    x = np.random.default_rng(0).normal(size=(20, 2))
    recipe = resolve(Own(model).name, "random-walk", [], {"chains": 3, "test_fraction": 0.0}, in_memory=True)
    return Problem.from_recipe(recipe, from_arrays(x, x.sum(1)), model)


def test_a_model_may_use_its_numbers_as_python_numbers_where_chains_start():
    thetas = problem(Scaled()).initial_positions(trained=True, key=jax.random.key(0))
    assert thetas.shape[0] == 3
    wide = problem(Scaled(200.0)).initial_positions(trained=True, key=jax.random.key(0))
    np.testing.assert_allclose(wide[:, :2], 100 * thetas[:, :2], rtol=1e-5)


def test_equal_models_share_one_program():
    problem(Scaled(3.0)).initial_positions(trained=True, key=jax.random.key(0))
    repeat = problem(Scaled(3.0))
    TRACES.clear()
    repeat.initial_positions(trained=True, key=jax.random.key(1))
    assert not TRACES
    problem(Scaled(4.0)).initial_positions(trained=True, key=jax.random.key(1))
    assert TRACES


def test_architectures_are_told_apart_by_value_and_type():
    compiled = eqx.filter_jit(lambda architecture, key: architecture.build(key=key).weight)
    first = compiled(Architecture.from_model(Scaled(1.0), (2,), 1), jax.random.key(0))
    np.testing.assert_allclose(
        compiled(Architecture.from_model(Scaled(5.0), (2,), 1), jax.random.key(0)), 5 * first, rtol=1e-6
    )


class Shifted(Scaled):
    """A model that arranges rows by a number used in Python code."""

    def arrange(self, x):
        return x + float(self.size)


def test_rows_are_arranged_with_numbers_in_compiled_programs_too():
    arrange = eqx.filter_jit(lambda arrange, x: arrange(x))
    np.testing.assert_array_equal(
        arrange(Architecture.from_model(Shifted(1.5), (2,), 1).arrange, jnp.ones((3, 2))), 2.5
    )


def test_no_compiled_program_contains_the_arrays_of_a_given_network():
    network = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    weight = weakref.ref(network.weight)
    posed = problem(Own(network))
    posed.initial_positions(trained=True, key=jax.random.key(0))
    del network, posed
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize(("df", "law"), [(4.0, dist.StudentT(4.0)), (50.0, dist.Normal())])
def test_a_prior_that_decides_by_its_numbers_is_compiled_with_them(df, law):
    layout = Layout((Block("w", (3,), 0),))
    prior = compilable_prior(Tails(df), layout)
    theta = jnp.array([0.5, -1.0, 3.0])
    value = eqx.filter_jit(lambda prior, theta: prior.log_prob(theta, layout))(prior, theta)
    np.testing.assert_allclose(value, law.log_prob(theta).sum(), rtol=1e-5)


def test_numbers_of_other_priors_are_program_arguments():
    from bnnzoo.posterior.priors import Normal

    assert isinstance(compilable_prior(Normal(2.0), Layout((Block("w", (3,), 0),))).scale, np.float32)
