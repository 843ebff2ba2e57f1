"""The protocol of a peer (a method from another package), and two predictive distributions that peers can return."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy import special  # scipy.stats would take most of the time of a child process


@runtime_checkable
class Distribution(Protocol):
    """Predictive distributions of several rows.

    The result of bnnzoo's `run.predictive(x)` has the same methods. Targets `y`, and the results of `log_prob` and
    `cdf`, have the shape [..., row].
    """

    @property
    def mean(self) -> np.ndarray:
        """Predictive mean of each row."""
        ...

    @property
    def sd(self) -> np.ndarray:
        """Predictive standard deviation of each row."""
        ...

    def log_prob(self, y: Any) -> np.ndarray:
        """Return the log density of each target in `y`."""
        ...

    def cdf(self, y: Any) -> np.ndarray:
        """Return the predictive probability that the target is at most y, for each value in `y`."""
        ...

    def quantile(self, q: Any) -> np.ndarray:
        """Return the quantiles of each row at the levels `q`, with shape [level, row] for a list of levels."""
        ...


@runtime_checkable
class Peer(Protocol):
    """A method from another package.

    Inputs and targets are standardised: each column of the training rows has mean 0 and standard deviation 1. The class
    attribute `requires` may name the package that must be installed. The version of this package is then recorded in
    the results.
    """

    def fit(self, x: np.ndarray, y: np.ndarray, seconds: float, seed: int) -> Any:
        """Fit the method to inputs x [row, feature] and targets y [row] in about `seconds`, with a random `seed`."""
        ...

    def predict(self, x: np.ndarray) -> Distribution:
        """Return the predictive distribution of each row."""
        ...


class Normal:
    """Normal distributions with one mean and one standard deviation for each row."""

    def __init__(self, mean: Any, sd: Any):
        self.mean, self.sd = np.broadcast_arrays(np.asarray(mean, float), np.asarray(sd, float))

    def log_prob(self, y: Any) -> np.ndarray:
        z = (np.asarray(y) - self.mean) / self.sd
        return -0.5 * z**2 - np.log(self.sd) - 0.5 * np.log(2 * np.pi)

    def cdf(self, y: Any) -> np.ndarray:
        return special.ndtr((np.asarray(y) - self.mean) / self.sd)

    def quantile(self, q: Any) -> np.ndarray:
        return self.mean + self.sd * special.ndtri(np.asarray(q, float))[..., None]


class StudentT:
    """Student's t distributions with common degrees of freedom above 2, and one location and scale for each row."""

    def __init__(self, df: float, location: Any, scale: Any):
        self.df = df
        self.mean, self.scale = np.broadcast_arrays(np.asarray(location, float), np.asarray(scale, float))
        self.sd = self.scale * np.sqrt(df / (df - 2))

    def log_prob(self, y: Any) -> np.ndarray:
        z, df = (np.asarray(y) - self.mean) / self.scale, self.df
        constant = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - 0.5 * np.log(df * np.pi)
        return constant - (df + 1) / 2 * np.log1p(z**2 / df) - np.log(self.scale)

    def cdf(self, y: Any) -> np.ndarray:
        return special.stdtr(self.df, (np.asarray(y) - self.mean) / self.scale)

    def quantile(self, q: Any) -> np.ndarray:
        return self.mean + self.scale * special.stdtrit(self.df, np.asarray(q, float))[..., None]
