"""Width and coverage of conformal intervals: bnnzoo's against mapie's and crepes' split conformal, on the same splits.

    python benchmarks/conformal.py [--data diabetes] [--splits 5] [--level 0.9]

Each split holds out 30 % of the rows for scoring. bnnzoo uses all other rows for the posterior and for its conformal
intervals. The others train on two thirds of these rows, scikit-learn's MLPRegressor or a random forest, and calibrate
on the rest. Libraries that are not installed are named and left out: pip install mapie crepes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

import bnnzoo
from bnnzoo.data import load

Rows = tuple[Float[np.ndarray, "row feature"], Float[np.ndarray, " row"]]
Ends = tuple[Float[np.ndarray, " row"], Float[np.ndarray, " row"]]


class Score(NamedTuple):
    """Coverage, mean width in sds of the target, and seconds of one method on one split."""

    coverage: float
    width: float
    seconds: float


def zoo_intervals(train: Rows, x: np.ndarray, level: float, seed: int) -> Iterator[tuple[str, Ends]]:
    """Yield the Bayesian and the conformal intervals of a small network, from one run."""
    data = (train[0], train[1][:, None])
    run = bnnzoo.sample(
        {"name": "mlp", "hidden": (16,)}, "nuts", data=data, test_fraction=0, seed=seed, budget="60s", progress=False
    )
    for method in ("bayesian", "conformal"):
        intervals = run.predict_interval(x, level=level, interval=method)
        yield f"bnnzoo {method}", (intervals["lower"].to_numpy(), intervals["upper"].to_numpy())


def _divided(train: Rows, seed: int) -> tuple[Rows, Rows]:
    """Divide training rows into proper training rows, two thirds, and calibration rows."""
    order = np.random.default_rng(seed).permutation(len(train[1]))
    cut = 2 * len(order) // 3
    first, second = order[:cut], order[cut:]
    return (train[0][first], train[1][first]), (train[0][second], train[1][second])


def mapie_intervals(train: Rows, x: np.ndarray, level: float, seed: int) -> Iterator[tuple[str, Ends]]:
    """Yield split conformal intervals by mapie, version 1 or later, about scikit-learn's network."""
    from mapie.regression import SplitConformalRegressor  # pyright: ignore[reportMissingImports]
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    proper, calibration = _divided(train, seed)
    model = make_pipeline(
        StandardScaler(), MLPRegressor(hidden_layer_sizes=(16,), max_iter=2000, random_state=seed)
    ).fit(*proper)
    conformal = SplitConformalRegressor(model, confidence_level=level, prefit=True).conformalize(*calibration)
    ends = np.asarray(conformal.predict_interval(x)[1])[:, :, 0]
    yield "mapie split", (ends[:, 0], ends[:, 1])


def crepes_intervals(train: Rows, x: np.ndarray, level: float, seed: int) -> Iterator[tuple[str, Ends]]:
    """Yield split conformal intervals by crepes about a random forest, with a difficulty by its variance."""
    from crepes import WrapRegressor  # pyright: ignore[reportMissingImports]
    from crepes.extras import DifficultyEstimator  # pyright: ignore[reportMissingImports]
    from sklearn.ensemble import RandomForestRegressor

    proper, calibration = _divided(train, seed)
    forest = WrapRegressor(RandomForestRegressor(300, random_state=seed))
    forest.fit(*proper)
    difficulty = DifficultyEstimator()
    difficulty.fit(X=proper[0], learner=forest.learner, scaler=True)
    forest.calibrate(*calibration, de=difficulty)
    ends = forest.predict_int(x, confidence=level)
    yield "crepes split, normalised", (ends[:, 0], ends[:, 1])


METHODS: tuple[Callable[[Rows, np.ndarray, float, int], Iterator[tuple[str, Ends]]], ...] = (
    zoo_intervals,
    mapie_intervals,
    crepes_intervals,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="diabetes", help="a registered data set with one numeric target")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--level", type=float, default=0.9)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    dataset = load(options.data)
    x, y = np.asarray(dataset.x, np.float64), np.asarray(dataset.y, np.float64)[:, 0]
    scores: dict[str, list[Score]] = {}
    for seed in range(options.splits):
        order = np.random.default_rng(seed).permutation(len(y))
        test, train = order[: 3 * len(y) // 10], order[3 * len(y) // 10 :]
        for method in METHODS:
            start = time.monotonic()
            try:
                for name, (low, high) in method((x[train], y[train]), x[test], options.level, seed):
                    inside = (low <= y[test]) & (y[test] <= high)
                    score = Score(inside.mean(), (high - low).mean() / y[train].std(), time.monotonic() - start)
                    scores.setdefault(name, []).append(score)
            except ModuleNotFoundError as error:
                if seed == 0:
                    print(f"{error.name} is not installed: left out")
    print(
        f"{options.data}, level {options.level:g}, {options.splits} splits, {len(y)} rows; widths in sds of the target"
    )
    print(f"{'method':<26}{'coverage':>10}{'se':>8}{'width':>8}{'seconds':>9}")
    for name, by_split in scores.items():
        coverage, width, seconds = (np.array(column) for column in zip(*by_split, strict=True))
        error = np.sqrt(coverage.mean() * (1 - coverage.mean()) / (len(by_split) * (3 * len(y) // 10)))
        print(f"{name:<26}{coverage.mean():>10.3f}{error:>8.3f}{width.mean():>8.3f}{seconds.mean():>9.1f}")


if __name__ == "__main__":
    main()
