"""SIGINT, SIGTERM and a closed reader, in separate processes: one line and an exit code, never a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny

from bnnzoo import cli, store
from bnnzoo.api import entrances, resuming
from bnnzoo.cli import sample
from bnnzoo.errors import BnnzooError
from bnnzoo.process import signals
from bnnzoo.progress_bar import observer

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
CODES = {"SIGINT": 130, "SIGTERM": 143}
NAMES = pytest.mark.parametrize("name", CODES)
BNNZOO = [sys.executable, "-m", "bnnzoo"]


def start(*arguments: object, folder: Path, **more: object) -> subprocess.Popen[str]:
    """Start the command, with its output captured."""
    command = [*BNNZOO, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen(command, cwd=folder, text=True, **pipes)  # type: ignore[call-overload]


def wait_until(condition, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.001)


def has_begun(process: subprocess.Popen[str]) -> bool:
    """Whether the first line of ours has run: Python itself handles no SIGTERM. Its own start nobody can guard."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def is_at_work(process: subprocess.Popen[str], command: str) -> bool:
    """Whether JAX is loaded; `zoo run` does not load it, but its child process does."""
    place = Path(f"/proc/{process.pid}")
    if command == "zoo":
        return any(file.read_text() for file in place.glob("task/*/children"))
    return "libjax_common" in (place / "maps").read_text()


def interrupted(process: subprocess.Popen[str], name: str, *, exactly: bool = True) -> str:
    """Return the response to the signal; one line if `exactly`."""
    process.send_signal(getattr(signal, name))
    out, errors = process.communicate(timeout=300)
    assert process.returncode == CODES[name], errors
    assert "Traceback" not in errors
    assert "Error" not in errors
    assert out == ""
    if exactly:
        assert errors == f"bnnzoo: {name}: stopped\n"
    return errors


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Make a run that takes some time to analyse."""
    folder = tmp_path_factory.mktemp("finished")
    entrances.run_recipe(tiny.recipe("nuts", warmup=100, draws=500), out=folder / "run.nc")
    (folder / "x.csv").write_text("\n".join(["age,sex,bmi,bp,s1,s2,s3,s4,s5,s6", *[",".join("0" * 10)] * 20000]))
    return folder


SAMPLE = ("sample", "mlp", "nuts", "-o", "new.nc", "--quiet")
LOOKING = {
    "evaluate": ("evaluate", "run.nc", "--quiet"),
    "predict": ("predict", "run.nc", "--data", "x.csv", "-o", "out.csv"),
    "report": ("report", "run.nc", "-o", "out.html"),
    "plot": ("plot", "run.nc", "-o", "pictures"),
    "diagnose": ("diagnose", "run.nc"),
    "compare": ("compare", "run.nc", "run.nc"),
    "check": ("check", "sampler", "random-walk", "--quiet"),
    "zoo": ("zoo", "run", "linear.nuts", "--quiet"),
}
DELAYS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)


@NAMES
@pytest.mark.parametrize("delay", [d if d in (0.0, 0.2) else pytest.param(d, marks=pytest.mark.slow) for d in DELAYS])
def test_a_signal_during_imports_ends_the_process(delay, name, tmp_path):
    process = start(*SAMPLE, folder=tmp_path)
    wait_until(lambda: has_begun(process), process)
    time.sleep(delay)
    # After the imports, the signal asks the run to stop at a resumable point, but it has not started.
    message = interrupted(process, name, exactly=delay < 0.4)
    assert len([line for line in message.splitlines() if line]) <= 2
    assert all(line.startswith("bnnzoo: ") for line in message.splitlines() if line)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command, name)
        if (command, name) in {("evaluate", "SIGTERM"), ("check", "SIGINT")}
        else pytest.param(command, name, marks=pytest.mark.slow)
        for command in LOOKING
        for name in CODES
    ],
)
def test_a_signal_ends_a_command_that_reads_a_run(command, name, finished):
    """The libraries are loaded, and the work has started."""
    before = sorted(finished.rglob("*"))
    process = start(*LOOKING[command], folder=finished)
    wait_until(lambda: is_at_work(process, command), process)
    time.sleep(0.5)
    interrupted(process, name, exactly=command != "zoo")
    assert sorted(path for path in finished.rglob("*") if path.suffix != ".png" and path.name != "pictures") == before


@NAMES
def test_the_first_signal_requests_a_stop_and_the_second_exits(name):
    code = (
        "import os, signal, time\nfrom bnnzoo.process import signals\nfrom bnnzoo.cli.signals import stop_signals\n"
        "signals.handle_signals()\n"
        "with stop_signals() as stop:\n"
        f"    assert stop() == 0\n    os.kill(os.getpid(), signal.{name})\n"
        "    while not stop(): time.sleep(0.01)\n"
        f"    assert stop() == signal.{name}\n    print('asked', flush=True)\n"
        f"    os.kill(os.getpid(), signal.{name})\n    time.sleep(60)\n    print('not reached')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "asked\n"
    assert result.returncode == CODES[name]
    assert result.stderr.splitlines() == [
        "bnnzoo: stopping after the current chunk of steps; a second signal stops at once",
        f"bnnzoo: {name}: stopped at once; the last checkpoint is kept",
    ]


@pytest.mark.parametrize("command", ["sample", "resume"])
def test_a_signal_that_came_too_late_to_stop_a_run_ends_the_command(command, tmp_path, monkeypatch, capsys):
    """The command exits with the signal's code, and states that the file is complete."""
    out = tmp_path / "run.nc"

    def run_to_the_end(*_, stop, **__):
        stop.receive(signal.SIGTERM)

    monkeypatch.setattr(entrances, "run_recipe", run_to_the_end)
    monkeypatch.setattr(resuming, "resume", run_to_the_end)
    monkeypatch.setattr(store, "resumable", lambda *_: None)
    arguments = [*tiny.arguments("mala"), "-o"] if command == "sample" else ["resume", "--quiet"]
    assert cli.run([*arguments, str(out)]) == 143
    captured = capsys.readouterr()
    assert captured.err.endswith(f"bnnzoo: SIGTERM came too late to stop the run; {out} is complete\n")
    assert captured.out == ""


