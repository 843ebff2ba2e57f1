"""Differential privacy of a party: the accountant, the noise, the sensitivity, and an attack on the membership."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bnnzoo_federated import Coordinator, Party, Privacy, chains, strata
from bnnzoo_federated.accountant import delta_at, epsilon_at, mu_within
from bnnzoo_federated.messages import Request
from bnnzoo_federated.private import clipped_sums, secret_normals
from bnnzoo_federated.strata import Stratum
from scipy import integrate, stats
from test_federated import NOISE, OPTIONS

from bnnzoo.api import keywords
from bnnzoo.posterior.backend import arithmetic
from bnnzoo.sampling.keys import Keys

SECRET = b"a" * 32
PUBLIC = (np.array([[-2.0, -2.0], [2.0, 2.0]], np.float32), np.array([-2.0, 2.0], np.float32))

# ---- the accountant ------------------------------------------------------------------------------

GRID = [(0.1, 0.05), (1.0, 0.3), (1.0, 1.0), (4.0, 0.8), (8.0, 2.0), (30.0, 5.0)]


@pytest.mark.parametrize(("epsilon", "mu"), GRID)
def test_delta_is_the_hockey_stick_divergence_of_two_normal_distributions(epsilon, mu):
    """The divergence is the integral of max(0, p - e^epsilon q), here by quadrature."""

    def excess(x: float) -> float:
        return max(0.0, stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x))

    start = epsilon / mu + mu / 2
    integral, _ = integrate.quad(excess, start, start + 40, epsabs=0, epsrel=1e-10, limit=500)
    assert delta_at(epsilon, mu) == pytest.approx(integral, rel=1e-6)


def test_delta_at_epsilon_0_is_the_total_variation_distance():
    for mu in (1e-3, 0.5, 2.0, 20.0):
        assert delta_at(0.0, mu) == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-12)
    assert delta_at(3.0, 0.0) == 0.0


def test_the_accountant_lies_below_the_bounds_of_the_literature():
    """Dwork and Roth 2014, theorem A.1; Bun and Steinke 2016, proposition 1.3 with rho = mu^2 / 2."""
    for epsilon, delta in ((0.1, 1e-5), (0.5, 1e-6), (0.9, 1e-3)):
        assert mu_within(epsilon, delta) > epsilon / math.sqrt(2 * math.log(1.25 / delta))
    for mu, delta in ((0.1, 1e-5), (1.0, 1e-6), (5.0, 1e-9)):
        rho = mu**2 / 2
        bound = rho + 2 * math.sqrt(rho * math.log(1 / delta))
        assert 0.5 * bound < epsilon_at(mu, delta) < bound


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-9), (1.0, 1e-5), (4.0, 1e-6), (20.0, 1e-3), (300.0, 1e-12)])
def test_epsilon_and_mu_are_inverse_to_delta(epsilon, delta):
    mu = mu_within(epsilon, delta)
    assert delta_at(epsilon, mu) <= delta
    assert delta_at(epsilon, mu * (1 + 1e-6)) > delta
    assert epsilon_at(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_at(1e-7, 0.01) == 0.0


def test_more_noise_a_smaller_clip_or_larger_limits_allow_more_releases():
    """The number is exact: with one more release, the composition exceeds epsilon."""
    base = Privacy(4.0, 1e-5, 0.05)
    number = base.releases(2.0)
    assert number == 342
    for changed in (base._replace(epsilon=5.0), base._replace(delta=1e-4), base._replace(clip=0.04)):
        assert changed.releases(2.0) > number
    assert base.releases(2.2) > number
    assert base.releases(20.0) in range(100 * number, 100 * (number + 1))
    assert epsilon_at(math.sqrt(number) * base.mu(2.0), 1e-5) <= 4.0
    assert epsilon_at(math.sqrt(number + 1) * base.mu(2.0), 1e-5) > 4.0


# ---- the noise and the clip ----------------------------------------------------------------------


def test_noise_is_standard_normal_and_differs_for_every_request():
    """Level 1e-6 each; noise that is 3 % too small is detected."""
    first, second = (secret_normals(SECRET, bytes([number]) * 32, 100_000) for number in (1, 2))
    assert stats.kstest(first, "norm").pvalue > 1e-6
    assert abs(np.mean(first**2) - 1) < 4.9 * (2 / 100_000) ** 0.5 < abs(np.mean((0.97 * first) ** 2) - 1)
    assert abs(np.corrcoef(first, second)[0, 1]) * 100_000**0.5 < 4.9
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) * 100_000**0.5 < 4.9
    assert np.array_equal(first, secret_normals(SECRET, b"\1" * 32, 100_000))
    assert not np.any(first == secret_normals(b"b" * 32, b"\1" * 32, 100_000))


def test_no_value_of_a_row_changes_a_sum_by_more_than_twice_the_clip():
    d = np.random.default_rng(2).normal(size=(3, 40)).astype(np.float32)
    values = [-np.inf, -1e30, -0.3, 0.0, 0.3, 0.31, 1e30, np.inf]
    sums = []
    for value in values:
        d[:, 7] = value
        sums.append(clipped_sums(d, 0.3)[0])
    changes = np.ptp(np.array(sums), 0)
    np.testing.assert_allclose(changes, 0.6, rtol=1e-12)
    assert clipped_sums(np.array([[0.3, 0.1, -5.0]]), 0.3)[1] == [1]


# ---- the attack ----------------------------------------------------------------------------------

POLICY, SESSIONS = Privacy(1.0, 0.05, 1.0), 4000
SESSION = 16
"""Number of releases that the policy allows an attacker."""


def _answers(folder: Path, member: float, noise_sd: float) -> np.ndarray:
    """Return the mean answer of each session, about rows whose first target is `member`, to the worst positions.

    The two positions differ so much that the row's difference is clipped, with the sign of the target. All other rows
    are the same. The limits of this party allow all sessions; each session has as many releases as the policy allows.
    """
    x, y = np.zeros((5, 2), np.float32), np.array([member, 0.1, -0.2, 0.3, 0.0], np.float32)
    privacy = POLICY._replace(epsilon=1e6)
    party = Party((x, y), folder, privacy=privacy, noise_sd=noise_sd, public=PUBLIC, secret=SECRET)
    recipe = keywords.recipe_of("linear", "penalty", data=None, in_memory=True, **OPTIONS, chains=1, warmup=0, draws=1)
    with arithmetic("float32"):
        _, agreements = Coordinator({"a": party})._agree(recipe, None)
    here = np.zeros((SESSIONS * SESSION, 3), np.float32)
    there = here + np.array([0, 0, 0.5], np.float32)
    answer = party.answer("sums", Request(agreements["a"].name, 0, (0, 0), here, there).words())
    return np.array(answer["sums"]).reshape(SESSIONS, SESSION).mean(1)


def _violation(folder: Path, noise_sd: float) -> float:
    """Return the largest z of P(guess "member" | member) - e^epsilon P(guess "member" | other) - delta.

    The attacker guesses by the mean answer, which is the likelihood ratio test. Each threshold is one attack.
    """
    member, other = _answers(folder / "member", 9.0, noise_sd), _answers(folder / "other", -9.0, noise_sd)
    factor, worst = math.exp(POLICY.epsilon), -math.inf
    for threshold in np.quantile(np.concatenate([member, other]), np.linspace(0.02, 0.98, 25)):
        true, false = np.mean(member > threshold), np.mean(other > threshold)
        error = math.sqrt((true * (1 - true) + factor**2 * false * (1 - false)) / SESSIONS)
        worst = max(worst, (true - factor * false - POLICY.delta) / error)
    return worst


def test_an_attacker_cannot_tell_a_member_better_than_epsilon_and_delta_allow(tmp_path):
    """25 attacks, false-alarm level 1e-6 in total (z = 5.4); an attack on half of the noise succeeds.

    The noise is the smallest that the policy allows for the session. So the best attack must also reach the limit.
    """
    noise_sd = 2 * POLICY.clip * SESSION**0.5 / mu_within(POLICY.epsilon, POLICY.delta) * (1 + 1e-6)
    assert POLICY.releases(noise_sd) == SESSION
    assert -5.4 < _violation(tmp_path / "right", noise_sd) < 5.4
    assert POLICY.releases(noise_sd / 2) < SESSION
    assert _violation(tmp_path / "half", noise_sd / 2) > 5.4


# ---- the law -------------------------------------------------------------------------------------


def _line_tables() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(11)
    results = []
    for rows in (20, 30):
        x = rng.normal(size=(rows, 2))
        results.append((x.astype(np.float32), (x @ [0.8, -0.4] + NOISE * rng.normal(size=rows)).astype(np.float32)))
    return results


def _posterior() -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.concatenate(parts).astype(float) for parts in zip(*_line_tables(), strict=True))
    design = np.column_stack([x, np.ones(len(x))])
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(3))
    return covariance @ design.T @ y / NOISE**2, covariance


def _variance_ratio(folder: Path, *, count: int = 7000, steps: int = 20) -> float:
    """Return the variance of the chains over the exact one, after steps from exact draws.

    It is the mean over three whitened directions, so its standard error is sqrt(2 / (3 count)), 1 %. The clip
    is inactive, and the noise of the two parties has variance 2 in total.
    """
    mean, covariance = _posterior()
    root = np.linalg.cholesky(covariance)
    starts = mean + np.random.default_rng(8).normal(size=(count, 3)) @ root.T
    privacy = Privacy(1e9, 1e-5, 30.0)
    members = {
        name: Party(table, folder / name, privacy=privacy, noise_sd=1.0, public=PUBLIC, secret=name.encode() * 32)
        for name, table in zip("ab", _line_tables(), strict=True)
    }
    coordinator = Coordinator(members)
    sampler = {"name": "penalty", "step_size": 0.08}
    options: Any = {**OPTIONS, "chains": 1, "warmup": 0, "draws": steps}
    recipe = keywords.recipe_of("linear", sampler, data=None, in_memory=True, **options)
    with arithmetic("float32"):
        problem, agreements = coordinator._agree(recipe, None)
        plan = [Stratum.of(agreement.terms) for agreement in agreements.values()]
        ask = partial(coordinator._sums, agreements)
        run = chains.Chains(problem.posterior, problem.sampler, plan, ask, starts, Keys.from_seed(6))
        rates = [run.step(step)["acceptance_rate"].mean() for step in range(steps)]
    assert 0.1 < np.mean(rates) < 0.9
    assert all(party._private.account.clipped_fraction(agreements[n].name, 0, 1) == 0 for n, party in members.items())
    return np.linalg.solve(root, (np.asarray(run.positions, float) - mean).T).var(1).mean()


def test_the_variance_is_within_five_percent_of_the_conjugate_line(tmp_path, monkeypatch):
    """5 % are five standard errors, false-alarm level 6e-7; a penalty without the noise fails."""
    assert abs(_variance_ratio(tmp_path / "right") - 1) < 0.05
    original = strata.combine_strata
    monkeypatch.setattr(chains, "combine_strata", lambda *given: original(*given)._replace(known=0.0))
    assert _variance_ratio(tmp_path / "wrong") - 1 > 0.1
