"""Runs on disk: parts, locks, the NetCDF file."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bnnzoo.errors import BnnzooError, BusyError, UsageError
from bnnzoo.files.atomic import check_free
from bnnzoo.store import (
    Store,
    add_groups,
    attributes,
    check_room,
    check_same_run,
    lock,
    netcdf,
    open_tree,
    parts_folder,
    refuse_existing,
    run_parts,
)
from bnnzoo.store.run_parts import load

ATTRIBUTES = {
    "recipe": "model: linear",
    "model": "linear",
    "sampler": "mala",
    "exactness": "exact",
    "versions": "{}",
    "precision": "float32",
    "device": "cpu",
    "placement": "vectorized on 1",
    "complete": 0,
    "draws_requested": 8,
    "draws_done": 0,
    "regime_ok": "not-applicable",
    "seconds_compile": 0.0,
    "seconds_warmup": 0.0,
    "seconds_sampling": 0.0,
    "target_evaluations": 0.0,
    "tuned": "{}",
    "seed": 3,
    "likelihood_power": 0.5,
    "name": "é ü 漢",
}
STATIC = {
    "observed_data": {"y": np.arange(6, dtype=np.float32).reshape(6, 1)},
    "constant_data": {
        "x": np.arange(24, dtype=np.uint8).reshape(6, 2, 2),
        "none": np.zeros((0, 3), np.float32),
    },
}
DIMS = {"y": ["row", "target"], "x": ["row", "height", "width"], "posterior/weight": ["output", "input"]}


def part(start: int, draws: int, chains: int = 2) -> dict[str, dict[str, np.ndarray]]:
    count = np.arange(start, start + draws)
    shape = (chains, draws)
    return {
        "posterior": {
            "weight": (count[:, None, None] + np.zeros((*shape, 1, 3))).astype(np.float32),
            "scale": np.broadcast_to(count, shape).astype(np.float64),
            "nothing": np.zeros((*shape, 0), np.float32),
        },
        "sample_stats": {
            "accepted": np.broadcast_to(count % 2 == 0, shape),
            "n_steps": np.broadcast_to(count, shape).astype(np.int32),
            "lp": np.full(shape, np.nan, np.float32),
        },
    }


def full_disk(monkeypatch, least: int = 4096) -> None:
    """Let HDF5's writes fail after the first bytes of a file."""

    def write(self, data, write=netcdf._Disk.write):
        if self.file.tell() + len(data) > least:
            self.file = Full(self.file)
        return write(self, data)

    monkeypatch.setattr(netcdf._Disk, "write", write)


class Full:
    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        raise OSError(28, "No space left on device")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run.nc"


def started(out, *, parts=((0, 3), (3, 5))) -> Store:
    writer = Store(out)
    writer.claim(force=False)
    writer.create(ATTRIBUTES, DIMS, STATIC)
    for start, draws in parts:
        writer.append(part(start, draws))
    return writer


def check(tree: xr.DataTree, draws: int) -> None:
    first_part = part(0, draws)
    for group, values in first_part.items():
        assert set(tree[group].data_vars) == set(values)
        for name, array in values.items():
            result = tree[group][name]
            assert result.dims[:2] == ("chain", "draw")
            assert result.dtype == array.dtype, name
            np.testing.assert_array_equal(result.values, array)
    assert tree["posterior"]["weight"].dims[2:] == ("output", "input")
    assert tree["posterior"]["draw"].values.tolist() == list(range(draws))
    for group, values in STATIC.items():
        for name, array in values.items():
            np.testing.assert_array_equal(tree[group][name].values, array)
            assert tree[group][name].dtype == array.dtype


def test_round_trip(out):
    writer = started(out)
    check(open_tree(out), 8)
    writer.update({"draws_done": 8, "tuned": "{}"})
    writer.finish(complete=True)
    assert [p.name for p in out.parent.iterdir()] == ["run.nc"]
    tree = open_tree(out)
    check(tree, 8)
    for name, value in {**ATTRIBUTES, "complete": 1, "draws_done": 8, "tuned": "{}"}.items():
        assert tree.attrs[name] == value
    assert tree["constant_data"]["x"].dims == ("row", "height", "width")


