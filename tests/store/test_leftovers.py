"""A process killed after it published the file, or before its first checkpoint: behaviour and messages of `resume`."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress

import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo import cli, store
from bnnzoo.api import resuming
from bnnzoo.errors import DamagedError, UsageError
from bnnzoo.store import run_parts
from bnnzoo.store.command import COMMAND


class Killed(BaseException):
    """Raised where the process is killed; no later code runs."""


@pytest.fixture
def killed(monkeypatch):
    """Run a function until a given function of the store is called; no cleanup runs after that."""

    def run(function, module, name, *, before: bool = True, calls: int = 1):
        original, count = getattr(module, name), [0]

        def dying(*arguments, **more):
            count[0] += 1
            if count[0] < calls:
                return original(*arguments, **more)
            if not before:
                original(*arguments, **more)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(module, name, dying)
            # The operating system releases the lock of a dead process; its files remain.
            patched.setattr(store.Store, "release", lambda writer: writer._lock._lock.release(force=True))
            with suppress(Killed):  # the command line turns every exception into a message
                function()
        assert count[0] >= calls

    return run


def started(out, **more):
    return lambda: bnnzoo.sample(
        "linear", "random-walk", data="diabetes", chains=2, warmup=0, draws=8, init="prior", out=out, **more
    )


def draws(out):
    return {str(n): v.values for n, v in bnnzoo.open(out).posterior["posterior"].data_vars.items()}


@pytest.mark.long
def test_resume_removes_the_parts_of_a_run_killed_after_its_file_was_published(tmp_path, killed, capsys):
    out = tmp_path / "run.nc"
    killed(started(out), store.writer.run_parts, "remove_files", calls=2)
    assert (store.parts_folder(out) / run_parts.MANIFEST).exists()
    before, bits = draws(out), out.read_bytes()
    assert cli.run(["resume", str(out)]) == 0
    captured = capsys.readouterr()
    assert "finished already; leftover part files were removed" in captured.err
    assert captured.out.splitlines()[0].split() == ["file", str(out)]
    assert not store.parts_folder(out).exists()
    assert out.read_bytes() == bits  # checked, and not built again
    tiny.assert_same_bits(draws(out), before)
    assert cli.run(["resume", str(out)]) == 2
    assert "is finished, so there is nothing to resume" in capsys.readouterr().err


@pytest.mark.long
def test_resume_removes_parts_that_were_half_removed(tmp_path, killed):
    out = tmp_path / "run.nc"

    def dies_on_the_way(folder, *, keep=()):
        (folder / run_parts.MANIFEST).replace(folder / run_parts._CLEARING)
        (folder / run_parts.HEADER).unlink()

    original = store.writer.run_parts.remove_files
    counted = [0]

    def clear(folder, *, keep=()):
        counted[0] += 1
        (dies_on_the_way if counted[0] == 2 else original)(folder, keep=keep)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store.writer.run_parts, "remove_files", clear)
        killed(started(out), store.writer.run_parts, "remove_files", before=False, calls=2)
    assert not run_parts.holds_run(store.parts_folder(out))
    assert list(store.parts_folder(out).glob("p000-*.npz"))
    assert bnnzoo.resume(out).attributes["complete"] == 1
    assert not store.parts_folder(out).exists()


@pytest.mark.long
def test_a_published_file_that_was_damaged_is_built_again_from_its_parts(tmp_path, killed):
    out = tmp_path / "run.nc"
    killed(started(out), store.writer.run_parts, "remove_files", calls=2)
    before = draws(out)
    content = bytearray(out.read_bytes())
    at = content.find(before["weight"].tobytes()[:64])
    assert at > 0
    content[at : at + 8] = bytes(8)
    out.write_bytes(content)
    bnnzoo.resume(out)
    tiny.assert_same_bits(draws(out), before)
    assert not store.parts_folder(out).exists()


@pytest.mark.long
@pytest.mark.usefixtures("as_options")
def test_leftover_parts_beside_a_damaged_file_are_not_removed(tmp_path):
    out = tmp_path / "run.nc"
    started(out)()
    folder = store.parts_folder(out)
    folder.mkdir()
    (folder / "p000-000000.npz").write_bytes(b"draws")
    (folder / run_parts._CLEARING).write_bytes(b"{}")
    weight = draws(out)["weight"]
    content = bytearray(out.read_bytes())
    at = content.find(weight.tobytes()[:64])
    content[at : at + 8] = bytes(8)
    out.write_bytes(content)
    with pytest.raises(
        DamagedError, match=r"damaged \(.*\), and its part files were removed; .*start the run again with --force"
    ):
        bnnzoo.resume(out)
    assert (folder / "p000-000000.npz").exists()


@pytest.mark.long
def test_parts_of_a_run_that_is_to_replace_the_file_stay(tmp_path, killed):
    out = tmp_path / "run.nc"
    started(out)()
    killed(started(out, seed=1, force=True, checkpoint_every=0), store.writer.netcdf, "build")
    assert not store.remove_leftovers(out)
    assert store.parts_folder(out).is_dir()
    assert bnnzoo.resume(out).attributes["seed"] == 1


@pytest.mark.long
@pytest.mark.parametrize("begun", [False, True])
def test_resume_names_the_command_of_a_run_killed_before_its_first_checkpoint(begun, tmp_path, killed, capsys):
    out = tmp_path / "my run.nc"
    arguments = ["linear", "random-walk", "--data", "diabetes", "--sampler.step-size", "1e-3", "--draws", "8"]
    arguments += ["--init", "prior", "--warmup", "0", "-o", str(out)]
    where = (store.writer.Store, "append") if begun else (store.writer.Store, "create")
    killed(lambda: cli.run(["sample", *arguments]), *where)
    capsys.readouterr()
    assert cli.run(["resume", str(out)]) == 2
    line = capsys.readouterr().err.strip()
    force = ["--force"] if begun else []
    command = shlex.join(["bnnzoo", "sample", *arguments, *force])
    assert line.endswith(f"start the run again with: {command}")
    assert line.count("\n") == 0
    # The command does what the message states, and leaves no files behind.
    assert cli.run(shlex.split(command)[1:]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["my run.nc"]


def test_resume_names_the_call_of_a_run_begun_in_python(tmp_path, killed):
    out = tmp_path / "run.nc"
    x = np.zeros((20, 2), np.float32) + np.arange(20)[:, None]

    def call():
        bnnzoo.sample(
            "linear",
            {"name": "random-walk", "step_size": 0.1},
            data=(x, x[:, 0]),
            init="prior",
            warmup=0,
            draws=8,
            out=out,
        )

    killed(call, store.writer.Store, "append")
    with pytest.raises(UsageError, match="start the run again with: ") as caught:
        bnnzoo.resume(out)
    message = str(caught.value).partition("start the run again with: ")[2]
    assert message == (
        "bnnzoo.sample(model='linear', sampler={'name': 'random-walk', 'step_size': 0.1}, data=data, "
        f"init='prior', warmup=0, draws=8, out={str(out)!r}, force=True)"
    )


def test_force_killed_before_it_replaces_an_unfinished_run_keeps_the_command_of_that_run(tmp_path, killed):
    out = tmp_path / "run.nc"
    path = store.parts_folder(out) / COMMAND
    killed(started(out), store.writer.Store, "append")
    old_command = path.read_text()
    killed(started(out, force=True, seed=1), store.writer.Store, "create")
    assert path.read_text() == old_command
    killed(started(out, force=True, seed=1), store.writer.Store, "append")
    assert json.loads(path.read_text())["keywords"]["seed"] == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"folder": "/", "words": 3}',
        json.dumps({"folder": "/", "keywords": {"x=1); print(": 1}}).encode(),
        b"[" * 100_000,
    ],
)
def test_a_damaged_command_is_not_shown(content, tmp_path, killed):
    out = tmp_path / "run.nc"
    killed(started(out), store.writer.Store, "create")
    (store.parts_folder(out) / COMMAND).write_bytes(content)
    with pytest.raises(UsageError, match=r"nothing to resume; start the run again$"):
        resuming.resume(out)


def test_a_command_that_read_a_pipe_is_not_offered():
    assert store.Command.from_words(["mdn", "penalty", "--config", "/dev/fd/63"]) is None
    assert store.Command.from_words(["mdn", "penalty", "--config=/dev/fd/63"]) is None


def test_a_command_typed_elsewhere_says_where(tmp_path, monkeypatch):
    command = store.Command.from_words(["mdn", "penalty", "-o", "run.nc"])
    assert command is not None
    assert command.text(force=False) == "bnnzoo sample mdn penalty -o run.nc"
    folder = shlex.quote(command.folder)
    monkeypatch.chdir(tmp_path)
    assert command.text(force=True) == f"cd {folder} && bnnzoo sample mdn penalty -o run.nc --force"
