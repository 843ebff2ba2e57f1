"""Checks that the density and the draws of a prior have the properties that samplers assume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.assembly.recipe_parts import check_prior as check_shapes
from bnnzoo.errors import UsageError
from bnnzoo.posterior.layout import Layout, network_layout
from bnnzoo.posterior.priors import AbstractPrior
from bnnzoo.testing import density, own_parameters
from bnnzoo.testing.check_report import NOT_APPLICABLE, attempt
from bnnzoo.testing.part_report import FIELDS, PARAMETERS, PartReport, report_on

CHECKS = {
    "fields": FIELDS,
    "shapes": (
        "log_prob returns one number, and sample returns one number per parameter",
        "let distribution return a univariate distribution of batch shape () or (dim,), or override both methods",
    ),
    "normalised": (
        "exp(log_prob) integrates to 1",
        "divide by the normalising constant; otherwise the evidence and sampled scales are wrong",
    ),
    "draws": ("sample draws from the density exp(log_prob)", "compute both from the same distribution"),
    "gradient": (
        "log_prob and its gradient are finite float32 numbers, at 0 and far from 0",
        "avoid square roots, logarithms and divisions at 0, also inside jnp.where",
    ),
    "jit": ("log_prob is the same when compiled", "branch with jnp.where, and do not convert fields to Python numbers"),
    "parameters": PARAMETERS,
}
_DRAWS = 4000
_FAR = 100.0


class _Case(NamedTuple):
    """Names and shapes of a network's parameters.

    If `has_grid` is true (one or two parameters), a grid is used to integrate the density and to test the draws.
    """

    layout: Layout
    has_grid: bool


def check_prior(prior: AbstractPrior, *, seed: int = 0) -> PartReport:
    """Test a prior for errors that make draws wrong, on networks with one, two and seventeen parameters.

    Args:
        prior: the prior to test.
        seed: seed of the draws.
    """
    key = jax.random.key(seed)
    # With these modules the parameters have the names of the parameters of an mlp, which some priors require.
    networks = {
        "one weight": eqx.nn.MLP(1, 1, width_size=1, depth=0, use_final_bias=False, key=key),
        "a weight and a bias": eqx.nn.MLP(1, 1, width_size=1, depth=0, key=key),
        "two layers": eqx.nn.MLP(2, 1, width_size=4, depth=1, key=key),
    }
    cases = (
        (name, _checks(prior, _Case(network_layout(network), has_grid=number < 2), key))
        for number, (name, network) in enumerate(networks.items())
    )
    return report_on("prior", prior, CHECKS, cases)


def _checks(prior: AbstractPrior, case: _Case, key: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the fault of each check. Stop after `shapes` if it fails or does not apply."""
    try:
        own_values = own_parameters.start_values(prior.parameters(case.layout))
        prior.with_parameters(own_values).sample(case.layout, key=key)
    except UsageError as error:
        yield "shapes", f"{NOT_APPLICABLE}{error}"
        return
    except Exception:
        pass  # a fault, which the next check reports
    fault = attempt(lambda: check_shapes(prior, case.layout) or "")
    yield "shapes", fault
    if fault:
        return
    yield "parameters", attempt(lambda: _parameters(prior, case.layout))
    started = prior.with_parameters(own_parameters.start_values(prior.parameters(case.layout)))
    keys = jax.random.split(key, _DRAWS)
    draws: list[np.ndarray] = []

    def draw() -> str:
        draws.append(np.asarray(jax.jit(jax.vmap(lambda k: started.sample(case.layout, key=k)))(keys)))
        return ""

    if fault := attempt(draw):
        yield "draws", fault
        return
    yield "gradient", attempt(lambda: _gradient(started, case.layout, draws[0]))
    yield "jit", attempt(lambda: _jit(started, case.layout, draws[0]))
    if case.has_grid:
        yield from density.compare(draws[0], jax.jit(jax.vmap(lambda theta: started.log_prob(theta, case.layout))))
    else:
        yield "draws", attempt(lambda: _check_many_parameters(draws[0]))


def _check_many_parameters(draws: np.ndarray) -> str:
    """Check that draws are finite, and that they differ between keys and between parameters."""
    if not np.isfinite(draws).all():
        return "a draw is not finite"
    if any(len(np.unique(column)) < 2 for column in draws.T):
        return "another key gives the same values"
    # Signs are compared, because heavy tails do not affect their correlation.
    correlation = np.corrcoef(np.sign(draws).T) - np.eye(draws.shape[1])
    if np.nanmax(np.abs(correlation)) > 6 / len(draws) ** 0.5 + 0.02 and np.nanmax(np.abs(correlation)) > 0.99:
        return "two parameters always have the same sign, so both use the same random number"
    return ""


def _gradient(prior: AbstractPrior, layout: Layout, draws: np.ndarray) -> str:
    thetas = np.concatenate([draws[:100], np.zeros((1, layout.dim)), np.full((2, layout.dim), _FAR)])
    thetas[-1] *= -1
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(lambda theta: prior.log_prob(theta, layout))))(
        jnp.asarray(thetas, jnp.float32)
    )
    if values.dtype != jnp.float32:
        return f"log_prob returns {values.dtype} for float32 parameters"
    for quantity, array in (("log_prob", values[:, None]), ("the gradient of log_prob", gradients)):
        invalid_places = np.argwhere(~np.isfinite(np.asarray(array)))
        if len(invalid_places):
            return (
                f"{quantity} is {np.asarray(array)[tuple(invalid_places[0])]} if a parameter is "
                f"{thetas[invalid_places[0][0]][0]:.3g}"
            )
    return ""


def _jit(prior: AbstractPrior, layout: Layout, draws: np.ndarray) -> str:
    theta = jnp.asarray(draws[0])
    compiled = eqx.filter_jit(lambda prior, theta: prior.log_prob(theta, layout))(prior, theta)
    gap = float(jnp.abs(compiled - prior.log_prob(theta, layout)))
    return "" if gap <= 1e-4 * (1 + abs(float(compiled))) else f"log_prob differs by {gap:.2g} when compiled"


def _parameters(prior: AbstractPrior, layout: Layout) -> str:
    def log_prob(values: Mapping[str, Any]) -> Any:
        return prior.with_parameters(values).log_prob(jnp.full((layout.dim,), 0.3), layout)

    return own_parameters.parameters("prior", prior.parameters(layout), log_prob)
