"""docs/plugins.md is typed as written; every template of `bnnzoo new` runs from the check to the report."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from rotation import rotating

from bnnzoo import cli
from bnnzoo.cli.new import KINDS
from bnnzoo.plugins import registry
from end_to_end import pages

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = (pages.ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"`(bnnzoo-[\w/.-]+)`(?: becomes|, is what)[^`]*?(?:`[^`]+`[^`]*?)*\n```\w+\n(.*?)^```", re.M | re.S)
LENGTHS = [
    "--warmup",
    "5",
    "--draws",
    "5",
    "--chains",
    "2",
    "--thin",
    "1",
    "--start-steps",
    "250",
    "--force",
    "--quiet",
]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder whose packages are the only installed plugins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BNNZOO_PLUGINS", "bnnzoo")
    monkeypatch.delenv("BNNZOO_DISABLE_PLUGINS", raising=False)
    registry.reset()
    monkeypatch.setenv("BNNZOO_STRICT_PLUGINS", "1")
    before = set(sys.modules)
    yield tmp_path
    registry.reset()
    for name in set(sys.modules) - before:
        if name.startswith("bnnzoo_"):
            del sys.modules[name]


def install(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package on the path, with the entry points from its pyproject.toml."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    info = package / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [f"{name} = {module}" for name, module in project["entry-points"]["bnnzoo"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[bnnzoo]", *points]))
    monkeypatch.syspath_prepend(package)
    monkeypatch.setenv("BNNZOO_PLUGINS", package.name)
    registry.reset()


def type_(command: str, capsys: pytest.CaptureFixture[str], *more: str) -> None:
    assert cli.run([*command.split(), *more]) == 0, f"bnnzoo {command}\n{capsys.readouterr().err}"


def type_a_run(arguments: str, capsys: pytest.CaptureFixture[str], *more: str) -> None:
    """Sample, and run all commands that use the run."""
    type_(f"sample {arguments} -o run.nc", capsys, *LENGTHS, *more)
    for command in ("evaluate run.nc", "diagnose run.nc", "report run.nc -o report.html"):
        type_(command, capsys)
    Path("report.html").unlink()


def make_shown(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Make the package of the page with its command, and with the files that the page shows."""
    type_(next(re.finditer(rf"^bnnzoo (new \w+ {name})$", PAGE, re.M))[1], capsys)
    files = [(Path(path), text) for path, text in SHOWN.findall(PAGE) if path.startswith(f"bnnzoo-{name}/")]
    assert files
    for path, text in files:
        assert path.is_file()
        path.write_text(text)
    install(Path(f"bnnzoo-{name}").resolve(), monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("start", [[], ["--init", "prior"], ["--stochastic", "last"]], ids=["map", "prior", "last"])
def test_the_model_of_the_page_starts_in_every_way(start, site, monkeypatch, capsys):
    make_shown("waves", monkeypatch, capsys)
    type_a_run("waves nuts", capsys, "--sampler.max-tree-depth", "2", *start)
    type_("predict run.nc --data tutorial-sine -o predictions.csv", capsys)


@pytest.mark.slow
def test_the_check_of_the_page_holds_its_model_to_every_start(site, monkeypatch, capsys):
    make_shown("waves", monkeypatch, capsys)
    type_("check model waves", capsys)
    assert re.search(r"^start .* passed$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("_", rotating([0], ["barker"]))
def test_the_sampler_of_the_page_runs(_, site, monkeypatch, capsys):
    make_shown("barker", monkeypatch, capsys)
    type_a_run("mlp barker --model.hidden 3", capsys)


@pytest.mark.parametrize("kind", rotating(KINDS))
def test_packages_written_by_new_pass_their_tests(kind, site, monkeypatch, capsys):
    type_(f"new {kind} walk", capsys)
    install(Path("bnnzoo-walk").resolve(), monkeypatch)
    options = {"sampler": "linear walk", "model": "walk nuts"}.get(kind, "--config walk --model.hidden 3")
    type_a_run(options, capsys, *(["--sampler.max-tree-depth", "2"] if kind != "sampler" else []))


PYTHON_NUMBERS = {
    "prior": ("dist.StudentT(self.df, 0.0, self.scale)", "dist.StudentT(float(self.df), 0.0, 2 * float(self.scale))"),
    "likelihood": (
        "dist.Laplace(output, self.scale)",
        "dist.Laplace(output, float(self.scale) if self.scale > 0.1 else 1.0)",
    ),
}


@pytest.mark.parametrize("kind", rotating(PYTHON_NUMBERS))
def test_priors_and_likelihoods_may_use_their_fields_as_python_numbers(kind, site, monkeypatch, capsys):
    type_(f"new {kind} walk", capsys)
    source = Path("bnnzoo-walk") / "bnnzoo_walk" / f"{kind}.py"
    before, after = PYTHON_NUMBERS[kind]
    assert before in source.read_text()
    source.write_text(source.read_text().replace(before, after))
    install(Path("bnnzoo-walk").resolve(), monkeypatch)
    type_a_run("--config walk --model.hidden 3 --sampler.max-tree-depth 2", capsys)


@pytest.mark.parametrize("_", rotating([0], ["sampler"]))
def test_a_sampler_that_needs_a_python_number_gets_advice(_, site, monkeypatch, capsys):
    type_("new sampler walk", capsys)
    source = Path("bnnzoo-walk") / "bnnzoo_walk" / "sampler.py"
    before = "jnp.asarray(self.step_size, theta.dtype)"
    assert before in source.read_text()
    source.write_text(source.read_text().replace(before, "jnp.asarray(float(self.step_size), theta.dtype)"))
    install(Path("bnnzoo-walk").resolve(), monkeypatch)
    assert cli.run(["sample", "linear", "walk", "-o", "run.nc", "--init", "prior", *LENGTHS]) == 1
    error = capsys.readouterr().err
    assert "bnnzoo_walk/sampler.py" in error
    assert "compute with jax.numpy, or make the field a plain float" in error
