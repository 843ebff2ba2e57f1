"""Samplers on batches: thresholds, constants and shortcuts, each tested at its limit."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_mean import GaussianMean, NormalPrior
from parabolas import Flat, Parabolas, of_size, parabolas
from scipy import linalg
from test_gradient_bias import _ubu
from test_row_probabilities import OneRow, settle_chains

from bnnzoo.errors import UsageError
from bnnzoo.finding import spell_settings
from bnnzoo.posterior.layout import Block, Layout
from bnnzoo.samplers import Batched, Mala, Penalty, Psgld, RandomWalk, Sghmc, Sgld, SmsUbu, Swag
from bnnzoo.samplers.common import gradient_noise
from bnnzoo.samplers.common import preconditioner as _preconditioner
from bnnzoo.samplers.common.control_variate import drift_estimator, make_anchor, next_anchor, refuse_large
from bnnzoo.samplers.mcmc import mala, random_walk
from bnnzoo.samplers.sgmcmc import sms_ubu
from bnnzoo.samplers.subsampled import influence as _influence
from bnnzoo.samplers.subsampled import metropolis, row_probabilities
from bnnzoo.samplers.subsampled.noise_penalty import estimate_difference
from bnnzoo.sampling.devices import jax_settings

ONE, KEY = jnp.ones(()), jax.random.key(0)

# ---- the noise penalty ---------------------------------------------------------------------------


def test_a_step_on_all_rows_reports_the_density_of_the_kept_position():
    posterior = parabolas([0.3, 0.5, 1.0, 0.2], [1.0, -1.0, 0.5, 2.0], power=0.5)
    for proposal, row_counts in (("random-walk", {True, False}), ("hmc", {True, False})):
        sampler = Penalty(step_size=1.6, num_steps=1, proposal=proposal, preconditioner="identity")
        state = sampler.init(posterior, jnp.asarray([0.4]), num_warmup=0, key=KEY)
        step = jax.vmap(lambda key, s=sampler, at=state: s.step(posterior, at, key=key))
        states, statistics = jax.jit(step)(jax.random.split(jax.random.key(1), 40))
        expected = jax.vmap(posterior.log_density)(states.position)
        np.testing.assert_allclose(statistics["lp_estimate"], expected, rtol=1e-4, atol=1e-5)
        assert set(np.asarray(statistics["accepted"]).tolist()) == row_counts


def test_rows_drawn_by_their_influence_estimate_the_density_without_bias():
    """The chain stays in place, and `lp_estimate` is averaged over many batches."""
    posterior = parabolas([0.3, 5.0, 1.0, 0.2], [1.0, -1.0, 0.5, 2.0])
    sampler = Penalty(step_size=0.0001, batch_size=2, num_batches=50, sampling="importance", proposal="random-walk")
    state = sampler.init(posterior, jnp.asarray([0.4]), num_warmup=0, key=KEY)
    rows = row_probabilities.update_probabilities(state.rows, jnp.asarray([1.0, 8.0, 2.0, 0.5]))
    state = eqx.tree_at(lambda s: s.rows, state, rows)
    step = jax.jit(jax.vmap(lambda key: sampler.step(posterior, state, key=key)[1]["lp_estimate"]))
    result = np.asarray(step(jax.random.split(jax.random.key(1), 2000)), float)
    error = result.std() / len(result) ** 0.5
    assert abs(result.mean() - float(posterior.log_density(state.position))) < 4.89 * error + 1e-3
    assert error < 0.02


@pytest.mark.long
def test_an_hmc_proposal_takes_any_number_of_steps_up_to_its_most():
    posterior = parabolas([1.0] * 4, [0.0] * 4)
    sampler = Penalty(proposal="hmc", num_steps=3)
    state = sampler.init(posterior, jnp.asarray([0.4]), num_warmup=0, key=KEY)
    step = jax.jit(jax.vmap(lambda key: sampler.step(posterior, state, key=key)[1]["n_steps"]))
    assert set(np.asarray(step(jax.random.split(jax.random.key(1), 60))).tolist()) == {1, 2, 3}
    langevin = Penalty(proposal="langevin")
    assert int(langevin._propose(posterior, state, key=KEY)[2]) == 1
    assert "n_steps" not in langevin.step(posterior, state, key=KEY)[1]
    assert int(Penalty(proposal="random-walk")._propose(posterior, state, key=KEY)[2]) == 0


def test_the_headroom_of_a_penalised_step():
    sampler = Penalty(target_acceptance=0.5, target_sigma2=2.0)

    def headroom(rate: float, sigma2: float) -> Any:
        return sampler.headroom({"acceptance_rate": jnp.asarray(rate), "sigma2": jnp.asarray(sigma2)})

    np.testing.assert_allclose(headroom(0.6, 1.0), [0.2, 0.5], rtol=1e-5)
    np.testing.assert_allclose(headroom(0.25, 18.0), [-0.5, -8.0], rtol=1e-5)
    for much in (22.0, 1e9, float("inf"), float("nan")):
        np.testing.assert_allclose(headroom(0.5, much), [0.0, -9.0], atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "num_data", "message"),
    [
        ({"batch_size": 5, "num_batches": 2, "sampling": "disjoint"}, 10, ""),
        (
            {"batch_size": 5, "num_batches": 2, "sampling": "disjoint"},
            9,
            r"must be at most 9, the number of rows \(got 10\)",
        ),
        ({"batch_size": 5, "num_batches": 2, "sampling": "replacement"}, 9, ""),
        ({"batch_size": 10, "num_batches": 1, "variance": "batch-means", "sampling": "disjoint"}, 10, ""),
        ({"batch_size": 9, "num_batches": 1, "variance": "batch-means", "sampling": "disjoint"}, 10, "at least 2"),
        ({"batch_size": 10, "num_batches": 1, "variance": "batch-means", "sampling": "replacement"}, 10, "at least 2"),
        ({"batch_size": 3, "num_batches": 2, "variance": "batch-means"}, 10, ""),
        ({"batch_size": 2, "num_batches": 1, "sampling": "replacement"}, 10, ""),
        ({"batch_size": 1, "num_batches": 1, "sampling": "replacement"}, 10, "no estimate of sigma2"),
    ],
)
def test_only_impossible_batch_sizes_are_refused(fields, num_data, message):
    posterior = GaussianMean(np.zeros(num_data))
    if not message:
        return Penalty(**fields).check(posterior)
    with pytest.raises(UsageError, match=message):
        Penalty(**fields).check(posterior)
    return None


def test_the_cost_of_a_penalised_step_counts_likelihood_evaluations():
    posterior, sizes = GaussianMean(np.zeros(1000)), {"batch_size": 5, "num_batches": 2}

    def cost(means: dict[str, float], **fields: Any) -> float:
        return Penalty(**sizes, **fields).evaluations(posterior, means)

    assert cost({"n_steps": 4.0}) == 20
    assert cost({}, control_variate="first") == 30
    assert cost({}, control_variate="second", proposal="hmc") == 40
    assert cost({}, proposal="langevin") == 40
    assert cost({"n_steps": 4.0}, proposal="hmc") == 70
    assert cost({"n_steps": 4.0}, proposal="hmc", control_variate="first") == 90


def test_hmc_is_the_default_proposal_if_the_budget_covers_two_thousand_rows():
    assert Penalty(budget=2000).resolved_proposal(2000) == "hmc"
    assert Penalty(budget=1999).resolved_proposal(2000) == "random-walk"
    assert Penalty(budget=1999).resolved_proposal(1999) == "hmc"
    assert Penalty(batch_size=50).resolved_proposal(100) == "random-walk"
    assert Penalty(sampling="disjoint").resolved_proposal(100) == "random-walk"
    assert Penalty(control_variate="first").resolved_proposal(100) == "random-walk"


def test_findings_tell_a_tuned_step_size_from_a_given_one():
    """A step size counts as tuned if it differs from the given one by more than a ten-thousandth."""
    posterior = GaussianMean(np.zeros(10**6))
    means = {"sigma2": 7.0, "regime_dof": 0.0, "regime_skew": 0.0, "skew_bias": 0.0, "acceptance_rate": 0.5}

    def advice(step_size: float, **fields: Any) -> str:
        sampler = Penalty(batch_size=50, num_batches=20, step_size=0.5, **fields)
        (finding,) = sampler.findings(posterior, {**means, "step_size": step_size})
        return spell_settings(finding.advice, "options")

    for step_size in (0.5, 0.50004, 0.49996):
        assert advice(step_size).startswith("use --sampler.num-batches")
    for step_size in (0.50007, 0.49993):
        assert advice(step_size).startswith("use --sampler.target-sigma2")
    assert advice(0.5).endswith(f"--sampler.step-size {0.5 * (7 / 1.5) ** -0.5:.2g}")
    assert advice(0.5, proposal="langevin").endswith(f"--sampler.step-size {0.5 / (7 / 1.5):.2g}")
    assert Batched().findings(posterior, means) == ()


def test_findings_depend_on_the_settings_of_the_sampler(monkeypatch):
    """`regime` receives the sampler's own settings, so that its advice is for this sampler."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(metropolis, "regime", lambda means, sizes, **more: calls.append({"sizes": sizes, **more}) or ())
    plain = {"sizes": (50, 20, False), "num_data": 5000, "budget": 10_000, "tuned": False, "target_sigma2": 1.5}
    plain |= {"pooled": True, "langevin": False, "importance": False}
    for fields, other in (
        ({}, {}),
        ({"budget": 700}, {"budget": 700}),
        ({"target_sigma2": 0.5}, {"target_sigma2": 0.5}),
        ({"variance": "batch-means"}, {"pooled": False}),
        ({"proposal": "langevin"}, {"langevin": True}),
        ({"proposal": "hmc"}, {}),
        ({"sampling": "importance"}, {"importance": True}),
        ({"sampling": "disjoint", "batch_size": 30, "num_batches": 4}, {"sizes": (30, 4, True)}),
    ):
        Penalty(step_size=0.1, **fields).findings(GaussianMean(np.zeros(5000)), {"step_size": 0.1})
        assert calls[-1] == plain | other


