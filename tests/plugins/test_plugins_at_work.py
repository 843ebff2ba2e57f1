"""Errors and invalid results of a plugin's code while a command runs."""

from __future__ import annotations

import fake_plugins
import pytest
import tiny

from bnnzoo import cli
from bnnzoo.plugins import registry
from bnnzoo.process import signals

SAMPLER = """
from typing import NamedTuple
import typer
from jax import Array
from bnnzoo import AbstractSampler
from bnnzoo.errors import BnnzooError, UsageError

class State(NamedTuple):
    position: Array

class Mute(Exception):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__

class Said(UsageError):
    def __init__(self, one, two): pass
    def __str__(self): raise RuntimeError

class NotWell(BnnzooError):
    exit_code = 0
    def __str__(self): return "no"

class Thing(AbstractSampler):
    exactness = 'exact'

    def __check_init__(self):
        {construction}

    def init(self, posterior, theta, *, num_warmup, key):
        {init}
        return State(theta)

    def step(self, posterior, state, *, key):
        {step}
        return state, {{}}
"""


def install(site, source: str = SAMPLER, **places: str) -> None:
    """Install a package with the sampler `fresh`, with a statement for each place."""
    fake_plugins.install_good(site, "good", "fresh")
    places = dict.fromkeys(("construction", "init", "step"), "pass") | places
    (site / "good_target.py").write_text(source.format(**places))


def sample(site, *more: str) -> int:
    """Make a short run of it."""
    return cli.run([*tiny.arguments("fresh"), "-o", str(site / "run.nc"), *more])


@pytest.mark.parametrize("place", ["construction", "init", "step"])
@pytest.mark.parametrize(
    "raised",
    ["SystemExit(0)", "KeyboardInterrupt", "GeneratorExit", "EOFError", "typer.Exit()", "typer.Abort()", "Mute()"],
)
def test_an_exception_of_a_part_is_a_failure_of_its_plugin(site, place, raised, capsys, monkeypatch):
    """This holds for exceptions that the parser or the interpreter treats specially."""
    monkeypatch.setattr(signals, "are_signals_handled", lambda: True)
    install(site, **{place: f"raise {raised}"})
    assert sample(site) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bnnzoo: plugin good 0.2 (")
    assert "good_target.py:" in line
    assert raised.split("(")[0].removeprefix("typer.") in line
    assert "--debug" in line
    assert not (site / "run.nc").exists()


def test_a_plugins_own_error_class_is_a_failure(site, capsys):
    install(site, construction="raise NotWell")
    assert sample(site) == 1
    assert capsys.readouterr().err == "bnnzoo: no\n"


def test_an_error_class_of_a_plugins_own_need_not_be_made_of_a_message(site, capsys):
    install(site, init="raise Said(1, 2)")
    assert sample(site) == 2
    assert "its message cannot be read: RuntimeError" in capsys.readouterr().err


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "GeneratorExit", "Mute()"])
def test_an_exception_at_import_breaks_no_command(site, raised, capsys, monkeypatch):
    monkeypatch.setattr(signals, "are_signals_handled", lambda: True)
    mute = "class Mute(Exception):\n    def __str__(self): raise SystemExit(0)\n\n"
    fake_plugins.install(site, "broken", f"{mute}raise {raised}\n")
    install(site, mute + f"raise {raised}\n")
    assert cli.run(["plugins"]) == 0
    assert cli.run(["list", "samplers"]) == 0
    assert raised.split("(")[0] in capsys.readouterr().out
    assert sample(site) == 2
    assert f"sampler 'fresh' is from good 0.2 (good_target:Thing), which fails to import: {raised.split('(')[0]}" in (
        capsys.readouterr().err
    )
    registry.reset()
    assert cli.run(["plugins", "--check"]) == 3


