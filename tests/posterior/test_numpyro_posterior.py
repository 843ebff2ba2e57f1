"""A NumPyro model as a posterior: NumPyro's density, correct draws, and a file on the natural scale."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import initialize_model

import bnnzoo
from bnnzoo import NumpyroPosterior
from bnnzoo.errors import UsageError

Y = np.float32([28, 8, -3, 7, -1, 1, 18, 12])
SIGMA = np.float32([15, 10, 16, 11, 9, 11, 10, 18])


def eight_schools(sigma, y):
    """Rubin 1981, not centred."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def line(x, y, *, noise=0.5):
    """A conjugate regression: rows are independent."""
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ weight, noise), obs=y)


def smoothed(y):
    """Neighbouring rows depend on each other."""
    level = numpyro.sample("level", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(level * jnp.concatenate([jnp.zeros(1), y[:-1]]), 1.0), obs=y)


def counted(y):
    """A prior that knows how many rows there are."""
    level = numpyro.sample("level", dist.Normal(0, y.shape[0]))
    numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def bounded(y):
    """A support that depends on another site, and a factor."""
    top = numpyro.sample("top", dist.Exponential(1.0))
    low = numpyro.sample("low", dist.Uniform(0, top))
    numpyro.factor("soft", -(low**2))
    numpyro.sample("y", dist.Normal(low, top), obs=y)


def _rows(count=60):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    return x, (x @ [0.7, -0.4] + 0.5 * rng.normal(size=count)).astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize("case", [(eight_schools, (SIGMA, Y)), (line, _rows()), (smoothed, (Y,)), (bounded, (Y,))])
def test_the_density_is_numpyros(case):
    model, args = case
    posterior = bnnzoo.NumpyroPosterior.of(model, *args)
    potential = initialize_model(jax.random.key(0), model, model_args=args).potential_fn
    theta = jax.random.normal(jax.random.key(1), (5, posterior.layout.dim))
    ours = np.array([posterior.log_density(t) for t in theta])
    theirs = np.array([-potential(posterior.layout.unflatten(t)) for t in theta])
    np.testing.assert_allclose(ours, theirs, rtol=2e-5)


@pytest.mark.long
def test_a_datum_is_a_row_only_where_rows_are_independent():
    assert bnnzoo.NumpyroPosterior.of(line, *_rows()).num_data == 60
    for model, args in ((eight_schools, (SIGMA, Y)), (smoothed, (Y,)), (counted, (Y,))):
        assert bnnzoo.NumpyroPosterior.of(model, *args).num_data == 1


def test_rows_have_their_own_likelihood():
    x, y = _rows()
    posterior = bnnzoo.NumpyroPosterior.of(line, x, y)
    theta = jnp.array([0.3, -0.2])
    expected = dist.Normal(x @ np.float32([0.3, -0.2]), 0.5).log_prob(y)
    np.testing.assert_allclose(posterior.log_likelihoods(theta), expected, rtol=1e-5)
    np.testing.assert_allclose(posterior.log_likelihood(theta, posterior.take(jnp.arange(5))), expected[:5], rtol=1e-5)


@pytest.mark.long
def test_mini_batches_of_everything_are_refused(tmp_path):
    posterior = bnnzoo.NumpyroPosterior.of(eight_schools, SIGMA, Y)
    for sampler in (bnnzoo.Penalty(), bnnzoo.Sgld()):
        with pytest.raises(bnnzoo.UsageError, match="batch"):
            bnnzoo.sample(posterior, sampler, out=tmp_path / "run.nc")
    assert not (tmp_path / "run.nc").exists()


@pytest.mark.slow
def test_eight_schools_by_nuts(tmp_path):
    posterior = bnnzoo.NumpyroPosterior.of(eight_schools, SIGMA, Y)
    run = bnnzoo.sample(posterior, bnnzoo.Nuts(max_tree_depth=5), chains=4, warmup=200, draws=500, init="prior", seed=1)
    draws = run.posterior["posterior"]
    assert set(draws.data_vars) == {"mu", "tau", "z", "theta"}
    assert draws["theta"].shape == (4, 500, 8)
    assert (draws["tau"].values > 0).all()
    mu, tau, z = (draws[name].values for name in ("mu", "tau", "z"))
    np.testing.assert_allclose(draws["theta"].values, mu[..., None] + tau[..., None] * z, rtol=1e-4, atol=1e-4)
    # By quadrature over tau: mean of mu 4.42, of theta_0 6.36; sd of mu 3.3, of theta_0 5.6. With 1000 independent
    # draws the errors are 0.1 and 0.18; five of them make a false alarm of 1e-6.
    exact = _eight_schools_means()
    np.testing.assert_allclose(mu.mean(), exact[0], atol=0.6)
    np.testing.assert_allclose(draws["theta"].values[..., 0].mean(), exact[1], atol=1.0)