def _tuned(sampler: Penalty, posterior: Any, sigma2: float, acceptance: float, *, final: bool = False) -> Penalty:
    state = sampler.init(posterior, jnp.zeros(1), num_warmup=9, key=KEY)
    stats = {"sigma2": jnp.asarray(sigma2), "acceptance_rate": jnp.asarray(acceptance), "skew_bias": jnp.zeros(())}
    state = eqx.tree_at(lambda s: s.seen, state, state.seen.with_step(stats, jnp.asarray(15.0)))
    result, states = sampler.tune(posterior, jax.tree.map(lambda a: a[None], state), final=final, key=KEY, num_steps=1)
    assert (float(states.seen.count[0]) == 0) == (not final)
    return result  # type: ignore[return-value]


def test_warm_up_chooses_only_the_sizes_left_open():
    """Too little noise reduces the batch; a proposal with gradients of the batch doubles it instead."""
    posterior = GaussianMean(np.zeros(100_000))
    assert _tuned(Penalty(), posterior, 0.001, 0.5).plan(100_000)[:2] == (4, 20)
    assert _tuned(Penalty(proposal="langevin"), posterior, 0.001, 0.5).plan(100_000)[:2] == (128, 20)
    anchored_there = Penalty(proposal="langevin", control_variate="first")
    assert _tuned(anchored_there, posterior, 0.001, 0.5).plan(100_000)[:2] == (4, 20)
    fixed_sampler = Penalty(batch_size=100)
    assert _tuned(fixed_sampler, posterior, 0.001, 0.5).plan(100_000)[:2] == (100, 1)
    assert _tuned(Penalty(batch_size=100, variance="batch-means"), posterior, 0.001, 0.5).plan(100_000)[:2] == (100, 2)
    fixed = Penalty(batch_size=40, num_batches=3)
    state = jax.tree.map(lambda a: a[None], fixed.init(posterior, jnp.zeros(1), num_warmup=9, key=KEY))
    assert fixed.tune(posterior, state, final=True, key=KEY, num_steps=1)[0] is fixed
    last = _tuned(Penalty(), posterior, 0.001, 0.5, final=True)
    assert (last.batch_size, last.num_batches, last.sampling, last.proposal) == (50, 20, "replacement", "random-walk")
    assert _tuned(Penalty(sampling="importance"), posterior, 0.001, 0.5, final=True).sampling == "importance"


def test_chains_share_their_rows_before_the_last_window():
    posterior, sampler = GaussianMean(np.zeros(4)), Penalty(batch_size=2, num_batches=2, sampling="importance")
    state = sampler.init(posterior, jnp.zeros(1), num_warmup=9, key=KEY)
    looks = ([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0])
    probabilities = [row_probabilities.update_probabilities(state.rows, jnp.asarray(look)) for look in looks]
    each = [eqx.tree_at(lambda s: s.rows, state, rows) for rows in probabilities]
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    own = [[0.625, 0.125, 0.125, 0.125], [0.125, 0.625, 0.125, 0.125]]
    for final, expected in ((False, [[0.375, 0.375, 0.125, 0.125]] * 2), (True, own)):
        _, after = sampler.tune(posterior, states, final=final, key=KEY, num_steps=1)
        np.testing.assert_allclose(jax.vmap(lambda rows: rows.probabilities)(after.rows), expected, rtol=1e-5)


def test_a_step_of_warm_up_counts_no_more_noise_than_ten_times_what_it_aims_at():
    posterior = GaussianMean.of(1000)
    sampler = Penalty(step_size=2.0, batch_size=5, num_batches=2, target_sigma2=0.5, proposal="random-walk")
    state = sampler.init(posterior, jnp.asarray([5.0]), num_warmup=9, key=KEY)
    warm, stats = sampler.warmup_step(posterior, state, key=jax.random.key(1))
    assert float(stats["sigma2"]) > 5
    assert float(warm.seen.sigma2) == pytest.approx(5.0)
    assert float(warm.seen.count) == 1


def test_batches_of_all_rows_have_no_noise_for_any_grouping():
    d = jnp.asarray([0.5, -1.0, 2.0, 4.0])
    for groups in (None, 1, 2):
        estimate = estimate_difference(d, jnp.asarray(0.25), scale=jnp.asarray(4.0), unused_fraction=0.0, groups=groups)
        assert float(estimate.delta) == pytest.approx(-0.25 - 5.5)
        assert (float(estimate.sigma2), float(estimate.skewness)) == (0.0, 0.0)
    estimate = estimate_difference(d, jnp.zeros(()), scale=jnp.asarray(4.0), unused_fraction=1.0, groups=None)
    assert estimate.dof == 3
    assert float(estimate.sigma2) == pytest.approx(16 / 4 * np.var(np.asarray(d), ddof=1), rel=1e-5)
    centred = np.asarray(d) - np.mean(np.asarray(d))
    assert float(estimate.skewness) == pytest.approx(np.mean(centred**3) / np.mean(centred**2) ** 1.5 / 2, rel=1e-4)


