"""The penalty's guard: rows that steps miss, separate tests of each chain, and samplers without a guard."""

from __future__ import annotations

import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from gaussian_mean import GaussianMean
from scipy import special, stats
from test_row_probabilities import OneRow, settle_chains

from bnnzoo.api import entrances
from bnnzoo.finding import Finding, sentence
from bnnzoo.plugins import registry
from bnnzoo.samplers import Batched, Nuts, Penalty, Sgld
from bnnzoo.samplers.subsampled import influence
from bnnzoo.samplers.subsampled.regime import MAX_SHIFT, MAX_UNSEEN
from bnnzoo.sampling import chain_findings

# ---- the effective contribution of a row ---------------------------------------------------------

DIFFERENCES = np.array([-3.0, -0.4, -1e-3, 1e-3, 0.05, 0.4, 3.0])


def test_the_effective_contribution_of_a_row_is_its_odd_part_over_its_probability():
    """The expected values are sums over the number of times that the row is drawn."""
    probability = 0.3
    times = np.arange(60)

    def expected(b: np.ndarray, chance: np.ndarray, paid: float) -> np.ndarray:
        """Return log E exp(n (b - paid b^2 / 2)), where n is the number of times that the row is drawn."""
        each = b[:, None] - paid * b[:, None] ** 2 / 2
        return special.logsumexp(np.log(chance) + times[: len(chance)] * each, axis=1)

    b = DIFFERENCES / probability
    poisson, either = stats.poisson.pmf(times, probability), np.array([1 - probability, probability])
    for chance, paid, disjoint in ((poisson, 1.0, False), (either, 1 - probability, True)):
        odd = (expected(b, chance, paid) - expected(-b, chance, paid)) / 2
        result = influence.effective_contribution(jnp.asarray(DIFFERENCES), probability, disjoint=disjoint)
        np.testing.assert_allclose(result, odd, rtol=2e-4, atol=1e-7)


def test_a_step_on_all_rows_sees_them_all():
    d = jnp.asarray(DIFFERENCES)
    np.testing.assert_allclose(influence.effective_contribution(d, 1.0, disjoint=True), d, rtol=1e-5)
    # With replacement this holds for rows that are drawn often. A row drawn once in 1000 steps contributes nothing.
    # The tolerance is 1e-3 because float32 loses digits of exponentials near one.
    np.testing.assert_allclose(influence.effective_contribution(d, 1e3, disjoint=False), d, rtol=1e-3, atol=3e-5)
    assert (
        np.abs(np.asarray(influence.effective_contribution(d, 1e-3, disjoint=False))[np.abs(DIFFERENCES) > 0.01]).max()
        < 1e-3
    )


# ---- a row that dominates a weight ---------------------------------------------------------------


class Unlucky(OneRow):
    """Data whose mini-batches never contain the rows that dominate a weight."""

    def minibatch(self, size: int, *, replace: bool = True, key: Any) -> Any:
        assert replace
        return self.take(18 + jax.random.randint(key, (size,), 0, self.num_data - 18))


def _unseen(posterior: OneRow, sampling: str, *, chains: int = 6) -> np.ndarray:
    """Return the final inspection of chains that start at exact draws."""
    mean, covariance = posterior.exact
    sampler, state, _ = settle_chains(sampling, posterior)
    starts = np.random.default_rng(1).multivariate_normal(mean, covariance, size=chains)

    @eqx.filter_jit
    def look(start, key):
        return sampler.inspect(posterior, eqx.tree_at(lambda s: s.position, state, start), key=key)["unseen"]

    return np.asarray(jax.vmap(look)(jnp.asarray(starts, jnp.float32), jax.random.split(jax.random.key(5), chains)))


@pytest.mark.parametrize("kind", [OneRow, Unlucky])
def test_a_row_missed_by_the_batches_is_found(kind):
    """The inspection uses all rows, so it detects rows that no mini-batch of the run has drawn."""
    result = _unseen(kind.of(), "replacement")
    assert result.max() > 2 * MAX_UNSEEN
    assert result.mean() > MAX_UNSEEN


