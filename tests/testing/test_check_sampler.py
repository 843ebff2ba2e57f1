"""Checks of samplers: exact samplers pass, every wrong sampler fails, and the reports are correct."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy import stats

from bnnzoo import cli
from bnnzoo.errors import UsageError
from bnnzoo.plugins import registry
from bnnzoo.posterior.hyperparameter import number
from bnnzoo.samplers import AbstractSampler, Mala, Mams, Penalty, RandomWalk
from bnnzoo.testing import TARGETS, Row, SamplerReport, assert_exact, check_sampler
from bnnzoo.testing.sampler import LEVEL, _not_applicable, _num_tests, statistics
from bnnzoo.testing.targets import HIDDEN, NETWORK_AT, NETWORK_CORRELATION, NETWORK_MEAN, NETWORK_SD, NOISE

ONE_DIMENSION, LARGER = ("gaussian", "skewed"), ("correlated-gaussian", "regression", "network")

# ---- the targets are what they say ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian", "correlated-gaussian", "tempered", "regression"])
def test_gaussian_targets_have_the_mean_and_covariance_of_their_density(name):
    target = TARGETS[name]()
    with jax.enable_x64(True):
        posterior = jax.tree.map(lambda a: np.asarray(a, np.float64) if eqx.is_array(a) else a, target.posterior)
        mean = jnp.asarray(target.mean)
        gradient, hessian = eqx.filter_jit(lambda p, t: (jax.grad(p.log_density)(t), jax.hessian(p.log_density)(t)))(
            posterior, mean
        )
    # The data are float32, so means agree to this precision.
    assert np.abs(np.linalg.solve(hessian, gradient) / target.sd).max() < 1e-3
    np.testing.assert_allclose(np.linalg.inv(-np.asarray(hessian)), target.covariance, rtol=1e-5)
    assert target.cdf is not None
    np.testing.assert_allclose(target.cdf(target.mean + target.sd), stats.norm.cdf(1.0), rtol=1e-12)


def test_the_skewed_target_has_the_moments_and_the_distribution_of_its_density():
    target = TARGETS["skewed"]()
    grid = np.linspace(-30, 5, 200_001)
    density = np.exp([float(target.posterior.log_density(jnp.array([t]))) for t in (-1.0, 0.5)])
    np.testing.assert_allclose(density, np.exp([-1 - np.exp(-1), 0.5 - np.exp(0.5)]), rtol=1e-5)
    weight = np.exp(grid - np.exp(grid)) * (grid[1] - grid[0])
    assert target.cdf is not None
    np.testing.assert_allclose(np.cumsum(weight), target.cdf(grid), atol=1e-4)
    mean = np.sum(grid * weight)
    np.testing.assert_allclose([mean, np.sum((grid - mean) ** 2 * weight)], [target.mean[0], target.sd[0] ** 2], 1e-6)


def network_moments(draws: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, sd and correlation of f at `NETWORK_AT`, by averages over (u, a) weighted by evidence.

    The constants of `bnnzoo.testing.targets` are from 2e7 draws.
    """
    x, y = TARGETS["network"]().posterior.data
    u, a = 2 * np.random.default_rng(seed).standard_normal((2, draws, HIDDEN, 1))
    hidden, hidden_at = np.tanh(u * x + a), np.tanh(u * NETWORK_AT + a)

    def covariance(first, two):
        return np.einsum("njx,njy->nxy", first, two) / HIDDEN + 1

    lower = np.linalg.cholesky(covariance(hidden, hidden) + NOISE**2 * np.eye(len(x)))
    whitened = np.linalg.solve(lower, np.broadcast_to(y[:, None].astype(float), (draws, len(x), 1)))[..., 0]
    gain = np.linalg.solve(lower, covariance(hidden, hidden_at))
    mean = np.einsum("nxk,nx->nk", gain, whitened)
    second = covariance(hidden_at, hidden_at) - np.einsum("nxk,nxl->nkl", gain, gain) + mean[:, :, None] * mean[:, None]
    diagonal = np.diagonal(lower, axis1=1, axis2=2)
    weight = np.exp(-np.sum(whitened**2, 1) / 2 - np.sum(np.log(diagonal), 1))
    weight /= weight.sum()
    centre = weight @ mean
    spread = np.tensordot(weight, second, 1) - np.outer(centre, centre)
    sd = np.sqrt(np.diag(spread))
    return centre, sd, spread / np.outer(sd, sd)