# ---- rows ----------------------------------------------------------------------------------------


def test_zero_influence_gives_equal_row_probabilities():
    rows = row_probabilities.update_probabilities(row_probabilities.uniform(4), jnp.asarray([1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(rows.probabilities, [0.625, 0.125, 0.125, 0.125], rtol=1e-5)
    repeat = row_probabilities.update_probabilities(rows, jnp.zeros(4))
    expected = 0.25 + (np.array([0.625, 0.125, 0.125, 0.125]) - 0.25) / 3
    np.testing.assert_allclose(repeat.probabilities, expected, rtol=1e-5)
    assert float(repeat.looks) == 2


def test_effective_contribution_of_frequently_drawn_rows():
    """Log ratios of a row beyond 5 on either side are compared with the definition in float64."""
    for probability, d in ((0.97, [-12.0, -7.0, 5.5, 7.0, 12.0]), (0.3, [-1.2, 1.2]), (0.5, [-3.2, 3.2])):
        b = np.array(d) / probability
        each = [np.log(1 - probability + probability * np.exp(s * b - (1 - probability) * b**2 / 2)) for s in (1, -1)]
        result = _influence.effective_contribution(jnp.asarray(d, jnp.float32), probability, disjoint=True)
        np.testing.assert_allclose(result, (each[0] - each[1]) / 2, rtol=1e-4)


class Walker(eqx.Module):
    """A sampler that moves by one in every step, and proposes another move by one."""

    disjoint: bool = eqx.field(static=True, default=False)

    def plan(self, num_data: int) -> Any:
        return types.SimpleNamespace(num_used=num_data if self.disjoint else 2, disjoint=self.disjoint)

    def step(self, posterior: Any, state: Any, *, key: Any) -> Any:
        return eqx.tree_at(lambda s: s.position, state, state.position + 1.0), {}

    def _propose(self, posterior: Any, state: Any, *, key: Any) -> Any:
        return state.position + 1.0, 0, 0


class _At(eqx.Module):
    position: Any
    anchor: Any
    rows: Any
    preconditioner: Any


def at(theta: list[float], anchor: Any = None) -> Any:
    position = jnp.asarray(theta)
    return _At(position, anchor, None, _preconditioner.identity("identity", position))


@pytest.mark.long
def test_a_look_is_at_eight_proposals_and_the_last_one_at_sixteen_with_steps_between(monkeypatch):
    posterior = parabolas([1.0, 0.0], [0.0, 0.0], power=0.5)
    influence = _influence.row_influence(Walker(), posterior, at([1.0]), steps_between=0, key=KEY)
    np.testing.assert_array_equal(influence.positions, np.ones((8, 1)))
    np.testing.assert_allclose(influence.square, [(0.5 * (4 - 1) / 2) ** 2, 0.0], rtol=1e-6)
    counts = []
    look = _influence.row_influence
    monkeypatch.setattr(_influence, "row_influence", lambda *a, **k: counts.append(look(*a, **k)) or counts[-1])
    _influence.unseen_bias(Walker(), posterior, at([0.0]), key=KEY)
    np.testing.assert_array_equal(counts[0].positions[:, 0], 25.0 * np.arange(1, 17))
    everything = _influence.unseen_bias(Walker(disjoint=True), posterior, at([0.0]), key=KEY)
    assert (float(everything["unseen"]), float(everything["unseen_shift"]), len(counts)) == (0.0, 0.0, 2)
    # The number of rows that a step needs is computed from proposals at the last position.
    np.testing.assert_array_equal(counts[1].positions[:, 0], np.zeros(16))
    assert float(everything["rows_needed"]) == pytest.approx(2 * float(np.sum(counts[1].square)), rel=1e-6)
    # The more rows beyond a limit, the fewer proposals; there are at least four.
    for limit, expected in ((1, 8), (0.1, 4), (2, 16), (1000, 16)):
        monkeypatch.setattr(_influence, "MANY_ROWS", limit)
        _influence.unseen_bias(Walker(), posterior, at([0.0]), key=KEY)
        assert len(counts[-1].positions) == expected


@pytest.mark.parametrize(("limit", "expected"), [(2, 16), (1, 8), (1e-6, 4)])
def test_large_networks_have_fewer_proposals_after_the_final_draw(limit, expected, monkeypatch):
    """The posterior has two parameters; the number of parameters beyond which a network is large is lowered here."""
    posterior = OneRow.of()
    assert posterior.layout.dim == 2
    monkeypatch.setattr(_influence, "MANY_ROWS", posterior.num_data)
    monkeypatch.setattr(_influence, "_FEW_PARAMETERS", limit)
    assert _influence.num_final_proposals(posterior) == expected


@pytest.mark.parametrize("dense", [True, False])
def test_the_fisher_matrix_of_many_rows_and_parameters_uses_every_kth_row(dense, monkeypatch):
    """The limit of 400 derivatives is lowered here: 4000 gradients of two parameters need every 20th row."""
    posterior, theta = OneRow.of(), jnp.asarray([0.3, -0.2])
    num_data = posterior.num_data
    exact = _preconditioner._fisher(posterior, theta, dense=dense)
    monkeypatch.setattr(_preconditioner, "_MAX_DERIVATIVES", num_data / 10)
    estimated = _preconditioner._fisher(posterior, theta, dense=dense)
    every_20th = dataclasses.replace(posterior, data=posterior.take(jnp.arange(0, num_data, 20)))
    monkeypatch.undo()
    np.testing.assert_allclose(estimated, 20 * _preconditioner._fisher(every_20th, theta, dense=dense), rtol=1e-5)
    assert not np.allclose(estimated, exact, rtol=1e-3)


class Wall(NormalPrior):
    """The first row has no density beyond 0.5."""

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        return jnp.where((batch == 0) & (theta[0] > 0.5), -jnp.inf, 0.0)


def test_infinite_differences_are_clipped_to_a_finite_square():
    influence = _influence.row_influence(Walker(), Wall(np.float32([0, 1, 2])), at([0.0]), steps_between=0, key=KEY)
    np.testing.assert_allclose(influence.square, [1e20, 0.0, 0.0], rtol=1e-5)
    np.testing.assert_allclose(influence.unseen, [1.0, 0.0, 0.0], atol=1e-6)


def test_batches_without_repeats_lose_rows_too():
    posterior = OneRow.of()
    sampler, state, _ = settle_chains("disjoint", posterior)
    inspection = eqx.filter_jit(lambda: sampler.inspect(posterior, state, key=jax.random.key(3)))()
    assert float(inspection["unseen"]) > 0.1
    assert Penalty(correction=0).inspect(posterior, state, key=KEY) == {}


class Taking(Parabolas):
    """Rows that record how many of them are requested."""

    taken: list = eqx.field(static=True, default_factory=list)

    def take(self, indices: Any) -> Any:
        self.taken.append(len(indices))
        return super().take(indices)


@pytest.mark.parametrize(("num_data", "dim", "known"), [(3, 2, 3), (100, 2, 64), (100, 2**17, 32), (100, 2**21, 4)])
def test_directions_are_made_of_as_many_rows_as_are_affordable(num_data, dim, known):
    posterior = Taking((jnp.ones(num_data), jnp.zeros(num_data)), layout=Layout((Block("theta", (dim,), 0),)), taken=[])

    def look(theta: Any) -> Any:
        shape = _preconditioner.identity("identity", theta)
        rows = _influence.Influence(jnp.ones(num_data), jnp.ones(num_data), theta[None])
        return _influence._directions(posterior, theta, shape, rows)

    result = jax.eval_shape(look, jax.ShapeDtypeStruct((dim,), jnp.float32))
    assert posterior.taken == [known]
    assert result.shape == (3, dim)


@pytest.mark.parametrize("order", [None, "first", "second"])
def test_the_influence_of_a_row_excludes_its_control_variate(order):
    """Rows are -c (theta - m)^2 / 2.

    The first order excludes the slope c (m - 0.3) at the anchor; the second order also excludes the curvature.
    """
    posterior = parabolas([1.0, 3.0], [1.1, 0.2], power=0.5)
    anchor = order and make_anchor(posterior, jnp.asarray([0.3]), second=order == "second")
    result = _influence._log_likelihood_differences(posterior, at([0.4], anchor), jnp.asarray([1.0]))
    expected = [-c * ((1.0 - m) ** 2 - (0.4 - m) ** 2) / 2 for c, m in ((1.0, 1.1), (3.0, 0.2))]
    if order:
        expected = [d - 0.6 * c * (m - 0.3) for d, (c, m) in zip(expected, ((1.0, 1.1), (3.0, 0.2)), strict=True)]
    expected = np.zeros(2) if order == "second" else 0.5 * np.array(expected)
    np.testing.assert_allclose(result, expected, atol=1e-6)


def _influence_of(unseen: list[float], positions: list[list[float]]) -> Any:
    return _influence.Influence(jnp.ones(len(unseen)), jnp.asarray(unseen), jnp.asarray(positions))


TWICE = _preconditioner.Preconditioner(jnp.asarray(2.0), jnp.zeros(()), jnp.zeros(()))
"""Preconditioner that halves the length of directions in theta."""


def test_directions_are_sorted_by_lost_curvature():
    """Rows -(y - x'theta)^2 / 2 have the curvature x x', whatever their residuals."""
    x, y = np.float32([[1.0, 0.5], [-2.0, 3.0], [0.3, 0.1]]), np.float32([2.0, -1.0, 4.0])
    unseen = [0.5, 0.2, 0.9]
    lost = 4 * (x.T * unseen) @ x
    rows = _influence_of(unseen, [[0.0, 0.0]])
    look = jax.jit(lambda theta: _influence._directions(OneRow((x, y)), theta, TWICE, rows))
    result = np.asarray(look(jnp.asarray([0.3, -0.2])), float)
    np.testing.assert_allclose(result.T @ result, lost, rtol=1e-4)
    np.testing.assert_allclose(np.sum(result**2, 1), [*np.linalg.eigvalsh(lost)[::-1], 0.0], rtol=1e-4, atol=1e-4)


def test_the_share_of_the_curvature_that_is_lost():
    """Rows of curvature c under a prior of precision 1, in a direction of length 2 in each parameter."""

    def share(c: list[float], unseen: list[float], anchor: Any = None, power: float = 1.0, dim: int = 1) -> Any:
        posterior = parabolas(c, [0.0] * len(c), dim=dim, power=power)
        anchor = None if anchor is None else make_anchor(posterior, jnp.full(dim, 0.3), second=anchor == "second")
        rows = _influence_of(unseen, [[0.0] * dim])
        return np.asarray(
            _influence._unseen_fraction(posterior, at([0.4] * dim, anchor), rows, TWICE, jnp.ones(dim)), float
        )

    np.testing.assert_allclose(share([3.0, 1.0], [0.5, 0.0]), [1.5 / 5, 4 * 5], rtol=1e-5)
    np.testing.assert_allclose(share([3.0, 1.0], [0.5, 0.0], power=0.5), [0.75 / 3, 4 * 3], rtol=1e-5)
    np.testing.assert_allclose(share([3.0, 1.0], [0.5, 0.0], "first"), [1.5 / 5, 4 * 5], rtol=1e-5)
    np.testing.assert_allclose(share([3.0, 1.0], [0.5, 0.0], "second"), [0.0, 4 * 5], atol=1e-5)
    np.testing.assert_allclose(share([3.0, 1.0], [0.5, 0.0], dim=2), [1.5 / 5, 8 * 5], rtol=1e-5)
    # If other rows are convex, the lost fraction is limited to 1.
    np.testing.assert_allclose(share([3.0, -2.5], [1.0, 0.0]), [1.0, 4 * 3], rtol=1e-5)


def test_a_row_that_bends_upwards_is_missed_as_much_as_one_that_bends_downwards(monkeypatch):
    """The curvature is 1 - 3 + 5 plus the prior's 1. Missing the convex row loses 0.5 - 3 of it."""
    rows = _influence_of([0.5, 1.0, 0.0], [[0.0]])
    monkeypatch.setattr(_influence, "row_influence", lambda *args, **more: rows)
    posterior = parabolas([1.0, -3.0, 5.0], [0.0] * 3)
    result = jax.jit(lambda state: _influence.unseen_bias(Walker(), posterior, state, key=KEY))(at([0.4]))
    assert float(result["unseen"]) == pytest.approx(2.5 / 4, rel=1e-5)


@pytest.mark.parametrize("anchor", [None, "first"])
def test_the_shift_of_a_mean_by_what_is_lost(anchor):
    """Rows -c (theta - m)^2 / 2 and the prior; the shift is in standard deviations at the chain's position."""
    shape = _preconditioner.identity("identity", jnp.zeros(1))

    def shift(c: list[float], m: list[float], unseen: list[float], places: list[float]) -> tuple[float, float]:
        posterior = parabolas(c, m)
        state = at(places[:1], anchor and make_anchor(posterior, jnp.asarray([0.3]), second=False))
        rows = _influence_of(unseen, [[place] for place in places])
        centre = np.mean(places)
        slopes = np.array(c) * (np.array(m) - centre)
        lost, slope = np.array(unseen) @ slopes, slopes.sum() - centre
        if anchor:  # the control variate adds the slope of all rows at the anchor
            lost -= np.array(unseen) @ (np.array(c) * (np.array(m) - 0.3))
        total = (sum(c) + 1) * lost**2
        share = np.array(unseen) @ np.array(c) / (sum(c) + 1)
        expected = abs(lost**2 - share * slope * lost) / np.sqrt(max(total, lost**2 / 4)) / max(1 - share, 0.1)
        return float(_influence._mean_shift(posterior, state, rows, shape)), expected

    for case in (
        ([3.0, 1.0], [2.0, 0.0], [0.5, 0.0], [0.4, 0.8]),
        ([3.0, -3.9], [2.0, 1.0], [0.01, 0.0], [0.4, 0.4]),
        ([30.0, 0.5], [2.0, 0.0], [1.0, 0.0], [0.4, 0.5]),
    ):
        result, expected = shift(*case)
        assert result == pytest.approx(expected, rel=2e-4)
        assert expected > 1e-3


# ---- control variates and shapes -----------------------------------------------------------------


@pytest.mark.parametrize("second", [False, True])
def test_gradients_with_an_anchor_are_the_whole_one_on_all_rows(second):
    x = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
    posterior = Quartics((np.abs(x[0]), x[1]), likelihood_power=np.float32(0.7))
    theta, anchor = jnp.asarray([0.8]), make_anchor(posterior, jnp.asarray([0.2]), second=second)
    slope = jax.grad(posterior.log_density)(theta)
    np.testing.assert_allclose(drift_estimator(posterior, anchor, posterior.data, None)(theta), slope, rtol=1e-4)
    shares = jnp.asarray([0.5, 1.5, 1.0, 0.25, 1.75, 1.0])
    for weights in (None, shares):
        each = jax.jacfwd(lambda t: posterior.log_likelihood(t, posterior.data))(theta)[:, 0]
        own = 0.7 * float(jnp.sum(each if weights is None else each * weights)) - float(theta[0])
        assert float(drift_estimator(posterior, None, posterior.data, weights)(theta)[0]) == pytest.approx(
            own, rel=1e-4
        )
    np.testing.assert_allclose(
        anchor.batch_slope(posterior, theta, posterior.data), anchor.slope(theta), rtol=1e-4, atol=1e-5
    )
    sampler = Sgld(batch_size=6, control_variate="second" if second else "first")
    result = sampler.anchor(posterior, jnp.asarray([0.2]))
    assert result is not None
    assert (result.hessian is not None) == second
    lp, gradient = sampler.gradient(posterior, theta, result, posterior.data)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4)
    assert float(lp) == pytest.approx(float(posterior.log_density(theta)), rel=1e-5)
    if second:
        expected = drift_estimator(posterior, anchor, None, None)(theta)
        np.testing.assert_allclose(expected, 0.7 * anchor.slope(theta) - theta, rtol=1e-5)


class Quartics(Parabolas):
    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        c, m = batch
        return -c * (theta[0] - m) ** 4


def test_an_anchor_moves_uphill_or_stays():
    """If the log density is convex, Newton's step does not go uphill, and the anchor moves to theta."""
    posterior = parabolas([-3.0, 0.5], [1.0, 0.0])
    theta = jnp.asarray([0.4])
    anchor = next_anchor(make_anchor(posterior, jnp.asarray([2.0]), second=True), posterior, theta)
    np.testing.assert_array_equal(anchor.point, theta)
    concave = parabolas([3.0, 0.5], [1.0, 0.0])
    anchor = next_anchor(make_anchor(concave, jnp.asarray([2.0]), second=True), concave, theta)
    np.testing.assert_allclose(anchor.point, 3 / 4.5, rtol=1e-5)


def test_an_anchor_stays_if_the_step_does_not_increase_the_density():
    """The log density is -4 theta^2, with slope -8 at theta = 1.

    With an assumed precision of 4, Newton's step leads to -1, where the density is equal. With 4.5 it leads to -7/9,
    where the density is higher.
    """
    posterior, theta = parabolas([7.0], [0.0]), jnp.asarray([1.0])
    old = make_anchor(posterior, theta, second=True)
    for precision, point in ((4.0, 1.0), (4.5, -7 / 9), (3.9, 1.0)):
        given_anchor = eqx.tree_at(lambda a: a.hessian, old, jnp.asarray([[1.0 - precision]]))
        anchor = next_anchor(given_anchor, posterior, theta)
        np.testing.assert_allclose(anchor.point, [point], rtol=1e-6)
        np.testing.assert_allclose(anchor.hessian, [[-7.0]], rtol=1e-6)
        np.testing.assert_allclose(anchor.gradient, [-7.0 * point], rtol=1e-6)


def test_a_hessian_is_affordable_up_to_two_thousand_parameters():
    refuse_large("second", of_size(2000))
    refuse_large("first", of_size(2001))
    with pytest.raises(UsageError, match=r"at most 2000 parameters, .* \(got 2001\)"):
        refuse_large("second", of_size(2001))


def test_a_matrix_is_full_up_to_six_hundred_parameters():
    assert _preconditioner.identity("auto", jnp.zeros(600)).factor.ndim == 2
    assert _preconditioner.identity("auto", jnp.zeros(601)).factor.ndim == 1
    assert _preconditioner.identity("diagonal", jnp.zeros(3)).factor.shape == (3,)


@pytest.mark.parametrize("shape", ["dense", "diagonal"])
def test_the_precision_of_a_window_is_fishers_or_the_hessian_where_that_is_concave(shape):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 2)).astype(np.float32), rng.normal(size=30).astype(np.float32)
    posterior = OneRow((x, y), likelihood_power=np.float32(0.5))
    theta = jnp.asarray([0.3, -0.2])
    slopes = (y - x @ np.array([0.3, -0.2]))[:, None] * x
    fisher, hessian = 0.5 * slopes.T @ slopes + np.eye(2), 0.5 * x.T @ x + np.eye(2)

    def diagonal_of(matrix: np.ndarray) -> np.ndarray:
        return matrix if shape == "dense" else np.diag(matrix)

    empty = _preconditioner.identity(shape, theta)
    first = _preconditioner.update_precision(empty, posterior, theta)
    np.testing.assert_allclose(first.precision, diagonal_of(fisher), rtol=1e-4)
    two = _preconditioner.update_precision(first, posterior, theta, jnp.asarray(-x.T @ x))
    np.testing.assert_allclose(two.precision, diagonal_of(fisher / 3 + hessian * 2 / 3), rtol=1e-4)
    assert float(two.count) == 2
    convex = _preconditioner.update_precision(empty, posterior, theta, jnp.asarray(np.diag([-9.0, 9.0])))
    np.testing.assert_allclose(convex.precision, diagonal_of(fisher), rtol=1e-4)
    broken = _preconditioner.update_precision(two, posterior, jnp.asarray([jnp.nan, 0.0]))
    np.testing.assert_array_equal(broken.precision, two.precision)
    assert float(broken.count) == 2
    plain = _preconditioner.diagonal_if_scalar(_preconditioner.identity("identity", theta), posterior, theta)
    np.testing.assert_allclose(plain.factor, np.diag(fisher) ** -0.5, rtol=1e-4)
    assert _preconditioner.diagonal_if_scalar(first, posterior, theta) is first


