"""How often the audit passes correct draws and detects wrong draws, on a network with known predictions.

    python benchmarks/audit.py [--repeats 20] [--seconds 30] [NAME ...]

All draws are tested by `audit.of_draws`, as in the command. The correct draws are those of NUTS on that network, and
those of the penalty on mini-batches for a linear regression with 2000 rows. The table counts the repeats that pass.

The wrong draws are those of the approximate methods and of SGLD with a large step size, each once. The table shows the
bias of the sd of f at `NETWORK_AT`, as estimated by the audit, and the true bias.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import approximate
import jax
import numpy as np

import bnnzoo
from bnnzoo.evaluation.audit import audit
from bnnzoo.evaluation.audit.audit_result import Audit
from bnnzoo.evaluation.predictions import per_draw
from bnnzoo.models import Linear
from bnnzoo.posterior import NetworkPosterior
from bnnzoo.posterior.likelihoods import Gaussian
from bnnzoo.posterior.priors import Normal
from bnnzoo.testing.targets import NETWORK_AT, NETWORK_SD

CHAINS_A_RUN, DRAWS = 4, 1000
UNITS = 128
WRONG = {
    "sgld, step 0.003": (bnnzoo.Sgld(step_size=3e-3, batch_size=2), {"warmup": 2000, "draws": 500, "thin": 20}),
    "sgld, step 0.006": (bnnzoo.Sgld(step_size=6e-3, batch_size=2), {"warmup": 2000, "draws": 500, "thin": 20}),
    **{name: approximate.METHODS[name] for name in ("ensemble", "bbb, local", "laplace, full", "swag, rate 0.01")},
}


def line() -> NetworkPosterior:
    """Return linear regression on 2000 rows with two inputs and known noise."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2000, 2)).astype(np.float32)
    y = (x @ [0.5, -1.0] + 0.3 + 0.5 * rng.normal(size=2000)).astype(np.float32)
    return NetworkPosterior.of(
        Linear().build((2,), 1, key=jax.random.key(0)), Gaussian(scale=0.5), Normal(), x, y[:, None]
    )


def audited(of: NetworkPosterior, draws: np.ndarray, x: np.ndarray, seed: int, seconds: float, **more: Any) -> Audit:
    """Audit draws [chain, draw, dim], or [chain, draw, 2 * dim] with their modes, as `bnnzoo audit` does."""
    return audit.of_draws(of, draws, x, chains=UNITS, seconds=seconds, seed=seed, **more)


def right(name: str, repeats: int, seed: int, seconds: float) -> str:
    """Return result line of the table of correct runs."""
    of, sampler, x = (
        (approximate.posterior(), bnnzoo.Nuts(max_tree_depth=6), NETWORK_AT[:, None])
        if name == "nuts"
        else (line(), bnnzoo.Penalty(batch_size=20, num_batches=20), np.eye(2, dtype=np.float32))
    )
    thin = 6 if name == "nuts" else 40
    run = bnnzoo.sample(of, sampler, chains=CHAINS_A_RUN * repeats, seed=seed, warmup=400, draws=DRAWS, thin=thin)
    draws = approximate._draws(of, run.posterior["posterior"]).reshape(repeats, CHAINS_A_RUN, DRAWS, -1)
    audits = [audited(of, repeat_draws, x, seed + number, seconds) for number, repeat_draws in enumerate(draws)]
    outcomes = [sum(result.outcome == outcome for result in audits) for outcome in ("passed", "undecided", "drifted")]
    p = np.sort([result.p for result in audits])
    bias, error, bound = (
        np.array([getattr(result, of) for result in audits]) for of in ("bias_sd", "bias_sd_se", "bias_bound")
    )
    return (
        f"| {name} | {' | '.join(map(str, outcomes))} | {p[0]:.2g} | {np.mean(p < 0.05):.3f} "
        f"| {bias.mean():+.3f}, {bias.std():.3f} | {error.mean():.3f} | {np.median(bound):.2f} |"
    )


def wrong(name: str, seed: int, seconds: float) -> str:
    """Return one line of the table of wrong runs."""
    sampler, options = WRONG[name]
    of = approximate.posterior()
    chains = 16 if options["draws"] == 1 else 8
    run = bnnzoo.sample(of, sampler, chains=chains, seed=seed, **options)
    draws = approximate._draws(of, run.posterior["posterior"])
    if "constant_data" in run.posterior.children:
        modes = approximate._draws(of, run.posterior["constant_data"], approximate.LINEARISED_AT)
        draws = np.concatenate([draws, np.repeat(modes, len(draws) // chains, 0)], 1)
    x = NETWORK_AT[:, None]
    all_sd = np.sqrt(np.mean(np.var(per_draw.functions(of, draws, x).reshape(len(draws), -1), axis=0)))
    are_chains = sampler.exactness == "biased"
    result = audited(of, draws.reshape(chains, -1, draws.shape[1]), x, seed, seconds, are_chains=are_chains)
    true = all_sd / np.sqrt(np.mean(NETWORK_SD**2)) - 1
    return (
        f"| {name} | {result.outcome} | {result.p:.1g} | {result.drifted}, {result.score:+.1f} "
        f"| {result.bias_sd:+.2f} ± {result.bias_sd_se:.2f} | {true:+.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["nuts", "penalty", *WRONG], help=", ".join(WRONG))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0, help="time of each audit, about")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| right draws by | passed | undecided | drifted | smallest p | fraction of p < 0.05 "
        "| estimated bias of the sd: mean, sd | its mean standard error | median bound |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in [name for name in given.names if name not in WRONG]:
        print(right(name, given.repeats, given.seed, given.seconds), flush=True)
    print(
        "\n| wrong draws by | outcome | p | strongest drift | estimated bias of the sd | true bias of the sd |\n"
        "|---|---|---|---|---|---|"
    )
    for name in [name for name in given.names if name in WRONG]:
        print(wrong(name, given.seed, given.seconds), flush=True)


if __name__ == "__main__":
    main()
