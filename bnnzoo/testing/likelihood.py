"""Checks that a likelihood has the properties that samplers, predictions and scores assume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bnnzoo.assembly.recipe_parts import check_likelihood as check_shapes
from bnnzoo.errors import UsageError
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.testing import density, own_parameters
from bnnzoo.testing.check_report import NOT_APPLICABLE, attempt
from bnnzoo.testing.example_targets import example_targets
from bnnzoo.testing.part_report import FIELDS, PARAMETERS, PartReport, report_on

CHECKS = {
    "fields": FIELDS,
    "num_outputs": ("num_outputs is a positive integer for any number of targets", "return an int >= 1"),
    "shapes": (
        "log_prob, the mean and variance, and the class probabilities have the right shapes for one row",
        "for several targets, add .to_event(1) to the distribution",
    ),
    "float32": ("log_prob is a float32 number for float32 outputs", "compute in the precision of the output"),
    "normalised": ("exp(log_prob) sums or integrates to 1 over all targets", "divide by the normalising constant"),
    "draws": ("sample draws targets with the density exp(log_prob)", "compute both from the same distribution"),
    "moments": ("mean and variance agree with log_prob", "compute both from the same distribution"),
    "classes": ("class_probabilities equals exp(log_prob) of each class", "compute both from the same distribution"),
    "rows": (
        "log_prob of a row depends on that row alone",
        "write log_prob for one row, without statistics of other rows",
    ),
    "gradient": (
        "log_prob and its gradient are finite, also for extreme outputs",
        "work with logarithms, and avoid division by numbers near 0, also inside jnp.where",
    ),
    "jit": ("log_prob is the same when compiled", "branch with jnp.where, and do not convert fields to Python numbers"),
    "upper_bound": ("log_prob never exceeds upper_bound", "leave upper_bound infinite if no bound is known"),
    "targets": (
        "the method check accepts targets that the likelihood drew itself",
        "let the method check refuse only targets with density 0",
    ),
    "parameters": PARAMETERS,
}
_DRAWS = 4000
_OUTPUTS = (-10.0, -3.0, 0.0, 3.0, 10.0)
"""`log_prob` and its gradient must be finite if all outputs are equal to one of these values."""


class _Case(NamedTuple):
    """A likelihood (its own parameters have their initial values), the outputs of one row, and drawn targets."""

    likelihood: AbstractLikelihood
    num_targets: int
    output: Any
    draws: Any
    """Targets that the likelihood drew, given `output`."""

    @property
    def targets(self) -> np.ndarray:
        """The drawn targets, as an array with one row per draw."""
        return np.asarray(self.draws, np.float64).reshape(len(self.draws), -1)

    def log_probs(self, targets: Any) -> np.ndarray:
        """Return the log density of each target, given the output of the case."""
        return np.asarray(jax.jit(jax.vmap(lambda y: self.likelihood.log_prob(self.output, y)))(targets))


def check_likelihood(likelihood: AbstractLikelihood, *, seed: int = 0) -> PartReport:
    """Test a likelihood for errors that make draws, predictions or scores wrong.

    The likelihood is tested with one and two targets or, for classification, with two and three classes.

    Args:
        likelihood: the likelihood to test.
        seed: seed of the outputs and the draws.
    """
    is_classification = likelihood.task == "classification"
    counts = {"2 classes": 2, "3 classes": 3} if is_classification else {"1 target": 1, "2 targets": 2}
    key = jax.random.key(seed)
    cases = ((name, _checks(likelihood, count, jax.random.fold_in(key, count))) for name, count in counts.items())
    return report_on("likelihood", likelihood, CHECKS, cases)


def _checks(likelihood: AbstractLikelihood, count: int, key: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the fault of each check (empty if it passed). Skip checks that depend on a failed check."""
    try:
        example = example_targets(likelihood, count)
    except UsageError as error:
        yield "shapes", f"{NOT_APPLICABLE}{error}"
        return
    likelihood = likelihood.of_targets(count)
    fault = attempt(lambda: _num_outputs(likelihood, count))
    yield "num_outputs", fault
    if fault:
        return
    fault = attempt(lambda: check_shapes(likelihood, count, example) or "")
    yield "shapes", fault
    if fault:
        return
    yield "parameters", attempt(lambda: _parameters(likelihood, count, key))
    started = likelihood.with_parameters(own_parameters.start_values(likelihood.parameters()))
    cases: list[_Case] = []

    def draw() -> str:
        key_output, key_draws = jax.random.split(key)
        output = 0.7 * jax.random.normal(key_output, (likelihood.num_outputs(count),))
        keys = jax.random.split(key_draws, _DRAWS)
        draws = jax.jit(jax.vmap(lambda k: started.sample(output, key=k)))(keys)
        cases.append(_Case(started, count, output, draws))
        return ""

    if fault := attempt(draw):
        yield "draws", fault
        return
    yield from _check_case(cases[0], example)


def _check_case(case: _Case, example: np.ndarray) -> Iterator[tuple[str, str]]:
    fault = attempt(lambda: _types(case, example))
    yield "float32", fault
    for name, check in (
        ("targets", _own_targets),
        ("rows", _rows),
        ("jit", _jit),
        ("gradient", _gradient),
        ("upper_bound", _upper_bound),
    ):
        yield name, attempt(lambda check=check: check(case))
    if fault:
        return
    if case.likelihood.task == "classification":
        yield from _classes(case)
    else:
        distribution = case.likelihood.distribution(case.output)
        yield from density.compare(case.targets, case.log_probs, (distribution.mean, distribution.variance))


