"""Strict arithmetic, checked shapes, four host devices and the cache of compiled programs, for every test."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from importlib.metadata import version

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
# JAX records the source location of every traced operation; no test needs it in a program.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# Other installed plugins have their own tests and rules, so they are not loaded here.
os.environ.setdefault("BNNZOO_PLUGINS", "bnnzoo")

from jaxtyping import install_import_hook

hook = install_import_hook("bnnzoo", "beartype.beartype")
hook.__enter__()

import jax
import pytest
import rotation

from bnnzoo.finding import spelling_of
from bnnzoo.plugins import registry
from bnnzoo.plugins.discovery import load_plugins
from bnnzoo.posterior import backend
from bnnzoo.sampling.devices.jax_settings import split_cpu

pytest_plugins = ["share"]
COMPILED_QUICKLY = "--xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"
"""Compiles faster and runs a little slower. jaxlib 0.10 has both options; 0.12 aborts if one of them is set."""
UNOPTIMISED = "jax_disable_most_optimizations"
"""Option of JAX that halves the time of compilation again; compiled loops can be three times slower."""


def pytest_configure(config: pytest.Config) -> None:
    """Reduce XLA's optimisation, which takes much of the default suite's time.

    Slow tests and mutants use a user's settings.
    """
    if "not slow" in config.getoption("markexpr"):
        if version("jaxlib").startswith("0.10."):
            os.environ.setdefault("XLA_FLAGS", COMPILED_QUICKLY)
        os.environ.setdefault(UNOPTIMISED.upper(), "true")  # for the processes that tests start
        jax.config.update(UNOPTIMISED, True)
    split_cpu(4)
    backend.keep_programs()  # a program that one test or worker has compiled is not compiled again
    jax.config.update("jax_numpy_rank_promotion", "allow")
    # JAX starts here; otherwise a first test with one device would determine the devices of all later tests.
    jax.local_devices()
    # Traces create few cycles; with Python's threshold of 700, searching for them takes a tenth of the time.
    gc.set_threshold(200_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the rotating tests of this commit."""
    rotation.mark(items, config.getoption("markexpr"))


def pytest_collection_finish() -> None:
    """Exclude all existing objects from later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def as_options():
    """Let messages name options, as on the command line: `--drop a` instead of `drop="a"`."""
    with spelling_of("options"):
        yield


_TESTS = itertools.count()


@pytest.fixture(autouse=True)
def _process_restored():
    """Restore double precision and the loaded plugins after a test, and limit the number of compiled programs.

    This fixture is the first to be set up and the last to be torn down: at that time monkeypatch has already restored
    the environment that determines the plugins.
    """
    if next(_TESTS) % 10 == 0:  # it reads about ten thousand lines
        backend.forget_programs()
    before, plugins = jax.config.jax_enable_x64, load_plugins()
    variables = {name: value for name, value in os.environ.items() if name.startswith("BNNZOO_")}
    yield
    jax.config.update("jax_enable_x64", before)
    if {name: value for name, value in os.environ.items() if name.startswith("BNNZOO_")} != variables:
        raise AssertionError("the test has changed a variable BNNZOO_... of the environment and not restored it")
    if load_plugins() is not plugins:
        registry.reset()


@pytest.fixture(scope="module")
def optimised():
    """Reduce XLA's optimisation less, from the first test whose programs run for longer than they compile.

    It ends with the module, because fixtures of a module can compile such programs too.
    """
    before = jax.config.read(UNOPTIMISED)
    jax.config.update(UNOPTIMISED, False)
    yield
    jax.config.update(UNOPTIMISED, before)


@pytest.fixture
def programs_kept(monkeypatch):
    """Keep all compiled programs during the test, even if earlier tests have left many."""
    jax.clear_caches()
    monkeypatch.setattr(backend, "forget_programs", lambda: None)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path of this process, in which tests can install distributions."""
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