def test_a_keyboard_interrupt_is_not_attributed_to_a_plugin(site, capsys):
    """In Python, where signals are not handled by bnnzoo."""
    install(site, init="raise KeyboardInterrupt")
    assert sample(site) == 130
    assert capsys.readouterr().err == "bnnzoo: interrupted\n"


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"init": "return None"}, "init must return a state with the attribute position (got nothing)"),
        ({"init": "return State(theta[:2])"}, "init must return a state with a position float32[11] (got float32[2])"),
        ({"step": "return state"}, "step must return two values, the next state and statistics (got a State)"),
        ({"step": "return None"}, "step must return two values, the next state and statistics (got nothing)"),
        ({"step": "return state, None"}, "step must return the statistics as a dictionary of arrays (got nothing)"),
        ({"step": "return state, {'lp': 'x'}"}, "step must return an array for the statistic 'lp' (got a str)"),
        (
            {"step": "return (state, state), {}"},
            "step must return a state with the structure of its argument, a State (got a tuple of 2)",
        ),
        (
            {"step": "return State(state.position[0]), {}"},
            "step must not change the shape or type of an array in the state: float32[11] became float32[]",
        ),
    ],
)
def test_the_outputs_of_a_sampler_are_checked(site, places, message, capsys):
    install(site, **places)
    assert sample(site) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bnnzoo: sampler fresh of good 0.2 (good_target:Thing): {message}")
    assert not (site / "run.nc").exists()


def test_the_missing_methods_of_a_class_are_named(site, capsys):
    install(site)
    target = site / "good_target.py"
    target.write_text(target.read_text().replace("def step(", "def stride(").replace("def init(", "def begin("))
    assert sample(site) == 2
    message = "does not implement all methods of bnnzoo.AbstractSampler: it lacks init, step\n"
    assert f"sampler 'fresh' is from good 0.2 (good_target:Thing), which {message}" in capsys.readouterr().err
    assert cli.run(["plugins", "--check"]) == 3
    assert f"sampler good:fresh (good_target:Thing) {message}" in capsys.readouterr().out


MODEL = """
import equinox as eqx
import jax
from bnnzoo.models import AbstractModel

class Net(eqx.Module):
    weight: jax.Array
    def __call__(self, x):
        {call}

class Thing(AbstractModel):
    def build(self, input_shape, num_outputs, *, key):
        {build}
"""


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"call": "return (self.weight @ x).repeat(3)"}, "its network returns float32[3] for one input of shape [10]"),
        ({"call": "return (self.weight @ x)[0]"}, "its network returns float32[] for one input of shape [10]"),
        ({"call": "return self.weight @ x, 1"}, "its network returns a tuple for one input"),
        ({"call": "return self.weight.T @ x"}, "its network cannot take one float32 input of shape [10]: TypeError: "),
        ({"build": "return None"}, "build must return a network"),
        ({"build": "return key"}, "build must return a network: an eqx.Module"),
    ],
)
def test_a_network_with_a_wrong_number_of_outputs_is_refused(site, places, message, capsys):
    """The outputs would be broadcast."""
    hook = fake_plugins.GOOD.format(name="fresh", module="good").replace(', "exact"', "")
    fake_plugins.install(site, "good", hook.replace("bnnzoo_samplers", "bnnzoo_models"))
    build = "return Net(jax.random.normal(key, (num_outputs, *input_shape)))"
    good = {"call": "return self.weight @ x", "build": build}
    (site / "good_target.py").write_text(MODEL.format(**good | places))
    arguments = tiny.arguments("random-walk")
    arguments[arguments.index("linear")] = "fresh"
    assert cli.run([*arguments, "-o", str(site / "run.nc")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bnnzoo: model fresh of good 0.2 (good_target:Thing): {message}")
    assert (
        "build" in places
        or "cannot take" in line
        or "the likelihood Gaussian needs floating-point outputs of shape [1]" in line
    )


def test_a_default_that_no_recipe_can_contain_is_refused_before_the_run(site, capsys):
    hook = fake_plugins.GOOD.format(name="fresh", module="good").replace(', "exact"', "")
    fake_plugins.install(site, "good", hook.replace("bnnzoo_samplers", "bnnzoo_models"))
    source = MODEL.format(call="return self.weight @ x", build="return None")
    (site / "good_target.py").write_text(source + "    clip: float = float('inf')\n")
    arguments = tiny.arguments("random-walk")
    arguments[arguments.index("linear")] = "fresh"
    assert cli.run([*arguments, "-o", str(site / "run.nc")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "good_target:Thing: field clip: its default must be finite (got inf)" in line
    assert not list(site.glob("run.nc*"))
    assert cli.run(["plugins", "--check"]) == 3
    assert "good.py:4: model good:fresh (good_target:Thing): good_target:Thing: field clip" in capsys.readouterr().out


def test_an_internal_error_lists_the_plugins(site, capsys):
    """This applies if no plugin code is in the traceback, as for errors that JAX raises about its input."""
    install(site, step="return State(state.position), {'position': key}")
    assert sample(site) == 1
    assert "fresh of good 0.2" in capsys.readouterr().err
