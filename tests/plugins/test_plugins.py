"""Plugins with every known fault, and plugins without faults."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fake_plugins
import numpy as np
import pytest
import tiny

from bnnzoo.api import entrances, resuming
from bnnzoo.cli.zoo import runnable
from bnnzoo.errors import BnnzooWarning, InterruptedRunError, NotFoundError, UsageError
from bnnzoo.plugins import failures, registry
from bnnzoo.plugins.entry_files import file_of
from bnnzoo.plugins.failures import PluginError
from bnnzoo.recipe import as_dict, read_layer, recipe_from, resolve, shipped_names, to_yaml


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
def test_a_broken_plugin_does_not_stop_other_plugins(site, fault):
    source, message = fake_plugins.BROKEN[fault]
    fake_plugins.install(site, "broken", source)
    fake_plugins.install_good(site, "good", "fresh")
    with pytest.warns(BnnzooWarning, match=r"plugin broken of broken 0\.2: ") as caught:
        assert registry.find("samplers", "hmc").distribution == "bnnzoo"
    assert message in str(caught[0].message)
    assert "\n" not in str(caught[0].message)
    assert registry.find("samplers", "fresh").distribution == "good"
    assert message in _errors()["broken"]


@pytest.mark.parametrize("fault", fake_plugins.BROKEN)
def test_strict_raises(site, fault, monkeypatch):
    monkeypatch.setenv("BNNZOO_STRICT_PLUGINS", "1")
    source, message = fake_plugins.BROKEN[fault]
    fake_plugins.install(site, "broken", source)
    with pytest.raises(PluginError) as caught:
        registry.entries("models")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"[console_scripts]\nno equals sign\n", b"[bnnzoo]\nx = \xff\xfe\n"])
def test_damaged_entry_points_do_not_stop_other_plugins(site, content, monkeypatch):
    """This holds for the entry points of any distribution."""
    fake_plugins.install(site, "broken", "")
    next(site.glob("broken*-info")).joinpath("entry_points.txt").write_bytes(content)
    fake_plugins.install_good(site, "good", "fresh")
    with pytest.warns(BnnzooWarning, match=r"of broken 0\.2: its entry_points\.txt is damaged \(.*; install it again"):
        assert registry.find("samplers", "fresh").distribution == "good"
    assert "damaged" in _errors()["broken"]
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    assert registry.find("samplers", "hmc").distribution == "bnnzoo"
    assert _errors() == {}


@pytest.mark.long
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
        "from bnnzoo import Entry, hookimpl\n"
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
    with pytest.warns(
        BnnzooWarning,
        match="sampler 'hmc' has the name of a built-in part and cannot replace that part; to use the part of "
        "the plugin, write one:hmc",
    ):
        assert registry.find("samplers", "hmc").distribution == "bnnzoo"
    assert registry.find("samplers", "one:hmc").distribution == "one"


def test_two_plugins_with_one_name(site):
    fake_plugins.install_good(site, "one", "twin")
    fake_plugins.install_good(site, "two", "twin")
    with pytest.warns(BnnzooWarning, match="sampler 'twin' is also provided by"):
        entries = registry.entries("samplers")
    assert {"one:twin", "two:twin"} <= set(entries)
    assert "twin" not in entries
    with pytest.raises(
        NotFoundError, match=r"provided by one 0\.2 and two 0\.2; use the full name one:twin or two:twin"
    ):
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
    with pytest.warns(BnnzooWarning, match="plugin nowhere: in BNNZOO_PLUGINS, but no such plugin is installed"):
        registry.entries("models")


def test_no_plugins_leaves_only_built_in_parts(site, monkeypatch):
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


RECIPES = """
from bnnzoo import Entry, hookimpl

@hookimpl
def bnnzoo_recipes():
    return [
        Entry("houses", "good:recipes/houses.yaml", "rooms and prices"),
        Entry("elsewhere", "good:recipes/elsewhere.yaml", ""),
        Entry("tutorial", "good:recipes/houses.yaml", "shadows"),
    ]
