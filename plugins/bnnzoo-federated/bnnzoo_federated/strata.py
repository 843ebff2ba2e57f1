"""From the sums of parties to the change of the log-likelihood and its noise: each party is a stratum of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bnnzoo_federated.messages import Terms


class Stratum(NamedTuple):
    """What a party draws of its rows for a step, and the noise that it adds to their sum."""

    rows: int
    used: int
    disjoint: bool
    noise_sd: float

    @classmethod
    def of(cls, terms: Terms) -> Stratum:
        """Of a party that answers by these."""
        return cls(terms.rows, terms.batch_size, terms.sampling == "disjoint", terms.noise_sd)

    @property
    def left(self) -> float:
        """The share of the variance that is left: 1 - K/N where no row comes twice."""
        return 1 - self.used / self.rows if self.disjoint else 1.0


class Change(NamedTuple):
    """An estimate of the change of the log-likelihood, by chain, and what its noise is known by."""

    mean: Float[np.ndarray, " chain"]
    parts: Float[np.ndarray, "party chain"]
    """Of each party the estimated variance; their sum is that of `mean`, but for `known`."""
    known: float
    """The variance of the noise that the parties added, which nobody has to estimate."""
    third: Float[np.ndarray, " chain"]
    """Third cumulant."""

    @property
    def sigma2(self) -> Float[np.ndarray, " chain"]:
        """The variance of `mean`."""
        return self.parts.sum(0) + self.known

    @property
    def skewness(self) -> Float[np.ndarray, " chain"]:
        """Of `mean`; 0 where there is no noise."""
        return self.third / np.maximum(self.sigma2, np.finfo(np.float32).tiny) ** 1.5

    def dof(self, strata: Sequence[Stratum]) -> Float[np.ndarray, " chain"]:
        """Of the estimated part of sigma2 (Welch 1947, Satterthwaite 1946)."""
        dofs = degrees(strata)[:, None]
        squares = (self.parts**2 / dofs).sum(0)
        return np.where(squares > 0, self.parts.sum(0) ** 2 / np.where(squares > 0, squares, 1), dofs.sum())


def degrees(strata: Sequence[Stratum]) -> Float[np.ndarray, " party"]:
    """Degrees of freedom of each party's variance."""
    return np.array([one.used - 1 for one in strata], float)


def power_sums(
    d: Float[np.ndarray, "chain used"], shift: Float[np.ndarray, " chain"]
) -> Float[np.ndarray, "chain power"]:
    """Sums of d, d^2, d^3 over a batch whose every d is shifted alike, so that their first sum moves by `shift`.

    A shift of all leaves their spread what it is: noise added in this way is not mistaken for that of the batch, and
    does not go with it.
    """
    values = d.astype(np.float64) + shift[:, None] / d.shape[1]
    return np.stack([values.sum(1), (values**2).sum(1), (values**3).sum(1)], 1)


def stratified(sums: Float[np.ndarray, "party chain power"], strata: Sequence[Stratum], power: float = 1.0) -> Change:
    """The change of `power` times the log-likelihood of all rows.

    With K of the N rows of party k drawn, d their differences, s^2 = sum (d - mean)^2 / (K - 1) and m3 the third
    central moment, the parties' draws independent of each other:

        mean  = sum_k N mean(d)
        sigma2 = sum_k N^2 s^2 / K (1 - K/N where no row comes twice) + sum_k (N/K)^2 noise_sd^2
        third = sum_k N^3 m3 / K^2 (times (1 - K/N)(1 - 2K/N) likewise)

    Where sums are not finite (there is no likelihood) neither is the change, and no number among these is right.
    """
    rows, used, left, noise = (
        np.array(values, float)[:, None]
        for values in zip(*((one.rows, one.used, one.left, one.noise_sd) for one in strata), strict=True)
    )
    first, second, third = (sums[..., i] / used for i in range(sums.shape[-1]))
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.maximum(second - first**2, 0.0)
        cube = third - 3 * first * second + 2 * first**3
    # Of rows drawn without replacement: 1 - 2K/N, as far as N is large.
    leaning = np.where(left < 1, left * (2 * left - 1), 1.0)
    scale = power * rows
    return Change(
        mean=(scale * first).sum(0),
        parts=scale**2 * square / (used - 1) * left,
        known=float(((scale / used * noise) ** 2).sum()),
        third=(scale**3 * cube / used**2 * leaning).sum(0),
    )
