"""Cost of differential privacy: the effective sample size of a linear regression by epsilon and number of rows.

    python plugins/bnnzoo-federated/benchmarks/privacy.py            (minutes)
    python plugins/bnnzoo-federated/benchmarks/privacy.py --clipping

The first form prints releases, acceptance, effective sample size (ESS) and the fraction of clipped differences, for a
regression with two inputs. All rows are at one party. Each run has two chains and uses all releases, half of them for
warm-up. The initial positions are draws from the posterior of 1000 public rows with the same distribution. The clip is
12 / sqrt(rows), and the noise has the standard deviation 2.

The second form shows how a small clip widens the posterior. The initial positions are exact posterior draws. The script
prints the variance of the chains' last positions, divided by the exact posterior variance, and the fraction of clipped
differences.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from bnnzoo_federated import Coordinator, Party, Privacy, read_log

import bnnzoo

NOISE, DELTA, NOISE_SD = 0.5, 1e-5, 2.0
SECRET = b"repeatable noise for this script"
OPTIONS: dict[str, Any] = {
    "likelihood": {"name": "gaussian", "scale": NOISE},
    "prior": {"name": "normal", "scale": 1.0},
    "standardise": False,
}


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [rows, 2] and targets [rows] of a linear regression with normal noise."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 2))
    y = x @ [0.8, -0.4] + 0.3 + NOISE * rng.normal(size=rows)
    return x.astype(np.float32), y.astype(np.float32)


def closed_form(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior mean and covariance of (weights, bias)."""
    design = np.column_stack([x, np.ones(len(x))]).astype(float)
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + np.eye(3))
    return covariance @ design.T @ y / NOISE**2, covariance


PUBLIC = table(1000)


def draws_of(run: bnnzoo.Run) -> np.ndarray:
    """Return the draws [chain, draw, 3] of (weights, bias) in a run."""
    group = run.posterior["posterior"]
    return np.concatenate([np.asarray(group["weight"])[:, :, 0], np.asarray(group["bias"])], 2)


def sample(data: Any, privacy: Privacy, noise_sd: float, folder: Path, sampler: Any, **options: Any) -> bnnzoo.Run:
    """Run chains over one private party, and return the run."""
    party = Party(data, folder / "a", privacy=privacy, noise_sd=noise_sd, public=PUBLIC, secret=SECRET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnnzoo.BnnzooWarning)
        return Coordinator({"a": party}).sample("linear", sampler, out=folder / "run.nc", **options, **OPTIONS)


def price(rows: int, epsilon: float) -> str:
    """Return the table row for the given number of rows and epsilon, for the first form."""
    privacy = Privacy(epsilon, DELTA, 12 / rows**0.5)
    releases = privacy.releases(NOISE_SD)
    steps = (releases - 1) // 2
    if steps < 100:
        return f"| {rows} | {epsilon:g} | {releases} | | | |"
    data = table(rows)
    _, covariance = closed_form(*data)
    starts = np.random.default_rng(1).multivariate_normal(*closed_form(*PUBLIC), size=2)
    with tempfile.TemporaryDirectory() as folder:
        run = sample(
            data,
            privacy,
            NOISE_SD,
            Path(folder),
            {"name": "penalty", "step_size": 1.37 * covariance[0, 0] ** 0.5},
            chains=2,
            starts=starts,
            warmup=steps // 2,
            draws=steps - steps // 2,
        )
        summary, clipped = run.summary(), json.loads(run.attributes["clipped"])["a"]
    return (
        f"| {rows} | {epsilon:g} | {releases} | {summary['acceptance_rate']:.2f} | {summary['ess_bulk']:.0f} | "
        f"{100 * clipped['fraction']:.1f} |"
    )


def clipping(clip: float, *, rows: int = 200, chains: int = 8000, steps: int = 40) -> str:
    """Return the table row for the clip `clip` / sqrt(`rows`), for the second form.

    The row contains the percentage of clipped differences, the variance ratio and the standard error of this ratio.
    """
    data = table(rows)
    mean, covariance = closed_form(*data)
    root = np.linalg.cholesky(covariance)
    starts = mean + np.random.default_rng(1).normal(size=(chains, 3)) @ root.T
    privacy = Privacy(1e9, DELTA, clip / rows**0.5)
    step_size = 0.7 * NOISE / rows**0.5
    with tempfile.TemporaryDirectory() as folder:
        run = sample(
            data,
            privacy,
            1.0,
            Path(folder),
            {"name": "penalty", "step_size": step_size},
            chains=chains,
            starts=starts,
            warmup=0,
            draws=1,
            thin=steps,
        )
        white = np.linalg.solve(root, (draws_of(run)[:, 0] - mean).T)
        counts = [line["charge"]["clipped"] for line in read_log(Path(folder) / "a") if line["question"] == "sums"]
        fraction = np.mean(counts) / rows  # without noise, from the party's own log
    return f"| {clip:g} | {100 * fraction:.2f} | {white.var(1).mean():.3f} | {(2 / chains / 3) ** 0.5:.3f} |"


def main() -> None:
    """Print the table of the requested form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clipping", action="store_true", help="the effect of the clip")
    if parser.parse_args().clipping:
        print("| clip x sqrt(rows) | % clipped | variance / exact | its standard error |\n|---|---|---|---|")
        for clip in (20.0, 8.0, 6.0, 5.0, 4.0, 3.0):
            print(clipping(clip), flush=True)
        return
    print("| rows | epsilon | releases | acceptance | ESS | % clipped |\n|---|---|---|---|---|---|")
    for rows, epsilons in ((10_000, (4, 10)), (100_000, (1, 4, 10)), (300_000, (1, 4, 10)), (1_000_000, (1, 4))):
        for epsilon in epsilons:
            print(price(rows, epsilon), flush=True)


if __name__ == "__main__":
    main()
