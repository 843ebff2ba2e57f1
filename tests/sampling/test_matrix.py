"""Any model with any sampler: one command, one file."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import cli

DATA = dict.fromkeys(("linear", "mlp", "mdn", "density"), "diabetes") | {
    "cnn": "digits",
    "resnet": "digits",
    "autoregressive": "two-moons",
}
SMALL = {
    "mlp": ["--model.hidden", "8"],
    "mdn": ["--model.hidden", "8"],
    "autoregressive": ["--model.hidden", "8"],
    "cnn": ["--model.channels", "2,4", "--model.hidden", "8", "--start-steps", "250"],
    "resnet": ["--model.channels", "2,4", "--model.groups", "2", "--start-steps", "250"],
}
PLUS = {name: ["--sampler.batch-size", "20", "--sampler.num-batches", "4"] for name in ("penalty", "batched")}
PLUS |= {"swag": ["--sampler.rank", "2", "--sampler.interval", "5"]}
PLUS |= {name: ["--sampler.batch-size", "20"] for name in ("sgld", "sghmc", "psgld", "sms-ubu")}
# Twenty accept decisions are too few to tune a step size, and ten draws have to move.
PLUS |= {name: ["--warmup", "0", "--sampler.step-size", "0.001"] for name in tiny.GROWING}
PLUS |= {name: ["--sampler.num-steps", "2"] for name in ("hmc", "mams")}
PLUS |= {"nuts": ["--sampler.max-tree-depth", "3"]}
PAIRS = [(model, sampler) for model in DATA for sampler in tiny.SAMPLERS]
PAIRS.remove(("density", "dropout"))  # there is no unit to drop
BY_DEFAULT = [("mdn", "penalty")]


def _check(model, sampler, out, capsys, *more):
    arguments = [
        "sample",
        model,
        sampler,
        "--data",
        DATA[model],
        "--warmup",
        "20",
        "--draws",
        "10",
        "--chains",
        "2",
    ]
    arguments += [*SMALL.get(model, []), *PLUS.get(sampler, []), "-o", str(out), "--quiet", *more]
    assert cli.run(arguments) == 0, capsys.readouterr().err
    run = bnnzoo.open(out)
    assert run.attributes["complete"] == 1
    groups = run.posterior["posterior"].data_vars.values()
    draws = np.concatenate([v.values.reshape(2, 10, -1) for v in groups], 2)
    assert np.isfinite(draws).all()
    for chain in draws:
        different = len(np.unique(chain, axis=0))
        assert different == 1 if sampler == "ensemble" else different > 1
    # So few draws have too many repetitions for a Pareto k.
    assert np.isfinite([v for k, v in run.evaluate().items() if k != "loo_pareto_k"]).all()


@pytest.mark.long
@pytest.mark.parametrize(("model", "sampler"), BY_DEFAULT)
def test_the_penalty_sampler_with_a_mixture_network(model, sampler, tmp_path, capsys):
    _check(model, sampler, tmp_path / "run.nc", capsys, "--chain-method", "vectorized", "--init", "prior")


@pytest.mark.long
@tiny.EACH
def test_the_linear_model_with_every_sampler(sampler, tmp_path, capsys):
    """Uses the problem that is already compiled."""
    out = tmp_path / "run.nc"
    assert cli.run([*tiny.arguments(sampler), "-o", str(out)]) == 0, capsys.readouterr().err
    values = bnnzoo.open(out).posterior["posterior"]["weight"].values
    assert values.shape == (tiny.CHAINS, tiny.DRAWS, 1, 10)
    assert np.isfinite(values).all()


@pytest.mark.slow
@pytest.mark.parametrize(("model", "sampler"), PAIRS)
def test_every_model_with_every_sampler(model, sampler, tmp_path, capsys):
    _check(model, sampler, tmp_path / "run.nc", capsys)
