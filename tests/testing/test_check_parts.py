"""`check likelihood` and `check prior`: the zoo's parts pass, and each deliberately broken plugin is detected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from annotated_types import Gt
from typing_extensions import Doc

from bnnzoo import AbstractLikelihood, AbstractPrior, Parameter, TargetUnits, UsageError, cli, number
from bnnzoo.plugins import registry
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Gaussian, exp
from bnnzoo.posterior.priors import Hierarchical, Normal
from bnnzoo.testing import check_likelihood, check_prior
from bnnzoo.testing import likelihood as of_likelihoods
from bnnzoo.testing import prior as of_priors


def failed(report) -> set[str]:
    return {result.check for result in report.failures}


@jax.custom_batching.custom_vmap
def centred(x):
    """Return x, but under vmap x minus the mean of the batch."""
    return x


@centred.def_vmap
def _(axis_size, in_batched, x):
    del axis_size
    return (x - x.mean(0) if in_batched[0] else x), in_batched[0]


class Noise(AbstractLikelihood):
    """Normal noise around the output, with the fault that `wrong` names."""

    task: ClassVar[Literal["regression", "classification"]] = "regression"
    scales_targets: ClassVar[bool] = True

    scale: Annotated[float, Gt(0), TargetUnits(), Doc("standard deviation")] = number(0.5)
    _wrong: str = eqx.field(static=True, default="")

    def num_outputs(self, num_targets: int) -> int:
        return 0 if self._wrong == "no outputs" else num_targets

    def distribution(self, output):
        scale = 2 * self.scale if self._wrong == "another variance" else self.scale
        law = dist.Normal(output, scale)
        return law if self._wrong == "a number for each target" else law.to_event(1)

    def log_prob(self, output, target):
        if self._wrong == "a number for each target":
            return self.distribution(output).log_prob(target)
        if self._wrong == "looks at other rows":
            output = centred(output)
        value = dist.Normal(output, self.scale).to_event(1).log_prob(target)
        if self._wrong == "not normalised":
            return value + 0.5
        if self._wrong == "a gradient that is not finite":
            return value + 0 * jnp.sum(jnp.sqrt(jnp.maximum(output, 0)))
        if self._wrong == "another precision":
            return value.astype(jnp.float16)
        return value

    def sample(self, output, *, key):
        scale = 1.2 * self.scale if self._wrong == "draws too wide" else self.scale
        if self._wrong == "draws that go together":
            return output + scale * jax.random.normal(key)
        return output + scale * jax.random.normal(key, output.shape)

    def upper_bound(self, target):
        value = dist.Normal(target, self.scale).to_event(1).log_prob(target)
        return value - 1 if self._wrong == "a bound too low" else value

    def check(self, targets, num_targets):
        del num_targets
        if self._wrong == "refuses its own targets" and (targets < -0.2).any():
            raise UsageError("a target below -0.2")


FAULTS = {
    "no outputs": {"num_outputs"},
    "a number for each target": {"shapes"},
    "looks at other rows": {"rows", "gradient"},  # a function with its own rule for vmap has no gradient
    "not normalised": {"normalised", "upper_bound"},
    "a gradient that is not finite": {"gradient"},
    "another precision": {"float32"},
    "draws too wide": {"draws"},
    "draws that go together": {"draws"},
    "another variance": {"moments"},
    "a bound too low": {"upper_bound"},
    "refuses its own targets": {"targets"},
}
QUICK = ("", "not normalised", "draws too wide")


@pytest.mark.long
@pytest.mark.parametrize("wrong", [w if w in QUICK else pytest.param(w, marks=pytest.mark.slow) for w in ("", *FAULTS)])
def test_a_fault_of_a_likelihood_is_found_and_nothing_else(wrong):
    report = check_likelihood(Noise(_wrong=wrong))
    assert failed(report) == FAULTS.get(wrong, set())
    assert report.passed is (wrong == "")
    for check in failed(report):
        assert of_likelihoods.CHECKS[check][1] in str(report)


class Positive(AbstractLikelihood):
    """Exponential waiting times. `check` refuses all targets up to `_lowest`; `_wrong`: log_prob is not normalised."""

    task: ClassVar[Literal["regression", "classification"]] = "regression"

    _lowest: float = eqx.field(static=True, default=0.0)
    _wrong: bool = eqx.field(static=True, default=False)

    def num_outputs(self, num_targets: int) -> int:
        return num_targets

    def distribution(self, output):
        return dist.Exponential(jnp.exp(output)).to_event(1)

    def log_prob(self, output, target):
        return super().log_prob(output, target) + 3.0 * self._wrong

    def check(self, targets, num_targets):
        if not (targets > self._lowest).all():
            raise UsageError(f"a target is not above {self._lowest}")


def test_a_likelihood_is_tested_with_targets_that_it_accepts():
    for wrong in (False, True):
        results = dict(of_likelihoods._checks(Positive(_wrong=wrong), 1, jax.random.key(0)))
        assert [name for name, fault in results.items() if fault and name not in ("upper_bound", "parameters")] == (
            ["normalised"] if wrong else []
        )


def test_a_likelihood_that_accepts_no_example_is_not_tested():
    report = check_likelihood(Positive(_lowest=9.0))
    assert not report.passed
    assert report.verdict == "not tested: none of the cases is supported; a target is not above 9.0"


class Undescribed(Gaussian):
    pass


class Learned(Noise):
    """Noise whose scale is sampled, with one fault."""

    def parameters(self):
        scale = {"another name": "sc/ale"}.get(self._wrong, "scale")
        back = np.sqrt if self._wrong == "no inverse" else np.log
        jacobian = 0.0 if self._wrong == "no Jacobian" else 1.0
        natural = jnp.exp if self._wrong == "JAX alone" else exp

        def log_prior(u):
            return dist.HalfNormal(1.0).log_prob(jnp.exp(u)) + jacobian * u

        def draw(key):
            u = jnp.log(jnp.abs(jax.random.normal(key)))
            return u + 0.5 if self._wrong == "other draws" else u

        return (Parameter(scale, (), -0.7, natural, log_prior, draw, back),)

    def with_parameters(self, values: Mapping[str, Any]):
        if self._wrong == "unused":
            return self
        return Learned(values["scale"], self._wrong) if "scale" in values else self


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no inverse", "the method unconstrained does not invert the method natural"),
        ("JAX alone", "it must return a NumPy array"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [
                ("", ""),
                ("another name", "sc/ale"),
                ("no Jacobian", "must include the log Jacobian"),
                ("other draws", "draw: draws do not have the density"),
                ("unused", "with_parameters does not use it"),
            ]
        ),
    ],
)
def test_a_fault_of_a_sampled_parameter_is_found(wrong, message):
    own, count = Learned(_wrong=wrong), 1
    result = of_likelihoods.attempt(lambda: of_likelihoods._parameters(own, count, jax.random.key(0)))
    assert message in result
    assert bool(result) is bool(message)


class Shrinkage(AbstractPrior):
    """A normal prior, with the fault that `wrong` names."""

    scale: Annotated[float, Gt(0), Doc("standard deviation")] = number(1.0)
    _wrong: str = eqx.field(static=True, default="")

    def distribution(self, layout):
        if self._wrong == "one number for all":
            return dist.Normal(jnp.zeros(layout.dim), self.scale).to_event(1)
        return dist.Normal(0.0, self.scale)

    def log_prob(self, theta, layout):
        value = super().log_prob(theta, layout)
        if self._wrong == "not normalised":
            return 2 * value
        if self._wrong == "a gradient that is not finite":
            return value + 0 * jnp.sqrt(jnp.sum(theta**2))
        return value

    def sample(self, layout, *, key):
        draw = super().sample(layout, key=key)
        if self._wrong == "draws too wide":
            return 1.3 * draw
        return jnp.full_like(draw, draw[0]) if self._wrong == "one draw for all" else draw


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "checks"),
    [
        ("", set()),
        ("not normalised", {"normalised"}),
        ("draws too wide", {"draws"}),
        *(
            pytest.param(wrong, checks, marks=pytest.mark.slow)
            for wrong, checks in [
                ("one number for all", {"shapes"}),
                ("a gradient that is not finite", {"gradient"}),
                ("one draw for all", {"draws"}),
            ]
        ),
    ],
)
def test_a_fault_of_a_prior_is_found_and_nothing_else(wrong, checks):
    report = check_prior(Shrinkage(_wrong=wrong))
    assert failed(report) == checks
    for check in checks:
        assert of_priors.CHECKS[check][1] in str(report)


class OfLayers(AbstractPrior):
    """A standard normal prior that refuses networks with few parameters, and parameters with other names than an mlp's.

    `_smallest` is the smallest accepted number of parameters.
    """

    _smallest: int = eqx.field(static=True, default=1)

    def distribution(self, layout):
        if layout.dim < self._smallest or not all(block.layer.startswith("layers_") for block in layout.blocks):
            raise UsageError("prior of-layers: requires the parameters of a larger mlp")
        return dist.Normal(0.0, 1.0)


def test_a_prior_that_overrides_log_prob_and_sample_needs_no_distribution():
    """The method `distribution` of `hierarchical` raises a UsageError."""
    layout = Layout((Block("layers_0_weight", (1, 1), 0),))
    checks = of_priors._checks(Hierarchical(), of_priors._Case(layout, has_grid=False), jax.random.key(0))
    assert next(iter(checks)) == ("shapes", "")


@pytest.mark.parametrize(("smallest", "tested"), [(1, 3), (3, 1), (99, 0)])
def test_a_prior_may_refuse_a_network(smallest, tested):
    report = check_prior(OfLayers(_smallest=smallest))
    assert [result.state for result in report.results if result.check == "shapes"] == [
        *(3 - tested) * ["not applicable"],
        *tested * ["passed"],
    ]
    assert report.passed is (tested > 0), str(report)
    if not tested:
        assert report.verdict.endswith("supported; prior of-layers: requires the parameters of a larger mlp")


def test_a_part_without_a_description_is_found():
    fault = of_likelihoods.own_parameters.fields(Undescribed)
    assert "no docstring" in fault

    class Nameless(AbstractPrior):
        """A prior."""

        scale: float = 1.0

        def distribution(self, layout):
            return dist.Normal(0.0, self.scale)

    assert "the field scale has no Doc" in of_likelihoods.own_parameters.fields(Nameless)


@pytest.mark.long
def test_the_commands_print_the_report_and_leave_with_3_where_a_check_fails(monkeypatch, capsys):
    assert cli.run(["check", "prior", "normal", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["prior"], output["passed"]) == ("normal", True)
    monkeypatch.setattr(Normal, "log_prob", lambda self, theta, layout: -jnp.sum(jnp.abs(theta)))
    assert cli.run(["check", "prior", "normal"]) == 3
    captured = capsys.readouterr()
    assert "prior normal: failed: normalised" in captured.err
    assert "the density integrates to 2" in captured.out
    assert cli.run(["check", "likelihood", "gausian"]) == 2
    assert "did you mean gaussian?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["likelihoods", "priors"])
def test_every_part_of_the_zoo_passes(kind):
    check = check_likelihood if kind == "likelihoods" else check_prior
    for name in registry.entries(kind):
        report = check(registry.load(kind, name)())
        assert report.passed, str(report)
