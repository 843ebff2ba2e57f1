"""What a plugin's code does while a command runs: what it raises, and what it gives that is not what it must give."""

from __future__ import annotations

import fake_plugins
import pytest
import tiny

from bnnzoo import cli, registry, signals

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
    """A package that offers the sampler `fresh`; a statement for each place."""
    fake_plugins.install_good(site, "good", "fresh")
    places = dict.fromkeys(("construction", "init", "step"), "pass") | places
    (site / "good_target.py").write_text(source.format(**places))


def sample(site, *more: str) -> int:
    """A short run of it."""
    return cli.run([*tiny.words("fresh"), "-o", str(site / "run.nc"), *more])


@pytest.mark.parametrize("place", ["construction", "init", "step"])
@pytest.mark.parametrize(
    "raised",
    ["SystemExit(0)", "KeyboardInterrupt", "GeneratorExit", "EOFError", "typer.Exit()", "typer.Abort()", "Mute()"],
)
def test_what_a_part_raises_is_a_failure_of_its_plugin(site, place, raised, capsys, monkeypatch):
    """Whatever the parser or the interpreter would make of it."""
    monkeypatch.setattr(signals, "taken_over", lambda: True)
    install(site, **{place: f"raise {raised}"})
    assert sample(site) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bnnzoo: plugin good 0.2 (")
    assert "good_target.py:" in line
    assert raised.split("(")[0].removeprefix("typer.") in line
    assert "--debug" in line
    assert not (site / "run.nc").exists()


def test_an_error_class_of_a_plugins_own_is_no_success(site, capsys):
    install(site, construction="raise NotWell")
    assert sample(site) == 1
    assert capsys.readouterr().err == "bnnzoo: no\n"


def test_an_error_class_of_a_plugins_own_need_not_be_made_of_a_message(site, capsys):
    install(site, init="raise Said(1, 2)")
    assert sample(site) == 2
    assert "what it says cannot be read: RuntimeError" in capsys.readouterr().err


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "GeneratorExit", "Mute()"])
def test_what_is_raised_while_it_is_imported_breaks_no_command(site, raised, capsys, monkeypatch):
    monkeypatch.setattr(signals, "taken_over", lambda: True)
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


def test_a_keyboards_interrupt_is_none_of_a_plugins(site, capsys):
    """In Python, where nobody has taken the signals over."""
    install(site, init="raise KeyboardInterrupt")
    assert sample(site) == 130
    assert capsys.readouterr().err == "bnnzoo: interrupted\n"