def test_the_moments_of_the_network_are_reproduced():
    # Standard errors with 2e7 draws are 1e-5 (means, deviations) and 5e-5 (correlations): 20 times that with 5e4.
    mean, sd, correlation = network_moments(50_000, seed=3)
    np.testing.assert_allclose(mean, NETWORK_MEAN, atol=5 * 2.2e-4)
    np.testing.assert_allclose(sd, NETWORK_SD, atol=5 * 2.5e-4)
    np.testing.assert_allclose(correlation, NETWORK_CORRELATION, atol=5 * 1e-3)
    # Draws by rejection (1.7e-3 of proposals): 0.0315, 0.3084, 0.2010, 0.1352 and 0.1551, 0.1524, 0.1759, 0.3010.
    np.testing.assert_allclose(NETWORK_MEAN, [0.0315, 0.3084, 0.2010, 0.1352], atol=5 * 0.0012)
    np.testing.assert_allclose(NETWORK_SD, [0.1551, 0.1524, 0.1759, 0.3010], atol=5 * 0.0012)


def test_the_network_target_predicts_like_its_posterior():
    target = TARGETS["network"]()
    theta = np.random.default_rng(0).normal(size=(3, 49)).astype(np.float32)
    u, a, v, b = (theta[:, i : i + 16] for i in (0, 16, 32, 48))
    expected = b + np.stack([np.sum(v / 4 * np.tanh(2 * u * x + 2 * a), 1) for x in NETWORK_AT], 1)
    np.testing.assert_allclose(target.look(theta), expected, rtol=1e-5)
    x, y = target.posterior.data
    outputs = b + np.stack([np.sum(v / 4 * np.tanh(2 * u * point + 2 * a), 1) for point in x], 1)
    result = jax.vmap(target.posterior.log_likelihoods)(theta)
    np.testing.assert_allclose(result, -((y - outputs) ** 2) / (2 * NOISE**2), rtol=2e-4)
    np.testing.assert_allclose(jax.vmap(target.posterior.log_prior)(theta), -np.sum(theta**2, 1) / 2, rtol=1e-5)


# ---- the statistics ------------------------------------------------------------------------------


def exact_draws(name: str, chains: int, draws: int, seed: int) -> np.ndarray:
    target = TARGETS[name]()
    rng = np.random.default_rng(seed)
    if name == "skewed":
        return np.log(rng.exponential(size=(chains, draws, 1)))
    return rng.multivariate_normal(target.mean, target.covariance, size=(chains, draws))


def failures(rows: list[Row]) -> set[str]:
    return {row.statistic for row in rows if not row.passed}


@pytest.mark.parametrize("name", ["gaussian", "correlated-gaussian", "tempered", "skewed", "regression"])
def test_independent_draws_pass_and_disturbed_ones_are_named_with_size_and_sign(name):
    target = TARGETS[name]()
    draws = exact_draws(name, 256, 400, seed=5)
    assert failures(statistics(draws, target, 1e-7)) == set()
    wide = statistics(target.mean + 1.1**0.5 * (draws - target.mean), target, 1e-7)
    assert failures(wide) == {"variance"}
    for row in wide:
        if row.statistic == "variance":
            assert row.effect == pytest.approx(0.1, abs=0.03)
            assert row.bias.startswith("variance +")
    moved = statistics(draws - 0.1 * target.sd, target, 1e-7)
    assert failures(moved) == {"mean"}
    for row in moved:
        assert row.statistic != "mean" or row.effect == pytest.approx(-0.1, abs=0.03)


def test_a_lost_correlation_is_seen_and_nothing_else():
    target = TARGETS["correlated-gaussian"]()
    draws = target.mean + target.sd * np.random.default_rng(0).normal(size=(128, 100, 2))
    rows = statistics(draws, target, 1e-7)
    assert failures(rows) == {"correlation"}
    (row,) = (row for row in rows if not row.passed)
    assert row.effect == pytest.approx(-target.covariance[0, 1] / target.sd.prod(), abs=0.05)


def test_a_shape_with_the_right_moments_is_seen():
    target = TARGETS["gaussian"]()
    half = 3**0.5 * target.sd[0]
    draws = np.random.default_rng(0).uniform(target.mean - half, target.mean + half, size=(8192, 2, 1))
    assert failures(statistics(draws, target, 1e-7)) == {"distribution"}


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_nan_draws_never_pass(broken):
    target = TARGETS["gaussian"]()
    draws = exact_draws("gaussian", 64, 20, seed=1)
    draws[3, 7] = broken
    assert {"mean", "variance"} <= failures(statistics(draws, target, 1e-7))