def _eight_schools_means() -> tuple[float, float]:
    """Posterior means of mu and theta_0: given tau everything is Gaussian, and tau is summed over a grid."""
    tau = np.tan(np.pi / 2 * (np.arange(20_000) + 0.5) / 20_000) * 5  # equal steps of the prior's distribution
    variance = SIGMA[:, None] ** 2 + tau**2
    precision = (1 / variance).sum(0) + 1 / 25
    mean = (Y[:, None] / variance).sum(0) / precision
    log_weight = -0.5 * np.log(precision) - 0.5 * np.log(variance).sum(0)
    log_weight -= 0.5 * ((Y[:, None] ** 2 / variance).sum(0) - mean**2 * precision)
    weight = np.exp(log_weight - log_weight.max())
    first = (Y[0] * tau**2 + mean * SIGMA[0] ** 2) / variance[0]
    return float(np.average(mean, weights=weight)), float(np.average(first, weights=weight))


@pytest.mark.slow
def test_the_penalty_on_independent_rows_finds_the_conjugate_answer():
    x, y = _rows(400)
    posterior = bnnzoo.NumpyroPosterior.of(line, x, y, noise=0.5)
    precision = np.eye(2) + x.T @ x / 0.25
    exact, cov = np.linalg.solve(precision, x.T @ y / 0.25), np.linalg.inv(precision)
    sampler = bnnzoo.Penalty(batch_size=40, num_batches=8, sampling="disjoint")
    run = bnnzoo.sample(posterior, sampler, chains=16, warmup=600, draws=400, thin=40, init="prior")
    chains = run.posterior["posterior"]["weight"].values.mean(1)
    # Chains are the units: t of 15 degrees of freedom, 1e-6 two-sided at 7.9 standard errors.
    error = chains.std(0, ddof=1) / np.sqrt(16)
    assert (np.abs(chains.mean(0) - exact) < 7.9 * error).all()
    assert (error < 0.2 * np.sqrt(np.diag(cov))).all()


def test_models_with_discrete_sites_are_refused():
    def discrete(y):
        which = numpyro.sample("which", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(which, 1.0), obs=y)

    def silent(y):
        numpyro.sample("mu", dist.Normal(0, 1))

    with pytest.raises(bnnzoo.UsageError, match="site which is discrete"):
        bnnzoo.NumpyroPosterior.of(discrete, Y)
    with pytest.raises(bnnzoo.UsageError, match="the model has no observed site"):
        bnnzoo.NumpyroPosterior.of(silent, Y)


def _subsamples(x, y):
    w = numpyro.sample("w", dist.Normal(0, 10))
    with numpyro.plate("n", 60, subsample_size=5) as rows:
        numpyro.sample("y", dist.Normal(w * x[rows, 0], 1.0), obs=y[rows])


def _fitted(x, y):
    w = numpyro.param("w", 0.5) + numpyro.sample("v", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)


def _named(name: str):
    def model(x, y):
        w = numpyro.sample(name, dist.Normal(0, 10))
        numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_subsamples, "plate n: subsample_size is not supported"),
        (_fitted, "param w has no prior"),
        (_named("s/w"), "site 's/w': a result file cannot contain this name"),
        (_named(".w"), "site '.w': a result file cannot"),
        (_named("draw"), "site 'draw': a result file cannot"),
    ],
)
def test_a_model_that_is_no_one_density_or_that_no_file_holds_is_refused(model, message):
    x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
    with pytest.raises(UsageError, match=re.escape(message)):
        NumpyroPosterior.of(model, x, 2 * x[:, 0])


def test_non_numeric_data_are_refused_before_a_run():
    x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
    y = np.where(np.arange(60) == 3, np.nan, x[:, 0])
    with pytest.raises(UsageError, match="argument 2: contains values that are not finite numbers"):
        NumpyroPosterior.of(_named("w"), x, y)
    nested = lambda both, y: _named("w")(both["x"], y)  # noqa: E731
    with pytest.raises(UsageError, match="argument 2: contains values that are not finite numbers"):
        NumpyroPosterior.of(nested, {"x": x, "again": x}, y)
    with pytest.raises(UsageError, match="argument y: contains values that are not finite numbers"):
        NumpyroPosterior.of(nested, {"x": x, "again": x}, y=y)
    with pytest.raises(UsageError, match=r"data as arrays, as in .* \(got list, list\)"):
        NumpyroPosterior.of(lambda x, y: _named("w")(np.array(x), np.array(y)), x.tolist(), x[:, 0].tolist())
