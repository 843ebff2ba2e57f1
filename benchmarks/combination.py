"""False alarms and power of the R-hat of the worst linear combination, by simulation.

    python benchmarks/combination.py --repeats 400

Chains are first-order autoregressions of normal variables, correlated by a random matrix. The column "alarms" counts
tests beyond their limit on chains that have mixed; the level is 0.001. The columns "found" give the fraction of
detected differences. There, the combination that varies least has the stated ratio of the variance between chains to
the variance within chains. "one R-hat > 1.01" is the fraction of these runs in which the largest R-hat of the
quantities themselves is above 1.01.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import signal

from bnnzoo.evaluation.formulas.combination import worst_combination
from bnnzoo.evaluation.formulas.rhat import rhats

SETTINGS = [(1, 400), (2, 200), (4, 100), (4, 400), (4, 1000), (10, 100)]
"""Number of chains, and effective draws of each chain."""
_DRAWS = 1000


def chains_of(rng: np.random.Generator, count: int, effective: int, size: int) -> np.ndarray:
    """Return chains in equilibrium with the given number of effective draws among 1000."""
    keep = (_DRAWS - effective) / (_DRAWS + effective)
    noise = rng.normal(size=(count, _DRAWS, size)) * (1 - keep**2) ** 0.5
    noise[:, 0] = rng.normal(size=(count, size))
    return signal.lfilter([1], [1, -keep], noise, axis=1) @ rng.normal(size=(size, size))


def apart(rng: np.random.Generator, values: np.ndarray, ratio: float) -> np.ndarray:
    """Return the chains with different means along the direction in which they vary least."""
    flat = values.reshape(-1, values.shape[2])
    scale, vectors = np.linalg.eigh(np.cov(flat.T))
    shift = rng.normal(size=len(values))
    shift = (shift - shift.mean()) / max(shift.std(), 1e-9)
    return values + (ratio * scale[0]) ** 0.5 * shift[:, None, None] * vectors[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 50, 150])
    args = parser.parse_args()
    print(
        "| chains | effective draws of each | quantities | alarms | found, ratio 1 | found, ratio 0.1 "
        "| one R-hat > 1.01 |"
    )
    print("|---|---|---|---|---|---|---|")
    for count, effective in SETTINGS:
        for size in args.sizes:
            rng = np.random.default_rng(0)
            alarms, rhat_detections = 0, 0
            detections = {1.0: 0, 0.1: 0}
            powered = max(1, args.repeats // 10)
            for number in range(args.repeats):
                values = chains_of(rng, count, effective, size)
                worst = worst_combination(values)
                assert worst is not None
                alarms += worst.rhat > max(worst.limit, 1.01)
                if number < powered and count > 1:
                    for ratio in detections:
                        bad = apart(rng, values, ratio)
                        worst = worst_combination(bad)
                        assert worst is not None
                        detections[ratio] += worst.rhat > max(worst.limit, 1.01)
                    rhat_detections += float(rhats(bad).max()) > 1.01
            power = [f"{detections[ratio] / powered:.2f}" if count > 1 else "" for ratio in detections]
            by_rhat = f"{rhat_detections / powered:.2f}" if count > 1 else ""
            print(
                f"| {count} | {effective} | {size} | {alarms}/{args.repeats} | {power[0]} | {power[1]} | {by_rhat} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
