"""Draws added to a finished run are the draws of one long run, and a failed extension loses nothing."""

from __future__ import annotations

import gc
import shutil
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tiny
import xarray as xr

import bnnzoo
from bnnzoo import cli, store
from bnnzoo.api import entrances
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.plugins import registry
from bnnzoo.progress import Progress
from bnnzoo.recipe.fields import fields_of
from bnnzoo.sampling import verdict
from bnnzoo.store.schema import CHECKPOINT_BYTES, FINAL_STATE

pytestmark = pytest.mark.filterwarnings("ignore:the sampler's own check", "ignore:the convergence")

GROUPS = ("posterior", "sample_stats", "constant_data", "observed_data")


def sampled(path: Path, sampler: str, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entrances.run_recipe(tiny.recipe(sampler, **options), out=path)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A finished run of `mala` with 20 draws; tests change copies of it."""
    return sampled(tmp_path_factory.mktemp("finished") / "run.nc", "mala", draws=20)


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return shutil.copy(finished, tmp_path / "run.nc")


@pytest.fixture(scope="module")
def long_and_short(tmp_path_factory) -> tuple[Path, Path]:
    """Runs of `random-walk` with 5000 draws, which take several chunks, and with 20 draws."""
    folder = tmp_path_factory.mktemp("random-walk")
    return sampled(folder / "long.nc", "random-walk", draws=5000), sampled(folder / "short.nc", "random-walk", draws=20)


def assert_same_run(extended: Path, whole: Path, groups: tuple[str, ...] = GROUPS) -> None:
    """Check that two files have the same arrays, and the same attributes except times."""
    first, second = bnnzoo.open(extended), bnnzoo.open(whole)
    for group in groups:
        xr.testing.assert_identical(first.posterior[group].to_dataset(), second.posterior[group].to_dataset())
    timed = {"digests", "verdict", "verdict_in_python"}
    names = {name for name in first.attributes | second.attributes if not name.startswith("seconds_")} - timed
    for name in names:
        assert str(first.attributes[name]) == str(second.attributes[name]), name
    for run in (first, second):
        run.posterior.close()


@pytest.mark.long
@tiny.EACH
def test_draws_added_to_a_finished_run_are_those_of_one_long_run(sampler, tmp_path):
    whole = sampled(tmp_path / "whole.nc", sampler, draws=30)
    run = sampled(tmp_path / "run.nc", sampler, draws=20)
    assert bnnzoo.resume(run, draws=30, progress=False).attributes["draws_done"] == 30
    assert_same_run(run, whole)
    assert not (tmp_path / "run.nc.parts").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"thin": 3, "keep_warmup": True},
        {"precision": "float64", "chains": 1},
        {"warmup": 0},
        {"init": "map", "start_steps": 250},
    ],
    ids=lambda options: " ".join(options),
)
def test_a_run_with_any_setting_can_be_extended(options, tmp_path):
    whole = sampled(tmp_path / "whole.nc", "mala", draws=12, **options)
    run = sampled(tmp_path / "run.nc", "mala", draws=5, **options)
    bnnzoo.resume(run, draws=12, progress=False)
    kept = ("warmup_posterior", "warmup_sample_stats") if "keep_warmup" in options else ()
    assert_same_run(run, whole, (*GROUPS, *kept))


@pytest.mark.long
def test_a_run_with_padded_rows_can_be_extended(tmp_path):
    whole, run = tmp_path / "whole.nc", tmp_path / "run.nc"
    for path, draws in ((whole, 12), (run, 5)):
        entrances.run_recipe(tiny.recipe("mala", draws=draws), out=path, share_programs=True)
    assert bnnzoo.resume(run, draws=12, progress=False).attributes["padded_rows"] == 416
    assert_same_run(run, whole)


@pytest.mark.long
def test_a_run_of_the_last_layer_keeps_the_placement_of_its_features(tmp_path, monkeypatch):
    """The placement depends on the size of the data: the chains read the features, not the inputs."""
    monkeypatch.setattr("bnnzoo.sampling.devices.placement._CACHE_BYTES", 0)
    checked, check = list[int](), bnnzoo.Mala.check

    def record(self: Any, posterior: Any) -> None:
        checked.append(posterior.data.x.shape[1])
        check(self, posterior)

    monkeypatch.setattr(bnnzoo.Mala, "check", record)
    options = {"model": "mlp", "model.hidden": "60", "stochastic": "last", "init": "map", "start_steps": 250}
    run = sampled(tmp_path / "run.nc", "mala", draws=5, warmup=5, **options)
    assert checked == [10, 60]
    assert bnnzoo.open(run).attributes["placement"] == "vectorized on 1"
    assert bnnzoo.resume(run, draws=8, progress=False).attributes["draws_done"] == 8


@pytest.mark.long
def test_a_run_on_a_large_file_can_be_extended_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("bnnzoo.files.mapped.LARGE_BYTES", 0)
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(200, 3)))
    other, out = tmp_path / "other", tmp_path / "run.nc"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    options = {"data": "rows.npy", "sampler.batch_size": 10, "sampler.step_size": 1e-6}
    before = bnnzoo.open(sampled(out, "sgld", draws=5, **options)).attributes["row_source"]
    monkeypatch.chdir(other)
    attributes = bnnzoo.resume(out, draws=8, progress=False).attributes
    assert (attributes["draws_done"], attributes["row_source"]) == (8, before)


@pytest.mark.long
def test_an_extended_run_keeps_no_result_of_the_first_convergence_test(tmp_path, monkeypatch):
    first = {"chain_weights": "[1.0, 0.0, 0.0, 0.0]", "chain_weights_gain": 1.0, "chain_weights_error": 0.1}
    extended = tmp_path / "extended.nc"
    with monkeypatch.context() as patched:
        convergence_attributes = verdict.convergence_attributes
        patched.setattr(verdict, "convergence_attributes", lambda *more: convergence_attributes(*more) | first)
        sampled(extended, "mala", draws=20)
    names = {"verdict", "converged", "rhat", *first}
    assert names <= bnnzoo.open(extended).attributes.keys()
    monkeypatch.setattr(verdict, "_diagnose_parts", lambda *_: None)
    assert not names & bnnzoo.resume(extended, draws=25, progress=False).attributes.keys()


AUTO = {
    name: [field.name for field in fields_of(registry.load("samplers", name)) if "auto" in field.accepts.choices]
    for name in tiny.SAMPLERS
}


@pytest.mark.parametrize(
    "sampler",
    [pytest.param(name, marks=() if name == "sgld" else pytest.mark.slow) for name, fields in AUTO.items() if fields],
)
def test_a_run_whose_fields_are_auto_can_be_extended(sampler, tmp_path):
    options = {f"sampler.{name}": "auto" for name in AUTO[sampler]}
    whole = sampled(tmp_path / "whole.nc", sampler, draws=12, **options)
    run = sampled(tmp_path / "run.nc", sampler, draws=5, **options)
    bnnzoo.resume(run, draws=12, progress=False)
    assert_same_run(run, whole)


@pytest.mark.long
def test_a_run_can_be_extended_twice_and_in_several_part_files(run, tmp_path, monkeypatch):
    whole = sampled(tmp_path / "whole.nc", "mala", draws=40)
    monkeypatch.setattr("bnnzoo.store.extension._PART_BYTES", 2000)
    for draws in (25, 40):
        bnnzoo.resume(run, draws=draws, progress=False)
    assert_same_run(run, whole)


@pytest.mark.long
def test_more_time_ends_at_convergence_and_counts_from_the_end_of_the_run(tmp_path, capsys):
    run = sampled(tmp_path / "run.nc", "mala", draws=20, thin=20)
    used = sum(float(bnnzoo.open(run).attributes[f"seconds_{phase}"]) for phase in ("warmup", "sampling"))
    assert cli.run(["resume", str(run), "--budget", "2m", "--quiet"]) == 0
    attributes = bnnzoo.open(run).attributes
    assert attributes["ended"] == "converged"
    assert attributes["draws_done"] > 100
    assert used + 120 <= float(str(attributes["budget"]).rstrip("s")) <= used + 121
    assert "verdict           converged" in capsys.readouterr().out


@pytest.mark.long
def test_groups_that_evaluate_added_are_left_out(run):
    assert cli.run(["evaluate", str(run)]) == 0
    assert "predictions" in bnnzoo.open(run).posterior.children
    bnnzoo.resume(run, draws=25, progress=False)
    assert "predictions" not in bnnzoo.open(run).posterior.children


@pytest.mark.long
def test_an_interrupted_extension_keeps_the_finished_run_and_can_be_resumed(long_and_short, tmp_path):
    whole, short = long_and_short
    run = shutil.copy(short, tmp_path / "run.nc")
    before, reports = run.read_bytes(), list[Progress]()

    def stop() -> int:
        return 2 if reports and reports[-1].phase == "sampling" and reports[-1].done < 5000 else 0

    with pytest.raises(InterruptedRunError, match=r"continue: bnnzoo\.resume\("):
        bnnzoo.resume(run, draws=5000, observer=reports.append, stop=stop)
    assert run.read_bytes() == before
    with pytest.raises(UsageError, match="is unfinished; first continue it"):
        bnnzoo.resume(run, draws=6000, progress=False)
    bnnzoo.resume(run, progress=False)
    assert_same_run(run, whole)


@pytest.mark.long
def test_an_extension_that_ends_in_an_error_keeps_the_new_draws(long_and_short, tmp_path):
    whole, short = long_and_short
    run = shutil.copy(short, tmp_path / "run.nc")
    before, reports = run.read_bytes(), list[Progress]()

    def fail() -> int:
        if reports and reports[-1].phase == "sampling" and reports[-1].done < 5000:
            raise UsageError("a part of a plugin has failed")
        return 0

    with pytest.raises(UsageError, match=r"has failed; the \d+ draws before the error are in .*run\.nc\.parts"):
        bnnzoo.resume(run, draws=5000, observer=reports.append, stop=fail)
    assert run.read_bytes() == before
    assert reports[-1].done > 20
    bnnzoo.resume(run, progress=False)
    assert_same_run(run, whole)


def test_a_refused_extension_leaves_the_finished_run_alone(run, tmp_path, monkeypatch):
    before = run.read_bytes()
    monkeypatch.setattr("bnnzoo.sampling.provenance.differences", lambda *_: ["jax 1 instead of 2"])
    with pytest.raises(UsageError, match="jax 1 instead of 2"):
        bnnzoo.resume(run, draws=30, progress=False)
    assert run.read_bytes() == before
    assert not (tmp_path / "run.nc.parts").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draws", "20"], "20 draws per chain, so --draws, the new total per chain, must be larger (got 20)"),
        (["--draws", "30", "--budget", "1m"], "to add draws to a run, give exactly one of --draws and --budget"),
        (["--draws", "30", "--from-part", "1"], "--from-part is for an unfinished run, but --draws and --budget add"),
        (["--budget", "1m", "--from-part", "0"], "remove --from-part, or remove --draws and --budget"),
        (["--budget", "soon"], "--budget: must be a time such as 90s, 5m or 2h (got 'soon')"),
        ([], "is finished, so there is nothing to resume; to add draws, use --budget 2m or --draws"),
    ],
)
def test_wrong_usage_is_one_line(run, arguments, message, capsys):
    before = run.read_bytes()
    assert cli.run(["resume", str(run), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert run.read_bytes() == before


@pytest.mark.long
def test_a_merged_file_cannot_be_extended(run, tmp_path, capsys):
    other, merged = sampled(tmp_path / "other.nc", "mala", draws=20, seed=1), tmp_path / "merged.nc"
    assert cli.run(["merge", str(run), str(other), "-o", str(merged)]) == 0
    capsys.readouterr()
    assert cli.run(["resume", str(merged), "--draws", "30"]) == 2
    assert "the file has no checkpoint (joined runs have none); start a new run" in capsys.readouterr().err


def test_a_changed_last_state_is_found(run, tmp_path):
    gc.collect()  # closes the file
    with h5py.File(run, "r+") as file:
        state: Any = file[f"{FINAL_STATE}/{CHECKPOINT_BYTES}"]
        values = np.asarray(state)
        values[len(values) // 2] ^= 1
        state[:] = values
    before = run.read_bytes()
    with pytest.raises(UsageError, match="damaged"):
        bnnzoo.resume(run, draws=30, progress=False)
    assert run.read_bytes() == before
    assert not (tmp_path / "run.nc.parts").exists()


@pytest.mark.long
def test_an_extension_killed_while_it_copies_the_draws_can_be_repeated(run, tmp_path, monkeypatch):
    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("bnnzoo.store.writer.Store.reveal", kill)
        patched.setattr("bnnzoo.store.run_parts.remove_files", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            bnnzoo.resume(run, draws=30, progress=False)
    assert list((tmp_path / "run.nc.parts").glob("p000-*"))
    assert store.run_state(run) == "complete"
    assert bnnzoo.resume(run, draws=30, progress=False).attributes["draws_done"] == 30
    assert not (tmp_path / "run.nc.parts").exists()


def test_an_interrupt_while_the_draws_are_copied_leaves_no_parts(run, tmp_path, monkeypatch):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bnnzoo.store.writer.Store.reveal", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bnnzoo.resume(run, draws=30, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["run.nc"]


def test_a_link_is_not_replaced_by_the_longer_run(run, tmp_path):
    link = tmp_path / "link.nc"
    link.symlink_to(run)
    bnnzoo.resume(link, draws=25, progress=False)
    assert link.is_symlink()
    assert bnnzoo.open(run).attributes["draws_done"] == 25


@pytest.mark.parametrize("option", [["--draws", "30"], ["--budget", "1m"]])
def test_a_longer_run_needs_room_on_the_disk(option, run, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(10**12, 0, 10**3))
    assert cli.run(["resume", str(run), *option]) == 2
    assert capsys.readouterr().err.endswith(" GB are free; make room, or use a smaller --draws\n")


def test_the_verdict_names_the_command_that_adds_draws(tmp_path):
    run = sampled(tmp_path / "run.nc", "random-walk", draws=100)
    attributes = bnnzoo.open(run).attributes
    assert "so continue with bnnzoo resume and --draws " in attributes["verdict"]
    assert "so continue with bnnzoo.resume and draws=" in attributes["verdict_in_python"]
