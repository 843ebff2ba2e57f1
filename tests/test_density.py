"""Densities without inputs: the unsupervised case."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bnnzoo
from bnnzoo import cli
from bnnzoo.errors import UsageError
from bnnzoo.models import Density, Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Mixture
from bnnzoo.posterior.priors import Normal


@pytest.fixture
def table(tmp_path):
    """Two columns, two clusters."""
    rng = np.random.default_rng(0)
    side = rng.choice([-1.0, 1.0], size=60)
    rows = np.column_stack([2 * side, -side]) + rng.normal(size=(60, 2)) * [0.5, 0.3]
    path = tmp_path / "clusters.csv"
    np.savetxt(path, rows, delimiter=",", header="a,b", comments="", fmt="%.6g")
    return path


def test_the_likelihood_is_the_mixture_of_the_parameters_alone():
    model = Density(2)
    network = model.build((0,), model.own_likelihood().num_outputs(2), key=jax.random.key(0))
    y = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    x = model.arrange(np.ones((7, 3), np.float32))
    assert x.shape == (7, 0)
    posterior = NetworkPosterior.of(network, Mixture(2), Normal(), x, y)
    assert [block.name for block in posterior.layout.blocks] == ["outputs"]
    theta = jnp.arange(10.0) / 7
    wanted = [Mixture(2).log_prob(theta, jnp.asarray(row)) for row in y]
    np.testing.assert_allclose(posterior.log_likelihoods(theta), wanted, rtol=1e-6)


def test_a_table_of_targets_alone(table, tmp_path, capsys):
    out, everything = tmp_path / "run.nc", ["--target", "a", "--target", "b"]
    words = ["--data", str(table), *everything, "--quiet", "-o", str(out), "--init", "prior", "--chains", "2"]
    assert (
        cli.run(["sample", "density", "random-walk", *words, "--warmup", "400", "--draws", "100", "--thin", "10"]) == 0
    )
    run = bnnzoo.open(out)
    assert run.posterior["posterior"]["outputs"].shape == (2, 100, 10)
    # A single Gaussian with the right moments scores 3.1 on two clusters.
    assert run.evaluate()["nll"] < 2.8
    assert run.predict(str(table)).shape[0] == 60
    assert run.diagnose()
    capsys.readouterr()
    assert cli.run(["sample", "mlp", "random-walk", *words, "--force"]) == 2
    assert "the data have no inputs, all their columns are targets" in capsys.readouterr().err


def test_a_density_is_of_numbers():
    with pytest.raises(UsageError, match="class labels"):
        Density.default_likelihood("classification")
    with pytest.raises(UsageError, match="no inputs"):
        Mlp().arrange(np.zeros((3, 0)))