"""


def _install_recipes(site) -> None:
    fake_plugins.install(site, "good", RECIPES)
    (site / "good.py").unlink()
    (site / "good" / "recipes").mkdir(parents=True)
    (site / "good" / "__init__.py").write_text(RECIPES)
    (site / "good" / "recipes" / "houses.yaml").write_text("model: linear\nsampler: mala\nchains: 3\n")
    text = "# of another package\nrequires: [bnnzoo-nowhere]\nmodel: linear\nsampler: far\n"
    (site / "good" / "recipes" / "elsewhere.yaml").write_text(text)


def test_a_plugin_ships_recipes(site):
    _install_recipes(site)
    with pytest.warns(
        BnnzooWarning,
        match="config 'tutorial' has the name of a built-in part and cannot replace that part; to use the part of "
        "the plugin, write good:tutorial",
    ):
        names = shipped_names()
    assert names["houses"] == "rooms and prices"
    assert names["elsewhere"] == "of another package"
    assert resolve(None, None, [read_layer("houses")]).chains == 3
    assert resolve(None, None, [read_layer("good:tutorial")]).chains == 3
    assert resolve(None, None, [read_layer("tutorial")]).chains != 3
    assert "houses" in runnable()
    assert "elsewhere" not in runnable()


def test_a_recipe_says_which_package_it_needs(site):
    _install_recipes(site)
    with pytest.warns(BnnzooWarning), pytest.raises(UsageError, match=r"no sampler named 'far'.* bnnzoo-nowhere$"):
        resolve(None, None, [read_layer("elsewhere")])
    assert resolve(None, "mala", [read_layer("elsewhere")]).sampler.name == "mala"


def test_a_missing_recipe_is_reported_in_one_line(site):
    _install_recipes(site)
    (site / "good" / "recipes" / "houses.yaml").unlink()
    with pytest.warns(BnnzooWarning), pytest.raises(UsageError, match=r"houses.yaml\): no such file; declared at .*:4"):
        read_layer("houses")


def test_a_plugin_ships_a_reference(site):
    hook = "@hookimpl\ndef bnnzoo_references():"
    source = f"from bnnzoo import Entry, hookimpl\n{hook} return [Entry('bumps', 'good:bumps.nc', 'two bumps')]\n"
    fake_plugins.install(site, "good", source)
    entry = registry.find(registry.REFERENCES, "bumps")
    with pytest.raises(UsageError, match=r"reference good:bumps \(good:bumps.nc\): no such file; declared at .*:2"):
        file_of(entry)
    assert "no such file" in _bnnzoo(site, "plugins", "--check").stdout
    (site / "bumps.nc").write_bytes(b"")
    assert file_of(entry) == site / "bumps.nc"
    assert "two bumps" in _bnnzoo(site, "list", "references").stdout


def test_the_file_of_a_reference_must_be_netcdf(site):
    hook = "@hookimpl\ndef bnnzoo_references():"
    source = f"from bnnzoo import Entry, hookimpl\n{hook} return [Entry('bumps', 'good:bumps.yaml', '')]\n"
    fake_plugins.install(site, "good", source)
    (plugin,) = [plugin for plugin in registry.plugins() if plugin.distribution == "good"]
    assert plugin.error == "bnnzoo_references: bumps: invalid target 'good:bumps.yaml'; write 'package:folder/file.nc'"


def _install_recipe(site, distribution: str, name: str, content: bytes) -> None:
    """Install a plugin that offers one recipe and nothing else."""
    hook = "@hookimpl\ndef bnnzoo_recipes():"
    entry = f"[Entry('{name}', '{distribution}:{name}.yaml', '')]"
    source = f"from bnnzoo import Entry, hookimpl\n{hook} return {entry}\n"
    fake_plugins.install(site, distribution, source)
    (site / f"{name}.yaml").write_bytes(content)


def test_a_plugins_recipe_for_built_in_parts_changes_no_run(site):
    before = resolve("mlp", "nuts")
    stored = to_yaml(as_dict(before))
    _install_recipe(site, "one", "mlp.nuts", b"chains: 77\n")
    registry.reset()
    assert resolve("mlp", "nuts") == before
    assert resolve(None, None, [read_layer("mlp.nuts")], {"model": "mlp", "sampler": "nuts"}).chains == 77
    _install_recipe(site, "two", "mlp.nuts", b"chains: 78\n")
    registry.reset()
    with pytest.warns(BnnzooWarning, match="config 'mlp.nuts' is also provided by"):
        assert resolve("mlp", "nuts") == before
    assert to_yaml(as_dict(recipe_from(stored))) == stored


def test_nothing_is_laid_below_a_stored_recipe(site):
    assert recipe_from("model: mlp\nsampler: random-walk\n").thin == 1 != resolve("mlp", "random-walk").thin


@pytest.mark.parametrize("content", [None, b"model: caf\xe9\n", b"model: [\n"])
def test_an_unreadable_recipe_does_not_stop_other_plugins(site, content):
    _install_recipe(site, "broken", "torn", content or b"")
    if content is None:
        (site / "torn.yaml").unlink()
    _install_recipe(site, "good", "houses", b"model: linear\nsampler: mala\n")
    with pytest.warns(BnnzooWarning, match="recipe torn: "):
        result = runnable()
    assert {"houses", "tutorial"} <= set(result)
    assert "torn" not in result


def test_a_known_package_is_named(site, monkeypatch):
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    monkeypatch.setattr(failures, "is_installed", lambda package: False)
    registry.reset()
    with pytest.raises(NotFoundError, match="pip install bnnzoo-blackjax"):
        registry.find("samplers", "barker")


@pytest.mark.parametrize(
    ("target", "line", "message"),
    [
        ("x = 1\nimport a_missing_module\n", "good_target.py:2", "ModuleNotFoundError"),
        ("def broken(:\n", "good_target.py:1", "SyntaxError"),
        ("class Other: ...\n", "good.py:4", "AttributeError"),
        (None, "good.py:4", "ModuleNotFoundError"),
    ],
)
def test_check_says_file_and_line(site, target, line, message):
    fake_plugins.install_good(site, "good", "fresh")
    file = site / "good_target.py"
    file.unlink() if target is None else file.write_text(target)
    fake_plugins.install(site, "broken", "x = 1\n\nraise ValueError('no')\n")
    wrong = registry.import_failures()
    assert [text for text in wrong if f"{line}: sampler good:fresh" in text and message in text]
    assert [text for text in wrong if "broken.py:3: plugin broken of broken 0.2: ValueError: no" in text]
    assert len(wrong) == 2
    assert not any("\n" in text for text in wrong)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("class Thing: ...\n", "is not a subclass of bnnzoo.AbstractSampler"),
        ("Thing = 3\n", "is not a subclass of bnnzoo.AbstractSampler"),
        (
            fake_plugins.THING.replace("'exact'", "'biased'"),
            "is listed with exactness exact, but its class declares biased",
        ),
    ],
)
def test_an_entry_of_the_wrong_kind_is_reported_in_one_line(site, target, message):
    fake_plugins.install_good(site, "good", "fresh")
    (site / "good_target.py").write_text(target)
    (wrong,) = registry.import_failures()
    assert wrong.endswith(f"good.py:4: sampler good:fresh (good_target:Thing) {message}")
    with pytest.raises(UsageError, match=rf"sampler 'fresh' is from good 0\.2 \(good_target:Thing\), which {message}"):
        registry.load("samplers", "fresh")


def test_a_reexported_class_keeps_its_registered_name(site):
    fake_plugins.install_good(site, "good", "fresh")
    text = (site / "good.py").read_text().replace("good_target:", "good:")
    (site / "good.py").unlink()
    (site / "good").mkdir()
    (site / "good" / "__init__.py").write_text(f"from good.inner import Thing\n{text}")
    methods = "".join(f"    def {name}(self, *words, **more): ...\n" for name in ("init", "step"))
    (site / "good" / "inner.py").write_text(fake_plugins.THING + methods)
    loaded_class = registry.load("samplers", "fresh")
    assert loaded_class.__module__ == "good.inner"
    assert registry.name_of("samplers", loaded_class()) == "fresh"
    assert registry.name_of("samplers", object()) is None


@pytest.mark.long
def test_plugins_check_sets_the_exit_code_and_keeps_stdout_clean(site):
    fake_plugins.install_good(site, "good", "fresh")
    for file in (site / "good.py", site / "good_target.py"):
        file.write_text("print('hello from a plugin')\n" + file.read_text())
    fine = _bnnzoo(site, "plugins", "--check")
    assert (fine.returncode, fine.stdout) == (0, "ok\n"), fine.stderr
    assert "hello from a plugin" in fine.stderr
    (site / "good_target.py").write_text("1 / 0\n")
    bad = _bnnzoo(site, "plugins", "--check")
    assert bad.returncode == 3
    assert len(bad.stdout.splitlines()) == 1
    assert "good_target.py:1: sampler good:fresh (good_target:Thing): ZeroDivisionError" in bad.stdout
    assert "Traceback" not in bad.stderr


def test_an_interrupt_is_not_swallowed(site):
    fake_plugins.install(site, "broken", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        registry.plugins()


def test_a_run_whose_plugin_is_gone_names_its_package(site, tmp_path, monkeypatch):
    example = Path(__file__).parents[2] / "plugins" / "bnnzoo-rwm-example" / "bnnzoo_rwm_example_sampler.py"
    (site / "good_target.py").write_text(example.read_text().replace("class Rwm(", "class Thing("))
    fake_plugins.install(site, "good", fake_plugins.GOOD.format(name="walk", module="good"))
    out = tmp_path / "run.nc"
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(tiny.recipe("walk"), out=out, **tiny.stopped(1))
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    message = "no sampler named 'good:walk'; packages of the run are disabled: good; remove"
    with pytest.raises(NotFoundError, match=message):
        resuming.resume(out)
    shutil.rmtree(site / "good-0.2.dist-info")
    message = "no sampler named 'good:walk'; packages of the run are not installed: pip install good==0.2"
    with pytest.raises(NotFoundError, match=message):
        resuming.resume(out)


def _walk(site, distribution: str, source: str = "") -> None:
    """Install a package that offers the example's sampler as `walk`."""
    example = Path(__file__).parents[2] / "plugins" / "bnnzoo-rwm-example" / "bnnzoo_rwm_example_sampler.py"
    (site / f"{distribution}_target.py").write_text(example.read_text().replace("class Rwm(", "class Thing(") + source)
    fake_plugins.install(site, distribution, fake_plugins.GOOD.format(name="walk", module=distribution))