def test_a_signal_while_a_whole_run_is_scored_ends_the_process(tmp_path, monkeypatch):
    receivers = []

    class Scored:
        def test_rows(self):
            receivers.extend(signals._receivers)
            raise BnnzooError("enough")

        predictor = None

    monkeypatch.setattr(entrances, "run_recipe", lambda *_, **__: Scored())
    alone = {"distributed": False, "coordinator": None, "processes": None, "rank": None, "words": ["sample"]}
    with pytest.raises(BnnzooError, match="enough"):
        sample._sample(
            tiny.recipe("mala"),
            None,
            True,
            out=tmp_path / "run.nc",
            force=False,
            quiet=True,
            json=False,
            log_to=[],
            scheduler=None,
            **alone,
        )
    assert receivers == [signals.end_process]


@NAMES
def test_a_compiler_does_not_keep_a_signal_waiting(name):
    """This holds for anything that blocks the main thread."""
    code = (
        "import os, signal, threading\nfrom bnnzoo.process import signals\nsignals.handle_signals()\n"
        f"threading.Timer(0.2, os.kill, (os.getpid(), signal.{name})).start()\n"
        "import hashlib\nhashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)\n"
    )
    began = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (CODES[name], f"bnnzoo: {name}: stopped\n")
    assert time.monotonic() - began < 30


