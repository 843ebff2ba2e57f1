"""Strict arithmetic, checked shapes, four host devices and the cache of compiled programs, for every test."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from importlib.metadata import version

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
# Where in the source an operation was traced is looked up for each; no test reads it in a program.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# What else is installed beside the zoo has tests of its own, and rules that are not the zoo's.
os.environ.setdefault("BNNZOO_PLUGINS", "bnnzoo")

from jaxtyping import install_import_hook

hook = install_import_hook("bnnzoo", "beartype.beartype")
hook.__enter__()

import jax
import pytest

from bnnzoo import registry
from bnnzoo.discovery import load_plugins
from bnnzoo.finding import spelling_of
from bnnzoo.posterior import backend
from bnnzoo.sampling.backend import split_cpu

pytest_plugins = ["share"]
COMPILED_QUICKLY = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
"""Sooner compiled, a little slower to run; jaxlib 0.10 has both, 0.12 aborts where it is told of one."""


def pytest_configure(config: pytest.Config) -> None:
    """XLA's compiling is much of the default suite's time. Slow tests and the mutation gate compile as a user does."""
    if "not slow" in config.getoption("markexpr") and version("jaxlib").startswith("0.10."):
        os.environ.setdefault("XLA_FLAGS", COMPILED_QUICKLY)
    split_cpu(4)
    backend.keep_programs()  # what one test or worker has compiled no other compiles again
    jax.config.update("jax_numpy_rank_promotion", "allow")
    jax.local_devices()  # JAX starts here: a first test of one device would decide for all after it
    # Traces make few cycles: with Python's 700, looking for them is a tenth of the time.
    gc.set_threshold(200_000, 20, 50)


def pytest_collection_finish() -> None:
    """What is there by now stays: no collection looks through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def as_options():
    """Messages name options, as on the command line: `--drop a` instead of `drop="a"`."""
    with spelling_of("options"):
        yield


_TESTS = itertools.count()


@pytest.fixture(autouse=True)
def _process_restored():
    """Restore double precision and the loaded plugins after a test, and limit the number of compiled programs.

    This fixture is the first to be set up and the last to be torn down: by then monkeypatch has restored the
    environment from which the plugins are loaded.
    """
    if next(_TESTS) % 10 == 0:  # it reads some ten thousand lines
        backend.forget_programs()
    before, plugins = jax.config.jax_enable_x64, load_plugins()
    yield
    jax.config.update("jax_enable_x64", before)
    if load_plugins() is not plugins:
        registry.reset()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder where distributions can be put, seen by this process."""
    for variable in ("BNNZOO_PLUGINS", "BNNZOO_DISABLE_PLUGINS", "BNNZOO_STRICT_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    registry.reset()
    yield tmp_path
    registry.reset()
    for name in set(sys.modules) - modules:
        if name.split("_")[0] in ("one", "two", "broken", "good"):
            del sys.modules[name]