def test_the_end_of_a_path_to_the_prior_is_no_damage():
    assert attributes.find_fault(ATTRIBUTES | {"likelihood_power": 0.0}) == ""
    assert "likelihood_power" in attributes.find_fault(ATTRIBUTES | {"likelihood_power": -0.1})


@pytest.mark.parametrize(
    ("name", "other"),
    [("model", "mlp"), ("sampler", "nuts"), ("seed", 4), ("precision", "float64"), ("likelihood_power", 0.6)],
)
def test_an_attribute_that_is_not_its_recipes_is_named(name, other):
    recipe = "model: linear\nsampler: mala\nseed: 3\nlikelihood_power: 0.5\n"
    about = ATTRIBUTES | {"recipe": recipe, "signature": "{}"}
    assert attributes.find_contradiction(about) == ""
    assert attributes.find_contradiction(about | {name: other}) == f"its attribute {name} contradicts its recipe"
    assert attributes.find_contradiction({**about, name: other, "signature": ""}) == ""  # for a posterior made by hand


def test_an_unfinished_run_is_readable_at_any_moment(out):
    writer = Store(out)
    writer.claim(force=False)
    writer.create(ATTRIBUTES, DIMS, STATIC)
    assert open_tree(out).attrs["draws_done"] == 0
    assert "posterior" not in open_tree(out).children
    for start, draws in ((0, 3), (3, 5), (8, 1)):
        writer.append(part(start, draws))
        tree = open_tree(out)
        check(tree, start + draws)
        assert tree.attrs["complete"] == 0
        assert tree.attrs["draws_done"] == start + draws
    writer.update({"draws_done": 9})
    writer.finish(complete=False)
    check(xr.open_datatree(out, engine="h5netcdf"), 9)
    assert parts_folder(out).is_dir()


def test_a_part_missing_from_the_manifest_is_ignored(out):
    """The process was killed between writing the part and the manifest."""
    writer = started(out)
    np.savez(writer.folder / "p000-000002.npz", junk=np.zeros(1))
    check(open_tree(out), 8)


def test_parts_beyond_the_checkpoint_are_discarded(out):
    writer = started(out, parts=((0, 3), (3, 5), (8, 2)))
    assert writer.num_parts == 3
    (writer.folder / ".p000-000003.npz.tmp").write_bytes(b"half")
    writer.release()
    second_store = Store(out)
    second_store.reopen(2)
    assert sorted(p.name for p in second_store.folder.glob("p000-*")) == ["p000-000000.npz", "p000-000001.npz"]
    assert not list(second_store.folder.glob(".*"))
    # Killed here, before the next part: the run on disk has eight draws.
    check(open_tree(out), 8)
    second_store.append(part(8, 4))
    check(open_tree(out), 12)
    second_store.update({"draws_done": 12})
    second_store.finish(complete=True)
    check(open_tree(out), 12)


def test_a_file_with_too_few_draws_keeps_the_parts(out):
    writer = started(out)
    writer.update({"draws_done": 9})
    with pytest.raises(BnnzooError, match="the file would contain 8 draws, expected 9; the draws so far are kept"):
        writer.finish(complete=True)
    assert not out.exists()
    check(open_tree(out), 8)


def test_a_file_that_cannot_be_built_leaves_the_parts_and_the_old_file(out, monkeypatch):
    writer = started(out)
    writer.update({"draws_done": 8})
    writer.finish(complete=False)
    before = out.read_bytes()
    second_store = Store(out)
    second_store.reopen(2)
    second_store.append(part(8, 1))
    second_store.update({"draws_done": 9})
    full_disk(monkeypatch)
    with pytest.raises(BnnzooError, match=r"run\.nc: cannot be written: .*draws so far are kept"):
        second_store.finish(complete=False)
    assert out.read_bytes() == before
    assert sorted(p.name for p in out.parent.iterdir()) == ["run.nc", "run.nc.parts"]
    check(open_tree(out), 9)


