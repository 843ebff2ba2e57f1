"""The package and every plugin can be built, and work in an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]


def _run(*words: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command, and return its output; if it fails, the output is the message of the test."""
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """Build the source archive and the wheel of every project, and return their folder."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("packages")
    for project in PROJECTS:
        _run(sys.executable, "-m", "build", "--outdir", folder, project, cwd=folder)
    return folder


@pytest.mark.packages
@pytest.mark.slow
def test_every_package_has_an_archive_a_wheel_and_a_valid_description(packages):
    pytest.importorskip("twine")
    assert len(list(packages.glob("*.whl"))) == len(list(packages.glob("*.tar.gz"))) == len(PROJECTS)
    output = _run(sys.executable, "-m", "twine", "check", "--strict", *sorted(packages.iterdir()), cwd=packages)
    assert output.count("PASSED") == 2 * len(PROJECTS)


@pytest.mark.packages
@pytest.mark.slow
def test_a_wheel_has_all_files_of_its_package(packages):
    for project in PROJECTS:
        name = project.name.replace("-", "_") if project != ROOT else "bnnzoo"
        (wheel,) = packages.glob(f"{name}-*.whl")
        tracked = _run("git", "ls-files", name, f"{name}.py", cwd=project).splitlines()
        assert tracked
        assert not {*tracked} - {*zipfile.ZipFile(wheel).namelist()}


@pytest.mark.packages
@pytest.mark.slow
def test_the_wheels_work_in_an_empty_environment(packages, tmp_path):
    """Nothing of the repository is in the environment: the data sets and the shipped recipes come from the wheel."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    needed = ("bnnzoo-0", "bnnzoo_federated", "bnnzoo_minibatch_tests", "bnnzoo_bench", "bnnzoo_references")
    wheels = [path for path in packages.glob("*.whl") if path.name.startswith(needed)]
    assert len(wheels) == len(needed)
    _run(python, "-m", "pip", "install", "--quiet", *wheels, cwd=tmp_path)
    hidden = ("PYTHONPATH", "BNNZOO_PLUGINS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}

    def type_command(words: str) -> str:
        return _run(python, "-m", "bnnzoo", *words.split(), cwd=tmp_path, environment=environment)

    assert "ok" in type_command("plugins --check")
    assert "party" in type_command("--help")
    lengths = "--warmup 40 --draws 20 --start-steps 250 --quiet"
    type_command(f"sample mdn penalty {lengths} -o run.nc")
    type_command(f"sample mlp austerity {lengths} -o plugin.nc")
    assert "nll" in type_command("evaluate run.nc")
    assert "status" in type_command("info reference poisson")
    type_command("sample linear laplace --config reference-poisson --init map --quiet -o poisson.nc")
    assert "poisson" in type_command("compare poisson.nc --reference poisson")
    type_command("report run.nc -o report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000
