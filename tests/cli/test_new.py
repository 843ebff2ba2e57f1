"""Packages written by `bnnzoo new` work at once, and so does docs/plugins.md as typed."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from bnnzoo import cli
from bnnzoo.cli.new import KINDS
from bnnzoo.plugins import registry
from bnnzoo.recipe import read_layer

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")

NAMES = {"sampler": "My_Walk", "model": "2d-thing", "likelihood": "none", "prior": "class", "dataset": "x"}
"""A name for each kind, including awkward names."""


@pytest.fixture(autouse=True)
def _only_our_own(monkeypatch):
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    yield
    registry.reset()


def installed(package: Path) -> None:
    """Write the metadata that an installer would write from pyproject.toml beside the package's modules."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    info = package / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [f"{name} = {module}" for name, module in project["entry-points"]["bnnzoo"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[bnnzoo]", *points]))


def python(packages: Sequence[Path], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` with only these packages installed."""
    path = [*map(str, packages), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "BNNZOO_PLUGINS": ",".join(package.name for package in packages),
        "BNNZOO_STRICT_PLUGINS": "1",
    }
    del environment["BNNZOO_DISABLE_PLUGINS"]
    folder = packages[0].parent
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )


# ---- what is written -----------------------------------------------------------------------------


@pytest.mark.slow
def test_every_kind_works_at_once(tmp_path, capsys):
    for kind, name in NAMES.items():
        assert cli.run(["new", kind, name, "--into", str(tmp_path)]) == 0
    capsys.readouterr()
    packages = sorted(tmp_path.iterdir())
    assert [package.name for package in packages] == [
        "bnnzoo-2d-thing",
        "bnnzoo-class",
        "bnnzoo-my-walk",
        "bnnzoo-none",
        "bnnzoo-x",
    ]
    for package in packages:
        installed(package)
    tests = [str(package / "tests") for package in packages]
    result = python(packages, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert result.returncode == 0, result.stdout + result.stderr

    listed = python(packages, "-m", "bnnzoo", "list").stdout
    configs = python(packages, "-m", "bnnzoo", "list", "configs").stdout
    for kind, name in NAMES.items():
        section = listed.partition(f"{kind}s:\n")[2].partition("\n\n")[0]
        for text in (section, configs):
            assert re.search(
                rf"^ *{name.lower()} +(exact +)?bnnzoo-{name.lower().replace('_', '-')} ", text, re.MULTILINE
            ), kind
    process = python(packages, "-m", "bnnzoo", "show", "--config", "class")
    assert re.search("name: .*:class", process.stdout), process.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_new_lists_its_files_and_leaves_no_template_name(kind, tmp_path, capsys):
    assert cli.run(["new", kind, "barker", "--into", str(tmp_path / "some" / "where")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [line for line in out.splitlines() if line.startswith("/")] == [str(path) for path in files]
    assert {path.relative_to(tmp_path).parts[:3] for path in files} == {("some", "where", "bnnzoo-barker")}
    for path in files:
        assert "template" not in str(path.relative_to(tmp_path)).lower()
        assert not re.search("template", path.read_text(), re.IGNORECASE), path
        if path.suffix == ".py":
            compile(path.read_text(), str(path), "exec")
    commands = [line.strip() for line in out.splitlines() if line.startswith("    ")]
    assert len(commands) == (4 if kind in ("likelihood", "prior") else 3)  # these two have their own checks
    assert commands[0] == f"pip install -e {tmp_path}/some/where/bnnzoo-barker"
    for command in commands[1:]:
        assert command.startswith("bnnzoo ")
        assert "barker" in command


def test_the_printed_command_quotes_the_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["new", "sampler", "barker", "--into", "my plugins"]) == 0
    assert "    pip install -e './my plugins/bnnzoo-barker'\n" in capsys.readouterr().out


def test_a_plugin_is_one_with_a_sampler(tmp_path, capsys):
    for kind in ("plugin", "sampler"):
        assert cli.run(["new", kind, "walk", "--into", str(tmp_path / kind)]) == 0
    capsys.readouterr()
    files, sampler = (
        {
            path.relative_to(tmp_path / kind): path.read_bytes()
            for path in (tmp_path / kind).rglob("*.*")
            if path.is_file()
        }
        for kind in ("plugin", "sampler")
    )
    assert files == sampler


def test_new_writes_into_an_empty_folder_by_default_the_current_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bnnzoo-barker").mkdir()
    assert cli.run(["new", "sampler", "barker"]) == 0
    assert "pip install -e ./bnnzoo-barker\n" in capsys.readouterr().out
    assert (tmp_path / "bnnzoo-barker" / "pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plugins", "x"], "unknown kind 'plugins'; use one of model, sampler, dataset, likelihood, prior"),
        (["sampler", "../x"], "invalid name '../x'; use letters, digits, - and _"),
        (["sampler", "-x"], "No such option: -x"),
        (["sampler", "_x"], "invalid name '_x'"),
        (["sampler", "x" * 65], "at most 64"),
        (["sampler", "naïve"], "invalid name 'naïve'"),
        (["sampler", "NUTS"], "sampler 'nuts' exists already in bnnzoo; choose another name"),
        (["likelihood", "laplace"], "config 'laplace' exists already in bnnzoo; choose another name"),
        (["dataset", "mdn"], "config 'mdn' exists already in bnnzoo; choose another name"),
        (["sampler", "full"], "bnnzoo-full: exists and is not empty; choose another name"),
        (["sampler", "linked"], "bnnzoo-linked: exists and is not a folder; choose another folder with --into"),
        (["sampler", "file"], "bnnzoo-file: exists and is not a folder; choose another folder with --into"),
        (["sampler"], "Missing argument 'NAME'; try bnnzoo new --help"),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bnnzoo-full").mkdir()
    (tmp_path / "bnnzoo-full" / "mine.py").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bnnzoo-linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "bnnzoo-file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert cli.run(["new", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("kind", "name", "cls"),
    [("model", "network", "ModelNetwork"), ("model", "callable", "ModelCallable"), ("prior", "123", "Prior123")],
)
def test_a_class_name_never_clashes_with_the_template(kind, name, cls, tmp_path, capsys):
    assert cli.run(["new", kind, name, "--into", str(tmp_path)]) == 0
    folder = tmp_path / f"bnnzoo-{name}" / f"bnnzoo_{name}"
    source = (folder / f"{kind}.py").read_text()
    assert re.findall(rf"^.*\b{cls}\b", source, re.MULTILINE) == [f"class {cls}"]
    layer = read_layer(folder / "recipes" / f"{name}.yaml")
    assert not layer.problems
    assert layer.parts[kind].name is not None
    assert layer.parts[kind].name.raw == name


@pytest.mark.parametrize(
    ("kind", "contents", "message"),
    [
        (registry.COMMANDS, "walk", "the command 'walk'"),
        (registry.REFERENCES, "walk", "the reference 'walk'"),
        ("models", "walk", "the model 'walk'"),
        ("samplers", "other", "the sampler 'other'"),
        (registry.RECIPES, "other", "the config 'other'"),
        ("samplers", "walk", ""),
        (registry.RECIPES, "walk", ""),
    ],
)
def test_an_installed_package_with_other_contents_is_not_replaced(
    kind, contents, message, tmp_path, monkeypatch, capsys
):
    entry = registry.Registered(kind, contents, "", "", "", "bnnzoo-walk", "1", "")
    real = registry.entries
    monkeypatch.setattr(registry, "entries", lambda asked: real(asked) | ({contents: entry} if asked == kind else {}))
    assert cli.run(["new", "sampler", "walk", "--into", str(tmp_path)]) == (2 if message else 0)
    expected = f"bnnzoo: the package bnnzoo-walk exists already and contains {message}; choose another name\n"
    assert capsys.readouterr().err == (expected if message else "")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.run(["new", "sampler", "barker", "--into", str(tmp_path / "file")]) == 1
    err = capsys.readouterr().err
    assert "cannot be written: Not a directory" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("existed", [True, False])
def test_a_failed_command_removes_only_what_it_wrote(existed, tmp_path, monkeypatch):
    def write(path, text, **_):
        if path.name == "README.md":
            raise OSError(errno.ENOSPC, "no space", str(path))
        path.write_bytes(text.encode())

    folder = tmp_path / "bnnzoo-barker"
    if existed:
        folder.mkdir(mode=0o700)
    monkeypatch.setattr(Path, "write_text", write)
    assert cli.run(["new", "sampler", "barker", "--into", str(tmp_path)]) == 1
    assert [*tmp_path.rglob("*")] == ([folder] if existed else [])
    if existed:
        assert folder.stat().st_mode & 0o777 == 0o700


# ---- docs/plugins.md, typed out ------------------------------------------------------------------

BLOCK = re.compile(r"((?:^[^\n]+\n)+)\n```(?:python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A paragraph, and the code block after it."""


def files_of_the_page() -> dict[str, str]:
    """Return the code blocks whose paragraph names a file of `bnnzoo-barker` or `bnnzoo-waves`, by file name."""
    paths = [
        (re.findall(r"`(bnnzoo-(?:barker|waves)/[\w/.-]+)`", before), text) for before, text in BLOCK.findall(PAGE)
    ]
    return {names[-1]: text for names, text in paths if names}


def typed(folder: Path) -> list[Path]:
    """Make the packages of the page with its commands, and with the files that it shows."""
    for command in re.findall(r"^bnnzoo (new .*)$", PAGE, re.MULTILINE):
        assert cli.run([*command.split(), "--into", str(folder)]) == 0
    for path, text in files_of_the_page().items():
        assert (folder / path).is_file()
        (folder / path).write_text(text)
    packages = sorted(folder.iterdir())
    for package in packages:
        installed(package)
    return packages


def test_the_page_shows_three_files_of_its_packages(tmp_path):
    files = files_of_the_page()
    assert [Path(path).name for path in files] == ["sampler.py", "model.py", "waves.yaml"]
    packages = typed(tmp_path)
    assert [package.name for package in packages] == ["bnnzoo-barker", "bnnzoo-waves"]
    sampler = packages[0] / "bnnzoo_barker" / "sampler.py"
    assert "state.log_density + ratio" in sampler.read_text()  # what the slow test below reverses


@pytest.mark.slow
def test_the_packages_of_the_page_pass_their_own_tests(tmp_path):
    packages = typed(tmp_path)
    tests = [str(package / "tests") for package in packages]
    result = python(packages, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_the_commands_of_the_page_work_as_printed(tmp_path):
    packages = typed(tmp_path)
    commands = re.findall(r"^bnnzoo (?!new )(?!.*--log-to alarm)(.*)$", PAGE, re.MULTILINE)  # alarm: test_observers
    assert len(commands) == 5
    for command in commands:
        result = python(packages, "-m", "bnnzoo", *command.split())
        assert result.returncode == 0, f"{command}: {result.stderr}"
    assert (tmp_path / "run.nc").is_file()
    assert (tmp_path / "waves.nc").is_file()


@pytest.mark.slow
def test_barkers_proposal_with_the_ratio_reversed_is_found(tmp_path):
    packages = typed(tmp_path)
    source = tmp_path / "bnnzoo-barker" / "bnnzoo_barker" / "sampler.py"
    original = source.read_text()
    source.write_text(original.replace("state.log_density + ratio", "state.log_density - ratio"))
    assert source.read_text() != original
    result = python(packages, "-m", "bnnzoo", "check", "sampler", "barker", "--target", "skewed")
    assert result.returncode == 3, result.stderr
    assert "biased: skewed" in result.stderr
