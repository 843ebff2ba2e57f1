"""Densities without inputs: the unsupervised case."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bnnzoo
from bnnzoo import cli
from bnnzoo.data import Signature, load, load_inputs, load_like
from bnnzoo.errors import UsageError
from bnnzoo.models import Autoregressive, Density, Mdn, Mlp
from bnnzoo.plots.density import MASS, levels_of
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Mixture
from bnnzoo.posterior.priors import Normal

pytestmark = pytest.mark.usefixtures("as_options")


@pytest.fixture
def table(tmp_path):
    """Two columns, two clusters."""
    rng = np.random.default_rng(0)
    side = rng.choice([-1.0, 1.0], size=60)
    rows = np.column_stack([2 * side, -side]) + rng.normal(size=(60, 2)) * [0.5, 0.3]
    path = tmp_path / "clusters.csv"
    np.savetxt(path, rows, delimiter=",", header="a,b", comments="", fmt="%.6g")
    return path


@pytest.mark.long
def test_the_likelihood_is_the_mixture_of_the_parameters_alone():
    model = Density(2)
    network = model.build((0,), model.own_likelihood().num_outputs(2), key=jax.random.key(0))
    y = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    x = model.arrange(np.ones((7, 3), np.float32))
    assert x.shape == (7, 0)
    posterior = NetworkPosterior.of(network, Mixture(2), Normal(), x, y)
    assert [block.name for block in posterior.layout.blocks] == ["outputs"]
    theta = jnp.arange(10.0) / 7
    expected = [Mixture(2).log_prob(theta, jnp.asarray(row)) for row in y]
    np.testing.assert_allclose(posterior.log_likelihoods(theta), expected, rtol=1e-6)


@pytest.mark.slow
def test_a_table_of_targets_alone(table, tmp_path, capsys):
    out, everything = tmp_path / "run.nc", ["--target", "a", "--target", "b"]
    arguments = ["--data", str(table), *everything, "--quiet", "-o", str(out), "--init", "prior", "--chains", "2"]
    assert (
        cli.run(["sample", "density", "random-walk", *arguments, "--warmup", "400", "--draws", "100", "--thin", "10"])
        == 0
    )
    run = bnnzoo.open(out)
    assert run.posterior["posterior"]["outputs"].shape == (2, 100, 10)
    # A single Gaussian with the right moments scores 3.1 on two clusters.
    evaluation = run.evaluate()
    assert evaluation["nll"] < 2.8
    assert "rmse" not in evaluation
    assert run.attributes["task"] == "density"
    assert list(run.predict(str(table))) == ["log_density"]
    assert run.diagnose()
    capsys.readouterr()
    assert cli.run(["sample", "mlp", "random-walk", *arguments, "--force"]) == 2
    assert "the data have no inputs, because every column is a target" in capsys.readouterr().err


def test_a_density_is_of_numbers():
    with pytest.raises(UsageError, match="class labels"):
        Density.default_likelihood("classification")
    for model in (Mlp, Mdn):
        with pytest.raises(UsageError, match="no inputs"):
            model.default_likelihood("density")
    with pytest.raises(UsageError, match="--task density"):
        Autoregressive.default_likelihood("regression")


def test_density_data_have_no_inputs(table, tmp_path):
    rows = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)
    for name, arrays in {"x": {"x": rows}, "y": {"y": rows}, "both": {"x": rows[:, 0], "y": rows[:, 1]}}.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    data_sets = [load(rows), load(rows, task="density"), load((rows[:, 0], rows[:, 1]), task="density")]
    data_sets += [load(tmp_path / f"{name}.npz", task="density") for name in ("x", "y", "both")]
    data_sets += [load(tmp_path / "x.npz"), load(tmp_path / "y.npz")]
    for data in data_sets:
        assert data.task == "density"
        np.testing.assert_array_equal(data.x, rows)
        np.testing.assert_array_equal(data.y, rows)
        np.testing.assert_array_equal(load_like(rows, data.signature).y, rows)
        assert Signature.from_json(data.signature.to_json()) == data.signature
    np.testing.assert_array_equal(load_inputs(tmp_path / "both.npz", data_sets[0].signature), rows)
    tables = [load(table, task="density"), load(table, target=["a", "b"]), load(table, target=["b"], task="density")]
    assert [data.target_names for data in tables] == [("a", "b"), ("a", "b"), ("b",)]
    assert all(data.feature_names == data.target_names for data in tables)
    assert load("two-moons").test.x.shape == (1000, 2)
    assert load("mdn-sine").as_task("density").target_names == ("x0", "y")


def test_a_row_of_a_density_is_of_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("size,colour\n1,red\n2,blue\n3,red\n")
    for data, message in (
        (path, "column colour: text cannot be modelled by a density; use --drop colour"),
        (np.zeros((5, 4, 4)), r"a density needs columns \[N, D\]"),
        (np.array([[1.0], [np.nan]]), r"row 2, column x0: not a number|row 2, column 1: not a number"),
        ("digits", "class labels cannot be modelled by a density"),
    ):
        with pytest.raises(UsageError, match=message):
            load(data, task="density")
    with pytest.raises(UsageError, match="the data have no inputs, because every column is a target"):
        load("two-moons", task="regression")


@pytest.fixture(scope="module")
def line():
    """A mixture of two Gaussians on one column, in units far from 1."""
    rng = np.random.default_rng(3)
    rows = 100 + 20 * (rng.choice([-1.0, 1.0], size=200) + 0.3 * rng.normal(size=200))
    options: dict = {"chains": 2, "warmup": 300, "draws": 150, "thin": 5, "init": "prior", "chain_method": "vectorized"}
    return rows, bnnzoo.sample("density", "random-walk", data=rows, **options)


@pytest.mark.slow
def test_the_predictive_density_and_its_draws_are_in_the_units_of_the_data(line, tmp_path, capsys):
    _, run = line
    grid = np.linspace(0, 200, 4001, dtype=np.float32)
    log_density = run.predict(grid)["log_density"].to_numpy()
    np.testing.assert_allclose(np.trapezoid(np.exp(log_density), grid), 1.0, atol=1e-3)
    test = run.test_rows()[0]
    np.testing.assert_allclose(run.evaluate()["nll"], -run.predict(test)["log_density"].mean(), rtol=1e-5)
    draws = run.predict(draws=2000)["x0"].to_numpy()
    assert len(draws) == 2000
    cdf = np.concatenate([[0], np.cumsum((np.exp(log_density[1:]) + np.exp(log_density[:-1])) / 2 * np.diff(grid))])
    uniform = np.interp(draws, grid, cdf)
    # Draws of one parameter share nothing but it: the predictive distribution is that of each. Level 1e-6.
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    assert stats.kstest(np.interp(draws + 5, grid, cdf), "uniform").pvalue < 1e-6
    path = tmp_path / "run.nc"
    run.save(path)
    assert cli.run(["predict", str(path), "--draws", "3", "--seed", "4"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert (printed[0], len(printed)) == ("x0", 4)
    assert cli.run(["predict", str(path), "--draws", "3", "--seed", "4", "-o", str(tmp_path / "new.csv")]) == 0
    assert (tmp_path / "new.csv").read_text().splitlines() == printed
    assert cli.run(["predict", str(path)]) == 2
    assert "--data FILE" in capsys.readouterr().err


def test_pictures_of_a_density(line):
    _, run = line
    result = run.plot("density")
    assert {"x0", "density", "q05", "q95"} == set(result.table)
    np.testing.assert_allclose(np.trapezoid(result.table["density"], result.table["x0"]), 1.0, atol=0.02)
    assert (result.table["q05"] <= result.table["q95"]).all()
    for name in ("band", "slices"):
        with pytest.raises(UsageError):
            run.plot(name)


@pytest.mark.slow
def test_a_report_and_unfamiliar_rows_of_a_density(line, tmp_path):
    _, run = line
    page = run.report(tmp_path / "report.html").read_text()
    assert "Predictive density" in page
    assert run.evaluate(ood="noise")["ood_auroc_nll"] > 0.5


def test_highest_density_regions_contain_their_mass():
    grid = np.linspace(-5, 5, 201)
    x, y = np.meshgrid(grid, grid)
    density = np.exp(-0.5 * (x**2 + y**2)) / (2 * np.pi)
    # Of a Gaussian in the plane the region that holds m ends where the density is (1 - m) of its peak.
    np.testing.assert_allclose(levels_of(density), (1 - np.array(MASS)) / (2 * np.pi), rtol=0.05)