@pytest.mark.long
def test_the_level_is_kept():
    target = TARGETS["skewed"]()
    rng, alarms = np.random.default_rng(0), dict.fromkeys(["mean", "variance", "distribution"], 0)
    for _ in range(200):
        for row in statistics(np.log(rng.exponential(size=(64, 40, 1))), target, 0.05):
            alarms[row.statistic] += not row.passed
    for count in alarms.values():
        assert stats.binom.sf(count - 1, 200, 0.05) > 1e-6 / 6
        assert stats.binom.cdf(count, 200, 0.05) > 1e-6 / 6


# ---- named wrong samplers ------------------------------------------------------------------------


CALLS = itertools.count()


class State(NamedTuple):
    position: Float[Array, " dim"]
    step_size: Float[Array, ""]


class Langevin(AbstractSampler[Any]):
    """A Langevin proposal, accepted with min(1, exp(power * Delta) * proposal ratio); exact by default."""

    exactness: ClassVar[Any] = "exact"
    step_size: Any = number(1e-4)
    target_acceptance: Any = number(0.574)
    power: float = eqx.field(static=True, default=1.0)
    ratio: bool = eqx.field(static=True, default=True)
    forgets: str = eqx.field(static=True, default="")
    moves: bool = eqx.field(static=True, default=True)
    says: bool = eqx.field(static=True, default=True)

    def init(self, posterior: Any, theta: Any, *, num_warmup: int, key: Any) -> State:
        return State(theta, jnp.asarray(self.step_size))

    def step(self, posterior: Any, state: State, *, key: Any) -> tuple[State, dict[str, Array]]:
        key_propose, key_accept = jax.random.split(key)
        eta, here = state.step_size, state.position
        if self.forgets == "power":
            posterior = dataclasses.replace(posterior, likelihood_power=np.float32(1))
        forgotten = posterior.log_prior if self.forgets == "prior" else lambda theta: jnp.zeros(())
        value = jax.value_and_grad(lambda theta: posterior.log_density(theta) - forgotten(theta))
        if self.forgets == "key":
            key = jax.random.key(jax.lax.bitcast_convert_type(here[0], jnp.uint32))
            key_propose, key_accept = jax.random.split(key)
        if self.forgets == "JAX":
            shape = jax.ShapeDtypeStruct((), jnp.uint32)
            seed = jax.pure_callback(lambda _: np.uint32(next(CALLS)), shape, here, vmap_method="sequential")
            key_propose, key_accept = jax.random.split(jax.random.key(seed))
        (lp, gradient) = value(here)
        proposal = here + eta * gradient + jnp.sqrt(2 * eta) * jax.random.normal(key_propose, here.shape)
        lp_there, gradient_there = value(proposal)
        forward = jnp.sum((proposal - here - eta * gradient) ** 2)
        back = jnp.sum((here - proposal - eta * gradient_there) ** 2)
        log_ratio = self.power * (lp_there - lp) + self.ratio * (forward - back) / (4 * eta)
        rate = jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0.0)) * self.moves
        accepted = jax.random.uniform(key_accept) < rate
        position = jnp.where(accepted, proposal, here)
        return State(position, eta), {"acceptance_rate": rate, **({"accepted": accepted} if self.says else {})}


def only_variance(report: SamplerReport, target: str) -> Row:
    return next(row for row in report.rows if row.target == target and row.statistic == "variance")


@pytest.mark.long
def test_the_kernel_that_the_wrong_ones_are_made_from_passes():
    report = check_sampler(Langevin(), targets=ONE_DIMENSION)
    assert report.passed, str(report)
    assert all(outcome.state == "tested" for outcome in report.outcomes)
    for row in report.rows:
        assert row.statistic == "distribution" or row.resolution < 0.08
        assert abs(row.z) < row.threshold - 1


