"""Plugins that are broken in every way we know, and those that are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import fake_plugins
import pytest

from bnnzoo import registry
from bnnzoo.errors import BnnzooWarning, NotFoundError, UsageError


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder where distributions can be put, seen by this process."""
    for variable in ("BNNZOO_PLUGINS", "BNNZOO_DISABLE_PLUGINS", "BNNZOO_STRICT_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    registry.reset()
    yield tmp_path
    registry.reset()
    for name in set(sys.modules) - modules:
        if name.split("_")[0] in ("one", "two", "broken", "good"):
            del sys.modules[name]


def _errors() -> dict[str, str]:
    return {plugin.distribution: plugin.error for plugin in registry.plugins() if plugin.version == "0.2"}


def _bnnzoo(site, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", "bnnzoo", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )


@pytest.mark.parametrize("fault", fake_plugins.BROKEN)
def test_a_broken_plugin_stops_nobody(site, fault):
    source, said = fake_plugins.BROKEN[fault]
    fake_plugins.install(site, "broken", source)
    fake_plugins.install_good(site, "good", "fresh")
    with pytest.warns(BnnzooWarning, match=r"plugin broken of broken 0\.2: ") as caught:
        assert registry.find("samplers", "hmc").distribution == "bnnzoo"
    assert said in str(caught[0].message)
    assert "\n" not in str(caught[0].message)
    assert registry.find("samplers", "fresh").distribution == "good"
    assert said in _errors()["broken"]


@pytest.mark.parametrize("fault", fake_plugins.BROKEN)
def test_strict_raises(site, fault, monkeypatch):
    monkeypatch.setenv("BNNZOO_STRICT_PLUGINS", "1")
    source, said = fake_plugins.BROKEN[fault]
    fake_plugins.install(site, "broken", source)
    with pytest.raises(registry.PluginError) as caught:
        registry.entries("models")
    assert said in str(caught.value)


def test_everything_broken_at_once_and_the_commands_work(site):
    for number, (source, _) in enumerate(fake_plugins.BROKEN.values()):
        fake_plugins.install(site, f"broken{number}", source)
    fake_plugins.install_good(site, "shadow", "hmc")
    assert _bnnzoo(site, "--help").returncode == 0

    listed = _bnnzoo(site, "plugins", "--json")
    assert listed.returncode == 0, listed.stderr
    rows = [row for row in json.loads(listed.stdout) if row["version"] == "0.2"]
    assert len(rows) == len(fake_plugins.BROKEN) + 1
    assert all(row["error"] for row in rows)

    samplers = _bnnzoo(site, "list", "samplers", "--json")
    names = {row["name"]: row["distribution"] for row in json.loads(samplers.stdout)}
    assert names["hmc"] == "bnnzoo"
    assert names["shadow:hmc"] == "shadow"
    warned = [line for line in samplers.stderr.splitlines() if "0.2" in line]
    assert len(warned) == len(fake_plugins.BROKEN) + 1
    assert all(line.startswith("bnnzoo: warning: plugin ") for line in warned)
    assert "Traceback" not in samplers.stderr

    quick = [
        "--data",
        "linear-line",
        "--chains",
        "1",
        "--warmup",
        "0",
        "--draws",
        "5",
        "--init",
        "prior",
        "--quiet",
    ]
    run = _bnnzoo(site, "sample", "linear", "random-walk", *quick, "-o", str(site / "run.nc"))
    assert run.returncode == 0, run.stderr
    assert (site / "run.nc").is_file()


def test_a_rolled_back_plugin_leaves_nothing(site):
    source = (
        "from bnnzoo.hookspecs import Entry, hookimpl\n"
        "@hookimpl\ndef bnnzoo_models(): return [Entry('half', 'a.b:C', 'x')]\n"
        "@hookimpl\ndef bnnzoo_priors(): raise ValueError('no')\n"
    )
    fake_plugins.install(site, "broken", source)
    with pytest.warns(BnnzooWarning):
        assert "half" not in registry.entries("models")
    with pytest.raises(NotFoundError, match=r"failed to load: broken 0\.2; see bnnzoo plugins"):
        registry.find("models", "half")


def test_a_built_in_cannot_be_shadowed(site):
    fake_plugins.install_good(site, "one", "HMC")
    with pytest.warns(BnnzooWarning, match="sampler 'hmc' is a built-in name and stays so: write one:hmc"):
        assert registry.find("samplers", "hmc").distribution == "bnnzoo"
    assert registry.find("samplers", "one:hmc").distribution == "one"


def test_two_plugins_with_one_name(site):
    fake_plugins.install_good(site, "one", "twin")
    fake_plugins.install_good(site, "two", "twin")
    with pytest.warns(BnnzooWarning, match="sampler 'twin' is also offered by"):
        entries = registry.entries("samplers")
    assert {"one:twin", "two:twin"} <= set(entries)
    assert "twin" not in entries
    with pytest.raises(NotFoundError, match=r"offered by one 0\.2 and two 0\.2; write one:twin or two:twin"):
        registry.find("samplers", "twin")
    assert registry.load("samplers", "two:twin").__module__ == "two_target"


def test_any_plugin_entry_has_a_full_name(site):
    fake_plugins.install_good(site, "good", "fresh")
    assert registry.find("samplers", "Good:fresh") == registry.find("samplers", "fresh")


def test_a_target_that_fails_to_import_names_its_origin(site):
    fake_plugins.install_good(site, "good", "fresh")
    (site / "good_target.py").write_text("import a_missing_module\n")
    with pytest.raises(UsageError) as caught:
        registry.load("samplers", "fresh")
    assert str(caught.value) == (
        "sampler 'fresh' is from good 0.2 (good_target:Thing), which fails to import: "
        "ModuleNotFoundError: No module named 'a_missing_module'"
    )


def test_only_the_distributions_asked_for(site, monkeypatch):
    fake_plugins.install_good(site, "one", "first")
    fake_plugins.install_good(site, "two", "second")
    monkeypatch.setenv("BNNZOO_PLUGINS", "Two")
    registry.reset()
    entries = registry.entries("samplers")
    assert "second" in entries
    assert "first" not in entries
    assert "hmc" in entries


def test_asking_for_a_distribution_that_is_not_there_is_said(site, monkeypatch):
    monkeypatch.setenv("BNNZOO_PLUGINS", "nowhere")
    with pytest.warns(BnnzooWarning, match="plugin nowhere: asked for by BNNZOO_PLUGINS"):
        registry.entries("models")


def test_none_but_our_own(site, monkeypatch):
    fake_plugins.install_good(site, "one", "first")
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    assert [plugin.distribution for plugin in registry.plugins()] == ["bnnzoo"]


def test_no_plugins_option(site):
    fake_plugins.install(site, "broken", "raise RuntimeError('loaded')\n")
    loud = _bnnzoo(site, "list", "models")
    quiet = _bnnzoo(site, "list", "models", "--no-plugins")
    assert "loaded" in loud.stderr
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout


def test_an_interrupt_is_not_swallowed(site):
    fake_plugins.install(site, "broken", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        registry.plugins()
