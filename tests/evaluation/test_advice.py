"""Advice of findings, typed as printed, improves the run, on several data sets and to the end."""

import re

import numpy as np
import pytest

import bnnzoo
from bnnzoo.samplers.subsampled.regime import MAX_SIGMA2

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(7)


def _line() -> tuple[np.ndarray, np.ndarray]:
    x = RNG.normal(size=(2000, 2))
    return x, x @ [1.0, -0.5] + 0.3 * RNG.normal(size=2000)


def _heavy_tails() -> tuple[np.ndarray, np.ndarray]:
    x = RNG.standard_t(4, size=(600, 6))
    return x, np.abs(x).sum(1) + RNG.standard_t(3, size=600)


def _few_of_a_class() -> tuple[np.ndarray, np.ndarray]:
    x = RNG.normal(size=(5000, 3))
    return x, (x[:, 0] + RNG.logistic(size=5000) > 4).astype(int)


TABLES = {"a line": _line(), "heavy tails": _heavy_tails(), "few of a class": _few_of_a_class()}
BAD = {
    "too few rows a step": {"batch_size": 20, "num_batches": 4, "target_sigma2": 20.0},
    "too long a step": {"batch_size": 20, "num_batches": 4, "step_size": 0.3, "warmup": 0},
}


def _run(table: str, options: dict[str, object]) -> bnnzoo.Run:
    fields = dict(options)
    warmup = fields.pop("warmup", 400)
    more = {"warmup": warmup, "draws": 400, "chains": 4, "test_fraction": 0.1, "start_steps": 500}
    return bnnzoo.sample("linear", {"name": "penalty", **fields}, data=TABLES[table], **more)


def _value(text: str) -> object:
    if text.isdigit():
        return int(text)
    return float(text) if re.fullmatch(r"[0-9.e+-]+", text) else text


@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("table", TABLES)
def test_advice_that_is_followed_makes_the_run_better(table, bad):
    options: dict[str, object] = dict(BAD[bad])
    run = _run(table, options)
    result = {finding.kind: finding for finding in run.predictor.record.findings}
    assert "sigma2" in result, "the setting is not bad enough to be advised against"
    worst = result["sigma2"].value
    for _ in range(6):
        first = run.predictor.record.findings[0]
        best = first._replace(advice=first.advice.split(",")[0]).settings
        advised = {field.rpartition(".")[2]: _value(value) for field, value in best if value is not None}
        assert advised, first
        rows = run.attributes["rows"]
        assert advised.get("batch_size", 1) * advised.get("num_batches", 1) <= rows, first
        options |= advised
        run = _run(table, options)
        sigma2 = float(np.mean(run.predictor.record.statistics["sigma2"]))
        assert sigma2 < max(worst, MAX_SIGMA2), (options, first)
        worst = sigma2
        if not run.predictor.record.findings:
            break
    assert run.attributes["regime_ok"] == 1, run.predictor.record.findings