# ---- locks, existing files -----------------------------------------------------------------------


HOLD = """
import sys
from pathlib import Path
from bnnzoo.store import Store
writer = Store(Path(sys.argv[1]))
writer.reopen(2)
print("held", flush=True)
sys.stdin.readline()
writer.append({})
"""


@pytest.fixture
def holder(out):
    """Start another process that writes the run until it receives a line."""
    started(out).release()
    command = [sys.executable, "-c", HOLD, str(out)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_live_process_keeps_others_away(out, holder):
    for _ in range(2):
        with pytest.raises(
            UsageError, match=f"process {holder.pid} on .* is writing this run; wait until it has finished, or stop it"
        ):
            Store(out).reopen(2)
    with pytest.raises(UsageError, match="is writing this run"):
        Store(out).claim(force=True)
    with pytest.raises(UsageError, match="is writing this run"):
        Store(out).reopen(2, break_lock=True)
    check(open_tree(out), 8)
    holder.kill()
    holder.wait()
    # The process has ended, which released its lock.
    second_store = Store(out)
    second_store.reopen(2)
    second_store.release()
    assert not (second_store.folder / "owner.json").exists()


@pytest.mark.usefixtures("as_options")
def test_a_lock_without_a_sign_of_life_can_be_broken(out, holder):
    card = parts_folder(out) / "owner.json"
    os.utime(card, (1, 1))
    with pytest.raises(UsageError, match=r"has written nothing for .* bnnzoo resume .*run\.nc --break-lock"):
        Store(out).reopen(2)
    second_store = Store(out)
    second_store.reopen(2, break_lock=True)
    second_store.append(part(8, 1))
    # If the old owner continues, it cannot write.
    _, errors = holder.communicate("go on\n")
    assert "another process has taken this run over" in errors
    check(open_tree(out), 9)


def test_a_host_whose_locks_are_not_seen_is_seen_by_its_card(out):
    writer = started(out)
    writer.release()
    card = writer.folder / "owner.json"
    card.write_text(json.dumps({"token": "t", "host": "far", "boot": "another", "pid": 1}))
    with pytest.raises(UsageError, match="the host far wrote this run 0 seconds ago; wait until the run has finished"):
        Store(out).reopen(2)
    os.utime(card, (1, 1))
    Store(out).reopen(2)


@pytest.mark.parametrize("make", [os.mkfifo, lambda card: card.symlink_to("/dev/zero")])
def test_a_card_that_is_not_a_file_is_ignored(out, make):
    """Reading a pipe without a writer, or an endless device, would never end."""
    writer = started(out)
    writer.release()
    make(writer.folder / "owner.json")
    second_store = Store(out)
    second_store.reopen(2)
    second_store.release()


def test_a_run_whose_rhat_is_infinite_goes_on(out):
    """As of chains that stand still: the words that count are read again as they were written."""
    writer = started(out)
    writer.update({"rhat": np.inf, "draws_done": 8})
    writer.release()
    second_store = Store(out)
    second_store.reopen(2)
    second_store.finish(complete=True)
    assert open_tree(out).attrs["rhat"] == np.inf


def test_a_writer_gives_signs_of_life(out, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_SECONDS", 0.01)
    writer = started(out)
    card = writer.folder / "owner.json"
    os.utime(card, (1, 1))
    end = time.monotonic() + 10
    while card.stat().st_mtime == 1:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_releasing_a_lock_keeps_the_lock_of_the_next_writer(out, monkeypatch):
    first, second = started(out, parts=((0, 8),)), Store(out)
    first.update({"draws_done": 8})

    def release(release=first._lock._lock.release):
        release()
        second.claim(force=True)

    monkeypatch.setattr(first._lock._lock, "release", release)
    first.finish(complete=True)
    second.create(ATTRIBUTES, DIMS, STATIC)
    second.append(part(0, 2))
    with pytest.raises(BusyError, match="is writing this run"):
        Store(out).claim(force=True)


def test_a_lock_without_its_file_is_not_held(out, monkeypatch):
    """The file was opened before its last owner removed it, and locked afterwards."""
    writer = Store(out)
    gone = []

    def acquire(acquire=writer._lock._lock.acquire):
        acquire()
        if not gone:
            gone.append((writer.folder / "lock").unlink())
            writer.folder.rmdir()

    monkeypatch.setattr(writer._lock._lock, "acquire", acquire)
    writer.claim(force=False)
    assert gone
    with pytest.raises(BusyError, match="is writing this run"):
        Store(out).claim(force=False)
    writer.release()
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("content", ["", "1", "not a number", '{"pid": 1}', "[1, 2, 3, 4]"])
def test_a_damaged_lock_keeps_nobody_away(content, out):
    """This holds whichever process has this number."""
    writer = started(out)
    writer.release()
    for name in ("lock", "owner.json"):
        (writer.folder / name).write_text(content)
    Store(out).reopen(2)


@pytest.mark.usefixtures("as_options")
def test_existing_runs_are_refused(out):
    refuse_existing(out)
    writer = started(out)
    with pytest.raises(UsageError, match="an unfinished run is here; continue it with bnnzoo resume"):
        refuse_existing(out)
    with pytest.raises(UsageError, match="an unfinished run is here"):
        Store(out).claim(force=False)
    writer.update({"draws_done": 8})
    writer.finish(complete=True)
    with pytest.raises(UsageError, match="exists; use another -o, or --force"):
        refuse_existing(out)
    second_store = Store(out)
    second_store.claim(force=True)
    second_store.create(ATTRIBUTES, DIMS, STATIC)
    second_store.append(part(0, 2))
    second_store.update({"draws_done": 2})
    second_store.finish(complete=True)
    check(open_tree(out), 2)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_is_no_place_for_a_run(force, out):
    out.mkdir()
    with pytest.raises(UsageError, match=r"run\.nc: is a folder; use another out"):
        Store(out).claim(force=force)
    with pytest.raises(UsageError, match="is not a regular file"):
        check_free(Path(os.devnull), force=force)
    assert [p.name for p in out.parent.iterdir()] == ["run.nc"]


def test_force_replaces_an_unfinished_run(out):
    started(out).release()
    second_store = Store(out)
    second_store.claim(force=True)
    second_store.create(ATTRIBUTES, DIMS, STATIC)
    second_store.append(part(0, 1))
    check(open_tree(out), 1)


def test_there_must_be_a_run_to_reopen(out):
    with pytest.raises(UsageError, match="no unfinished run has this path"):
        Store(out).reopen(0)


@pytest.mark.usefixtures("as_options")
def test_room(out, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(10**12, 0, 10**9))
    check_room(out, 5 * 10**8)
    with pytest.raises(UsageError, match=r"writing needs 1 GB, but only 1 GB are free; use fewer --draws"):
        check_room(out, 5 * 10**8 + 1)
    with pytest.raises(UsageError, match=r"the folder .* does not exist"):
        check_room(out.parent / "gone" / "run.nc", 1)


# ---- reading what is not ours --------------------------------------------------------------------


def test_a_path_that_is_no_run_is_refused(out, tmp_path):
    with pytest.raises(UsageError, match="no such run"):
        open_tree(out)
    with pytest.raises(UsageError, match="not a regular file"):
        open_tree(tmp_path)
    for content in (b"", b"text", b"\x89HDF\r\n\x1a\n half"):
        out.write_bytes(content)
        with pytest.raises(UsageError, match="not a NetCDF file of bnnzoo"):
            open_tree(out)
    out.unlink()
    xr.Dataset({"a": ("x", [1.0])}).to_netcdf(out, engine="h5netcdf")
    with pytest.raises(UsageError, match="a NetCDF file, but not a run of bnnzoo"):
        open_tree(out)


def test_damaged_parts_are_a_message(out):
    writer = started(out)
    (writer.folder / "p000.json").write_text("{")
    with pytest.raises(UsageError, match=r"p000\.json: damaged"):
        open_tree(out)
    (writer.folder / "p000.json").unlink()
    with pytest.raises(UsageError, match=r"p000\.json: damaged \(No such file"):
        open_tree(out)


def test_unreadable_contents_are_not_written(out):
    writer = started(out)
    with pytest.raises(BnnzooError, match="the file would be unreadable: its attribute target_evaluations"):
        writer.update({"target_evaluations": np.nan})
    assert open_tree(out).attrs["target_evaluations"] == 0.0


def test_draws_without_their_manifest_are_not_taken_for_nothing(out):
    started(out).release()
    (parts_folder(out) / "p000.json").unlink()
    with pytest.raises(UsageError, match="an unfinished run is here"):
        refuse_existing(out)
    with pytest.raises(UsageError, match="an unfinished run is here"):
        Store(out).claim(force=False)
    assert [path.name for path in parts_folder(out).glob("p000-*")]


def test_a_run_whose_removal_was_interrupted_is_no_run(out, monkeypatch):
    """A kill during the removal of parts: the manifest marks the removal, and is removed last."""
    started(out).release()
    folder, removed = parts_folder(out), []

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if len(removed) == 2:
            raise KeyboardInterrupt
        removed.append(path.name)
        os.unlink(path)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(KeyboardInterrupt):
        run_parts.remove_files(folder)
    monkeypatch.undo()
    assert list(folder.glob("p000-*")), "the control: something is left"
    assert not run_parts.holds_run(folder)
    run_parts.remove_files(folder)
    assert not [path.name for path in folder.iterdir() if path.name.startswith(("p000", "."))]


# ---- adding groups -------------------------------------------------------------------------------


def finished(out):
    writer = started(out)
    writer.update({"draws_done": 8})
    writer.finish(complete=True)


def test_a_run_in_memory_is_stored_in_the_chunks_of_a_run_on_disk(out, tmp_path):
    finished(out)
    with open_tree(out) as tree:
        netcdf.write_tree(tmp_path / "copy.nc", tree)
    chunks = []
    for path in (out, tmp_path / "copy.nc"):
        with h5py.File(path) as file:
            chunks.append({name: file[name].chunks for name in ("posterior/weight", "sample_stats/lp")})
    assert chunks[0] == chunks[1] == {"posterior/weight": (1, 8, 1, 3), "sample_stats/lp": (1, 8)}


def test_groups_are_added_and_replaced(out):
    finished(out)
    for value in (1.0, 2.0):
        values = {"y": np.full((2, 4, 6), value, np.float32)}
        coords = {"chain": np.arange(2), "draw": np.array([0, 2, 4, 6])}
        add_groups(out, {"log_likelihood": values}, {"y": ["chain", "draw", "row"]}, {"log_likelihood": coords})
        tree = open_tree(out)
        check(tree, 8)
        result = tree["log_likelihood"]["y"]
        assert result.dims == ("chain", "draw", "row")
        assert result["draw"].values.tolist() == [0, 2, 4, 6]
        assert (result.values == value).all()
        tree.close()
    assert [p.name for p in out.parent.iterdir()] == ["run.nc"]


def test_a_fault_while_adding_leaves_the_file(out, monkeypatch):
    finished(out)
    before = out.read_bytes()
    full_disk(monkeypatch)
    with pytest.raises(BnnzooError, match="the file is unchanged"):
        add_groups(out, {"g": {"y": np.zeros(3)}}, {"y": ["row"]}, {})
    assert out.read_bytes() == before
    assert [p.name for p in out.parent.iterdir()] == ["run.nc"]


def overtaken_by(monkeypatch, act) -> None:
    """Let another process act once while groups are added."""
    acts = [act]

    def write(group, values, dims, coords=None, write=netcdf._write_static):
        if acts:
            acts.pop()()
        write(group, values, dims, coords)

    monkeypatch.setattr(netcdf, "_write_static", write)


def test_groups_that_two_processes_add_at_once_are_both_there(out, monkeypatch):
    finished(out)
    overtaken_by(monkeypatch, lambda: add_groups(out, {"theirs": {"y": np.ones(3)}}, {"y": ["row"]}, {}))
    add_groups(out, {"ours": {"y": np.zeros(3)}}, {"y": ["row"]}, {})
    tree = open_tree(out)
    assert {"theirs", "ours"} <= set(tree.children)
    tree.close()
    assert [p.name for p in out.parent.iterdir()] == ["run.nc"]


def test_groups_are_not_added_to_another_run(out, monkeypatch):
    finished(out)
    before = dict(open_tree(out).attrs)
    check_same_run(out, before)

    def replace():
        second_store = Store(out)
        second_store.claim(force=True)
        second_store.create({**ATTRIBUTES, "seed": 4}, DIMS, STATIC)
        second_store.append(part(0, 2))
        second_store.update({"draws_done": 2})
        second_store.finish(complete=True)

    overtaken_by(monkeypatch, replace)
    with pytest.raises(BnnzooError, match="was replaced by another run, so nothing was added to it; try again"):
        add_groups(out, {"ours": {"y": np.zeros(3)}}, {"y": ["row"]}, {})
    with pytest.raises(BnnzooError, match="was replaced by another run"):
        check_same_run(out, before)
    assert "ours" not in open_tree(out).children
    check(open_tree(out), 2)


# ---- words about variables -----------------------------------------------------------------------


def test_attributes_of_a_statistic_are_in_the_file(out):
    attributes = {"n_steps": {"long_name": "steps of the integrator", "limit": 2.5}, "not there": {"limit": 1.0}}
    writer = Store(out)
    writer.claim(force=False)
    writer.create(ATTRIBUTES, DIMS, STATIC, variable_attributes=attributes)
    writer.append(part(0, 3))
    writer.update({"draws_done": 3})
    for _ in range(2):
        result = open_tree(out)["sample_stats"]
        assert {k: result["n_steps"].attrs[k] for k in ("long_name", "limit")} == attributes["n_steps"]
        assert result["accepted"].attrs.get("long_name") is None
        assert result["accepted"].dtype == bool
        writer.finish(complete=False)
    assert open_tree(out).attrs["complete"] == 0


def test_static_arrays_are_added_and_replaced(out):
    writer = started(out)
    for value in (1.0, 2.0):
        writer.add_static("constant_data", {"mode": np.full(2, value)}, {"mode": ["chain"]})
        assert open_tree(out)["constant_data"]["mode"].values.tolist() == [value] * 2
        writer.release()
        writer = Store(out)
        writer.reopen(2)
    names = sorted(p.name for p in writer.folder.glob("data*"))
    assert names == ["data-000002.npz", "data.npz"]
    writer.update({"draws_done": 8})
    writer.finish(complete=True)
    tree = open_tree(out)
    assert tree["constant_data"]["mode"].dims == ("chain",)
    assert tree["constant_data"]["mode"].values.tolist() == [2.0, 2.0]
    check(tree, 8)


NAMES = st.from_regex(r"[a-zA-Z_\u00e9\u03b2\u6f22][\w ,.:'\[\]\u03b2-]{0,12}", fullmatch=True).filter(
    lambda name: name not in {"chain", "draw"}
)
KINDS = st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8, np.uint32, np.bool_])


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[int], dict[str, dict[str, np.ndarray]]]:
    """Return the ends of parts, and variables of any name, type and shape, including none and empty ones."""
    chains, ends = draw(st.integers(1, 3)), np.cumsum(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    shapes = st.lists(st.integers(0, 3), max_size=3)
    results: dict[str, dict[str, np.ndarray]] = {}
    for group in ("posterior", "sample_stats"):
        results[group] = {
            name: draw(arrays(draw(KINDS), (chains, int(ends[-1]), *draw(shapes))))
            for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
        }
    return [int(end) for end in ends], results


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(groups())
def test_written_groups_are_read_back(given_):
    """They are read from the parts and from the finished file, bit for bit."""
    ends, groups = given_
    with tempfile.TemporaryDirectory() as folder:
        writer = started(Path(folder) / "run.nc", parts=())
        for start, end in itertools.pairwise([0, *ends]):
            writer.append({g: {n: a[:, start:end] for n, a in values.items()} for g, values in groups.items()})
        same(open_tree(writer.out), groups)
        writer.update({"draws_done": ends[-1]})
        writer.finish(complete=True)
        same(open_tree(writer.out), groups)


def same(tree: xr.DataTree, groups: dict[str, dict[str, np.ndarray]]) -> None:
    for group, values in groups.items():
        assert set(tree[group].data_vars) == set(values)
        for name, array in values.items():
            result = tree[group][name]
            assert (result.dtype, result.dims[:2]) == (array.dtype, ("chain", "draw"))
            np.testing.assert_array_equal(result.values, array)


@pytest.mark.usefixtures("as_options")
def test_a_clock_that_is_ahead_locks_nobody_out(out):
    writer = started(out)
    writer.release()
    card = writer.folder / "owner.json"
    card.write_text(json.dumps({"token": "t", "host": "far", "boot": "another", "pid": 1}))
    soon = time.time() + 5
    os.utime(card, (soon, soon))
    with pytest.raises(BusyError, match="far wrote this run 0 seconds ago"):
        Store(out).reopen(2)
    tomorrow = time.time() + 86_400
    os.utime(card, (tomorrow, tomorrow))
    with pytest.raises(
        UsageError,
        match=r"the clock of the host far, .* 86\d\d\d seconds ahead of this computer's clock; .* --break-lock",
    ):
        Store(out).reopen(2)
    Store(out).reopen(2, break_lock=True)


def test_a_run_that_another_process_went_on_with_meanwhile_is_left_alone(out):
    started(out).release()
    manifest = load(parts_folder(out))
    other = Store(out)
    other.reopen(2)
    other.append(part(8, 1))
    other.release()
    with pytest.raises(BusyError, match="another process has just continued this run"):
        Store(out).reopen(2, expected=manifest)
    check(open_tree(out), 9)
    Store(out).reopen(3, expected=load(parts_folder(out)))


def test_parts_are_not_written_where_they_cannot_be_read(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run.nc.parts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"run\.nc\.parts: must be a folder, because the draws are written there"):
        Store(tmp_path / "run.nc").claim(force=True)
    with pytest.raises(UsageError, match="its name is too long; use a shorter out"):
        Store(tmp_path / f"{'n' * 247}.nc").claim(force=False)
    long = tmp_path / f"{'n' * 246}.nc"
    writer = started(long)
    writer.update({"draws_done": 8})
    writer.finish(complete=True)
    check(open_tree(long), 8)


def test_groups_are_added_to_the_target_of_a_link_with_its_mode(out, tmp_path):
    writer = started(out)
    writer.update({"draws_done": 8})
    writer.finish(complete=True)
    out.chmod(0o600)
    link = tmp_path / "latest.nc"
    link.symlink_to(out)
    add_groups(link, {"extra": {"y": np.zeros(3)}}, {"y": ["row"]}, {})
    assert link.is_symlink()
    assert "extra" in xr.open_datatree(out, engine="h5netcdf").children
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_a_removed_folder_is_not_attributed_to_another_process(out):
    store = Store(out)
    store.claim(force=False)
    shutil.rmtree(parts_folder(out))
    with pytest.raises(BnnzooError, match=r"run\.nc\.parts: was removed while the run was written"):
        store._lock.check()
