"""Does the audit find what is wrong, and pass what is right? On the small network whose predictions are known exactly.

    python benchmarks/audit.py [--repeats 200] [--units 64] [--steps 64] [NAME ...]

Right draws: NUTS on that network, and the penalty on batches of a line through 2000 rows; the share of repeats that
pass. Wrong ones: the approximate methods and SGLD of a large step, each once; the bias of the sd of f at `NETWORK_AT`
that the audit estimates, and the true one.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import approximate
import jax
import numpy as np

import bnnzoo
from bnnzoo.evaluation import audit, drift
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.testing.targets import NETWORK_AT, NETWORK_SD

CHAINS_A_RUN = 4
WRONG = {
    "sgld, step 0.003": (bnnzoo.Sgld(step_size=3e-3, batch_size=2), {"warmup": 2000, "draws": 500, "thin": 20}),
    "sgld, step 0.006": (bnnzoo.Sgld(step_size=6e-3, batch_size=2), {"warmup": 2000, "draws": 500, "thin": 20}),
    **{name: approximate.METHODS[name] for name in ("ensemble", "bbb, local", "laplace, full", "swag, rate 0.01")},
}


def line() -> NetworkPosterior:
    """Linear regression on 2000 rows with two inputs and known noise."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2000, 2)).astype(np.float32)
    y = (x @ [0.5, -1.0] + 0.3 + 0.5 * rng.normal(size=2000)).astype(np.float32)
    return NetworkPosterior.of(
        Linear().build((2,), 1, key=jax.random.key(0)), Gaussian(scale=0.5), Normal(), x, y[:, None]
    )


def audited(of: NetworkPosterior, draws: np.ndarray, x: np.ndarray, steps: int, repeats: int, seed: int) -> list[Any]:
    """The audit of so many runs [repeat * unit, ...] by one kernel; the last sixteen draws tune it.

    Args:
        draws: [draw, dim], or [draw, 2 * dim] with the points where predictions are linear.
    """
    began = time.perf_counter()
    dim = of.layout.dim
    key_tune, key_move = jax.random.split(jax.random.key(seed))
    kernel = drift.kernel_for(of, draws[-16:, :dim], key=key_tune)
    starts = draws[: (len(draws) - 16) // repeats * repeats] if repeats > 1 else draws
    ends, acceptance = drift.moved(kernel, of, starts[:, :dim], steps=steps, key=key_move)
    centre = audit.predictive.functions(of, draws[-16:, :dim], x).mean(0)
    before, after = (audit.functions(of, of, t, x, centre) for t in (starts[:, :dim], ends))
    said = audit.predictive.functions(of, starts, x)
    found = []
    for unit in np.array_split(np.arange(len(starts)), repeats):
        start, end = ({name: values[unit] for name, values in of.items()} for of in (before, after))
        found.append(audit.judged(said[unit], start, end, steps, acceptance, began, 0.0, seed=seed))
    return found


def right(name: str, repeats: int, units: int, steps: int, seed: int) -> str:
    """One line of the table of right runs."""
    of, sampler, x = (
        (approximate.posterior(), bnnzoo.Nuts(max_tree_depth=6), NETWORK_AT[:, None])
        if name == "nuts"
        else (line(), bnnzoo.Penalty(batch_size=20, num_batches=20), np.eye(2, dtype=np.float32))
    )
    chains, thin = CHAINS_A_RUN * repeats + 1, 6 if name == "nuts" else 40
    run = bnnzoo.sample(
        of, sampler, chains=chains, seed=seed, warmup=400, draws=max(16, units // CHAINS_A_RUN), thin=thin
    )
    draws = approximate._draws(of, run.posterior["posterior"])
    found = audited(of, draws, x, steps, repeats, seed)
    passed = sum(one.passed for one in found)
    p = np.sort([one.p for one in found])
    bias, error, moved = (np.array([getattr(one, of) for one in found]) for of in ("bias_sd", "bias_sd_se", "moved"))
    return (
        f"| {name} | {passed}/{len(found)} | {p[0]:.2g} | {np.mean(p < 0.05):.3f} "
        f"| {bias.mean():+.3f}, {bias.std():.3f} | {error.mean():.3f} | {moved.mean():.2f} |"
    )


def wrong(name: str, units: int, steps: int, seed: int) -> str:
    """One line of the table of wrong runs."""
    sampler, options = WRONG[name]
    of = approximate.posterior()
    chains = 16 if options["draws"] == 1 else 8
    run = bnnzoo.sample(of, sampler, chains=chains, seed=seed, **options)
    draws = approximate._draws(of, run.posterior["posterior"])
    if "constant_data" in run.posterior.children:
        modes = approximate._draws(of, run.posterior["constant_data"], approximate.LINEARISED_AT)
        draws = np.concatenate([draws, np.repeat(modes, len(draws) // chains, 0)], 1)
    x = NETWORK_AT[:, None]
    all_sd = np.sqrt(np.mean(np.var(audit.predictive.functions(of, draws, x).reshape(len(draws), -1), axis=0)))
    kept = np.linspace(0, len(draws) - 1, min(units, len(draws))).round().astype(int)
    (found,) = audited(of, draws[kept], x, steps, 1, seed)
    true = all_sd / np.sqrt(np.mean(NETWORK_SD**2)) - 1
    return (
        f"| {name} | {found.p:.1g} | {found.drifted}, {found.score:+.1f} "
        f"| {found.bias_sd:+.2f} ± {found.bias_sd_se:.2f} | {true:+.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["nuts", "penalty", *WRONG], help=", ".join(WRONG))
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--units", type=int, default=64)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| draws | passed | smallest p | p < 0.05 | bias of the sd, mean and sd | its stated error | moved |")
    print("|---|---|---|---|---|---|---|")
    for name in [name for name in given.names if name not in WRONG]:
        print(right(name, given.repeats, given.units, given.steps, given.seed), flush=True)
    print("\n| draws | p | what drifts most | sd's bias, by the audit | true |\n|---|---|---|---|---|")
    for name in [name for name in given.names if name in WRONG]:
        print(wrong(name, given.units, given.steps, given.seed), flush=True)


if __name__ == "__main__":
    main()
