"""The values of `--log-to` and `log_to`: names, texts, objects, and errors before the run."""

from __future__ import annotations

import sys

import fake_plugins
import pytest

from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.errors import NotFoundError, UsageError
from bnnzoo.observers import AbstractObserver, RunFailure
from bnnzoo.observers.selection import select_observers
from bnnzoo.plugins import registry

HOOK = """
from bnnzoo import Entry, hookimpl

@hookimpl
def bnnzoo_observers():
    return [Entry("{name}", "{module}_target:{attribute}", "a list in memory")]
"""
TARGET = """
from bnnzoo import AbstractObserver, UsageError

class Memory(AbstractObserver):
    made = []

    def __init__(self, text):
        if text == "refused":
            raise UsageError("text: must be short")
        if text == "broken":
            raise ZeroDivisionError("oops")
        self.text, self.reports = text, []
        Memory.made.append(self)

    def observe(self, report):
        self.reports.append(report)

class Other: ...
"""
FAILURE = RunFailure("failed", "a disk is full", 3)


class Own(AbstractObserver):
    def __init__(self):
        self.reports = []

    def observe(self, report):
        self.reports.append(report)


def install(site, name="memory", distribution="good", attribute="Memory"):
    """Install a package with an observer, and return its module."""
    module = distribution.replace("-", "_")
    source = HOOK.format(name=name, module=module, attribute=attribute)
    fake_plugins.install(site, distribution, source)
    (site / f"{module}_target.py").write_text(TARGET)


def message(log_to) -> str:
    with pytest.raises(UsageError) as error:
        select_observers(log_to)
    return str(error.value)


def test_none_and_an_empty_list_have_no_observers():
    for value in (None, []):
        select_observers(value).observe(FAILURE)


def test_objects_and_texts_can_be_mixed(tmp_path):
    first, second = Own(), Own()
    select_observers([first, f"jsonl:{tmp_path / 'log.jsonl'}", second]).observe(FAILURE)
    assert first.reports == second.reports == [FAILURE]
    assert (tmp_path / "log.jsonl").is_file()
    select_observers(first).observe(FAILURE)
    assert len(first.reports) == 2


def test_only_the_first_process_makes_the_observers(tmp_path, monkeypatch):
    """The folder of the log may be local to the machine of the first process."""
    log_to = f"jsonl:{tmp_path / 'gone' / 'log.jsonl'}"
    with pytest.raises(UsageError, match="gone does not exist"):
        entrances.first_process_log(log_to)
    monkeypatch.setattr(entrances.Processes, "current", lambda: entrances.Processes(count=1, rank=1))
    entrances.first_process_log(log_to).observe(FAILURE)
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_suggests_a_similar_one(as_options):
    with pytest.raises(NotFoundError, match=r"--log-to: no observer named 'jsnol'; did you mean jsonl\?"):
        select_observers("jsnol:log.jsonl")
    assert "use one of jsonl, tensorboard, wandb" in message("")


def test_other_values_are_refused():
    assert "log_to: must be text such as jsonl:log.jsonl" in message([print])
    assert "(got int)" in message(3)
    assert "(got ABCMeta)" in message([Own])


@pytest.mark.parametrize(("module", "text"), [("tensorboardX", "tensorboard:logs"), ("wandb", "wandb")])
def test_a_missing_library_is_an_error_with_the_command_that_installs_it(module, text, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    extra = text.partition(":")[0]
    assert f"{text}: requires {module}" in message(text)
    assert message(text).endswith(f"pip install 'bnnzoo[{extra}]'")
    assert cli.run(["sample", "linear", "mala", "--log-to", text, "--quiet"]) == 2
    assert f"--log-to: {text}: requires {module}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_plugin_adds_a_name(site):
    install(site)
    for text, expected in [("memory:a:b", "a:b"), ("memory", ""), ("good:memory:c", "c"), ("good:memory", "")]:
        select_observers(text).observe(FAILURE)
        made = registry.load(registry.OBSERVERS, "memory").made[-1]
        assert made.text == expected
        assert made.reports == [FAILURE]


def test_errors_of_a_plugin_s_class_name_the_value(site):
    install(site)
    assert message("memory:refused") == "log_to: memory:refused: text: must be short"
    assert message("memory:broken") == "log_to: memory:broken: ZeroDivisionError: oops"


def test_a_class_of_another_type_is_refused(site):
    install(site, attribute="Other")
    assert "is not a subclass of bnnzoo.AbstractObserver" in message("memory")
    (failure,) = registry.import_failures()
    assert "observer good:memory" in failure


@pytest.mark.filterwarnings("ignore:plugin")
def test_a_name_of_two_plugins_needs_the_package(site):
    install(site)
    install(site, distribution="one")
    assert "use the full name good:memory or one:memory" in message("memory:a")
    select_observers("one:memory:a").observe(FAILURE)


def test_plugins_lists_the_observers(site, capsys):
    install(site)
    assert cli.run(["plugins"]) == 0
    assert "1 observer " in capsys.readouterr().out
