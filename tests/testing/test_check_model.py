"""Checks of models: the zoo's models pass, every wrong model is detected, and the command reports it."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from bnnzoo import cli
from bnnzoo.errors import UsageError
from bnnzoo.models import AbstractModel, Mlp
from bnnzoo.plugins import registry
from bnnzoo.testing import ModelReport, check_model
from bnnzoo.testing import model as of_models
from bnnzoo.testing.model_report import CHECKS
from bnnzoo.testing.model_start import start_fault


def failed(report: ModelReport) -> set[str]:
    return {result.check for result in report.failures}


@pytest.fixture(autouse=True)
def _only_our_own(monkeypatch):
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    yield
    registry.reset()


# ---- named wrong models --------------------------------------------------------------------------


@jax.custom_batching.custom_vmap
def centred(x: Array) -> Array:
    """Return x, but under vmap x minus the mean of the batch, like batch normalisation."""
    return x


@centred.def_vmap
def _(axis_size, in_batched, x):
    del axis_size
    return (x - x.mean(0) if in_batched[0] else x), in_batched[0]


class Network(eqx.Module):
    """Two correct layers, with the fault of a wrong model between them."""

    hidden: eqx.nn.Linear
    last: eqx.nn.Linear
    wrong: str = eqx.field(static=True)

    def features(self, x):
        if self.wrong == "branches in Python" and x[0] > 1e3:
            return jnp.zeros(4)
        hidden = jnp.tanh(self.hidden(x))
        if self.wrong == "leaves a layer out":
            hidden = jnp.tanh(self.hidden.bias) + 0 * hidden
        if self.wrong == "sees the batch":
            hidden = centred(hidden)
        if self.wrong == "has no gradient at 0":
            hidden = hidden * jnp.sqrt(jnp.sum((self.hidden.weight @ x) ** 2))
        if self.wrong == "ties its layers":
            hidden = hidden * jnp.sum(self.last.weight)
        if self.wrong == "is random":
            hidden = hidden + np.random.default_rng().normal()
        return hidden

    def __call__(self, x):
        outputs = self.last(self.features(x))
        if self.wrong == "makes an output too many":
            return jnp.concatenate([outputs, outputs[:1]])
        if self.wrong == "divides by zero":
            return outputs + x[0] / x[0]
        return outputs


class Clash(eqx.Module):
    """A parameter `a_b` from the field `a_b`, and another from `b` in `a`."""

    a: dict[str, Array]
    a_b: Array

    def __call__(self, x):
        return self.a["b"] + self.a_b * x[0]


class Model(AbstractModel):
    """A model for regression only, so that one case is enough."""

    wrong: str = ""

    def build(self, input_shape, num_outputs, *, key):
        keys = jax.random.split(key)
        if self.wrong == "calls two parameters the same":
            return Clash({"b": jax.random.normal(key, (num_outputs,))}, jnp.ones(num_outputs))
        if self.wrong == "forgets the key":
            keys = jax.random.split(jax.random.key(0))
        layers = eqx.nn.Linear(input_shape[0], 4, key=keys[0]), eqx.nn.Linear(4, num_outputs, key=keys[1])
        network = Network(*layers, self.wrong)
        if self.wrong == "has half precision":
            return jax.tree.map(lambda a: a.astype(jnp.float16) if eqx.is_inexact_array(a) else a, network)
        return network

    def arrange(self, x):
        flat = x.reshape(len(x), -1)
        return (flat - flat.mean(0)).astype(np.float32) if self.wrong == "standardises the batch" else flat

    def split(self, network):
        if self.wrong == "splits before the activation":
            return network.hidden, network.last
        if self.wrong == "splits off a copy":
            return network.features, jax.tree.map(lambda a: a + 0 if eqx.is_array(a) else a, network.last)
        return network.features, network.last

    @classmethod
    def default_likelihood(cls, task):
        if task == "classification":
            raise UsageError("model: for numbers only")
        return "gaussian"


WRONG = {
    "standardises the batch": ("inputs", "if the other rows are left out"),
    "calls two parameters the same": ("parameters", "two parameters have the name a_b"),
    "forgets the key": ("parameters", "all chains would start at the same network"),
    "has half precision": ("parameters", "hidden_weight is float16"),
    "makes an output too many": ("outputs", "float32[3], but the likelihood needs float32[2]"),
    "divides by zero": ("outputs", "the row of zeros gives nan"),
    "is random": ("outputs", "the same row gives outputs that differ"),
    "sees the batch": ("rows", "if the other rows are left out"),
    "branches in Python": ("jit", "TracerBoolConversionError"),
    "has no gradient at 0": ("gradient", "with respect to hidden_weight[0, 0] is nan"),
    "leaves a layer out": ("gradient", "no output depends on hidden_weight"),
    "splits before the activation": ("split", "last(features(x)) differs from network(x)"),
    "splits off a copy": ("split", "not arrays of the network"),
    "ties its layers": ("split", "the features change"),
}


@pytest.mark.slow
def test_the_model_that_the_wrong_ones_are_made_from_passes():
    report = check_model(Model(), inputs=[(3,)])
    assert report.passed, str(report)
    assert {result.check for result in report.results} == set(CHECKS)
    assert {result.state for result in report.results} == {"passed"}
    assert report.refused == {"classification": "model: for numbers only"}


@pytest.mark.long
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_model_is_found(wrong):
    check, message = WRONG[wrong]
    report = check_model(Model(wrong), inputs=[(3,)])
    assert check in failed(report), str(report)
    actual = next(result for result in report.failures if result.check == check)
    assert message in actual.found
    assert f"{check}: {CHECKS[check][0]}" in report.verdict
    assert CHECKS[check][1] in str(report)


@pytest.mark.slow
def test_a_deep_network_is_not_blamed_for_its_depth():
    report = check_model(Mlp(hidden=(50,) * 30, activation="relu"), inputs=[(5,)])
    assert report.passed, str(report)


def test_a_wrong_split_fails_only_the_check_of_splits():
    assert failed(check_model(Model("splits before the activation"), inputs=[(3,)])) == {"split"}


class Vague(Model):
    """A model with a likelihood whose log density has one number per target instead of one per row."""

    brings_likelihood: ClassVar[bool] = True

    def own_likelihood(self):
        import numpyro.distributions as dist

        from bnnzoo.posterior.likelihoods import Gaussian

        class TwoNumbers(Gaussian):
            def distribution(self, output):
                return dist.Normal(output, self.scale)

        return TwoNumbers(1.0)


def test_a_likelihood_that_does_not_fit_is_found():
    assert failed(check_model(Vague(), inputs=[(3,)])) & {"gradient", "likelihood"}


def test_a_model_that_accepts_no_input_does_not_pass():
    report = check_model(registry.load("models", "cnn")(), inputs=[(5,)])
    assert not report.passed
    assert report.verdict.startswith("not tested: none of the cases is supported; model cnn: needs images")


class OfLikelihood(Model):
    """A model for one task, with the default likelihood of this name."""

    named: ClassVar[dict[str, str]] = {}

    @classmethod
    def default_likelihood(cls, task):
        if task not in cls.named:
            raise UsageError(f"model: not for {task}")
        return cls.named[task]


def test_a_model_that_accepts_no_task_does_not_pass():
    report = check_model(OfLikelihood(), inputs=[(3,)])
    assert not report.passed
    assert report.verdict == (
        "not tested: none of the cases is supported; model: not for regression; model: not for classification; "
        "model: not for density"
    )


@pytest.mark.long
@pytest.mark.parametrize(("task", "name", "count"), [("regression", "poisson", 2), ("classification", "bernoulli", 2)])
def test_a_run_starts_with_targets_of_the_default_likelihood(task, name, count, monkeypatch):
    """The targets are counts for `poisson`, and there are only two classes for `bernoulli`."""
    counts = []

    def start(*arguments, train, seed):
        del train  # training takes most of the time
        counts.append(arguments[-1])
        return start_fault(*arguments, train=False, seed=seed)

    monkeypatch.setattr(OfLikelihood, "named", {task: name})
    monkeypatch.setattr(of_models, "start_fault", start)
    report = check_model(OfLikelihood(), inputs=[(3,)])
    assert report.passed, str(report)
    assert counts == [count]


def test_a_model_is_tested_with_a_noise_scale_for_each_target(monkeypatch):
    cases = []
    monkeypatch.setattr(of_models, "_checks", lambda case: cases.append(case) or [])
    monkeypatch.setattr(of_models, "start_fault", lambda *_, **__: "")
    check_model(Model(), inputs=[(3,)])
    assert [parameter.shape for parameter in cases[0].likelihood.parameters()] == [(cases[0].num_targets,)]


# ---- the command ---------------------------------------------------------------------------------


@pytest.mark.long
def test_command_passes_and_prints_the_table(capsys):
    assert cli.run(["check", "model", "mlp", "--model.hidden", "4", "--input", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["check", "property", "cases"]
    assert lines[-1] == "passed: 10 checks on 3 cases"


def test_command_fails_with_code_3_and_json(capsys, monkeypatch):
    monkeypatch.setattr(Mlp, "split", lambda self, network: (network.layers[0], network.layers[-1]))
    assert cli.run(["check", "model", "mlp", "--model.hidden", "4", "--input", "2", "--json"]) == 3
    out, err = capsys.readouterr()
    assert err == "bnnzoo: model mlp: failed: split: network(x) = last(features(x)), " + err.partition("(x)), ")[2]
    assert len(err.splitlines()) == 1
    report: dict[str, Any] = json.loads(out)
    assert (report["model"], report["passed"]) == ("mlp", False)
    wrong = [row for row in report["results"] if row["state"] == "failed"]
    assert {row["check"] for row in wrong} == {"split"}
    assert all(row["advice"] for row in wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sbc", "-o", "here.txt"], "here.txt: unknown picture format; use the ending png, "),
        (["--sbc", "-o", "here.png"], "here.png: exists; use another -o, or --force to replace it"),
        (["--sbc", "-o", "gone/ranks.png"], "gone/ranks.png: the folder "),
    ],
)
def test_an_impossible_picture_is_refused_before_sampling(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.png").write_text("mine")
    monkeypatch.setattr("bnnzoo.testing.check_calibration", None)
    assert cli.run(["check", "model", "mlp", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / "here.png").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ([option, *values], f"{option}: requires --sbc; add --sbc, or remove {option}")
            for option, *values in (
                *(("-o", "ranks.png"), ("--sampler", "nuts"), ("--replicates", "128"), ("--warmup", "300")),
                ("--thin", "4"),
            )
        ),
        (["--sbc", "--force"], "--force: requires -o; add -o, or remove --force"),
    ],
)
def test_an_option_without_the_option_that_it_requires_is_refused(arguments, message, capsys):
    assert cli.run(["check", "model", "mlp", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'NAME'; try bnnzoo check model --help"),
        (["ml"], "no model named 'ml'; did you mean mlp"),
        (["mlp", "--sed", "1"], "No such option: --sed (did you mean --seed?); try bnnzoo check model --help"),
        (["mlp", "--input", "3,x"], "--input: must be one to three sizes, each >= 1, such as 5 or 3,32,32 (got '3,x')"),
        (["mlp", "--model.hidden", "0"], "hidden: every width must be >= 1"),
    ],
)
def test_command_used_wrongly_is_one_line(arguments, message, capsys):
    assert cli.run(["check", "model", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


# ---- every registered model ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.entries("models")))
def test_every_registered_model_passes(name):
    report = check_model(registry.load("models", name)())
    assert report.passed, str(report)