FACTOR = np.array([[0.5, 0.3], [0.0, 0.2]])
"""Factor F of a covariance F F', chosen such that F F' differs from F' F."""
SHAPE = _preconditioner.Preconditioner(jnp.asarray(FACTOR, jnp.float32), jnp.eye(2), jnp.ones(()))


class Bowls(OneRow):
    """Rows -(y - x'theta)^4 / 4, for which leapfrog steps have an energy error."""

    def log_likelihood(self, theta: Any, batch: Any) -> Any:
        x, y = batch
        return -((y - x @ theta) ** 4) / 4


def _bowls() -> tuple[Bowls, Any, Any]:
    """Return four rows at likelihood power 0.6, with their log density and its slope in NumPy."""
    x, y = np.array([[1.0, 0.5], [-0.7, 1.0], [0.2, -1.1], [0.9, 0.4]]), np.array([0.8, -0.5, 1.2, 0.1])
    posterior = Bowls((np.float32(x), np.float32(y)), likelihood_power=np.float32(0.6))

    def density(theta: np.ndarray) -> float:
        return float(-0.6 * np.sum((y - x @ theta) ** 4) / 4 - theta @ theta / 2)

    return posterior, density, lambda theta: 0.6 * (y - x @ theta) ** 3 @ x - theta


