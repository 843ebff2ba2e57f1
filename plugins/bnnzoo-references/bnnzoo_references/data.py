"""The data sets of the reference posteriors. Each has 200 test rows, at which the reference contains predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bnnzoo.data import Dataset, from_arrays, registered

TEST_ROWS = 200
_ROWS = Path(__file__).parent / "rows"


def known_network() -> Dataset:
    """Return 5 training rows with one input, and 200 test rows whose targets come from a draw of the posterior.

    The network is f(x) = b + sum_j v_j tanh(u_j x + a_j) with 16 units, u, a ~ N(0, 2^2), v ~ N(0, 1/16), b ~ N(0, 1).
    The noise has the standard deviation 0.2. Because the network of the test rows is a posterior draw, no predictive
    distribution has a lower expected negative log-likelihood than that of the exact posterior.
    """
    x = np.linspace(-1, 1, 5)
    y = np.array([-0.6, -0.2, 0.3, 0.4, 0.1])
    x_test = np.linspace(-2, 2, TEST_ROWS)
    rng = np.random.default_rng(16)
    while True:
        inner, outer, bias = rng.normal(0, 2, (2, 16)), rng.normal(0, 0.25, 16), rng.normal()
        residuals = y - bias - np.tanh(np.outer(x, inner[0]) + inner[1]) @ outer
        if rng.uniform() < np.exp(-np.sum(residuals**2) / 0.08):
            break
    y_test = bias + np.tanh(np.outer(x_test, inner[0]) + inner[1]) @ outer + 0.2 * rng.normal(size=TEST_ROWS)
    return _with_test(x[:, None], y, x_test[:, None], y_test, "known-network")


def mdn_sine() -> Dataset:
    """Return the 600 training rows of bnnzoo's data set mdn-sine, and its first 200 test rows."""
    rows = registered.mdn_sine()
    assert rows.test is not None
    return replace(rows, test=replace(rows.test, x=rows.test.x[:TEST_ROWS], y=rows.test.y[:TEST_ROWS]))


def boston() -> Dataset:
    """Return the median price of homes in 506 districts of Boston, with 13 inputs (Harrison and Rubinfeld 1978)."""
    return _table("boston")


def energy() -> Dataset:
    """Return the heating load of 768 simulated buildings, with 8 inputs (Tsanas and Xifara 2012)."""
    return _table("energy")


def wine() -> Dataset:
    """Return the quality of 1599 red wines, with 11 chemical inputs (Cortez et al. 2009)."""
    return _table("wine")


def yacht() -> Dataset:
    """Return the residuary resistance of 308 yacht models, with 6 inputs (Gerritsma, Onnink and Versluis 1981)."""
    return _table("yacht")


def airfoil() -> Dataset:
    """Return the sound pressure of 1503 airfoil measurements, with 5 inputs (Brooks, Pope and Marcolini 1989)."""
    return _table("airfoil")


def digits_cnn() -> Dataset:
    """Return scikit-learn's images of digits with 8 x 8 pixels: 300 training rows and 200 test rows."""
    return _of_registered(registered.digits(), "digits-cnn", train_rows=300)


def rbm1b_j10() -> Dataset:
    """Return 100 training rows and 200 test rows of scikit-learn's images of digits, as 64 features."""
    images = registered.digits()
    features = images.x.reshape(len(images.x), -1).astype(np.float32)
    rows = from_arrays(features, images.y, task="classification", name="reference-rbm1b-j10")
    return _of_registered(rows, "rbm1b-j10", train_rows=100)


def logistic() -> Dataset:
    """Return scikit-learn's 569 tumours (benign or malignant) with 30 inputs: 369 training rows and 200 test rows."""
    return _of_registered(registered.breast_cancer(), "logistic")


def poisson() -> Dataset:
    """Return counts with log rate 0.5 + 0.6 x_1 - 0.4 x_2, x ~ N(0, I_3): 300 training rows and 200 test rows."""
    rng = np.random.default_rng(17)
    x = rng.normal(size=(300 + TEST_ROWS, 3))
    y = rng.poisson(np.exp(0.5 + 0.6 * x[:, 0] - 0.4 * x[:, 1]))
    return _with_test(x[:300], y[:300], x[300:], y[300:], "poisson")


def last_layer() -> Dataset:
    """Return labels with logit phi(x) w: 1e5 training rows and 200 test rows of 20 features phi(x) = tanh(A x + a).

    The rows contain phi(x) and the label. x ~ N(0, I_40), A ~ N(0, 1/40), a ~ N(0, 1/4), w ~ N(0, 1).
    """
    rng = np.random.default_rng(18)
    size = 100_000
    weights, offsets, last = rng.normal(size=(40, 20)) / np.sqrt(40), rng.normal(size=20) / 2, rng.normal(size=20)
    features = np.tanh(rng.normal(size=(size + TEST_ROWS, 40)) @ weights + offsets)
    y = (rng.uniform(size=len(features)) < 1 / (1 + np.exp(-features @ last))).astype(int)
    return _with_test(features[:size], y[:size], features[size:], y[size:], "last-layer", task="classification")


def _table(name: str) -> Dataset:
    """Return the table `name` with 200 random test rows. The last column of the table is the target."""
    table = np.loadtxt(_ROWS / f"{name}.csv.gz", delimiter=",")
    train, test = _division(len(table))
    x, y = table[:, :-1], table[:, -1]
    return _with_test(x[train], y[train], x[test], y[test], name)


def _division(count: int) -> tuple[Shaped[np.ndarray, " train"], Shaped[np.ndarray, " test"]]:
    order = np.random.default_rng(0).permutation(count)
    return np.sort(order[TEST_ROWS:]), np.sort(order[:TEST_ROWS])


def _of_registered(rows: Dataset, name: str, train_rows: int | None = None) -> Dataset:
    train, test = (
        replace(rows, x=rows.x[index], y=rows.y[index], name=f"reference-{name}") for index in _division(len(rows.x))
    )
    if train_rows is not None:
        train = replace(train, x=train.x[:train_rows], y=train.y[:train_rows])
    return replace(train, test=test)


def _with_test(
    x: Float[np.ndarray, "row feature"],
    y: Shaped[np.ndarray, " row"],
    x_test: Float[np.ndarray, "test_row feature"],
    y_test: Shaped[np.ndarray, " test_row"],
    name: str,
    task: Any = "regression",
) -> Dataset:
    train, test = (from_arrays(a, b, task=task, name=f"reference-{name}") for a, b in ((x, y), (x_test, y_test)))
    return replace(train, test=test)
