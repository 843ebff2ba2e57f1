"""Priors against closed forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from bnnzoo.assembly.recipe_parts import check_prior
from bnnzoo.errors import UsageError
from bnnzoo.models import Mlp
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.ard import Ard
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import AbstractPrior, FanIn, Hierarchical, Laplace, Normal, ScaleMixture

LAYOUT = Layout((Block("weight", (3, 4), 0), Block("bias", (3,), 12)))
SD = np.concatenate([np.full(12, 0.8 / 2), np.full(3, 0.8)])


def _mixture(theta):
    return np.log(0.3 * stats.norm.pdf(theta, 0, 2.0) + 0.7 * stats.norm.pdf(theta, 0, 0.2))


CASES = {
    "normal": (Normal(0.7), lambda t: stats.norm.logpdf(t, 0, 0.7), 0.7),
    "laplace": (Laplace(0.7), lambda t: stats.laplace.logpdf(t, 0, 0.7), 0.7 * 2**0.5),
    "scale-mixture": (ScaleMixture(2.0, 0.2, 0.3), _mixture, (0.3 * 4 + 0.7 * 0.04) ** 0.5),
    "fan-in": (FanIn(0.8), lambda t: stats.norm.logpdf(t, 0, SD), SD),
}
EACH = pytest.mark.parametrize(("prior", "log_density", "sd"), CASES.values(), ids=CASES)


@EACH
def test_log_density(prior, log_density, sd):
    theta = np.random.default_rng(0).normal(size=15)
    log_densities = prior.log_prob(jnp.asarray(theta, jnp.float32), LAYOUT)
    assert log_densities.shape == ()
    np.testing.assert_allclose(log_densities, log_density(theta).sum(), rtol=1e-5)


@pytest.mark.long
@EACH
def test_double_precision(prior, log_density, sd):
    theta = np.random.default_rng(1).normal(size=15)
    with jax.enable_x64(True):
        log_densities = np.asarray(prior.log_prob(jnp.asarray(theta), LAYOUT))
        assert prior.sample(LAYOUT, key=jax.random.key(0)).dtype == jnp.float64
    assert log_densities.dtype == np.float64
    np.testing.assert_allclose(log_densities, log_density(theta).sum(), rtol=1e-6)


@EACH
def test_draws_have_the_moments_of_the_density(prior, log_density, sd):
    """20 000 draws of 15 parameters: 4.9 standard errors of mean and variance, the largest of 30."""
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: prior.sample(LAYOUT, key=key)))(keys), np.float64)
    assert draws.shape == (20_000, 15)
    scaled = draws / sd
    count = len(draws)
    assert np.abs(scaled.mean(0)).max() < 5.6 / count**0.5
    square = scaled**2
    assert (np.abs(square.mean(0) - 1) < 5.6 * square.std(0) / count**0.5).all()
    correlation = np.corrcoef(scaled.T) - np.eye(15)
    assert np.abs(correlation).max() < 5.6 / count**0.5


def test_a_wrong_scale_is_seen():
    """Positive control of the test above."""
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws = jax.vmap(lambda key: Normal(0.7 * 1.1).sample(LAYOUT, key=key))(keys)
    square = (np.asarray(draws, np.float64) / 0.7) ** 2
    assert not (np.abs(square.mean(0) - 1) < 5.6 * square.std(0) / 20_000**0.5).any()


def test_a_scale_is_an_argument_of_a_compiled_program():
    leaves = [*jax.tree.leaves(Normal(0.7)), *jax.tree.leaves(ScaleMixture())]
    assert [type(leaf) for leaf in leaves] == [np.float32] * 4


HYPER = {"half-normal": stats.halfnorm(0, 0.8), "half-cauchy": stats.halfcauchy(0, 0.8)}


def _hierarchical(hyperprior: str) -> NetworkPosterior:
    network = Mlp((3,)).build((2,), 1, key=jax.random.key(0))
    x = np.zeros((1, 2), np.float32)
    return NetworkPosterior.of(network, Gaussian(), Hierarchical(0.8, hyperprior), x, x[:, :1])


@pytest.mark.parametrize("hyperprior", HYPER)
def test_the_density_of_a_hierarchical_prior(hyperprior):
    posterior = _hierarchical(hyperprior)
    names = [block.name for block in posterior.layout.blocks]
    assert names[-2:] == ["likelihood_scale", "prior_scale"]
    theta = np.random.default_rng(0).normal(size=posterior.layout.dim)
    weights, noise, logs = theta[:13], theta[13], theta[14:]
    expected = stats.norm.logpdf(weights, 0, np.exp(np.repeat(logs, [9, 4]))).sum()
    expected += (HYPER[hyperprior].logpdf(np.exp(logs)) + logs).sum() + stats.halfnorm.logpdf(np.exp(noise)) + noise
    np.testing.assert_allclose(posterior.log_prior(jnp.asarray(theta, jnp.float32)), expected, rtol=1e-5)
    natural = posterior.natural(theta[None])
    np.testing.assert_allclose(natural["prior_scale"], np.exp(logs)[None])
    np.testing.assert_array_equal(natural["layers_0_weight"].reshape(-1), weights[:6])


@pytest.mark.parametrize("hyperprior", HYPER)
def test_the_scales_of_a_hierarchical_prior_are_a_half_at_a_given_network(hyperprior):
    posterior = _hierarchical(hyperprior)
    network = Mlp((3,)).build((2,), 1, key=jax.random.key(4))
    theta = np.asarray(posterior.position(network))
    assert len(theta) == 13 + 1 + 2
    np.testing.assert_allclose(np.exp(theta[14:]), 0.5, rtol=1e-6)
    np.testing.assert_array_equal(theta[:6], network.layers[0].weight.ravel())


@pytest.mark.parametrize("hyperprior", HYPER)
def test_the_draws_of_a_hierarchical_prior(hyperprior):
    posterior = _hierarchical(hyperprior)
    keys = jax.random.split(jax.random.key(1), 4000)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: posterior.sample_prior(key=key)))(keys), np.float64)
    scales = np.exp(draws[:, 14:])
    for layer, columns in enumerate((slice(0, 9), slice(9, 13))):
        assert stats.kstest(scales[:, layer], HYPER[hyperprior].cdf).pvalue > 1e-6
        standard = draws[:, columns] / scales[:, layer, None]
        assert stats.kstest(standard.ravel(), stats.norm.cdf).pvalue > 1e-6
        # Positive control: the weights are not normal before they are divided by their layer's scale.
        assert stats.kstest(draws[:, columns].ravel(), stats.norm(0, 0.8).cdf).pvalue < 1e-6
    assert abs(stats.spearmanr(scales).statistic) < 0.08


def test_a_hierarchical_prior_has_no_density_without_its_scales():
    with pytest.raises(UsageError, match="its scales are sampled with the weights"):
        Hierarchical().log_prob(jnp.zeros(15), LAYOUT)


class _Odd(AbstractPrior):
    """A prior with a fault in the named method."""

    wrong: str = "nothing"

    def distribution(self, layout):
        laws = {
            "a column": lambda: dist.Normal(jnp.zeros((layout.dim, 1)), 1.0),
            "another length": lambda: dist.Normal(jnp.zeros(3), 1.0),
            "one vector": lambda: dist.Normal(jnp.zeros(layout.dim), 1.0).to_event(1),
            "none": lambda: None,
        }
        return laws.get(self.wrong, lambda: dist.Normal(jnp.zeros(layout.dim), 1.0))()

    def sample(self, layout, *, key):
        return jnp.zeros(2) if self.wrong == "draws" else super().sample(layout, key=key)


class _OddDensity(_Odd):
    def log_prob(self, theta, layout):
        return self.distribution(layout).log_prob(theta)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_Odd("a column"), r"prior _Odd: distribution must .*got a Normal with batch shape \(5, 1\)"),
        (_Odd("another length"), r"with batch shape \(3,\) and event shape \(\)"),
        (_Odd("one vector"), r"with batch shape \(\) and event shape \(5,\)"),
        (_Odd("none"), "distribution must .*got a NoneType"),
        (_Odd("draws"), r"sample must return an array of shape \(5,\) \(got an array of shape \(2,\)\)"),
        (_OddDensity(), r"log_prob must return an array of shape \(\) \(got an array of shape \(5,\)\)"),
    ],
)
def test_a_prior_that_would_be_broadcast_is_refused_before_a_run(wrong, message):
    layout = Layout((Block("weight", (5,), 0, "network"),))
    with pytest.raises(UsageError, match=message):
        check_prior(wrong, layout)
    check_prior(_Odd(), layout)


class TestArd:
    """The automatic relevance prior: a multivariate Student-t for the weights of each input."""

    LAYOUT = Layout((Block("0_weight", (3, 2), 0), Block("0_bias", (3,), 6), Block("1_weight", (1, 3), 9)))

    def test_density(self):
        theta = np.random.default_rng(0).normal(size=12)
        weights = theta[:6].reshape(3, 2)
        expected = sum(stats.multivariate_t(shape=0.04 * np.eye(3), df=3.0).logpdf(weights[:, i]) for i in range(2))
        expected += stats.norm.logpdf(theta[6:9], 0, 0.8).sum()
        expected += stats.norm.logpdf(theta[9:], 0, 0.8 * 3**-0.5).sum()
        density = Ard(scale=0.8, input_scale=0.2, df=3.0).log_prob(jnp.asarray(theta, jnp.float32), self.LAYOUT)
        np.testing.assert_allclose(density, expected, rtol=1e-5)

    def test_draws_have_the_distribution_of_the_density(self):
        """Kolmogorov-Smirnov at 1e-6: the squared norm of an input's weights is F-distributed, the rest is normal."""
        keys = jax.random.split(jax.random.key(0), 4000)
        prior = Ard(scale=0.8, input_scale=0.2, df=3.0)
        draws = np.asarray(jax.jit(jax.vmap(lambda key: prior.sample(self.LAYOUT, key=key)))(keys), np.float64)
        inputs = draws[:, :6].reshape(-1, 3, 2)
        for i in range(2):
            ratio = np.square(inputs[:, :, i] / 0.2).sum(1) / 3
            assert stats.kstest(ratio, stats.f(3, 3).cdf).pvalue > 1e-6
            # Positive control: the squared norm of independent normals of the same scale has another distribution.
            assert stats.kstest(ratio, lambda r: stats.chi2(3).cdf(3 * r)).pvalue < 1e-6
        for j, sd in enumerate([0.8] * 3 + [0.8 * 3**-0.5] * 3):
            assert stats.kstest(draws[:, 6 + j], stats.norm(0, sd).cdf).pvalue > 1e-6

    def test_weights_of_one_input_share_a_scale_and_inputs_do_not(self):
        keys = jax.random.split(jax.random.key(1), 4000)
        draws = np.abs(np.asarray(jax.vmap(lambda key: Ard().sample(self.LAYOUT, key=key))(keys)))
        inputs = draws[:, :6].reshape(-1, 3, 2)
        assert stats.spearmanr(inputs[:, 0, 0], inputs[:, 1, 0]).statistic > 0.3
        assert abs(stats.spearmanr(inputs[:, 0, 0], inputs[:, 1, 1]).statistic) < 0.08

    def test_a_network_without_a_matrix_has_normal_parameters(self):
        layout = Layout((Block("bias", (3,), 0),))
        theta = jnp.asarray([0.5, -1.0, 2.0])
        np.testing.assert_allclose(Ard().log_prob(theta, layout), stats.norm.logpdf(theta, 0, 2).sum(), rtol=1e-6)
        assert Ard().sample(layout, key=jax.random.key(0)).shape == (3,)

    def test_methods_that_need_independent_weights_are_refused(self):
        with pytest.raises(UsageError, match="weights of an input are dependent"):
            Ard().distribution(self.LAYOUT)