@pytest.mark.parametrize(("proposal", "leaps"), [("hmc", 3), ("hmc", 1), ("langevin", 1), ("random-walk", 0)])
def test_a_proposal_uses_the_full_preconditioner(proposal, leaps, monkeypatch):
    """Leapfrog steps in theta have the mass (F F')^-1; the log ratio contains their change of kinetic energy."""
    posterior, density, slope = _bowls()
    sampler = Penalty(proposal=proposal, batch_size=2, num_batches=2, sampling="disjoint", step_size=0.3, num_steps=3)
    theta, eps = np.array([0.4, -0.6]), np.array([1.0, -0.4])
    state = sampler.init(posterior, jnp.asarray(theta, jnp.float32), num_warmup=0, key=KEY)
    state = eqx.tree_at(lambda s: s.preconditioner, state, SHAPE)
    monkeypatch.setattr(metropolis, "standard_normal", lambda like, *, key: jnp.asarray(eps, like.dtype))
    monkeypatch.setattr(jax.random, "randint", lambda *args, **more: jnp.asarray(leaps))
    mass, velocity = np.linalg.inv(FACTOR @ FACTOR.T), FACTOR @ eps
    proposed, eta = theta + 0.3 * velocity * (leaps == 0), 0.6**0.5 if proposal == "langevin" else 0.3
    for _ in range(leaps):
        velocity = velocity + eta / 2 * FACTOR @ FACTOR.T @ slope(proposed)
        proposed = proposed + eta * velocity
        velocity = velocity + eta / 2 * FACTOR @ FACTOR.T @ slope(proposed)
    result, ratio, number = jax.jit(lambda state: sampler._propose(posterior, state, key=KEY))(state)
    np.testing.assert_allclose(result, proposed, rtol=1e-5)
    assert float(ratio) == pytest.approx((eps @ eps - velocity @ mass @ velocity) / 2, rel=1e-4)
    assert int(number) == leaps
    _, stats = jax.jit(lambda state: sampler.step(posterior, state, key=KEY))(state)
    log_ratio = density(proposed) - density(theta) + float(ratio)
    assert float(stats["acceptance_rate"]) == pytest.approx(np.exp(min(log_ratio, 0.0)), rel=1e-3)


