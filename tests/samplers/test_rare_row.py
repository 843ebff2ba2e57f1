"""A row that determines a weight: uniform batches are refused, and rows by influence give the correct variance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bnnzoo
from bnnzoo import cli

pytestmark = pytest.mark.slow

ROWS, CHAINS = 20_000, 16


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> tuple[Path, float, float]:
    """Return five ordinary features and one that is 1 in a single row; also mean and variance of its weight."""
    rng = np.random.default_rng(7)
    x = np.column_stack([rng.normal(size=(ROWS, 5)), np.zeros(ROWS)]).astype(np.float32)
    x[123, 5] = 1.0
    y = (x @ [0.5, -0.3, 0.2, 0.1, -0.4, 1.0] + rng.normal(size=ROWS)).astype(np.float32)
    path = tmp_path_factory.mktemp("rare") / "rows.csv"
    pd.DataFrame(np.column_stack([x, y]), columns=[*"abcdef", "y"]).to_csv(path, index=False)
    design = np.column_stack([x, np.ones(ROWS)]).astype(float)
    covariance = np.linalg.inv(np.eye(7) + design.T @ design)
    return path, float((covariance @ design.T @ y)[5]), float(covariance[5, 5])


def _run(path: Path, out: Path, *more: str) -> bnnzoo.Run:
    arguments = ["sample", "linear", "penalty", "--data", str(path), "-o", str(out), "--quiet", "--chains", str(CHAINS)]
    arguments += ["--likelihood", "gaussian", "--likelihood.scale", "1", "--no-standardise", "--test-fraction", "0"]
    assert cli.run([*arguments, *more]) == 0
    return bnnzoo.open(out)


def test_uniform_batches_that_miss_a_row_are_refused(table, tmp_path):
    """The variance of its weight would be twice too large."""
    run = _run(table[0], tmp_path / "run.nc", "--sampler.batch-size", "50", "--sampler.num-batches", "2")
    assert run.attributes["regime_ok"] == 0
    assert "unseen" in {finding["kind"] for finding in json.loads(run.attributes["findings"])}
    assert "--sampler.sampling importance" in run.attributes["regime"]


@pytest.mark.parametrize(
    ("rows", "draws", "error"), [(100, "1000", 0.08), (2000, "1000", 0.025)], ids=["a hundred rows", "two thousand"]
)
def test_rows_by_their_influence_give_the_variance(table, rows, draws, error, tmp_path):
    """The variance is within `error`, which is more than two standard errors over chains, and the guard passes.

    With a hundred rows per step an effective draw takes thousands of steps; with two thousand it takes about four
    hundred. 16 chains of 200 000 steps have a standard error of 0.017, a third of 0.05.
    """
    more = ("--sampler.sampling", "importance", "--sampler.batch-size", str(rows // 2), "--sampler.num-batches", "2")
    run = _run(table[0], tmp_path / "run.nc", *more, "--warmup", "2000", "--draws", draws, "--thin", "200")
    assert run.attributes["regime_ok"] == 1, run.attributes["regime"]
    _, mean, variance = table
    weight = np.asarray(run.posterior["posterior"]["weight"].values, float)[:, :, 0, 5]
    each = ((weight - mean) ** 2).mean(1) / variance
    assert each.std(ddof=1) / CHAINS**0.5 < error
    assert abs(each.mean() - 1) < 2 * error
    assert abs(weight.mean() - mean) < 2 * error * variance**0.5