def _num_outputs(likelihood: AbstractLikelihood, count: int) -> str:
    number = likelihood.num_outputs(count)
    return "" if isinstance(number, int) and number >= 1 else f"num_outputs({count}) gives {number!r}"


def _types(case: _Case, example: np.ndarray) -> str:
    value = case.likelihood.log_prob(case.output, case.draws[0])
    if value.dtype != jnp.float32:
        return f"log_prob returns {value.dtype} for float32 outputs"
    if case.draws.shape[1:] != example.shape[1:]:
        return f"sample returns shape {list(case.draws.shape[1:])}, expected {list(example.shape[1:])}"
    return ""


def _own_targets(case: _Case) -> str:
    dtype = np.int32 if case.likelihood.task == "classification" else np.float32
    try:
        case.likelihood.check(np.asarray(case.draws).astype(dtype), case.num_targets)
    except UsageError as error:
        return f"the method check refuses targets that sample has drawn: {error}"
    return ""


def _rows(case: _Case) -> str:
    """Check that the log density of a row is the same if rows are computed together, in reverse order or one by one."""
    outputs = case.output + jnp.linspace(-1, 1, 6)[:, None]
    targets = case.draws[:6]
    single_values = jnp.stack(
        [case.likelihood.log_prob(output, target) for output, target in zip(outputs, targets, strict=True)]
    )
    batch_values = jax.vmap(case.likelihood.log_prob)(outputs, targets)
    reversed_values = jax.vmap(case.likelihood.log_prob)(outputs[::-1], targets[::-1])[::-1]
    for other_values, reason in (
        (batch_values, "if other rows are computed together with this row"),
        (reversed_values, "if the order of the rows changes"),
    ):
        difference = float(jnp.max(jnp.abs(single_values - other_values) / (1 + jnp.abs(single_values))))
        if not difference < 1e-4:
            return f"log_prob of a row changes by {difference:.2g} {reason}"
    return ""


def _jit(case: _Case) -> str:
    compute = lambda likelihood, o, y: likelihood.log_prob(o, y)  # noqa: E731
    direct = case.likelihood.log_prob(case.output, case.draws[0])
    difference = float(jnp.abs(eqx.filter_jit(compute)(case.likelihood, case.output, case.draws[0]) - direct))
    return (
        "" if difference <= 1e-4 * (1 + abs(float(direct))) else f"log_prob differs by {difference:.2g} when compiled"
    )


def _gradient(case: _Case) -> str:
    compute = jax.jit(jax.vmap(jax.value_and_grad(case.likelihood.log_prob), (None, 0)))
    for level in _OUTPUTS:
        values, gradients = compute(jnp.full_like(case.output, level), case.draws[:100])
        if not np.isfinite(values).all():
            return f"log_prob is {np.asarray(values)[~np.isfinite(values)][0]} if all outputs are {level:g}"
        if not np.isfinite(gradients).all():
            gradient = np.asarray(gradients)[~np.isfinite(gradients)][0]
            return f"the gradient of log_prob is {gradient} if all outputs are {level:g}"
    return ""


def _upper_bound(case: _Case) -> str:
    bounds = jax.vmap(case.likelihood.upper_bound)(case.draws)
    if not np.isfinite(bounds).any():
        return f"{NOT_APPLICABLE}upper_bound is infinite"
    for shift in (-2.0, 0.0, 2.0):
        values = jax.vmap(lambda y, at=case.output + shift: case.likelihood.log_prob(at, y))(case.draws)
        excess = float(jnp.max(values - bounds))
        if excess > 1e-3:
            return f"log_prob exceeds upper_bound by {excess:.2g}"
    return ""


def _classes(case: _Case) -> Iterator[tuple[str, str]]:
    """Check the class probabilities, their sum, and the frequencies of drawn labels."""
    labels = jnp.arange(case.num_targets, dtype=jnp.int32)
    probabilities = np.exp(case.log_probs(labels).astype(np.float64))
    total = probabilities.sum()
    yield "normalised", "" if abs(total - 1) < 1e-4 else f"the class probabilities sum to {total:.4g}, expected 1"
    class_probabilities = np.asarray(case.likelihood.class_probabilities(case.output))
    difference = float(np.abs(class_probabilities - probabilities).max())
    yield "classes", "" if difference < 1e-4 else f"class_probabilities differs from exp(log_prob) by {difference:.2g}"
    counts = np.bincount(np.asarray(case.draws).astype(int), minlength=case.num_targets)
    expected = len(case.draws) * probabilities / total
    # The limit is six standard deviations of a binomial count.
    is_off = np.abs(counts[: case.num_targets] - expected) > 6 * np.sqrt(expected + 1)
    if is_off.any() or len(counts) > case.num_targets:
        yield "draws", f"labels are drawn {counts.tolist()} times, expected {np.round(expected).astype(int).tolist()}"
    else:
        yield "draws", ""


def _parameters(likelihood: AbstractLikelihood, count: int, key: Any) -> str:
    own_list = likelihood.parameters()

    def log_prob(values: Mapping[str, Any]) -> Any:
        output = jax.random.normal(key, (likelihood.num_outputs(count),))
        target = likelihood.with_parameters(own_parameters.start_values(own_list)).sample(output, key=key)
        return likelihood.with_parameters(values).log_prob(output, target)

    return own_parameters.parameters("likelihood", own_list, log_prob)
