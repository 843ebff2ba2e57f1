"""Damaged or malicious parts of unfinished runs are refused with one line that gives the remedy."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutations
import numpy as np
import pytest
import tiny
from hostile import HOSTILE, SECRET
from test_hostile_files import refused

import bnnzoo
from bnnzoo import store
from bnnzoo.api import entrances, resuming
from bnnzoo.assembly import Problem
from bnnzoo.errors import InterruptedRunError, UsageError
from bnnzoo.sampling.loop import carry
from bnnzoo.store import npz


def recipe() -> Any:
    """Return a recipe with more than three chunks on any machine: a chunk is at most eight times the last."""
    return tiny.recipe("random-walk", draws=700, checkpoint_every=0)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run stopped during sampling, with several parts and a checkpoint after each; tests copy it."""
    out = tmp_path_factory.mktemp("stopped") / "run.nc"
    chunks: list[str] = []
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(
            recipe(),
            out=out,
            observer=lambda progress: chunks.append(progress.phase),
            stop=lambda: signal.SIGINT * (chunks.count("sampling") >= 3),
        )
    assert len(manifest(store.parts_folder(out))["parts"]) >= 3
    return out


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> bnnzoo.Run:
    return entrances.run_recipe(recipe(), out=tmp_path_factory.mktemp("whole") / "run.nc")


@pytest.fixture
def run(stopped, tmp_path) -> Path:
    """A copy of the parts of the stopped run, without its file."""
    shutil.copytree(store.parts_folder(stopped), tmp_path / "run.nc.parts")
    (tmp_path / "secret").write_text(SECRET)
    return tmp_path / "run.nc"


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "p000.json").read_text())


def change_manifest(change: Callable[[dict[str, Any]], Any], name: str = "p000.json") -> Callable[[Path], None]:
    """Return a change of the manifest that also updates its digest, as an attacker would."""

    def make(folder: Path) -> None:
        contents = json.loads((folder / name).read_text())
        change(contents)
        (folder / name).write_text(json.dumps(contents))
        mutations.seal_words(folder)

    return make


def flipped(name: str, place: float = 0.5) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[int(place * len(content))] ^= 4
        (folder / name).write_bytes(bytes(content))

    return make


