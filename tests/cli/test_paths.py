"""Paths from the user: every command and Python refuse paths that name no file or an input file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import entrances, resuming
from bnnzoo.errors import UsageError

SAMPLE = tiny.arguments("random-walk")
LONG = "r" * 300 + ".nc"
OUTS = {
    "sample": [*SAMPLE, "-o"],
    "predict": ["predict", "run.nc", "--data", "x.csv", "-o"],
    "report": ["report", "run.nc", "-o"],
    "merge": ["merge", "run.nc", "other.nc", "-o"],
    "check": ["check", "model", "linear", "--sbc", "-o"],
    "plot": ["plot", "run.nc", "--only", "trace", "-o"],
    "zoo": ["zoo", "run", "linear.nuts", "-o"],
    "new": ["new", "sampler", "mine", "--into"],
}
READ = {
    "evaluate": ["evaluate"],
    "predict": ["predict", "--data", "x.csv"],
    "report": ["report", "-o", "page.html"],
    "plot": ["plot", "-o", "pictures"],
    "diagnose": ["diagnose"],
    "audit": ["audit"],
    "evidence": ["evidence"],
    "compare": ["compare", "run.nc"],
    "merge": ["merge", "run.nc", "-o", "all.nc"],
    "resume": ["resume"],
    "reference": ["compare", "run.nc", "run.nc", "--reference"],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    for seed, name in enumerate(("run.nc", "other.nc")):
        entrances.run_recipe(tiny.recipe("random-walk", seed=seed), out=folder / name)
    names = bnnzoo.open(folder / "run.nc").predictor.signature.feature_names
    (folder / "x.csv").write_text(f"{','.join(names)}\n{','.join('0' * len(names))}\n")
    return folder


@pytest.fixture
def run_folder(finished, tmp_path, monkeypatch) -> Path:
    """A working folder with two runs and a table."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling.nc").symlink_to("nowhere")
    (tmp_path / "loop.nc").symlink_to("loop.nc")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(arguments: list[str], naming: str, capsys) -> None:
    """Check that a command exits with 2, prints one line that begins with the path, and writes nothing."""
    before = sorted(Path().rglob("*"))
    assert cli.run(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if not line.startswith("bnnzoo: warning: ")]
    assert line.startswith(f"bnnzoo: {naming}"), line
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("command", "path"),
    [(command, path) for command in OUTS for path in ("", LONG, "nul\0.nc")]
    # The others write into folders.
    + [(c, path) for c in OUTS if c not in ("plot", "zoo", "new") for path in ("nosuch/", ".", "folder/")],
)
def test_a_path_that_names_no_file_to_write_is_refused(command, path, run_folder, capsys):
    refused([*OUTS[command], path], (path or "''")[:80].replace("\0", "\\u0000"), capsys)


@pytest.mark.parametrize("command", ["sample", "predict", "report", "merge"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_broken_link_is_not_a_place_to_write(command, force, run_folder, capsys):
    suffix = {"report": "html"}.get(command, "nc")
    for name in ("dangling", "loop"):
        path = f"{name}.{suffix}"
        if not os.path.islink(path):
            os.symlink(f"nowhere{name}" if name == "dangling" else path, path)
        refused([*OUTS[command], path, *force], path, capsys)


@pytest.mark.parametrize("command", READ)
@pytest.mark.parametrize("path", ["", ".", "folder", "folder/", LONG, "nul\0.nc", "dangling.nc", "loop.nc"])
def test_a_path_that_is_no_run_is_refused(command, path, run_folder, capsys):
    word, *rest = READ[command]
    arguments = [word, *rest, path] if command == "reference" else [word, path, *rest]
    refused(arguments, (path or "''")[:80].replace("\0", "\\u0000").removesuffix("/"), capsys)


@pytest.mark.parametrize("path", ["", ".", LONG, "nosuch/", "nul\0.nc"])
def test_invalid_paths_are_refused_in_python(path, run_folder):
    x, y = np.zeros((30, 2)), np.arange(30.0)
    run = bnnzoo.open("run.nc")
    for use in (
        bnnzoo.open,
        resuming.resume,
        run.save,
        lambda path: bnnzoo.sample("linear", "random-walk", data=(x, y), out=path),
        lambda path: bnnzoo.concat([path, "other.nc"]),
        run.report,
        lambda path: run.predict_to("x.csv", path),
    ):
        with pytest.raises(UsageError) as error:
            use(path)
        assert str(error.value).startswith((path or "''")[:80])


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "run.nc", "--data", "x.csv", "-o", "run.nc"],
        ["predict", "run.nc", "--data", "x.csv", "-o", "link.nc"],
        ["predict", "run.nc", "--data", "x.csv", "-o", "hard.nc"],
        ["predict", "run.nc", "--data", "x.csv", "-o", "x.csv"],
        ["merge", "run.nc", "other.nc", "-o", "other.nc"],
        ["merge", "run.nc", "other.nc", "-o", "folder/../hard.nc"],
        ["report", "page.html", "-o", "page.html"],
        ["plot", "picture.png", "--only", "trace", "-o", "picture.png"],
        [*(word if word != "diabetes" else "x.csv" for word in SAMPLE), "-o", "x.csv"],
        [*SAMPLE, "--config", "r.yaml", "-o", "r.yaml"],
    ],
)
def test_an_output_does_not_replace_an_input(arguments, run_folder, capsys):
    Path("link.nc").symlink_to("run.nc")
    os.link("run.nc", "hard.nc")
    shutil.copy("run.nc", "page.html")
    shutil.copy("run.nc", "picture.png")
    Path("r.yaml").write_text("thin: 1\n")
    before = {path: path.read_bytes() for path in run_folder.iterdir() if path.is_file()}
    refused([*arguments, "--force"], f"{arguments[-1]}: is read by this command and cannot be replaced", capsys)
    assert {path: path.read_bytes() for path in run_folder.iterdir() if path.is_file()} == before
