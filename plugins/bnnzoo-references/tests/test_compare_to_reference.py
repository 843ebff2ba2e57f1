"""`bnnzoo compare --reference NAME`: distances, their Monte Carlo error, and refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import bnnzoo_references
import numpy as np
import pytest
from bnnzoo_references import PROBLEMS
from ruamel.yaml import YAML

import bnnzoo
from bnnzoo import cli
from bnnzoo.api.references import find_reference
from bnnzoo.errors import NotFoundError, UsageError
from bnnzoo.recipe import as_dict, recipe_from, to_yaml

SHORT = {"progress": False, "chains": 4, "seed": 1, "warmup": 0, "thin": 1, "keep": "draws", "precision": "float32"}


def sample(name, path, **options):
    """Sample the posterior of a reference for a short time; `options` replace those of its recipe."""
    recipe = YAML(typ="safe").load(Path(bnnzoo_references.__file__).parent / "recipes" / f"{name}.yaml")
    return bnnzoo.sample(out=path, **(recipe | SHORT | options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def exact(folder):
    """400 independent draws of the known network, with another seed than the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BNNZOO_PLUGINS", "bnnzoo-references")
        return sample("known-network", folder / "exact.nc", draws=100)


def test_an_exact_run_is_as_far_as_two_halves_and_a_laplace_approximation_is_farther(exact, folder):
    """The reference has about 800 draws and the run has 400.

    So the run differs from the reference by about sqrt(1/400 + 1/800) / sqrt(2/400) = 0.87 of the distance of two
    halves. The positive control is the Laplace approximation.
    """
    approximate = sample("known-network", folder / "laplace.nc", sampler="laplace", draws=100, init="map", warmup=1000)
    reference = find_reference("known-network")
    results = [reference.distances(run, "run") for run in (exact, approximate)]
    for name in ("total_variation", "wasserstein", "energy_distance"):
        floor = results[0].floor[name]
        assert 0 < results[0].numbers[name].value < 1.6 * floor
        assert 0 < results[0].numbers[name].mcse < floor
        assert results[1].numbers[name].value > 2.5 * floor
    ratio = results[0].numbers["epistemic_ratio"]
    assert abs(ratio.value - 1) < 0.15
    # The test rows are from a posterior draw, so the exact predictions are best on average, not on these rows.
    assert abs(results[0].numbers["nll_difference"].value) < 0.05


def test_the_reference_does_not_differ_from_itself():
    reference = find_reference("known-network")
    numbers = reference.distances(reference.run, "reference").numbers
    assert numbers["total_variation"].value == pytest.approx(0, abs=1e-12)
    assert numbers["epistemic_ratio"].value == pytest.approx(1)
    assert numbers["nll_difference"].value == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_reference_accepts_its_own_run(name):
    """The recipe of a model with its own likelihood, such as mdn, has no likelihood."""
    reference = find_reference(name)
    reference._require_same_posterior(reference.run, name)


def test_a_missing_part_of_a_recipe_is_a_difference():
    mdn, poisson = find_reference("mdn-sine"), find_reference("poisson")
    attributes = poisson.run.attributes
    recipe = dataclasses.replace(recipe_from(attributes["recipe"]), likelihood=None)
    run = SimpleNamespace(attributes={**attributes, "recipe": to_yaml(as_dict(recipe))})
    with pytest.raises(UsageError, match=r"its likelihood differs .* expected poisson, got none; use the recipe"):
        poisson._require_same_posterior(run, "run")
    with pytest.raises(UsageError, match="its model differs"):
        mdn._require_same_posterior(poisson.run, "run")


def test_the_command_prints_distances_with_errors_and_the_floor(exact, folder, capsys):
    assert cli.run(["compare", str(folder / "exact.nc"), "--reference", "known-network", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    (row,) = content["runs"]
    for name in ("total_variation", "wasserstein", "energy_distance", "epistemic_ratio", "nll_difference"):
        assert row[f"{name}_mcse"] > 0
    assert "two halves of the chains of the reference known-network differ by: total_variation" in content["words"][-1]


def test_counts_and_classes_have_their_own_distances(folder):
    expected = {"poisson": {"total_variation", "wasserstein"}, "logistic": {"total_variation", "agreement"}}
    for name, keys in expected.items():
        run = sample(name, folder / f"{name}.nc", sampler="laplace", draws=50, warmup=1000)
        (row,) = bnnzoo.compare([run], reference=name).runs
        assert keys <= set(row)
        assert 0 < row["total_variation"] < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": {"name": "gaussian", "scale": 0.3}}, "its likelihood differs .* expected gaussian .*scale 0.2"),
        ({"prior": "normal"}, "its prior differs .* got normal"),
        ({"model": {"name": "mlp", "hidden": [8]}}, "its model differs"),
        ({"standardise": True}, "its standardise differs .* expected False, got True; use the recipe"),
        ({"data": "reference-mdn-sine"}, r"its training rows differ .*got 600 rows, expected 5\)"),
    ],
)
def test_a_run_of_another_posterior_is_refused(options, message, tmp_path):
    run = sample("known-network", tmp_path / "other.nc", sampler="random-walk", draws=20, **options)
    with pytest.raises(UsageError, match=message):
        bnnzoo.compare([run], reference="known-network")


def test_a_refusal_names_only_a_registered_recipe():
    """A reference of another package may have no recipe of its name."""
    known, poisson = find_reference("known-network"), find_reference("poisson")
    for name, remedy in (
        ("known-network", "use the recipe reference-known-network"),
        ("bumps", "use the recipe that bnnzoo info reference bumps shows"),
    ):
        with pytest.raises(UsageError, match=f"; {remedy}$"):
            known._replace(name=name).distances(poisson.run, "run")


def test_an_unknown_name_is_refused_and_a_reference_in_doubt_is_reported(exact):
    with pytest.raises(NotFoundError, match="no reference named 'known-net'; did you mean known-network"):
        bnnzoo.compare([exact], reference="known-net")
    for name in PROBLEMS:
        reference = find_reference(name)
        assert reference is not None
        has_doubt = any("has not converged" in words for words in reference.remarks(_no_distances()))
        assert has_doubt == (reference.run.attributes["reference_status"] != "converged")


def _no_distances():
    from bnnzoo.evaluation.scores.reference_distances import ReferenceDistances

    return ReferenceDistances({}, {"total_variation": np.nan})