@pytest.mark.parametrize(("kind", "module"), [(Mala, mala), (RandomWalk, random_walk)], ids=["mala", "random-walk"])
def test_a_step_on_all_rows_uses_the_full_preconditioner(kind, module, monkeypatch):
    """MALA proposes theta + eta C grad + sqrt(2 eta) F eps; the ratio has densities N(theta + eta C grad, 2 eta C)."""
    posterior, density, slope = _bowls()
    theta, eps, eta, cov = np.array([0.4, -0.6]), np.array([1.0, -0.4]), 0.3, FACTOR @ FACTOR.T
    sampler = kind(step_size=eta)
    state = sampler.init(posterior, jnp.asarray(theta, jnp.float32), num_warmup=0, key=KEY)
    state = eqx.tree_at(lambda s: s.preconditioner, state, SHAPE)
    monkeypatch.setattr(module, "standard_normal", lambda like, *, key: jnp.asarray(eps, like.dtype))
    monkeypatch.setattr(module, "metropolis", lambda ratio, *, key: (jnp.asarray(True), ratio, jnp.asarray(False)))
    after, stats = jax.jit(lambda state: sampler.step(posterior, state, key=KEY))(state)
    proposed, ratio = theta + eta * FACTOR @ eps, 0.0
    if kind is Mala:
        proposed = theta + eta * cov @ slope(theta) + (2 * eta) ** 0.5 * FACTOR @ eps
        back = theta - proposed - eta * cov @ slope(proposed)
        ratio = eps @ eps / 2 - back @ np.linalg.solve(cov, back) / (4 * eta)
    np.testing.assert_allclose(after.position, proposed, rtol=1e-5)
    assert float(stats["acceptance_rate"]) == pytest.approx(density(proposed) - density(theta) + ratio, rel=1e-4)


def test_lost_curvature_is_measured_in_units_of_the_full_preconditioner():
    """Rows (y - x'theta)^2 / 2 and a factor F have whitened curvatures F' x x' F and slopes F' g."""
    x, y, power = np.array([[1.0, 0.5], [-2.0, 3.0], [0.3, 0.1]]), np.array([2.0, -1.0, 4.0]), 0.5
    unseen, theta = np.array([0.5, 0.2, 0.9]), np.array([0.3, -0.2])
    posterior = OneRow((np.float32(x), np.float32(y)), likelihood_power=np.float32(power))
    rows, state = _influence_of(unseen.tolist(), [theta.tolist()]), at(theta.tolist())

    @jax.jit
    def look(along: Any) -> Any:
        directions = _influence._directions(posterior, state.position, SHAPE, rows)
        share, total = _influence._unseen_fraction(posterior, state, rows, SHAPE, along)
        return directions, share, total, _influence._mean_shift(posterior, state, rows, SHAPE)

    def bend(weights: Any, along: np.ndarray) -> float:
        return float(power * np.sum(weights * (x @ FACTOR @ along) ** 2))

    along = np.array([1.0, -2.0])
    directions, share, total, shift = look(jnp.asarray(along, jnp.float32))
    lost = FACTOR.T @ (x.T * unseen) @ x @ FACTOR
    np.testing.assert_allclose(np.asarray(directions).T @ np.asarray(directions), lost, rtol=1e-4)
    bound = bend(1.0, along) + float(np.sum((FACTOR @ along) ** 2))
    np.testing.assert_allclose([share, total], [bend(unseen, along) / bound, bound], rtol=1e-4)
    slopes = power * (y - x @ theta)[:, None] * x
    push, slope = FACTOR.T @ (unseen @ slopes), FACTOR.T @ (slopes.sum(0) - theta)
    most = bend(1.0, push) + float(np.sum((FACTOR @ push) ** 2))
    part = bend(unseen, push) / most
    expected = abs(push @ push - part * (slope @ push)) / max(most, push @ push / 4) ** 0.5 / max(1 - part, 0.1)
    assert float(shift) == pytest.approx(expected, rel=1e-3)


class InBlocks(OneRow):
    """Regression that sums over its rows in blocks of four."""

    def sum_over_data(self, function: Any, *, rows: int, **more: Any) -> Any:
        return super().sum_over_data(function, rows=4, **more)


def test_a_row_that_two_blocks_hold_counts_once():
    """Six rows in blocks of four, for the Fisher information and for the anchor's Hessian."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 2)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    theta = jnp.asarray([0.3, -0.2])
    slopes = (y - x @ np.array([0.3, -0.2]))[:, None] * x
    for shape, expected in (("dense", slopes.T @ slopes), ("diagonal", np.sum(slopes**2, 0))):
        empty = _preconditioner.identity(shape, theta)
        updated = _preconditioner.update_precision(empty, InBlocks((x, y)), theta).precision
        np.testing.assert_allclose(updated, expected + (np.eye(2) if shape == "dense" else 1.0), rtol=1e-4)
    np.testing.assert_allclose(make_anchor(InBlocks((x, y)), theta, second=True).hessian, -x.T @ x, rtol=1e-4)


@pytest.mark.parametrize(
    "sampler",
    [Mala(), RandomWalk(), Penalty(batch_size=2, num_batches=2), Penalty(control_variate="first")],
    ids=["mala", "random-walk", "penalty", "first order"],
)
def test_settle_updates_the_precision_except_after_the_last_window(sampler):
    posterior, _, _ = _bowls()
    x, y = (np.asarray(a, float) for a in posterior.data)
    state = sampler.init(posterior, jnp.asarray([2.0, -3.0]), num_warmup=9, key=KEY)
    state = eqx.tree_at(lambda s: s.position, state, jnp.asarray([0.4, -0.6]))
    assert sampler.settle(posterior, state, final=True, key=KEY) is state
    after = jax.jit(lambda state: sampler.settle(posterior, state, final=False, key=KEY))(state)
    slopes = ((y - x @ [0.4, -0.6]) ** 3)[:, None] * x
    np.testing.assert_allclose(after.preconditioner.precision, 0.6 * slopes.T @ slopes + np.eye(2), rtol=1e-4)
    np.testing.assert_array_equal(after.preconditioner.factor, np.eye(2))
    if getattr(after, "anchor", None) is not None:
        np.testing.assert_array_equal(after.anchor.point, state.position)


def test_the_shape_of_a_chain_with_an_anchor_is_of_the_anchors_hessian():
    """For a quadratic log density it is exact, whatever the residuals. The last window changes nothing."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 2)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    posterior, sampler = OneRow((x, y), likelihood_power=np.float32(0.5)), Penalty(control_variate="second")
    state = sampler.init(posterior, jnp.asarray([2.0, -3.0]), num_warmup=9, key=KEY)
    after = jax.jit(lambda state: sampler.settle(posterior, state, final=False, key=KEY))(state)
    curvature = 0.5 * x.T @ x + np.eye(2)
    np.testing.assert_allclose(after.preconditioner.precision, curvature, rtol=1e-4)
    np.testing.assert_allclose(after.anchor.point, np.linalg.solve(curvature, 0.5 * x.T @ y), rtol=1e-3)
    np.testing.assert_array_equal(after.position, state.position)
    assert sampler.settle(posterior, state, final=True, key=KEY) is state


