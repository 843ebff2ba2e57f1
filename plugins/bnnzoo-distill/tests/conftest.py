"""This plugin alone, and the runs that students learn, for every test."""

from __future__ import annotations

from pathlib import Path

import bnnzoo_distill
import numpy as np
import pytest

import bnnzoo
from bnnzoo.plugins import registry

SMALL = {"inputs": 4000, "steps": 4000, "width": 64}
"""Settings with which a student learns a run with one or two inputs in a few seconds."""
QUICK = {"inputs": 300, "steps": 20, "width": 8}
"""Settings for tests of everything except the quality."""
CHAINS = {"chains": 2, "seed": 0, "test_fraction": 0.2}


@pytest.fixture(autouse=True)
def _plugins(monkeypatch, tmp_path):
    """Load this plugin alone, and work in an empty folder; child processes do the same."""
    monkeypatch.setenv("BNNZOO_PLUGINS", "bnnzoo-distill")
    monkeypatch.chdir(tmp_path)
    registry.reset()
    yield
    registry.reset()


def gap_rows(count: int, seed: int):
    """Return a sine in units far from 0 and 1, without rows in the middle."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.3, 1, size=(count, 1)) * rng.choice([-1, 1], size=(count, 1))
    return 100 + 20 * x, 500 + 40 * (np.sin(3 * x) + 0.1 * rng.normal(size=x.shape))


@pytest.fixture(scope="session")
def gap_file(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("gap") / "run.nc"
    model, noise = {"name": "mlp", "hidden": (16,)}, {"name": "gaussian", "scale": 0.14}
    bnnzoo.sample(model, "nuts", data=gap_rows(150, 0), likelihood=noise, warmup=300, draws=250, out=out, **CHAINS)
    return out


@pytest.fixture(scope="session")
def gap_run(gap_file):
    return bnnzoo.open(gap_file)


@pytest.fixture(scope="session")
def gap_student(gap_run):
    return bnnzoo_distill.distill(gap_run, test=gap_rows(400, 1), **SMALL)


@pytest.fixture(scope="session")
def class_run(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    side = np.where(x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=200) > 0, "same", "other")
    out = tmp_path_factory.mktemp("classes") / "run.nc"
    model = {"name": "mlp", "hidden": (8,)}
    return bnnzoo.sample(model, "nuts", data=(x, side), warmup=200, draws=200, out=out, **CHAINS)


@pytest.fixture(scope="session")
def class_student(class_run):
    return bnnzoo_distill.distill(class_run, **SMALL)