@pytest.mark.long
def test_rows_seen_by_the_batches_raise_no_alarm():
    """The value of a single chain counts half, and the mean over chains counts fully."""
    x, y = OneRow.of().data
    ordinary = OneRow((np.column_stack([x[:, 0], np.roll(x[:, 0], 1)]), y))
    for posterior, sampling in ((OneRow.of(), "importance"), (ordinary, "replacement")):
        result = _unseen(posterior, sampling)
        assert result.max() / 2 < MAX_UNSEEN
        assert result.mean() < MAX_UNSEEN


# ---- each chain ----------------------------------------------------------------------------------


def _means(**more: list[float]) -> dict[str, list[float]]:
    means = {"sigma2": 0.2, "step_size": 0.1, "regime_dof": 0.0, "regime_skew": 0.0, "skew_bias": 0.0}
    return {name: [value] * 4 for name, value in {**means, "acceptance_rate": 0.5, "unseen": 0.0}.items()} | more


def test_one_chain_does_not_hide_among_four():
    """The mean sigma2 over the chains is 1.9, within the limit."""
    sampler, posterior = Penalty(batch_size=5, num_batches=20), GaussianMean.of(1000)
    assert chain_findings.gate_findings(sampler, posterior, _means()) == ()
    (finding,) = chain_findings.gate_findings(sampler, posterior, _means(sigma2=[0.2, 7.0, 0.2, 0.2]))
    assert (finding.kind, finding.value, finding.label, finding.chains) == ("sigma2", 7.0, "mean sigma2", (1,))
    assert sentence(finding).startswith("mean sigma2 (chain 1) 7, ")
    (both,) = chain_findings.gate_findings(sampler, posterior, _means(unseen=[0.3, 0.0, 0.0, 0.4]))
    assert (both.kind, both.value) == ("unseen", 0.4)
    assert both.chains == (0, 3)
    assert "(chains 0, 3) 0.4, " in sentence(both)
    most = {name: [v[0]] * 12 for name, v in _means().items()} | {"sigma2": [7.0] * 10 + [0.2] * 2}
    (ten,) = chain_findings.gate_findings(sampler, posterior, most)
    assert ten.chains == tuple(range(10))
    (of_both,) = chain_findings.combine_findings([(12, [ten]), (12, [])])
    assert (of_both.label, of_both.chains) == (ten.label, ten.chains)
    (every,) = chain_findings.gate_findings(sampler, posterior, _means(sigma2=[7.0] * 4))
    assert (every.label, every.chains) == ("mean sigma2", ())


def test_chains_of_fewer_than_four_hundred_steps_are_judged_together():
    sampler, posterior = Penalty(batch_size=5, num_batches=20), GaussianMean.of(1000)
    first, half = _means(sigma2=[0.2, 7.0, 0.2, 0.2]), _means(sigma2=[2.2, 2.2, 1.7, 2.2])
    assert chain_findings.gate_findings(sampler, posterior, first, num_steps=399) == ()
    assert [finding.value for finding in chain_findings.gate_findings(sampler, posterior, first, num_steps=400)] == [
        7.0
    ]
    (finding,) = chain_findings.gate_findings(sampler, posterior, half, num_steps=399)
    assert (finding.label, finding.value) == ("mean sigma2", pytest.approx(2.075))


def test_a_finding_of_one_chain_has_twice_the_limit():
    """Inspections are noisy: in a correct run one of four chains often exceeds the limit, in a wrong run all do."""
    sampler, posterior, most = Penalty(batch_size=5, num_batches=20), GaussianMean.of(1000), MAX_UNSEEN
    means = {name: values for name, values in _means().items() if name != "unseen"}

    def findings_of(*unseen: float) -> tuple[Finding, ...]:
        return chain_findings.gate_findings(
            sampler, posterior, means, inspection={"unseen": unseen, "unseen_shift": [0.0] * 4}
        )

    assert findings_of(1.5 * most, 0.5 * most, 0.5 * most, 0.5 * most) == ()
    assert [item.kind for item in findings_of(*[1.1 * most] * 4)] == ["unseen"]
    assert findings_of(2.5 * most, 0.0, 0.0, 0.0)[0].chains == (0,)