@pytest.mark.long
def test_a_run_does_not_use_the_same_name_of_another_package(site, tmp_path):
    _walk(site, "good")
    out = tmp_path / "run.nc"
    run = entrances.run_recipe(tiny.recipe("walk"), out=out)
    assert recipe_from(run.attributes["recipe"]).sampler.name == "good:walk"
    shutil.rmtree(next(site.glob("good-*.dist-info")))
    _walk(site, "one")
    registry.reset()
    assert registry.find("samplers", "walk").distribution == "one"
    with pytest.raises(UsageError, match=r"no sampler named 'good:walk'; .* pip install good==0\.2"):
        entrances.open(out).predict(np.zeros((2, 10)))
    # With both installed, each run uses its own.
    fake_plugins.install(site, "good", fake_plugins.GOOD.format(name="walk", module="good"))
    registry.reset()
    with pytest.warns(BnnzooWarning, match="also provided by"):
        registry.find("samplers", "hmc")
    assert len(entrances.open(out).predict(np.zeros((2, 10)))) == 2


@pytest.mark.long
def test_resume_refuses_a_changed_plugin(site, tmp_path):
    """This also holds for an unchanged version: predictions warn, and the run is not resumed."""
    _walk(site, "good")
    finished, stopped = tmp_path / "done.nc", tmp_path / "stopped.nc"
    entrances.run_recipe(tiny.recipe("walk"), out=finished)
    with pytest.raises(InterruptedRunError):
        entrances.run_recipe(tiny.recipe("walk"), out=stopped, **tiny.stopped(1))
    entrances.open(finished).predict(np.zeros((2, 10)))
    target = site / "good_target.py"
    target.write_text(target.read_text() + "# another line\n")
    changed = "differ from the installed plugins: the source of sampler good:walk was changed"
    with pytest.warns(BnnzooWarning, match=changed):
        entrances.open(finished).predict(np.zeros((2, 10)))
    with pytest.raises(UsageError, match="the source of sampler good:walk was changed; use the environment"):
        resuming.resume(stopped)
    with pytest.warns(BnnzooWarning, match="the source of sampler good:walk was changed"):
        resuming.resume(stopped, allow_inexact=True)