def test_a_signal_removes_half_written_files(tmp_path):
    (tmp_path / "run.nc").write_text("old")
    code = (
        "import os, signal, time\nfrom pathlib import Path\nfrom bnnzoo.process import signals\n"
        "from bnnzoo.files.atomic import replacing\nsignals.handle_signals()\n"
        "with replacing(Path('run.nc')) as file:\n"
        "    file.write(b'half')\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, stderr=subprocess.PIPE)
    assert result.returncode == 143
    assert [path.name for path in tmp_path.iterdir()] == ["run.nc"]
    assert (tmp_path / "run.nc").read_text() == "old"


# ---- two runs with one file ----------------------------------------------------------------------


@pytest.mark.slow
def test_of_two_runs_with_one_file_one_is_refused_at_once(tmp_path):
    """The first run is still training its initial positions and has no output yet."""
    arguments = ("sample", "mlp", "nuts", "--start-steps", 10_000_000, "--start-held-out", 0, "-o", "run.nc", "--quiet")
    first = start(*arguments, folder=tmp_path)
    wait_until(lambda: (tmp_path / "run.nc.parts" / "owner.json").exists(), first)
    second = start(*arguments, "--force", folder=tmp_path)
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 2, errors
    assert errors.endswith(
        f"process {first.pid} on {os.uname().nodename} is writing this run; wait until it has finished, or stop it\n"
    )
    assert len(errors.splitlines()) == 1
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=300)
    assert first.returncode == 130, errors
    assert "nothing was written" in errors
    assert list(tmp_path.iterdir()) == []


# ---- a stdout that takes nothing -----------------------------------------------------------------

PRINTING = {
    "list": ("list",),
    "list as JSON": ("list", "--json"),
    "help": ("--help",),
    "help of sample": ("sample", "--help"),
    "version": ("--version",),
    "plugins": ("plugins",),
    "info": ("info", "sampler", "penalty"),
    "zoo": ("zoo",),
    "show": ("show", "linear", "nuts", "--data", "diabetes"),
}


@pytest.mark.parametrize(
    "case", [case if case in ("list", "help") else pytest.param(case, marks=pytest.mark.slow) for case in PRINTING]
)
def test_a_closed_pipe_ends_the_command_quietly(case, tmp_path):
    """Writing to a pipe without a reader is no error, as for any command."""
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*PRINTING[case], folder=tmp_path, stdout=writer)
    os.close(writer)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    "case", [case if case in ("list", "help") else pytest.param(case, marks=pytest.mark.slow) for case in PRINTING]
)
def test_a_full_stdout(case, tmp_path):
    with open("/dev/full", "w") as full:
        process = start(*PRINTING[case], folder=tmp_path, stdout=full)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert errors == "bnnzoo: standard output: cannot be written: No space left on device\n"


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_closed_stream(closed, tmp_path):
    command = ["bash", "-c", f'exec "$@" {closed}>&-', "bash", *BNNZOO, "list"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


LOST = {"left": "2>&1 | true", "left alone": "2> >(true)", "full": "2> /dev/full", "closed": "2>&-"}


@pytest.mark.long
@pytest.mark.parametrize(
    "case", [case if case == "left" else pytest.param(case, marks=pytest.mark.slow) for case in LOST]
)
def test_a_run_continues_without_readable_output(case, tmp_path):
    """Progress that cannot be shown does not stop the run."""
    arguments = [word for word in tiny.arguments("random-walk") if word != "--quiet"]
    command = ["bash", "-c", f'set -o pipefail; "$@" {LOST[case]}', "bash", *BNNZOO, *arguments, "-o", "run.nc"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "bnnzoo:" not in result.stdout
    assert store.run_state(tmp_path / "run.nc") == "complete"


def test_output_of_a_model_goes_to_stderr(capsys):
    with observer(quiet=True):
        print("said")
    assert capsys.readouterr() == ("", "said\n")


def test_a_full_stderr(tmp_path):
    with open("/dev/full", "w") as full:
        process = start("list", "nonsense", folder=tmp_path, stderr=full)
        assert process.communicate(timeout=300)[0] == ""
    assert process.returncode == 2


def test_the_page_counts_the_cases():
    counts = {
        "a signal at different times": (len(DELAYS) + len(LOOKING)) * len(CODES),
        "stdout or stderr cannot be written": 2 * len(PRINTING),
    }
    for kind, count in counts.items():
        row = re.search(rf"^\| {kind}[^|]*\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
        assert row is not None
        assert row[1] == str(count)
