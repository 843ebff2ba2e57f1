"""The data sets of bnnzoo. Each function has no arguments and returns the same numbers in every call.

In the formulas, e is a standard normal variable. The NLL is the mean negative log-likelihood per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bnnzoo.data.rows.dataset import Dataset, from_arrays, from_rows

NUM_MDN_TRAIN, NUM_HILLS_TRAIN = 600, 200_000
NUM_MDN_TEST = 5000
NUM_MOONS_TRAIN, NUM_MOONS_TEST = 300, 1000


def linear_line() -> Dataset:
    """Return 100 points of a line with noise: y = 0.5 + x + 0.5 e, x ~ N(0, 1)."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 1))
    y = _line(x) + 0.5 * rng.normal(size=x.shape)
    return replace(from_arrays(x, y, name="linear-line"), truth=_line)


def mdn_sine() -> Dataset:
    """Return data with noise that grows with |x|: y = sin 3x + (0.1 + 0.3 |x|) e, x ~ U(-1, 1).

    The expected NLL of the true density is -0.03525. No model has a lower expected NLL.
    """
    return _density("mdn-sine", 2, _sine_targets, _sine, _uniform(1.0))


def mdn_branches() -> Dataset:
    """Return data with two branches: y = +-(0.5 + 0.5 x) + 0.15 e, x ~ U(-1, 1).

    The sign is random. The expected NLL of the true density is 0.09997. The best expected NLL of a single Gaussian is
    0.64335.
    """
    return _density("mdn-branches", 3, _branch_targets, _branches, _uniform(1.0))


def mdn_bump() -> Dataset:
    """Return data with a bump: y = tanh 2(x + 1) - tanh 2(x - 1) - 1 + (0.2 + 0.1 tanh 2(x - 1)) e, x ~ U(-2, 2).

    The expected NLL of the true density is -0.57052. A network with two tanh units can represent the mean exactly, and
    the noise approximately. Therefore the posterior of such a network has one mode up to symmetries of the network, and
    it is nearly Gaussian near this mode.
    """
    return _density("mdn-bump", 6, _bump_targets, _bump, _uniform(2.0))


def mdn_hills() -> Dataset:
    """Return 200 000 training points on a curve with two hills of different heights, x ~ N(0, 0.8^2).

    y = tanh 3(x + 1.2) - tanh 3(x + 0.4) + 0.6 tanh 3(x - 0.4) - 0.6 tanh 3(x - 1.2) + s(x) e, with the noise
    s(x) = 0.15 - 0.04 tanh 3(x + 1.2) + 0.05 tanh 3(x - 0.4). There are few points at the edges: 0.3 % of the points
    have |x| > 2.4. The expected NLL of the true density is -0.96743. A network with four tanh units can represent the
    mean exactly, and the noise approximately.
    """

    def inputs(rng: np.random.Generator, num_points: int) -> NDArray:
        return 0.8 * rng.normal(size=(num_points, 1))

    return _density("mdn-hills", 7, _hill_targets, _hills, inputs, num_train=NUM_HILLS_TRAIN)


def tutorial_sine() -> Dataset:
    """Return y = 10 sin(2 pi x) + e at 32 evenly spaced points x from -0.5 to 0.5."""
    rng = np.random.default_rng(4)
    x = np.linspace(-0.5, 0.5, 32)[:, None]
    return replace(from_arrays(x, _tutorial(x) + rng.normal(size=x.shape), name="tutorial-sine"), truth=_tutorial)


def two_moons() -> Dataset:
    """Return noisy points on two half circles: the upper half about (0, 0) and the lower half about (1, 0.5).

    The radius is 1, and both coordinates have N(0, 0.1^2) noise. There are 300 training rows and 1000 test rows. The
    data have no inputs, because both coordinates are targets of a density.
    """
    rng = np.random.default_rng(5)
    parts = []
    for num_points in (NUM_MOONS_TRAIN, NUM_MOONS_TEST):
        angle, lower = np.pi * rng.uniform(size=num_points), rng.integers(0, 2, num_points)
        sign = 1.0 - 2.0 * lower
        circle = np.stack([lower + sign * np.cos(angle), 0.5 * lower + sign * np.sin(angle)], 1)
        parts.append(from_rows(circle + 0.1 * rng.normal(size=circle.shape), name="two-moons", names=("a", "b")))
    train, test = parts
    return replace(train, test=test)