def test_the_estimate_from_all_rows_replaces_the_mini_batch_estimate():
    """Heavy tails of harmless rows cause sample skewness, but no shift in the estimate from all rows."""
    sampler, posterior = Penalty(batch_size=5, num_batches=20), GaussianMean.of(1000)
    means = _means(skew_bias=[0.03] * 4)
    assert [item.kind for item in chain_findings.gate_findings(sampler, posterior, means)] == ["skewness"]
    assert chain_findings.gate_findings(sampler, posterior, means, inspection={"unseen_shift": [0.1] * 4}) == ()
    shifted = chain_findings.gate_findings(sampler, posterior, means, inspection={"unseen_shift": [1.0] * 4})
    assert [item.kind for item in shifted] == ["shift"]
    assert chain_findings.gate_findings(sampler, posterior, means, inspection={"unseen_shift": [float("nan")] * 4})


class Outliers(OneRow):
    """Ordinary features, and a few rows with twenty times the noise."""

    @classmethod
    def of(cls, num_data: int = 2000, size: float = 20.0) -> Outliers:
        rng = np.random.default_rng(6)
        x, noise = rng.normal(size=(num_data, 2)), rng.normal(size=num_data)
        noise[:8] *= size
        return cls((x.astype(np.float32), (x @ [0.5, 1.0] + noise).astype(np.float32)))


@pytest.mark.slow
def test_outliers_shift_the_mean_by_the_reported_amount():
    """The measured shift of the chains' mean is compared with the prediction of one inspection of all rows."""
    results = {}
    for size in (1.0, 20.0):
        posterior = Outliers.of(size=size)
        mean, covariance = posterior.exact
        sampler, state, factor = settle_chains("replacement", posterior)
        starts = np.random.default_rng(1).multivariate_normal(mean, covariance, size=256).astype(np.float32)

        @eqx.filter_jit
        def walked(start, key, sampler=sampler, posterior=posterior, state=state):
            def step(state, key):
                state, _ = sampler.step(posterior, state, key=key)
                return state, state.position

            at = eqx.tree_at(lambda s: s.position, state, start)
            last, positions = jax.lax.scan(step, at, jax.random.split(key, 1500))
            return jnp.mean(positions[500:], 0), sampler.inspect(posterior, last, key=key)["unseen_shift"]

        means, shifts = jax.vmap(walked)(jnp.asarray(starts), jax.random.split(jax.random.key(2), len(starts)))
        whitened = np.linalg.solve(np.asarray(factor, float), np.asarray(means, float).mean(0) - mean)
        results[size] = float(np.linalg.norm(whitened)), float(np.mean(shifts))
    ordinary, outlying = results[1.0], results[20.0]
    assert max(ordinary) < MAX_SHIFT / 2
    assert min(outlying) > MAX_SHIFT
    assert 0.5 < outlying[1] / outlying[0] < 2


def test_totals_are_kept_by_chain():
    totals: chain_findings.Totals = {}
    for values in (np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])):
        chain_findings.add_totals(totals, {"sigma2": values})
    assert totals == {"sigma2": [8.0, 13.0]}
    assert json.loads(json.dumps(totals)) == totals


# ---- samplers without a guard --------------------------------------------------------------------


def test_only_guarded_samplers_report_a_valid_regime():
    wrong = (Finding("validity", "sigma2", "mean sigma2", 7.0, 2.0),)
    assert chain_findings.regime_ok(Penalty(), ()) == 1
    assert chain_findings.regime_ok(Penalty(), wrong) == 0
    for sampler in (Penalty(correction=0), Batched(), Sgld(), Nuts()):
        assert chain_findings.regime_ok(sampler, ()) == "not-applicable"
    with_guard = {name for name in registry.entries("samplers") if registry.load("samplers", name)().guarded}
    assert with_guard == {"penalty", "swag", "importance"}


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["sgld", "batched"])
def test_a_run_without_a_guard_says_so(sampler, tmp_path):
    run = entrances.run_recipe(tiny.recipe(sampler, draws=8, warmup=4, chains=2), out=tmp_path / "run.nc")
    assert run.attributes["regime_ok"] == "not-applicable"
    assert run.summary()["regime_ok"] == "not-applicable"
    diagnosis = run.diagnose()
    assert diagnosis["regime_ok"] == "not-applicable"
    if sampler == "sgld":
        assert len(json.loads(run.attributes["inspected"])["variance_ratio"]) == 2
        assert diagnosis["variance_ratio"] > 1
        assert diagnosis["variance_ratio_se"] > 0