class _Chains(eqx.Module):
    step_size: Any
    preconditioner: Any


def test_chains_have_one_step_size_and_one_shape():
    """The step size is the median, rescaled so that the step has the same length.

    The covariance is the inverse of the mean precision. In the last window, and if the mean precision has no factor,
    the preconditioner is kept.
    """

    def pooled(precision: Any, factor: Any, step: float = 2.0, *, final: bool = False, power: int = 1) -> Any:
        shape = jax.vmap(_preconditioner.Preconditioner)(jnp.asarray(factor), jnp.asarray(precision), jnp.ones(3))
        chains = _Chains(jnp.asarray([1.0, 9.0, 2.0]), shape)
        states = _preconditioner.pool_chains(chains, final=final, power=power)
        np.testing.assert_allclose(states.step_size, [step] * 3, rtol=1e-5)
        return np.asarray(states.preconditioner.factor)

    dense = np.array([[[4.0, 1.0], [1.0, 2.0]], [[8.0, 1.0], [1.0, 5.0]], [[6.0, 1.0], [1.0, 2.0]]], np.float32)
    was = np.broadcast_to(np.eye(2, dtype=np.float32), (3, 2, 2))
    volume = np.linalg.det(dense.mean(0)) ** 0.25
    np.testing.assert_array_equal(pooled(dense, was, 2 * volume**2, power=2), pooled(dense, was, 2 * volume))
    result = pooled(dense, was, 2 * volume)
    for factor in result:
        np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(dense.mean(0)), rtol=1e-4)
        np.testing.assert_array_equal(np.tril(factor, -1), 0)
    np.testing.assert_array_equal(pooled(dense, was, final=True), was)
    np.testing.assert_array_equal(pooled(-dense, was), was)
    diagonal = np.array([[4.0, 1.0], [8.0, 5.0], [6.0, 3.0]], np.float32)
    flat = pooled(diagonal, np.ones((3, 2), np.float32), 2 * 18**0.25)
    np.testing.assert_allclose(flat, [[6**-0.5, 3**-0.5]] * 3, rtol=1e-5)
    np.testing.assert_array_equal(pooled(np.zeros(3, np.float32), np.ones(3, np.float32)), [1.0] * 3)


@pytest.mark.parametrize(
    ("sampler", "power"),
    [
        (Mala(), 2),
        (RandomWalk(), 1),
        (Penalty(proposal="langevin"), 2),
        (Penalty(proposal="random-walk"), 1),
        (Penalty(proposal="hmc"), 1),
    ],
)
def test_a_step_size_is_a_length_or_its_square(sampler, power):
    """A step eta F eps is proportional to eta (power 1); a step sqrt(2 eta) F eps to its square root (power 2)."""
    assert sampler.step_power(parabolas([1.0], [0.0])) == power


def test_a_flat_prior_has_a_precision_of_a_thousandth():
    np.testing.assert_allclose(_preconditioner.prior_precision(Flat(np.zeros(2)), jnp.ones(4)), 1e-3, rtol=1e-6)


# ---- gradients without an accept step ------------------------------------------------------------


def test_a_learning_rate_is_bounded_by_the_steepest_mini_batch():
    """With batches of one row, eta times the largest curvature is at most one half."""
    at = jnp.zeros((2, 1))
    # Momentum 0.9 multiplies a rate by ten. The loss is per datum: 5 plus half of the prior's precision 1.
    for momentum, longest in ((0.0, 0.01), (0.9, 0.001)):
        swag = Swag(batch_size=1, momentum=momentum, learning_rate=1.0)
        assert swag.fit_budget(parabolas([5.0, 5.0], [1.0, -1.0]), at, 1.0) == pytest.approx(longest), momentum
    # The first four chains are used. A quartic has its curvature at their positions and not at 0.
    quartic = Quartics((np.ones(2, np.float32), np.zeros(2, np.float32)))
    swag = Swag(batch_size=2, learning_rate=1.0)
    near, far = (swag.fit_budget(quartic, jnp.zeros((5, 1)).at[i].set(10.0), 1.0) for i in (4, 3))
    assert far < near
    # If the curvature is NaN, there is no bound.
    swag = Swag(batch_size=1, learning_rate=4.0)
    assert swag.fit_budget(parabolas([float("nan")] * 3, [0.0] * 3), at, 1.0) == 4.0


def test_the_noise_of_gradients_is_of_sixty_four_pairs_and_its_error_the_jackknifes():
    centres = jax.random.normal(jax.random.key(5), (1000, 3))
    metric = jnp.asarray([1.0, 4.0, 9.0])

    def gradient(theta: Any, key: Any) -> Any:
        return centres[jax.random.randint(key, (), 0, 1000)] - jnp.asarray([2.0, 1.0, 3.0]) * theta

    noise = gradient_noise.gradient_noise(gradient, jnp.zeros(3), metric, key=KEY)
    np.testing.assert_allclose(noise.curvature, [(2 + 4 + 27) / 3] * 64, rtol=1e-5)
    spread = float(jnp.mean(metric * jnp.var(centres, 0)))
    assert float(noise.variance.mean()) == pytest.approx(spread, rel=0.5)
    varied = noise._replace(curvature=jnp.arange(64.0))
    value, error = gradient_noise.jackknife(lambda a, v: 3 * a + v, varied)
    each = 3 * np.arange(64) + np.asarray(noise.variance, float)
    assert float(value) == pytest.approx(each.mean(), rel=1e-5)
    assert float(error) == pytest.approx(each.std(ddof=1) / 8, rel=1e-3)


def test_the_longest_step_has_no_stationary_variance():
    def ratios(length: float, noise: float) -> list[float]:
        kinds = (Sgld(), Psgld(), Sghmc(momentum=0.8))
        return [float(k.variance_ratio(jnp.asarray(length), jnp.asarray(noise), num_data=9)) for k in kinds]

    np.testing.assert_allclose(ratios(1.0, 0.4), [2.4, 2.4, 1 + 1.8 / 0.5], rtol=1e-5)
    np.testing.assert_allclose(ratios(1.9, 0.4), [24.0, 24.0, 1 + 1.8 / 0.05], rtol=1e-4)
    for noise in (0.0, 0.4):
        assert ratios(2.0, noise) == ratios(5.0, noise) == [np.inf] * 3
    assert float(Sgld().variance_ratio(jnp.zeros(()), jnp.zeros(()), num_data=1)) == 1


