"""The stored files: checksums, sizes, contents, and agreement with the data sets and the recipes."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import bnnzoo_references
import numpy as np
import pytest
from bnnzoo_references.prior import TwoScales

import bnnzoo
from bnnzoo import Layout, UsageError, cli
from bnnzoo.plugins import registry
from bnnzoo.plugins.entry_files import file_of
from bnnzoo.posterior.layout import Block
from bnnzoo.recipe import as_dict, read_layer, recipe_from, resolve

PACKAGE = Path(bnnzoo_references.__file__).parent
EACH = pytest.mark.parametrize("name", list(bnnzoo_references.PROBLEMS))


@pytest.fixture
def reference(name):
    return bnnzoo.open(file_of(registry.find(registry.REFERENCES, name)))


def test_the_checksums_are_those_of_all_files():
    lines = (PACKAGE / "posteriors" / "SHA256SUMS").read_text().splitlines()
    sums = {file: digest for digest, file in (line.split("  ") for line in lines)}
    assert sorted(sums) == sorted(f"{name}.nc" for name in bnnzoo_references.PROBLEMS)
    for file, digest in sums.items():
        assert hashlib.sha256((PACKAGE / "posteriors" / file).read_bytes()).hexdigest() == digest, file


@EACH
def test_a_file_is_small_and_has_draws_at_200_inputs_from_eight_starts(name, reference):
    assert (PACKAGE / "posteriors" / f"{name}.nc").stat().st_size <= 300_000
    posterior = reference.posterior["posterior"]
    assert (posterior.sizes["kept_row"], posterior.sizes["chain"]) == (200, 8)
    assert posterior.sizes["draw"] >= 8
    assert np.isfinite(posterior["f"].values).all()
    assert reference.posterior["constant_data"]["x"].shape[0] == 0
    for key in ("rhat", "ess", "ess_tail", "starts", "draws", "parameters", "seconds", "date"):
        assert f"reference_{key}" in reference.attributes
    assert json.loads(reference.attributes["versions"])["bnnzoo"]


@EACH
def test_the_status_follows_from_the_diagnostics(name, reference):
    attributes = reference.attributes
    has_converged = attributes["reference_rhat"] <= 1.01 and attributes["reference_ess"] >= 4000
    assert attributes["reference_status"] == ("converged" if has_converged else "not converged")


@EACH
def test_the_data_set_has_the_rows_of_the_reference(name, reference):
    rows = registry.load("datasets", f"reference-{name}")()
    assert rows.sha256() == reference.attributes["data_sha256"]
    assert np.array_equal(rows.test.x, reference.test_rows()[0])
    assert np.array_equal(rows.test.y, reference.test_rows()[1])


@EACH
def test_the_recipe_is_the_stored_recipe(name, reference):
    stored = as_dict(recipe_from(reference.attributes["recipe"]))
    shipped = as_dict(resolve(None, None, [read_layer(f"reference-{name}")]))
    for part in ("model", "sampler", "likelihood", "prior"):
        for key, value in (shipped.get(part) or {}).items():
            assert str(stored[part][key]).rpartition(":")[2] == str(value).rpartition(":")[2], (part, key)
    for key in ("data", "standardise", "chains", "warmup", "draws", "thin", "keep", "precision", "seed"):
        assert stored[key] == shipped[key], key


def test_the_references_are_listed_and_described(capsys):
    assert cli.run(["list", "references"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == set(bnnzoo_references.PROBLEMS)
    assert cli.run(["info", "reference", "poisson"]) == 0
    out = capsys.readouterr().out
    for words in ("reference poisson, from bnnzoo-references", "status", "rhat", "versions", "recipe:\nmodel:"):
        assert words in out
    assert cli.run(["plugins", "--check"]) == 0


def test_a_budget_replaces_the_steps_of_a_recipe(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PACKAGE.parent / "references"))
    import make

    calls = []

    def run(command: list[str], *, check: bool) -> None:
        text = Path(command[command.index("--config") + 1]).read_text()
        calls.append((command, resolve(None, None, [read_layer(write(tmp_path / "read.yaml", text))]).where))

    monkeypatch.setattr(make.subprocess, "run", run)
    make.run_recipe("poisson", tmp_path / "poisson.nc")
    make.run_recipe("poisson", tmp_path / "poisson.nc", "5m")
    del sys.modules["make"]
    (command, where), (budget_command, budget_where) = calls
    steps = {"warmup", "draws", "thin"}
    assert steps <= where.keys()
    assert where.keys() - budget_where.keys() == steps
    assert "--budget" not in command
    assert budget_command[-4:] == ["--budget", "5m", "--until", "budget"]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_scale_of_a_layer_does_not_depend_on_the_sampled_layers():
    """With `stochastic` last, the layout has only the last layer."""
    blocks = (Block("layers_0_weight", (2, 1), 0), Block("layers_1_weight", (1, 2), 2), Block("layers_1_bias", (1,), 4))
    assert TwoScales().distribution(Layout(blocks)).scale.tolist() == [2.0, 2.0, 0.25, 0.25, 1.0]
    last = (Block("layers_1_weight", (1, 2), 0), Block("layers_1_bias", (1,), 2))
    assert TwoScales().distribution(Layout(last)).scale.tolist() == [0.25, 0.25, 1.0]
    with pytest.raises(UsageError, match=r"prior two-scales: requires the parameters of an mlp.*\(got weight\)"):
        TwoScales().distribution(Layout((Block("weight", (1, 2), 0),)))


def test_the_known_network_has_the_known_moments():
    """Means and sds of f at four inputs, which were computed with other code."""
    rows = registry.load("datasets", "reference-known-network")()
    assert rows.y[:, 0] == pytest.approx([-0.6, -0.2, 0.3, 0.4, 0.1])
    reference = bnnzoo.open(PACKAGE / "posteriors" / "known-network.nc")
    x, f = rows.test.x[:, 0], reference.posterior["posterior"]["f"].values[..., 0].reshape(-1, 200)
    for at, mean, sd in ((-0.25, 0.0315, 0.1551), (0.25, 0.3084, 0.1524), (1.0, 0.2010, 0.1759), (1.5, 0.1352, 0.3010)):
        values = np.array([np.interp(at, x, draw) for draw in f])
        # Five standard errors of independent draws, and those of the known values: level below 1e-5.
        assert abs(values.mean() - mean) < 5 * (sd / np.sqrt(len(f)) + 0.0023)
        assert abs(values.std() / sd - 1) < 5 * (1 / np.sqrt(2 * len(f)) + 0.01)
