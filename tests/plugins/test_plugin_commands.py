"""Commands of plugins: listed as text in --help, imported when they run, and protected against errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import fake_plugins
import pytest
from rich.text import Text

from bnnzoo import cli
from bnnzoo.errors import BnnzooWarning
from bnnzoo.plugins import failures, registry

HOOK = """
from bnnzoo import Entry, hookimpl

@hookimpl
def bnnzoo_commands():
    return [Entry({name!r}, "{module}_target:{attribute}", {summary!r})]
"""
GREETINGS = """
import sys
from typing import Annotated
import typer

app = typer.Typer(help="Greetings of several kinds.")

@app.command()
def hello(name: str, twice: Annotated[bool, typer.Option("--twice", help="say it again")] = False) -> None:
    "Greet somebody."
    for _ in range(1 + twice):
        typer.echo(f"hello {name}")

@app.command()
def fail() -> None:
    raise ZeroDivisionError("oops")

@app.command()
def end(how: str) -> object:
    if how == "exit":
        raise typer.Exit
    if how == "gate":
        raise typer.Exit(3)
    if how == "abort":
        raise typer.Abort
    if how == "refuse":
        raise typer.BadParameter("must be even")
    return {"int": 12, "text": "twelve"}[how]

def single(count: int = 1) -> None:
    "One command alone."
    print("single", count)