WRONG = {
    "ignores the proposal ratio": (Langevin(ratio=False), -1, 0.0),
    "accepts with exp(-delta/2)": (Langevin(power=0.5), 1, 1.0),
    "variance 10 % too large": (Langevin(power=1 / 1.1), 1, 0.1),
    "no penalty": (Penalty(correction=0, batch_size=5, num_batches=20, sampling="replacement"), 1, 0.0),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "no penalty" else name for name in WRONG]
)
def test_a_wrong_sampler_fails_with_the_sign_of_its_bias(name):
    sampler, sign, size = WRONG[name]
    report = check_sampler(sampler, targets=["gaussian"])
    assert not report.passed
    row = only_variance(report, "gaussian")
    assert not row.passed
    assert np.sign(row.effect) == sign
    assert not size or row.effect == pytest.approx(size, rel=0.5)
    assert report.verdict.startswith("biased: gaussian: theta: ")
    assert row.bias in str(report)


@pytest.mark.long
@pytest.mark.parametrize(("forgets", "size"), [("power", -0.6), ("prior", 1.0)])
def test_a_sampler_that_forgets_the_power_or_the_prior_fails(forgets, size):
    """The target `tempered` is needed: with power 1 and many data, both mistakes have nearly no effect."""
    assert check_sampler(Langevin(forgets=forgets), targets=["gaussian"]).passed
    report = check_sampler(Langevin(forgets=forgets), targets=["tempered"])
    assert only_variance(report, "tempered").effect == pytest.approx(size, rel=0.3)
    assert not report.passed


@pytest.mark.long
@pytest.mark.parametrize(
    ("forgets", "message"), [("key", "with different keys are equal"), ("JAX", "with the same key differ")]
)
def test_randomness_outside_the_key_is_found(forgets, message):
    report = check_sampler(Langevin(forgets=forgets), targets=["gaussian"], chains=32, draws=128)
    assert not report.passed
    assert message in report.verdict


@pytest.mark.long
def test_a_frozen_sampler_fails_with_or_without_reporting_it():
    silent = check_sampler(Langevin(moves=False, says=False), targets=["gaussian"], warmup=45, draws=256)
    assert not silent.passed
    assert only_variance(silent, "gaussian").effect > 2
    honest = check_sampler(Langevin(moves=False), targets=["gaussian"], warmup=45, draws=256)
    assert not honest.passed
    assert re.search("no proposal was accepted in [0-9]+ steps", honest.verdict)
    assert honest.outcomes[0].state == "stopped"


def test_too_few_draws_decide_nothing():
    report = check_sampler(Langevin(), targets=["gaussian"], draws=128, chains=32)
    assert report.outcomes[0].state == "undecided"
    assert all(row.passed for row in report.rows)
    assert not report.passed
    assert "mix too slowly" in report.verdict
    # The false-alarm level is divided among three two-sided tests over 32 chains.
    assert [row.statistic for row in report.rows] == ["mean", "variance", "distribution"]
    expected = [stats.t.isf(LEVEL / 3 / 2, 31)] * 2 + [stats.kstwo.isf(LEVEL / 3, 32) * 32**0.5]
    assert [row.threshold for row in report.rows] == pytest.approx(expected)
    counts = {name: _num_tests(TARGETS[name]()) for name in ("skewed", *LARGER)}
    assert counts == {"skewed": 3, "correlated-gaussian": 7, "regression": 12, "network": 14}
    assert LEVEL == 1e-6


# ---- what the report says ------------------------------------------------------------------------


def test_an_inapplicable_target_does_not_count_as_passed():
    report = check_sampler(Penalty(batch_size=50, num_batches=20), targets=["skewed", "network"])
    assert not report.passed
    assert report.rows == ()
    assert {outcome.state for outcome in report.outcomes} == {"not applicable"}
    assert "a step uses 2000 rows" in str(report)
    disjoint = check_sampler(Penalty(batch_size=50, num_batches=20, sampling="disjoint"), targets=["regression"])
    assert "must be at most 200" in disjoint.outcomes[0].reason


@pytest.mark.parametrize("name", LARGER)
def test_a_long_trajectory_over_all_data_needs_no_larger_target(name):
    assert _not_applicable(Mams(num_steps=512), TARGETS[name]()) == ""


@pytest.mark.long
def test_assert_exact_raises_with_the_table():
    assert_exact(RandomWalk(), targets=["skewed"])
    with pytest.raises(AssertionError, match=r"biased: gaussian: theta: [\s\S]*estimate +truth"):
        assert_exact(Langevin(power=0.5), targets=["gaussian"])


@pytest.mark.long
def test_the_same_seed_gives_the_same_report():
    reports = (check_sampler(RandomWalk(), targets=["skewed"], draws=200, seed=seed) for seed in (0, 0, 1))
    first, two, other = (report.rows for report in reports)
    assert first == two
    assert first != other


