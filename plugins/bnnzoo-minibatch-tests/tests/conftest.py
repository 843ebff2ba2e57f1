"""Checked shapes, four host devices and the zoo's posteriors with known answers, for every test of this plugin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")

from jaxtyping import install_import_hook

hook = install_import_hook(["bnnzoo", "bnnzoo_minibatch_tests"], "beartype.beartype")
hook.__enter__()

import pytest

from bnnzoo.plugins import registry
from bnnzoo.posterior import backend
from bnnzoo.sampling.devices.jax_settings import split_cpu

# The posteriors with known answers (`gaussian_mean.py`, `parabolas.py`) come from the zoo's own tests.
sys.path.append(str(Path(__file__).parents[3] / "tests"))


def pytest_configure() -> None:
    split_cpu(4)
    backend.keep_programs()


@pytest.fixture(autouse=True, scope="module")
def _this_plugin_alone():
    """Load only this plugin; other installed plugins have their own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BNNZOO_PLUGINS", "bnnzoo-minibatch-tests")
        registry.reset()
        yield
    registry.reset()