"""


def install(site: Path, *, distribution: str = "good", name: str = "greet", **more: str) -> None:
    module = distribution.replace("-", "_")
    options = {"attribute": "app", "summary": "greet people", "name": name, "module": module, **more}
    fake_plugins.install(site, distribution, HOOK.format(**options))
    (site / f"{module}_target.py").write_text(GREETINGS)


def help_text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.run([*arguments, "--help"]) == 0
    return " ".join(Text.from_ansi(capsys.readouterr().out).plain.replace("│", " ").split())


@pytest.fixture
def without_plugins(monkeypatch):
    """No plugin is loaded during the test, and later tests load theirs again."""
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    yield
    registry.reset()


def test_help_shows_a_plugins_command_and_imports_neither_its_module_nor_jax(site):
    install(site)
    (site / "good_target.py").write_text("raise RuntimeError('imported')\n")
    code = (
        "import sys\nfrom bnnzoo import cli\n"
        "code = cli.run(['--help'])\n"
        "print(code, sorted({'jax', 'numpy', 'good_target'} & set(sys.modules)), file=sys.stderr)"
    )
    path = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    process = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True, check=True)
    assert process.stderr.splitlines() == ["0 []"]
    assert "Commands of plugins" in process.stdout
    assert "greet people" in process.stdout


def test_a_typer_app_is_a_group_and_a_function_one_command(site, capsys):
    install(site)
    install(site, distribution="one", name="alone", attribute="single")
    assert cli.run(["greet", "hello", "Ann", "--twice"]) == 0
    assert cli.run(["alone", "--count", "3"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("hello Ann\nhello Ann\nsingle 3\n", "")
    assert "Greetings of several kinds." in help_text(capsys, "greet")
    assert "say it again" in help_text(capsys, "greet", "hello")
    assert cli.run(["greet", "hello"]) == 2
    assert capsys.readouterr().err == "bnnzoo: Missing argument 'name'; try bnnzoo greet hello --help\n"


def test_an_error_in_a_plugins_command_names_the_plugin(site, capsys):
    install(site)
    assert cli.run(["greet", "fail"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("bnnzoo: plugin good 0.2 (")
    assert "good_target.py:16): ZeroDivisionError: oops (run again with --debug" in err
    assert cli.run(["--debug", "greet", "fail"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("exit", 0, ""),
        ("gate", 3, ""),
        ("abort", 1, "bnnzoo: aborted\n"),
        ("refuse", 2, "bnnzoo: Invalid value: must be even; try bnnzoo greet end --help\n"),
        ("int", 0, ""),
        ("text", 0, ""),
    ],
)
def test_a_plugins_command_ends_as_in_typer(site, how, code, message, capsys):
    install(site)
    assert cli.run(["greet", "end", how]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import a_missing_module\n", "fails to import: ModuleNotFoundError: No module named 'a_missing_module'"),
        ("app = 3\n", "is neither a Typer app nor a function (got int)"),
        ("def app(x: 'unknown_type'): ...\n", "cannot be used as a command: NameError"),
    ],
)
def test_a_broken_command_is_one_line_when_it_is_run_and_nothing_before(site, source, message, capsys):
    install(site)
    (site / "good_target.py").write_text(source)
    assert "greet people" in help_text(capsys)
    assert cli.run(["greet"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bnnzoo: command 'greet' is from good 0.2 (good_target:app), which ")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("fault", ["import-error", "raises", "misspelt", "bad-name"])
def test_a_broken_plugin_stops_no_help(site, fault, capsys):
    source, message = fake_plugins.BROKEN[fault]
    fake_plugins.install(site, "broken", source.replace("bnnzoo_models", "bnnzoo_commands"))
    install(site)
    assert cli.run(["--help"]) == 0
    out, err = capsys.readouterr()
    assert "greet people" in out
    assert err.startswith("bnnzoo: warning: plugin broken of broken 0.2: ")
    assert message.replace("bnnzoo_models", "bnnzoo_commands") in err


def test_a_built_in_command_cannot_be_shadowed(site, capsys):
    install(site, name="List")
    assert cli.run(["list", "models"]) == 0
    assert "good" not in capsys.readouterr().out
    assert cli.run(["plugins"]) == 0
    assert (
        "command 'list' has the name of a built-in part and cannot replace that part; to use the part of the plugin, "
        "write good:list" in capsys.readouterr().out
    )
    registry.reset()
    assert cli.run(["good:list", "hello", "Bob"]) == 0
    out, err = capsys.readouterr()
    assert out == "hello Bob\n"
    assert "cannot replace" in err


def test_two_plugins_with_one_command_both_lose_the_bare_name(site, capsys):
    install(site, distribution="one", name="twin")
    install(site, distribution="two", name="twin")
    assert cli.run(["twin", "hello", "x"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "bnnzoo: command 'twin' is provided by one 0.2 and two 0.2; use the full name one:twin or two:twin"
    assert cli.run(["two:twin", "hello", "x"]) == 0
    assert capsys.readouterr().out == "hello x\n"


def test_without_plugins_the_command_is_gone_but_not_from_the_next_call(site, capsys):
    install(site)
    for arguments in (["--no-plugins", "--help"], ["--help", "--no-plugins"]):
        assert cli.run(["--help"]) == 0
        assert "greet" in capsys.readouterr().out
        assert cli.run(arguments) == 0
        assert "greet" not in capsys.readouterr().out
    assert cli.run(["--no-plugins", "greet"]) == 2
    assert "No such command 'greet'" in capsys.readouterr().err


def test_plugins_lists_and_checks_the_command(site, capsys):
    install(site)
    assert cli.run(["plugins", "--json"]) == 0
    row = next(row for row in json.loads(capsys.readouterr().out) if row["distribution"] == "good")
    assert row["counts"]["commands"] == 1
    assert cli.run(["plugins"]) == 0
    assert re.search(r"good +0\.2 +1 command +ok", capsys.readouterr().out)
    assert registry.import_failures() == []
    (site / "good_target.py").write_text("x = 1\n1 / 0\n")
    del sys.modules["good_target"]
    (wrong,) = registry.import_failures()
    assert "good_target.py:2: command good:greet (good_target:app): ZeroDivisionError" in wrong


def test_a_summary_is_neither_markup_nor_more_than_a_line(site, capsys):
    install(site, summary="[/red] a\nb \x1b[2J")
    out = help_text(capsys)
    assert "greet [/red] a b" in out
    assert "\x1b[2J" not in out


def test_a_wrong_name_is_compared_with_the_commands_of_plugins_too(site, capsys):
    install(site)
    assert cli.run(["grete"]) == 2
    assert capsys.readouterr().err.startswith("bnnzoo: No such command 'grete' (did you mean 'greet'?)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "mlp", "austerity"], "no sampler named 'austerity'; it is in the package bnnzoo-minibatch-tests"),
        (["info", "sampler", "confidence"], "which is not installed: pip install bnnzoo-minibatch-tests"),
        (["show", "mlp", "bnnzoo-minibatch-tests:austerity"], "is not installed: pip install bnnzoo-minibatch-tests"),
        (["show", "mlp", "minibatch-barker"], "which is not installed: pip install bnnzoo-minibatch-tests"),
        (["party"], "no command named 'party'; it is in the package bnnzoo-federated"),
        (["party", "serve", "a"], "which is not installed: pip install bnnzoo-federated"),
        (["distill", "run.nc"], "which is not installed: pip install bnnzoo-distill"),
    ],
)
def test_a_command_of_a_missing_package_names_the_package(arguments, message, without_plugins, monkeypatch, capsys):
    monkeypatch.setattr(failures, "is_installed", lambda package: False)
    assert cli.run(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("module", "allowed", "message"),
    [
        ("1 / 0", "", "which failed to load (ZeroDivisionError: division by zero"),
        ("", "other", "which is installed but disabled; remove the option no-plugins"),
        ("", "", "which offers it in another version (installed: 0.2); pip install -U bnnzoo-distill"),
    ],
)
def test_an_installed_package_is_not_to_be_installed_again(module, allowed, message, site, monkeypatch, capsys):
    name = fake_plugins.install(site, "bnnzoo-distill", "")
    (site / "broken_module.py").write_text(module)
    entry_points = site / f"{name}-0.2.dist-info" / "entry_points.txt"
    entry_points.write_text("[bnnzoo]\nfake = broken_module\n")  # not the name of the module of the real package
    monkeypatch.setenv("BNNZOO_PLUGINS", allowed or "bnnzoo-distill")
    registry.reset()
    assert cli.run(["distill", "run.nc"]) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert "no command named 'distill'; it is in the package bnnzoo-distill, " in err
    assert message in err
    assert "not installed" not in err


def test_a_strict_environment_refuses_a_broken_plugin_in_help_too(site, monkeypatch, capsys):
    fake_plugins.install(site, "broken", "1 / 0\n")
    monkeypatch.setenv("BNNZOO_STRICT_PLUGINS", "1")
    assert cli.run(["--help"]) == 1
    assert capsys.readouterr().err.startswith("bnnzoo: plugin broken of broken 0.2: ZeroDivisionError")
    assert cli.run(["--no-plugins", "--help"]) == 0


def test_the_entries_of_our_own_commands_can_be_imported():
    assert not [line for line in registry.import_failures() if " of bnnzoo " in line or "bnnzoo:" in line]
    assert set(registry.entries(registry.COMMANDS)) >= {"sample", "list", "plugins"}


def test_a_conflict_is_warned_of_where_names_are_looked_up(site):
    install(site, name="sample")
    with pytest.warns(
        BnnzooWarning,
        match="command 'sample' has the name of a built-in part and cannot replace that part; to use the part of "
        "the plugin, write good:sample",
    ):
        registry.entries("models")


# ---- the example of docs/plugins.md, typed out ---------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
def test_the_command_of_the_page_on_plugins_works_as_printed(site, tmp_path, monkeypatch, capsys):
    section = PAGE[PAGE.index("## A command\n") : PAGE.index("## Contents of a plugin")]
    files = dict(re.findall(r"`bnnzoo-draws/([\w/.]+)`[^`]*\n```\w+\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    assert list(files) == ["pyproject.toml", "bnnzoo_draws/__init__.py", "bnnzoo_draws/commands.py"]
    project = tomllib.loads(files["pyproject.toml"])["project"]
    fake_plugins.install(site, project["name"], "")
    (site / "bnnzoo_draws.py").unlink()
    (site / "bnnzoo_draws").mkdir()
    for name in list(files)[1:]:
        (site / name).write_text(files[name])
    (point,) = project["entry-points"]["bnnzoo"].items()
    (next(site.glob("*.dist-info")) / "entry_points.txt").write_text("[bnnzoo]\n{} = {}\n".format(*point))

    monkeypatch.chdir(tmp_path)
    quick = "--data linear-line --warmup 0 --draws 1000 --init prior --seed 1 --quiet -o run.nc"
    assert cli.run(["sample", "linear", "random-walk", *quick.split()]) == 0
    capsys.readouterr()
    commands = re.findall(r"^    bnnzoo (.*)$", section, re.MULTILINE)
    assert commands == ["draws run.nc", "draws run.nc --total"]
    for command in commands:
        assert cli.run(command.split()) == 0
    (printed,) = re.findall(r"^```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert capsys.readouterr().out == printed
    assert "Print how many draws a run has." in help_text(capsys)
    for name in [name for name in sys.modules if name.startswith("bnnzoo_draws")]:
        monkeypatch.delitem(sys.modules, name)