def flipped_data(name: str) -> Callable[[Path], None]:
    """Flip a bit of the last number of the largest array, because some bytes between arrays have no effect."""

    def make(folder: Path) -> None:
        with zipfile.ZipFile(folder / name) as archive:
            largest = max(archive.infolist(), key=lambda info: info.file_size)
            ends = [info.header_offset for info in archive.infolist() if info.header_offset > largest.header_offset]
            end = min(ends, default=archive.start_dir)
        content = bytearray((folder / name).read_bytes())
        content[end - 2] ^= 4
        (folder / name).write_bytes(bytes(content))

    return make


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size // 2)


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def instead(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def sealed(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Return a replacement of a part that also updates its digest, as an attacker would."""

    def change(folder: Path) -> None:
        make(folder / name)
        document = manifest(folder)
        part = next(part for part in document["parts"] if part["file"] == name)
        part["bytes"], part["sha256"] = (folder / name).stat().st_size, npz.sha256(folder / name)
        (folder / "p000.json").write_text(json.dumps(document))
        mutations.seal_words(folder)

    return change


def resealed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a change of the header that also updates its digest, as an attacker would."""

    def make(folder: Path) -> None:
        change_manifest(change, "header.json")(folder)
        change_manifest(lambda manifest: manifest.update(header=npz.sha256(folder / "header.json")))(folder)

    return make


def _bomb(path: Path) -> None:
    """Write 500 MB of zeros, compressed to 500 kB, with a header that declares 3.2 GB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("posterior/weight.npy", "w") as file:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (4, 2 * 10**8)})
        file.write(header.getvalue())
        for _ in range(8):
            file.write(bytes(2**26))


def _overlapping(path: Path) -> None:
    """Write a thousand members that share the same bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("posterior/weight.npy", bytes(10**6))
        archive.filelist += [archive.filelist[0]] * 1000


def _pickled(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, **{"posterior/weight": np.array([{"a": 1}], dtype=object)})


def _reshaped(path: Path) -> None:
    with np.load(path) as file:
        arrays = {name: file[name][:3] for name in file.files}
    with open(path, "wb") as out:
        np.savez(out, **arrays)


def _path_in_a_name(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, **{"posterior/../../owned": np.zeros((4, 1, 1, 10), np.float32)})


def _other_data(path: Path) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["constant_data/x"] = arrays["constant_data/x"] + 1
    with open(path, "wb") as out:
        np.savez(out, **arrays)


PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
FIRST = "p000-000000.npz"
DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "manifest names another folder": (
        "p000.json",
        change_manifest(lambda fields: fields["parts"][0].update(file="../../secret")),
    ),
    "manifest names a device": (
        "p000.json",
        change_manifest(lambda fields: fields["parts"][0].update(file="/dev/zero")),
    ),
    "manifest names other data": (
        "p000.json",
        change_manifest(lambda fields: fields["static"][0].update(file="../secret")),
    ),
    "manifest with a path in a variable's name": (
        "p000.json",
        change_manifest(lambda fields: fields["variables"].update({"posterior/../x": ["float32", [1]]})),
    ),
    "manifest of negative sizes": ("p000.json", change_manifest(lambda fields: fields.update(chains=-4))),
    "manifest that is a list": ("p000.json", lambda folder: (folder / "p000.json").write_text("[]") and None),
    "manifest of a thousand brackets": (
        "p000.json",
        lambda folder: (folder / "p000.json").write_text("[" * 100_000) and None,
    ),
    "manifest cut": ("p000.json", cut("p000.json")),
    "manifest is a device": ("p000.json", instead("p000.json", lambda path: path.symlink_to("/dev/zero"))),
    "more draws than there are": (
        "p000.json",
        change_manifest(lambda fields: fields["parts"][0]["draws"].update(posterior=10**9)),
    ),
    "more chains than there are": (FIRST, change_manifest(lambda fields: fields.update(chains=10**9))),
    "manifest without a part": ("p000.json", change_manifest(lambda fields: fields["parts"].pop(1))),
    "manifest with a part twice": (
        "p000.json",
        change_manifest(lambda fields: fields["parts"].insert(1, fields["parts"][0])),
    ),
    "manifest in reversed order": ("p000.json", change_manifest(lambda fields: fields["parts"].reverse())),
    "manifest with another seed": ("p000.json", change_manifest(lambda fields: fields["attributes"].update(seed=5))),
    "manifest with parameters that are data": (
        "p000.json",
        change_manifest(lambda fields: fields["static"][0]["arrays"].update({"posterior/zz": ["float32", [2]]})),
    ),
    "a dimension called ..": ("header.json", resealed(lambda fields: fields["dims"].update(x=["../r", "a"]))),
    "two dimensions of one name": ("p000.json", resealed(lambda fields: fields["dims"].update(x=["row", "row"]))),
    "a dimension of two sizes": (
        "p000.json",
        resealed(lambda fields: fields["dims"].update(x_test=["row", "feature"])),
    ),
    "header of another seed than its recipe's": (
        "header.json",
        resealed(lambda fields: fields["attributes"].update(seed=8)),
    ),
    "header changed": (
        "header.json",
        change_manifest(lambda fields: fields["attributes"].update(seed=8), "header.json"),
    ),
    "another option in the header": (
        "header.json",
        lambda folder: (
            (folder / "header.json").write_text(
                (folder / "header.json").read_text().replace("step_size", "step_sizes", 1)
            )
            and None
        ),
    ),
    "header gone": ("header.json", gone("header.json")),
    "header cut": ("header.json", cut("header.json")),
    "data flipped": ("data.npz", flipped("data.npz")),
    "data cut": ("data.npz", cut("data.npz")),
    "data gone": ("data.npz", gone("data.npz")),
    "other data": ("data.npz", lambda folder: _other_data(folder / "data.npz")),
    "data is a pipe": ("data.npz", instead("data.npz", lambda path: os.mkfifo(path))),
    "part flipped": (FIRST, flipped(FIRST)),
    "part flipped at its start": (FIRST, flipped(FIRST, 0)),
    "part flipped at its end": (FIRST, flipped(FIRST, 0.999)),
    "part cut": (FIRST, cut(FIRST)),
    "part gone": (FIRST, gone(FIRST)),
    "part empty": (FIRST, lambda folder: os.truncate(folder / FIRST, 0)),
    "part is a link": (FIRST, instead(FIRST, lambda path: path.symlink_to("../secret"))),
    "part is a device": (FIRST, instead(FIRST, lambda path: path.symlink_to("/dev/zero"))),
    "part is a folder": (FIRST, instead(FIRST, lambda path: path.mkdir())),
    "part of another shape": (FIRST, sealed(FIRST, _reshaped)),
    "part with a path in a name": (FIRST, sealed(FIRST, _path_in_a_name)),
    "part of pickles": (FIRST, sealed(FIRST, _pickled)),
    "part that is a zip bomb": (FIRST, sealed(FIRST, _bomb)),
    "part of overlapping members": (FIRST, sealed(FIRST, _overlapping)),
    "checkpoint flipped": ("checkpoint.npz", flipped_data("checkpoint.npz")),
    "checkpoint cut": ("checkpoint.npz", cut("checkpoint.npz")),
    "checkpoint is a device": ("checkpoint.npz", instead("checkpoint.npz", lambda path: path.symlink_to("/dev/zero"))),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_parts_are_refused_before_use(case, run):
    """`resume` refuses all damage, and opening refuses all but a damaged checkpoint; called directly to save time."""
    name, damage = DAMAGE[case]
    damage(store.parts_folder(run))
    doors = [store.resumable, store.open_tree] if name != "checkpoint.npz" else [store.resumable]
    for door in doors:
        with pytest.raises(UsageError, match=r"run\.nc\.parts") as caught:
            door(run)
        message = str(caught.value)
        assert name in message
        assert len(message.splitlines()) == 1
        assert SECRET not in message
    assert sorted(p.name for p in run.parent.iterdir()) == ["run.nc.parts", "secret"]


SOME = ("manifest names another folder", "part that is a zip bomb", "part flipped", "other data", "checkpoint flipped")


@pytest.mark.long
@pytest.mark.parametrize(
    "case", [case if case in SOME else pytest.param(case, marks=pytest.mark.slow) for case in DAMAGE]
)
def test_damage_is_refused_from_the_command_line(case, run):
    name, damage = DAMAGE[case]
    damage(store.parts_folder(run))
    refused("resume", "run.nc", "--quiet", folder=run.parent, naming=name)


@pytest.mark.usefixtures("as_options")
def test_a_damaged_run_resumes_from_its_last_intact_state(run, finished_run):
    """If the last part is damaged, only draws after the previous checkpoint are made again, bit for bit."""
    folder = store.parts_folder(run)
    parts = manifest(folder)["parts"]
    last = len(parts) - 1
    flipped(parts[last]["file"])(folder)
    with pytest.raises(UsageError, match=r"--from-part (\d+)") as caught:
        resuming.resume(run)
    number = int(str(caught.value).rsplit(" ", 1)[1])
    assert 0 < number <= last
    resumed = resuming.resume(run, from_part=number)
    tiny.assert_same_bits(draws(resumed), draws(finished_run))


@pytest.mark.usefixtures("as_options")
def test_a_run_without_intact_parts_resumes_from_the_end_of_warm_up(run, finished_run):
    folder = store.parts_folder(run)
    for part in manifest(folder)["parts"]:
        flipped(part["file"])(folder)
    with pytest.raises(UsageError, match="--from-part 0"):
        resuming.resume(run)
    tiny.assert_same_bits(draws(resuming.resume(run, from_part=0)), draws(finished_run))


@pytest.mark.usefixtures("as_options")
def test_a_damaged_checkpoint_is_not_the_only_one(run, finished_run):
    cut("checkpoint.npz")(store.parts_folder(run))
    with pytest.raises(UsageError, match=r"--from-part (\d+)") as caught:
        resuming.resume(run)
    number = int(str(caught.value).rsplit(" ", 1)[1])
    tiny.assert_same_bits(draws(resuming.resume(run, from_part=number)), draws(finished_run))


@pytest.mark.parametrize("from_part", [None, 2])
def test_a_run_killed_again_before_its_next_checkpoint_resumes_to_the_same_bits(
    from_part, run, finished_run, monkeypatch
):
    """The process is killed after `reopen`, and while it has not yet shortened the manifest."""
    if from_part is not None:
        cut("checkpoint.npz")(store.parts_folder(run))
    unfinished, saved = store.resumable(run, from_part)
    for is_shortened in (False, True):
        writer = store.Store(run)
        with monkeypatch.context() as patched:
            if not is_shortened:
                patched.setattr(store.Store, "_publish", lambda _: 1 / 0)
            with contextlib.suppress(ZeroDivisionError):
                writer.reopen(saved.num_parts, expected=unfinished)
        writer.release()
        _, again = store.resumable(run)
        assert (again.num_parts, again.next_step) == (saved.num_parts, saved.next_step)
    assert len(manifest(store.parts_folder(run))["parts"]) == saved.num_parts
    tiny.assert_same_bits(draws(resuming.resume(run)), draws(finished_run))


@pytest.mark.usefixtures("as_options")
def test_without_any_checkpoint_there_is_only_a_new_start(run):
    folder = store.parts_folder(run)
    for path in folder.glob("checkpoint*"):
        path.unlink()
    with pytest.raises(UsageError, match="start the run again with --force"):
        resuming.resume(run)


@pytest.mark.usefixtures("as_options")
def test_a_finished_file_is_read_despite_leftover_parts(finished_run, tmp_path):
    out = tmp_path / "run.nc"
    finished_run.save(out)
    (tmp_path / "run.nc.parts").mkdir()
    assert bnnzoo.open(out).attributes["complete"] == 1
    assert resuming.resume(out).attributes["complete"] == 1
    assert not (tmp_path / "run.nc.parts").exists()
    with pytest.raises(UsageError, match="is finished, so there is nothing to resume"):
        resuming.resume(out)
    with pytest.raises(UsageError, match="exists; use another -o, or --force"):
        entrances.run_recipe(tiny.recipe("random-walk"), out=out)


def test_the_old_file_stays_until_the_new_one_is_complete(finished_run, run):
    """After an interrupted `--force`, the old run can be read and the new run can be resumed."""
    shutil.copy(str(finished_run.path), run)
    assert bnnzoo.open(run).attributes["complete"] == 1
    writer = store.Store(run)
    writer.reopen(1)
    writer.finish(complete=False)
    assert bnnzoo.open(run).attributes["complete"] == 1


def test_force_stopped_before_its_first_checkpoint_leaves_the_old_run(finished_run, tmp_path):
    out = tmp_path / "run.nc"
    finished_run.save(out)
    writer = store.Store(out)
    writer.claim(force=True)
    writer.create({}, {}, {})
    writer.release()
    with pytest.raises(UsageError, match="is finished, but a new run with this path stopped before its first check"):
        resuming.resume(out)
    tiny.assert_same_bits(draws(bnnzoo.open(out)), draws(finished_run))


def test_a_folder_left_by_an_early_kill_does_not_block_a_run(tmp_path):
    out = tmp_path / "run.nc"
    store.parts_folder(out).mkdir()
    (store.parts_folder(out) / "lock").touch()
    with pytest.raises(
        UsageError, match="stopped during its preparation, so there is nothing to resume; start the run again"
    ):
        resuming.resume(out)
    entrances.run_recipe(tiny.recipe("random-walk"), out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["run.nc"]


def test_a_bit_lost_in_a_finished_file_is_seen_when_it_is_read(finished_run, tmp_path):
    out = tmp_path / "run.nc"
    finished_run.save(out)
    weight = draws(finished_run)["weight"]
    content = bytearray(out.read_bytes())
    place = content.index(np.ascontiguousarray(weight[1, 100:120]).tobytes())
    content[place] ^= 1
    out.write_bytes(bytes(content))
    run = bnnzoo.open(out)
    assert run.predictor.record.array("posterior", "bias").size
    with pytest.raises(UsageError, match=r"run\.nc: damaged: weight was changed after it was written"):
        run.predict(np.zeros((1, 10)))


def draws(result: bnnzoo.Run) -> dict[str, np.ndarray]:
    return {str(name): values.values for name, values in result.posterior["posterior"].data_vars.items()}


def test_the_page_counts_the_cases():
    rows = re.findall(r"^\| (run files|parts) \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert dict(rows) == {"run files": str(len(HOSTILE)), "parts": str(len(DAMAGE))}


# ---- content that matches its digests but not the run --------------------------------------------


def _reworded(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a change of the newest checkpoint's description, with valid digests."""

    def make(folder: Path) -> None:
        arrays = npz.read(folder / "checkpoint.npz")
        contents = json.loads(arrays["words"].tobytes())
        change(contents)
        npz.write(folder / "checkpoint.npz", arrays | {"words": np.frombuffer(json.dumps(contents).encode(), np.uint8)})

    return make


def _redated(change: Callable[[dict[str, np.ndarray]], Any]) -> Callable[[Path], None]:
    """Return a change of the data that also updates their digest and sizes in the manifest."""

    def make(folder: Path) -> None:
        arrays = npz.read(folder / "data.npz")
        change(arrays)
        npz.write(folder / "data.npz", arrays)
        about = {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()}
        digest = npz.sha256(folder / "data.npz")
        change_manifest(lambda manifest: manifest["static"][0].update(sha256=digest, arrays=about))(folder)

    return make


LIES: dict[str, Callable[[Path], None]] = {
    "no step yet": _reworded(lambda fields: fields.update(next_step=0)),
    "a step before the first": _reworded(lambda fields: fields.update(next_step=-5)),
    "a step beyond the last": _reworded(lambda fields: fields.update(next_step=2**62)),
    "another step": _reworded(lambda fields: fields.update(next_step=fields["next_step"] + 1)),
    "fewer parts": _reworded(lambda fields: fields.update(num_parts=fields["num_parts"] - 1)),
    "more parts": _reworded(lambda fields: fields.update(num_parts=99)),
    "a field that no sampler has": _reworded(lambda fields: fields.update(tuned={"zzz": 1})),
    "a field of another kind": _reworded(lambda fields: fields.update(tuned={"step_size": "x"})),
    "seconds of something else": _reworded(lambda fields: fields["seconds"].update(zz=1.0)),
    "sums of one chain": _reworded(lambda fields: fields["totals"].update(lp=[1.0])),
    "no draws at all": change_manifest(lambda fields: fields.update(parts=[], chains=0, variables={})),
    "other rows": _redated(lambda arrays: arrays["constant_data/x"].__iadd__(1)),
    "fewer targets": _redated(lambda arrays: arrays.update({"observed_data/y": arrays["observed_data/y"][:5]})),
    "no targets": _redated(lambda arrays: arrays.pop("observed_data/y")),
    "no rows": _redated(
        lambda arrays: arrays.update({n: arrays[n][:0] for n in ("observed_data/y", "constant_data/x")})
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_a_false_checkpoint_is_refused_before_anything_is_written(case, run):
    folder = store.parts_folder(run)
    LIES[case](folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".npz", ".json")}
    with pytest.raises(UsageError, match=r"damaged|the description of the data cannot be read"):
        resuming.resume(run)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".npz", ".json")} == before


@pytest.mark.usefixtures("as_options")
def test_the_advice_of_a_damaged_checkpoint_can_be_typed(stopped):
    unfinished, saved = store.resumable(stopped)
    problem = Problem.from_recipe(recipe())
    carry.check(saved, unfinished, problem)
    with pytest.raises(UsageError, match=r"its checkpoint's next step and .* do not match") as caught:
        carry.check(saved._replace(next_step=-1), unfinished, problem)
    advised = re.search(r"bnnzoo resume .*run\.nc --from-part (\d+), or start", str(caught.value))
    assert advised, caught.value
    assert store.resumable(stopped, int(advised[1]))[1].num_parts == int(advised[1]) < saved.num_parts
    with pytest.raises(UsageError, match="do not match this run; start the run again with --force"):
        carry.check(saved._replace(next_step=-1, num_parts=0), unfinished, problem)