def diabetes() -> Dataset:
    """Return the progression of diabetes and 10 measurements of 442 patients, in original units (scikit-learn)."""
    from sklearn.datasets import load_diabetes

    source = cast(Any, load_diabetes(scaled=False))
    return from_arrays(
        source.data,
        source.target,
        task="regression",
        name="diabetes",
        feature_names=source.feature_names,
        target_names=("progression",),
    )


def digits() -> Dataset:
    """Return 1797 images [8, 8] of handwritten digits, uint8, with 17 grey levels in 0..255 (scikit-learn)."""
    from sklearn.datasets import load_digits

    source = cast(Any, load_digits())
    images = np.rint(source.images * (255 / 16)).astype(np.uint8)
    return from_arrays(images, source.target, task="classification", name="digits", target_names=("digit",))


def breast_cancer() -> Dataset:
    """Return 30 measurements of 569 tumours with the label malignant (0) or benign (1) (scikit-learn)."""
    from sklearn.datasets import load_breast_cancer

    source = cast(Any, load_breast_cancer())
    return from_arrays(
        source.data,
        source.target,
        task="classification",
        name="breast-cancer",
        feature_names=[str(name) for name in source.feature_names],
        target_names=("benign",),
    )


def _uniform(half_width: float) -> Callable[[np.random.Generator, int], NDArray]:
    """Return a function that draws inputs x ~ U(-half_width, half_width)."""
    return lambda rng, num_points: rng.uniform(-half_width, half_width, size=(num_points, 1))


def _density(
    name: str,
    seed: int,
    targets: Callable[[np.random.Generator, NDArray], NDArray],
    truth: Callable[[NDArray], NDArray],
    inputs: Callable[[np.random.Generator, int], NDArray],
    *,
    num_train: int = NUM_MDN_TRAIN,
) -> Dataset:
    """Return training points and 5000 test points with one input.

    Args:
        name: the name of the data set.
        seed: the seed of the random numbers.
        targets: a function that returns random targets, given a random generator and the inputs x.
        truth: a function that returns the noise-free targets for the inputs x.
        inputs: a function that returns random inputs [point, 1], given a random generator and the number of points.
        num_train: the number of training points.
    """
    rng = np.random.default_rng(seed)
    parts = []
    for num_points in (num_train, NUM_MDN_TEST):
        x = inputs(rng, num_points)
        parts.append(from_arrays(x, targets(rng, x), name=name))
    train, test = parts
    return replace(train, test=test, truth=truth)


def _line(x: NDArray) -> NDArray:
    return 0.5 + x


def _sine(x: NDArray) -> NDArray:
    return np.sin(3 * x)


def _sine_targets(rng: np.random.Generator, x: NDArray) -> NDArray:
    return _sine(x) + (0.1 + 0.3 * np.abs(x)) * rng.normal(size=x.shape)


def _bump(x: NDArray) -> NDArray:
    return np.tanh(2 * (x + 1)) - np.tanh(2 * (x - 1)) - 1


def _bump_targets(rng: np.random.Generator, x: NDArray) -> NDArray:
    return _bump(x) + (0.2 + 0.1 * np.tanh(2 * (x - 1))) * rng.normal(size=x.shape)


def _hills(x: NDArray) -> NDArray:
    high = np.tanh(3 * (x + 1.2)) - np.tanh(3 * (x + 0.4))
    return high + 0.6 * (np.tanh(3 * (x - 0.4)) - np.tanh(3 * (x - 1.2)))


def _hill_noise(x: NDArray) -> NDArray:
    return 0.15 - 0.04 * np.tanh(3 * (x + 1.2)) + 0.05 * np.tanh(3 * (x - 0.4))


def _hill_targets(rng: np.random.Generator, x: NDArray) -> NDArray:
    return _hills(x) + _hill_noise(x) * rng.normal(size=x.shape)


def _branches(x: NDArray) -> NDArray:
    upper = 0.5 + 0.5 * x
    return np.concatenate([upper, -upper], 1)


def _branch_targets(rng: np.random.Generator, x: NDArray) -> NDArray:
    branch = rng.choice([-1.0, 1.0], size=x.shape)
    return branch * _branches(x)[:, :1] + 0.15 * rng.normal(size=x.shape)


def _tutorial(x: NDArray) -> NDArray:
    return 10 * np.sin(2 * np.pi * x)
