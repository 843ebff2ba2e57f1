"""The mutation gate: every known mistake, made in a copy of the source, fails the test that is named for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
IDENTITIES, INVARIANCE, SGLD, LANGEVIN = (
    f"tests/test_{name}.py" for name in ("penalty_identities", "penalty_invariance", "sgld_bias", "langevin")
)
BALANCE = f"{IDENTITIES}::test_the_penalised_acceptance_is_in_detailed_balance[float64-1e-06]"
RATIO = f"{IDENTITIES}::test_a_step_accepts_with_its_penalised_ratio"
ESTIMATE = f"{IDENTITIES}::test_delta_and_its_variance_are_unbiased_over_all_batches"
STILL = f"{IDENTITIES}::test_there_is_no_difference_where_nothing_moves"
MEMORY = f"{IDENTITIES}::test_nothing_but_the_position_and_the_proposal_is_remembered"
KEEPS = f"{INVARIANCE}::test_pooled_variance_keeps_the_posterior[replacement-1]"
FORMULA = f"{SGLD}::test_the_stationary_variance_is_the_formula[10-replacement]"

MALA = f"{LANGEVIN}::test_mala_is_in_detailed_balance[float64-1e-09]"
OWN_KEY = f"{LANGEVIN}::test_the_drift_has_a_key_of_its_own[langevin]"
DRIFT = f"{LANGEVIN}::test_a_drift_on_any_mini_batch_is_in_detailed_balance"
SKEWED = f"{LANGEVIN}::test_the_skewed_target_is_kept[langevin]"


class Mutant(NamedTuple):
    """A mistake: in a file of `bnnzoo/samplers` the old texts, each of which occurs once, become the new ones."""

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


def _penalty(name: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, "penalty.py", ((old, new),), tests)


def _sgld(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, "sgld.py", ((old, new),), (FORMULA,))


SERIES = "series = (sigma2 / 2, "
POOLED = "sigma2, dof = scale**2 / used * second * (used / (used - 1)), used - 1"
BATCH_MEANS = "sigma2, dof = scale**2 / batches * jnp.var(means, ddof=1), batches - 1"
RATIO_OF_DRIFT = "(jnp.sum(eps**2) - jnp.sum(last[1] ** 2)) / 2"
HERE = "here = posterior.log_likelihood(state.position, batch)"

MUTANTS = (
    _penalty("no penalty", "return sum(series[:terms], ", "return sum(series[:0], ", BALANCE),
    _penalty("sigma2 / 4", SERIES, "series = (sigma2 / 4, ", BALANCE),
    _penalty("sigma2", SERIES, "series = (sigma2, ", BALANCE),
    _penalty("standard deviation for variance", SERIES, "series = (jnp.sqrt(sigma2) / 2, ", BALANCE),
    _penalty("pooled variance not divided by K", POOLED, POOLED.replace(" / used *", " *"), ESTIMATE),
    _penalty("variance not divided by M", BATCH_MEANS, BATCH_MEANS.replace(" / batches *", " *"), ESTIMATE),
    _penalty("pooled variance with ddof 0", POOLED, POOLED.replace(" * (used / (used - 1))", ""), ESTIMATE),
    _penalty("ddof 0", BATCH_MEANS, BATCH_MEANS.replace("ddof=1", "ddof=0"), ESTIMATE),
    _penalty(
        "penalty outside the minimum",
        "log_ratio = -difference.delta - penalty + log_proposal_ratio",
        "log_ratio = jnp.minimum(-difference.delta + log_proposal_ratio, 0.0) - penalty",
        RATIO,
    ),
    Mutant(
        "theta's loss remembered from an older batch",
        "penalty.py",
        (
            (
                '    auto: Bool[Array, ""]\n',
                '    auto: Bool[Array, ""]\n    old: Any = eqx.field(default_factory=lambda: jnp.full((), jnp.nan))\n',
            ),
            (
                "d = there - here\n",
                "old = jnp.where(jnp.isnan(state.old), jnp.mean(here), state.old)\n"
                "        d = there - here + (jnp.mean(here) - old)\n",
            ),
            (
                "        skew_bias = ",
                "        state = eqx.tree_at(lambda s: s.old, state, jnp.where(accepted, jnp.mean(there), old))\n"
                "        skew_bias = ",
            ),
        ),
        (MEMORY, KEEPS),
    ),
    _penalty(
        "different batches for theta and theta'",
        HERE,
        HERE.replace("batch)", "self._batch(posterior, key=jax.random.fold_in(key_batch, 1)))"),
        STILL,
    ),
    _penalty("N/n missing", "* float(total)\n", "* float(used)\n", ESTIMATE),
    _penalty(
        "prior multiplied by N/n",
        "return Difference(-known_change - scale * mean",
        "return Difference(-known_change * (total / used) - scale * mean",
        ESTIMATE,
    ),
    _penalty(
        "one key for proposal and acceptance",
        "metropolis(log_ratio, key=key_accept)",
        "metropolis(log_ratio, key=jax.random.split(key_propose, 3)[0])",
        KEEPS,
    ),
    _penalty("no finite-population factor", "sigma2 = sigma2 * (1 - used / total)", "sigma2 = sigma2 * 1", ESTIMATE),
    _penalty("reversed proposal ratio", RATIO_OF_DRIFT, f"-{RATIO_OF_DRIFT}", DRIFT, SKEWED),
    _penalty("no proposal ratio", RATIO_OF_DRIFT, "jnp.zeros(())", DRIFT),
    _penalty(
        "drift and acceptance on one batch",
        "batch = self._batch(posterior, key=key_batch)",
        "batch = self._batch(posterior, key=jax.random.split(key_propose, 3)[1])",
        OWN_KEY,
        SKEWED,
    ),
    Mutant(
        "MALA: reversed proposal ratio",
        "mala.py",
        (("+ (jnp.sum(eps**2) - jnp.sum(reverse**2)) / 2", "- (jnp.sum(eps**2) - jnp.sum(reverse**2)) / 2"),),
        (MALA,),
    ),
    _sgld("SGLD: noise of half the variance", "jnp.sqrt(2 * eta) * eps", "jnp.sqrt(eta) * eps"),
    _sgld("SGLD: twice the gradient", "+ eta * gradient +", "+ 2 * eta * gradient +"),
    Mutant(
        "SGLD: N/n a tenth too large",
        "_stochastic_gradient.py",
        (("power * (posterior.num_data", "power * 1.1 * (posterior.num_data"),),
        (FORMULA,),
    ),
    _sgld("SGLD: no noise", "+ jnp.sqrt(2 * eta) * eps", "+ 0 * eps"),
)


def _mutated(mutant: Mutant) -> str:
    text = (ROOT / "bnnzoo" / "samplers" / mutant.file).read_text()
    for old, new in mutant.edits:
        assert text.count(old) == 1, f"{mutant.name}: {old!r} is {text.count(old)} times in {mutant.file}"
        text = text.replace(old, new)
    return text


def _copy(folder: Path, mutant: Mutant | None) -> Path:
    """Package and tests in a folder of their own, with the mutant's mistake."""
    for name in ("bnnzoo", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if mutant:
        (folder / "bnnzoo" / "samplers" / mutant.file).write_text(_mutated(mutant))
    return folder


def _failures(folder: Path, tests: tuple[str, ...]) -> list[str]:
    """The tests that fail by an assertion in a copy; anything else than passing or failing so is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", "--tb=line", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "1000"},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^FAILED tests/\S+?::(\S+) - (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode == bool(failed), done.stdout + done.stderr
    assert all(re.match(r"assert|AssertionError", reason) for _, reason in failed), done.stdout
    return [test for test, _ in failed]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mistake_can_be_made(mutant):
    """The source still has the text that each mutant changes, once: else the table above needs an edit."""
    compile(_mutated(mutant), mutant.file, "exec")


@pytest.mark.mutation
def test_the_unchanged_copy_passes(tmp_path):
    every = tuple(dict.fromkeys(test for mutant in MUTANTS for test in mutant.tests))
    assert _failures(_copy(tmp_path, None), every) == []


@pytest.mark.mutation
def test_every_mutant_dies(tmp_path, capsys):
    killed = {}
    for number, mutant in enumerate(MUTANTS):
        killed[mutant.name] = _failures(_copy(tmp_path / str(number), mutant), mutant.tests)
        with capsys.disabled():
            first, *rest = killed[mutant.name] or ["SURVIVED"]
            print(f"\n{mutant.name:<46}{first}" + (f" and {len(rest)} more" if rest else ""), end="")
    assert [name for name, tests in killed.items() if not tests] == []