@pytest.mark.parametrize("keep", [0.9, 0.5])
def test_a_sweep_of_one_batch_has_no_noise(keep):
    result = SmsUbu(batch_size=40, momentum=keep).variance_ratio(jnp.asarray(0.4), jnp.asarray(3.0), num_data=40)
    assert float(result) == pytest.approx(_ubu(0.4, keep), rel=1e-4)


@pytest.mark.parametrize("keep", [0.97, 0.5, 0.3, 0.05])
def test_free_motion_with_friction_has_its_exact_law(keep, monkeypatch):
    """The covariance of the noise is compared with Van Loan's method, on both sides of the series' limit."""
    time, gamma = 0.35, -np.log(keep) / 0.7
    draws: Iterator[Any] = iter([jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 1.0])])
    monkeypatch.setattr(sms_ubu, "standard_normal", lambda like, *, key: next(draws))
    sampler = SmsUbu(momentum=keep)
    noise = np.array(sampler._flow(jnp.asarray(time), jnp.zeros(2), jnp.zeros(2), key=KEY))
    motion, spread = np.array([[0, 1], [0, -gamma]]), np.diag([0, 2 * gamma])
    propagator = linalg.expm(np.block([[-motion, spread], [np.zeros((2, 2)), motion.T]]) * time)
    flow = propagator[2:, 2:].T
    np.testing.assert_allclose(noise @ noise.T, flow @ propagator[:2, 2:], rtol=3e-4)
    monkeypatch.setattr(sms_ubu, "standard_normal", lambda like, *, key: jnp.zeros(2))
    result = sampler._flow(jnp.asarray(time), jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 2.0]), key=KEY)
    np.testing.assert_allclose(result, flow @ [[1.0, 0.0], [0.0, 2.0]], rtol=1e-5)


def test_a_step_of_a_sweep_is_a_kick_between_two_free_motions(monkeypatch):
    """A step without noise on a quadratic of curvature 4 about 0.3 is a linear map."""
    monkeypatch.setattr(sms_ubu, "standard_normal", lambda like, *, key: jnp.zeros_like(like))
    posterior, eta, keep = parabolas([3.0], [0.4]), 0.08, 0.7
    sampler = SmsUbu(step_size=eta, momentum=keep, batch_size=1)
    state = sampler.init(posterior, jnp.asarray([1.1]), num_warmup=0, key=KEY)
    state = eqx.tree_at(lambda s: s.momentum, state, jnp.asarray([-0.6]))
    h = (2 * eta) ** 0.5
    flow = linalg.expm(np.array([[0, 1], [0, np.log(keep) / h]]) * h / 2)
    at = np.array([1.1 - 0.3, -0.6])
    for count in (1, 2):
        state, stats = sampler.step(posterior, state, key=jax.random.key(count))
        at = flow @ np.array([[1, 0], [-4 * h, 1]]) @ flow @ at
        np.testing.assert_allclose([state.position[0] - 0.3, state.momentum[0]], at, atol=1e-5)
        assert int(state.count) == count
        assert float(stats["step_size"]) == pytest.approx(eta)


@pytest.mark.parametrize("kind", [Sgld, Sghmc, Psgld, SmsUbu])
def test_a_nan_gradient_leaves_a_chain_in_place(kind):
    """The next step uses other batches and, if the sampler has a momentum, another momentum."""
    posterior = parabolas([float("nan")] * 3, [0.0] * 3)
    sampler = kind(step_size=0.1, batch_size=3)
    state = sampler.init(posterior, jnp.asarray([0.4]), num_warmup=0, key=KEY)
    after, stats = sampler.warmup_step(posterior, state, key=jax.random.key(9))
    if kind is not SmsUbu:
        after, stats = sampler.step(posterior, state, key=jax.random.key(12))
    assert bool(stats["diverging"])
    np.testing.assert_array_equal(after.position, state.position)
    assert int(after.count) == 1
    if hasattr(after, "momentum"):
        assert np.isfinite(after.momentum).all()
        assert not np.array_equal(after.momentum, state.momentum)


@pytest.mark.parametrize("kind", [Sgld, Sghmc, Psgld, SmsUbu])
def test_a_batch_has_at_most_all_rows(kind):
    symmetric = kind is SmsUbu
    fields = {} if symmetric else {"sampling": "disjoint"}
    posterior = GaussianMean(np.zeros(10))
    kind(batch_size=10, **fields).check(posterior)
    with pytest.raises(UsageError, match=r"must be at most 10, the number of rows \(got 11\)"):
        kind(batch_size=11, **fields).check(posterior)
    if not symmetric:
        kind(batch_size=11).check(posterior)
    with pytest.raises(UsageError, match=r"control_variate=.first"):
        kind(batch_size=5, control_variate="second").check(of_size(2001))
    assert kind(batch_size=7).evaluations(posterior, {}) == 7
    assert kind(batch_size=7, control_variate="second").evaluations(posterior, {"n_steps": 2.0}) == 42


@pytest.mark.parametrize("kind", [Sgld, Sghmc, Psgld, SmsUbu])
def test_automatic_disjoint_batches_fit_into_the_data(kind):
    """Default fields are accepted for a table with fewer rows than the default batch."""
    fields = {} if kind is SmsUbu else {"sampling": "disjoint"}
    small, large = GaussianMean(np.zeros(10)), GaussianMean(np.zeros(60))
    for step_size in ("auto", 0.1):
        sampler = kind(step_size=step_size, **fields)
        sampler.check(small)
        assert (sampler.evaluations(small, {}), sampler.evaluations(large, {})) == (10, 50)
    state = sampler.init(small, jnp.asarray([0.4]), num_warmup=0, key=KEY)
    _, stats = sampler.step(small, state, key=KEY)
    assert not bool(stats["diverging"])
    if kind is not SmsUbu:
        assert kind(step_size=0.1).evaluations(small, {}) == 50
        # A batch of all rows has no noise.
        assert float(stats["lp_estimate"]) == pytest.approx(float(small.log_density(jnp.asarray([0.4]))), rel=1e-5)


def test_an_exploration_leaves_at_least_one_step():
    posterior = GaussianMean(np.zeros(100))
    Sgld(schedule="cyclical", exploration=0.5, cycle=2).check(posterior)
    Sgld().check(posterior)
    with pytest.raises(UsageError, match="must leave at least one step of each cycle of 2 steps for draws"):
        Sgld(schedule="cyclical", exploration=0.75, cycle=2).check(posterior)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_an_exploration_has_its_fraction_of_the_steps_of_a_cycle(precision):
    with jax_settings.arithmetic(precision):
        posterior = GaussianMean(np.zeros(10))
        for exploration, cycle, expected in ((0.99, 100, 99), (0.98, 50, 49), (0.8, 5, 4), (0.5, 3, 2), (0.0, 3, 0)):
            sampler = Sgld(step_size=0.1, batch_size=1, schedule="cyclical", exploration=exploration, cycle=cycle)
            sampler.check(posterior)
            state = sampler.init(posterior, jnp.zeros(1), num_warmup=0, key=KEY)
            _, stats = eqx.filter_jit(sampler.step)(posterior, state, key=KEY)
            assert int(stats["n_steps"]) == 1 + expected
