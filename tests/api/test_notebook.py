"""bnnzoo in a notebook: a cell can be interrupted and resumed, and results are shown as tables and pictures."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import bnnzoo
from bnnzoo.api import entrances
from bnnzoo.errors import InterruptedRunError
from bnnzoo.process.interrupt import stop_on_interrupt
from bnnzoo.progress import Progress

SHORT: dict[str, Any] = {"data": "tutorial-sine", "warmup": 20, "init": "prior", "chains": 2, "progress": False}


@pytest.fixture
def _as_in_a_script():
    """SIGINT raises KeyboardInterrupt, as in a new Python; a command of another test may have changed this."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_while_sampling(progress: Progress) -> None:
    """Interrupt the process once it samples, as the stop button of a notebook does."""
    if progress.phase == "sampling" and progress.done > 100:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.long
@pytest.mark.usefixtures("_as_in_a_script")
def test_an_interrupted_run_has_a_checkpoint_and_says_how_to_continue(tmp_path):
    out = tmp_path / "run.nc"
    with pytest.raises(InterruptedRunError, match=r"stopped after \d+ of 20000 draws") as caught:
        bnnzoo.sample("linear", "random-walk", draws=20_000, out=out, observer=interrupt_while_sampling, **SHORT)
    assert str(caught.value).endswith(f"continue: bnnzoo.resume({str(out)!r})")
    assert 100 < bnnzoo.open(out).attributes["draws_done"] < 20_000
    with pytest.raises(InterruptedRunError):
        bnnzoo.resume(out, observer=interrupt_while_sampling)
    assert bnnzoo.resume(out, progress=False).attributes["draws_done"] == 20_000
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_as_in_a_script")
def test_the_second_interrupt_stops_at_once(capsys):
    with contextlib.suppress(InterruptedRunError), stop_on_interrupt() as stop:
        assert stop is not None
        os.kill(os.getpid(), signal.SIGINT)
        assert stop() == signal.SIGINT
        assert "a second interrupt stops at once" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        raise InterruptedRunError("as `drive` does", 130)


@pytest.mark.usefixtures("_as_in_a_script")
def test_an_interrupt_that_came_too_late_still_ends_the_cell():
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt():
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("_as_in_a_script")
@pytest.mark.filterwarnings("ignore::bnnzoo.errors.BnnzooWarning")
def test_a_run_that_was_complete_before_an_interrupt_can_be_opened(monkeypatch):
    def open_and_interrupt(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        return open_run(*arguments, **options)

    open_run, registered = entrances.open, []
    monkeypatch.setattr(entrances, "open", open_and_interrupt)
    monkeypatch.setattr(entrances.atexit, "register", lambda *arguments, **_: registered.append(arguments))
    with pytest.raises(InterruptedRunError, match="SIGINT came too late to stop the run; open it: ") as caught:
        bnnzoo.sample("linear", "random-walk", draws=10, **SHORT)
    path = Path(str(caught.value).split("'")[1])
    assert open_run(path).attributes["complete"]
    assert shutil.rmtree not in [function for function, *_ in registered]  # the file is not deleted when Python exits
    with pytest.raises(InterruptedRunError, match=r"SIGINT came too late to stop the run; open it: .*run\.nc"):
        bnnzoo.resume(path, draws=20, progress=False)
    assert open_run(path).attributes["draws_done"] == 20
    shutil.rmtree(path.parent)


@pytest.mark.usefixtures("_as_in_a_script")
def test_other_handlers_and_threads_are_left_alone():
    stops: list[Any] = []

    def in_thread() -> None:
        with stop_on_interrupt() as stop:
            stops.append(stop)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    own = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGINT, own)
    with stop_on_interrupt() as stop:
        stops.append(stop)
        assert signal.getsignal(signal.SIGINT) is own
    assert stops == [None, None]


CELLS = [
    f"import bnnzoo, os, signal\nshort = {SHORT | {'progress': True}}",
    "run = bnnzoo.sample('mlp', 'hmc', draws=300, **short)\nrun",
    "run.plot()",
    """
def stop_button(progress):
    if progress.phase == "sampling" and progress.done > 100:
        os.kill(os.getpid(), signal.SIGINT)

bnnzoo.sample("linear", "random-walk", draws=20_000, out="long.nc", observer=stop_button, **short)
""",
    "longer = bnnzoo.resume('long.nc')\nbnnzoo.compare([run, longer])",
    "print(run.report('report.html'))",
]


@pytest.mark.long
def test_a_notebook_with_sample_interrupt_resume_and_report(tmp_path):
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    cells[3].metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    _, sampled, plotted, stopped, compared, reported = (cell.outputs for cell in notebook.cells)
    assert "<th>verdict</th>" in _data(sampled, "text/html")
    assert _data(plotted, "image/png")
    error = next(output for output in stopped if output.output_type == "error")
    assert error.ename == "InterruptedRunError"
    assert "continue: bnnzoo.resume('long.nc')" in error.evalue
    assert "<th>nll</th>" in _data(compared, "text/html")
    assert (tmp_path / "report.html").is_file()
    assert any("report.html" in output.get("text", "") for output in reported)
    assert not Path(tmp_path / "long.nc.parts").exists()


def _data(outputs: list[Any], kind: str) -> str:
    return next((output.data[kind] for output in reversed(outputs) if kind in output.get("data", {})), "")