@pytest.mark.parametrize(
    ("wrong", "message"), [({"targets": ["moon"]}, "use one of gaussian"), ({"chains": 8}, ">= 32")]
)
def test_wrong_usage(wrong, message):
    with pytest.raises(UsageError, match=message):
        check_sampler(Mala(), **wrong)


# ---- the command ---------------------------------------------------------------------------------


def test_command_passes_and_prints_the_table(capsys):
    assert cli.run(["check", "sampler", "random-walk", "--target", "skewed"]) == 0
    out, err = capsys.readouterr()
    assert re.split(" +", out.splitlines()[0])[:5] == ["target", "quantity", "statistic", "estimate", "truth"]
    assert out.splitlines()[-1].startswith("passed: 1 target;")
    assert any(line.startswith("bnnzoo: skewed") and line.endswith("passed") for line in err.splitlines())


def test_command_fails_with_code_3_and_json(capsys):
    arguments = ["check", "sampler", "random-walk", "--target", "gaussian", "--target", "skewed", "--json", "--quiet"]
    assert cli.run([*arguments, "--sampler.step-size", "1e-4", "--warmup", "0", "--draws", "200"]) == 3
    out, err = capsys.readouterr()
    assert err.startswith("bnnzoo: sampler random-walk: biased: gaussian: theta: variance +")
    assert len(err.splitlines()) == 1
    report = json.loads(out)
    assert (report["sampler"], report["passed"], report["chains"]) == ("random-walk", False, 128)
    assert [target["state"] for target in report["targets"]] == ["tested", "tested"]
    assert not any(row["passed"] for row in report["rows"] if row["statistic"] == "variance")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'NAME'; try bnnzoo check sampler --help"),
        (["nut"], "no sampler named 'nut'; did you mean nuts?"),
        (["nuts", "--sed", "1"], "No such option: --sed (did you mean --seed?); try bnnzoo check sampler --help"),
        (["nuts", "--chains", "3"], "--chains: must be >= 32 (got 3)"),
        (["nuts", "--sampler.step-size", "-1"], "--sampler.step-size: must be > 0 (got -1.0)"),
        (["nuts", "--target", "moon"], "unknown target 'moon'; use one of gaussian"),
    ],
)
def test_command_used_wrongly_is_one_line(arguments, message, capsys):
    assert cli.run(["check", "sampler", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


# ---- every registered sampler --------------------------------------------------------------------


UNSEEN = ("confidence", "minibatch-barker")
"""Samplers whose known bias is too small for a check.

The bound of one uses most rows; the chains of the other mix so slowly that a bias of 10 % would not be detected.
"""


TESTED = {"rejection": {"network"}, "mams": set(LARGER)}
"""Targets of exact samplers that do not support all of them.

On the other targets, draws of the prior are useless or the likelihood has no bound (`rejection`), or there is only one
parameter (`mams`).
"""
UNDECIDED = {"minibatch-barker": {"network"}}
"""Samplers whose chains mix so slowly that a check may be undecided."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(registry.entries("samplers")))
def test_registered_samplers_have_their_declared_exactness(name):
    entry = registry.find("samplers", name)
    # The default curvature of Laplace needs the outputs of a network, which most targets do not have. It is exact for
    # linear regression.
    settings = {"curvature": "hessian", "predictive": "network"} if name == "laplace" else {}
    report = check_sampler(registry.load("samplers", name)(**settings))
    undecided = {outcome.target for outcome in report.outcomes if outcome.state == "undecided"}
    nothing_found = all(row.passed for row in report.rows)
    if name == "mclmc":
        # The variances on the network are 3 to 5 % too small, which is about the limit of detection.
        off = [row for row in report.rows if not row.passed]
        assert all(row.target == "network" and -0.1 < row.effect < 0 for row in off), str(report)
    else:
        assert nothing_found == (entry.exactness in ("exact", "noise-corrected") or name in UNSEEN), str(report)
    assert report.passed == (nothing_found and not undecided)
    if nothing_found:
        assert undecided <= UNDECIDED.get(name, set())
    if entry.exactness == "exact":
        tested = {outcome.target for outcome in report.outcomes if outcome.state == "tested"}
        assert tested == TESTED.get(name, set(TARGETS))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), list(itertools.product(WRONG, [1, 2, 3])))
def test_wrong_samplers_fail_with_any_seed(kind, seed):
    assert not check_sampler(WRONG[kind][0], targets=["gaussian"], seed=seed).passed