@pytest.mark.slow
def test_output_of_a_plugin_does_not_reach_stdout(site, tmp_path):
    """Its exceptions name the plugin, with file and line."""
    _walk(site, "good", source="print('imported')\n")
    target = site / "good_target.py"
    loud = "def step(self, *a, **k):\n        print('working')\n        return self._step(*a, **k)\n\n    def _step("
    target.write_text(target.read_text().replace("def step(", loud))
    options = [f"--{k.replace('_', '-')}={v}" for k, v in tiny.options("walk").items()]
    process = _bnnzoo(site, "sample", "linear", "walk", *options, "-o", str(tmp_path / "r.nc"), "--json", "--quiet")
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["sampler"] == "walk"
    assert "working" in process.stderr
    target.write_text(target.read_text().replace("print('working')", "raise RuntimeError('oops')"))
    failed = _bnnzoo(site, "sample", "linear", "walk", *options, "-o", str(tmp_path / "s.nc"), "--quiet")
    assert re.search(r"bnnzoo: plugin good 0\.2 \(.*good_target\.py:\d+\): RuntimeError: oops", failed.stderr), failed


def test_package_names_are_normalised(site, tmp_path):
    _walk(site, "good")
    run = entrances.run_recipe(tiny.recipe("GOOD:walk"), out=tmp_path / "run.nc")
    assert run.attributes["sampler"] == "good:walk"
    assert len(entrances.open(tmp_path / "run.nc").predict(np.zeros((2, 10)))) == 2
