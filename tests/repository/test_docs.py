"""The documentation agrees with the code: its blocks run, its links resolve, and nothing is missing.

In the pages a `console` block is run and compared (`$ printf ...` makes a file, `$ bnnzoo ...` runs in this
process; a command without output below it must only succeed). All other commands and the `python` blocks are typed by
`end_to_end/test_pages.py`, with shorter runs.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from bnnzoo import cli
from bnnzoo.cli import app
from bnnzoo.plugins import registry
from bnnzoo.plugins.hookspecs import Hooks
from bnnzoo.recipe import fields_of
from bnnzoo.samplers import minibatch

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page for place in ("*.md", "docs/*.md", "plugins/*/README.md", "plugins/*/docs/*.md") for page in ROOT.glob(place)
)
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
ALL = "\n".join(text for page, text in TEXT.items() if page.parent.name == "docs")

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(autouse=True)
def _only_our_own(monkeypatch):
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    yield
    registry.reset()


def blocks(page: Path, language: str) -> list[str]:
    return [body for _, name, body in _FENCE.findall(TEXT[page]) if name == language]


def page_of(name: str) -> str:
    return TEXT[ROOT / "docs" / name]


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {name: group.get_command(None, name) for name in group.list_commands(None)}


def test_no_line_of_prose_is_a_comment_of_the_site():
    """The site leaves out a line that begins with a percent sign. A number and its sign stay on one line."""
    pages = {*PAGES, *ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("docs/site/*.md")}
    block = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
    texts = {page: block.sub("", page.read_text(encoding="utf-8")) for page in pages}
    assert {page.name for page, text in texts.items() if re.search(r"^ *%", text, re.MULTILINE)} == set()


CONSOLE = [(page, block) for page in PAGES for block in blocks(page, "console")]


@pytest.mark.parametrize(("page", "block"), CONSOLE, ids=[p.stem for p, _ in CONSOLE])
def test_console_blocks(page, block, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, expected = piece.partition("\n")
        if not line.startswith("bnnzoo "):
            assert line.startswith("printf ")
            subprocess.run(line, shell=True, check=True)
            continue
        code = cli.run(line.split()[1:])
        out, err = capfd.readouterr()
        wrong = expected.startswith("bnnzoo: ")
        assert code == (2 if wrong else 0), err
        if expected:
            assert (err if wrong else out) == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_are_python(page):
    for _, language, block in _FENCE.findall(TEXT[page]):
        if language == "python":
            compile(re.sub(r"^   ", "", block, flags=re.MULTILINE), str(page), "exec")


def test_a_fence_is_alone_on_its_line():
    """Text after the language of a block is not shown, and the block then begins with its second line."""
    pages = {*PAGES, *ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("docs/site/*.md")}
    fence = re.compile(r" *```(\w*|\{[\w-]+\}.*)")
    lines = {f"{page.name}: {line}" for page in pages for line in page.read_text(encoding="utf-8").splitlines()}
    assert {line for line in lines if "```" in line and not fence.fullmatch(line.partition(": ")[2])} == set()


def test_every_command_and_option_is_on_its_page():
    page = page_of("command-line.md")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(commands())
    for name, command in commands().items():
        if name == "show":  # it takes the options of sample, so that only the word changes
            assert {p.name for p in command.params} == {p.name for p in commands()["sample"].params}
            continue
        parts = command.commands.values() if name == "check" else [command]
        options = [o for c in parts for p in c.params for o in [*p.opts, *p.secondary_opts] if o.startswith("-")]
        missing = [o for o in options if o not in ("--help", "-h") and f"`{o}`" not in sections[name]]
        assert not missing, name


def test_every_name_is_documented():
    for kind in registry.KINDS:
        for name in registry.entries(kind):
            assert f"`{name}`" in ALL, f"{kind}: {name}"


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("samplers", "samplers.md"),
        ("models", "models.md"),
        ("likelihoods", "models.md"),
        ("priors", "models.md"),
    ],
)
def test_every_field_is_documented(kind, page):
    for name in registry.entries(kind):
        for field in fields_of(registry.load(kind, name)):
            assert re.search(rf"`{field.name}\b", page_of(page)), f"{name}: {field.name}"


def test_documented_exactness_agrees_with_the_registry():
    page = page_of("samplers.md")
    for name, entry in registry.entries("samplers").items():
        assert f"| `{name}` | {entry.exactness} |" in page


def test_commands_named_in_the_docs_exist():
    expected = {
        *commands(),
        *registry.EXTERNAL_PACKAGES[registry.COMMANDS],
        "COMMAND",
        "--help",
        "--no-plugins",
        "--debug",
    }
    # the commands of the example plugin
    expected |= set(re.findall(r'def bnnzoo_commands\(.*\n    return \[Entry\("([\w-]+)"', page_of("plugins.md")))
    for page, text in TEXT.items():
        for word in re.findall(r"(?:^ {4}|^\$ |^|`)bnnzoo (?!:)([\w-]+)", text, re.MULTILINE):
            assert word in expected, f"{page.name}: bnnzoo {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_internal_links_resolve(page):
    for target in _LINK.findall(_FENCE.sub("", TEXT[page])):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        result = (page.parent / path).resolve() if path else page
        assert result.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", result.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, target


def test_every_page_is_on_the_index():
    linked = set(_LINK.findall(page_of("index.md")))
    pages = {page.name for page in ROOT.glob("docs/*.md")} - {"index.md"}
    assert pages <= linked


def test_every_hook_is_on_the_pages_of_plugins_and_of_the_map():
    hooks = [name for name in vars(Hooks) if name.startswith("bnnzoo_")]
    assert len(hooks) == 9
    for hook in hooks:
        assert f"| `{hook}` |" in page_of("plugins.md")
        assert hook in page_of("design.md")


def test_every_public_tool_for_mini_batches_is_on_the_page_of_plugins():
    for name in minibatch.__all__:
        assert getattr(minibatch, name) is not None
        assert f"`{name}`" in page_of("plugins.md")


def test_the_layers_of_the_map_are_those_of_the_contract():
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c for c in contracts if c["type"] == "layers")["layers"]
    expected = [{name.strip() for name in layer.split(":")} for layer in layers]
    rows = re.findall(r"^\| (`bnnzoo\.[^|]*)\|", page_of("design.md"), re.MULTILINE)
    assert [set(re.findall(r"`([\w.]+)`", row)) for row in rows] == expected


def test_every_room_has_a_layer():
    """A top-level module that no layer names would not be covered by the contract."""
    named = set(re.findall(r"`(bnnzoo\.\w+)`", page_of("design.md")))
    rooms = {
        path.stem for path in (ROOT / "bnnzoo").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {f"bnnzoo.{room}" for room in rooms - {"__init__", "__main__"}} <= named
