"""Change of the log-likelihood, estimated from the sums of parties. The rows of a party form a stratum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bnnzoo_federated.messages import Terms


class Stratum(NamedTuple):
    """A party's number of rows, the sampling of the batch for a step, and the noise added to the sum over the batch."""

    rows: int
    used: int
    disjoint: bool
    noise_sd: float

    @classmethod
    def of(cls, terms: Terms) -> Stratum:
        """Return the stratum of a party with these terms."""
        return cls(terms.rows, terms.batch_size, terms.sampling == "disjoint", terms.noise_sd)

    @property
    def left(self) -> float:
        """Finite-population factor of the variance for K of N rows: 1 - K/N if no row is used twice, else 1."""
        return 1 - self.used / self.rows if self.disjoint else 1.0


class Change(NamedTuple):
    """An estimate (`mean`) of the change of the log-likelihood for each chain, and the moments of its noise."""

    mean: Float[np.ndarray, " chain"]
    parts: Float[np.ndarray, "party chain"]
    """Estimated variance of each party's contribution to `mean`. The sum over parties plus `known` is sigma2."""
    known: float
    """Part of the variance of `mean` that is known: the variance of the noise that the parties added."""
    third: Float[np.ndarray, " chain"]
    """Estimated third cumulant of the noise of `mean`."""

    @property
    def sigma2(self) -> Float[np.ndarray, " chain"]:
        """Variance of the noise of `mean`."""
        return self.parts.sum(0) + self.known

    @property
    def skewness(self) -> Float[np.ndarray, " chain"]:
        """Skewness of the noise of `mean`; 0 if there is no noise."""
        return self.third / np.maximum(self.sigma2, np.finfo(np.float32).tiny) ** 1.5

    def dof(self, strata: Sequence[Stratum]) -> Float[np.ndarray, " chain"]:
        """Return the degrees of freedom of the estimated part of sigma2, the sum of `parts`.

        The formula is that of Satterthwaite (1946) and Welch (1947).
        """
        dofs = degrees_of_freedom(strata)[:, None]
        squares = (self.parts**2 / dofs).sum(0)
        return np.where(squares > 0, self.parts.sum(0) ** 2 / np.where(squares > 0, squares, 1), dofs.sum())


def degrees_of_freedom(strata: Sequence[Stratum]) -> Float[np.ndarray, " party"]:
    """Return the degrees of freedom of each party's estimated variance."""
    return np.array([stratum.used - 1 for stratum in strata], float)


def power_sums(
    d: Float[np.ndarray, "chain used"], shift: Float[np.ndarray, " chain"]
) -> Float[np.ndarray, "chain power"]:
    """Return the sums of d, d^2 and d^3 over a batch, after adding `shift` / (rows of the batch) to every d.

    The shift is the noise that the party adds. A common shift of all d does not change the sample variance of d, so the
    noise does not enter the estimated variance. The coordinator cannot remove the noise from the sums.
    """
    values = d.astype(np.float64) + shift[:, None] / d.shape[1]
    return np.stack([values.sum(1), (values**2).sum(1), (values**3).sum(1)], 1)


def combine_strata(
    sums: Float[np.ndarray, "party chain power"], strata: Sequence[Stratum], power: float = 1.0
) -> Change:
    """Return the estimated change of `power` times the log-likelihood of all rows, with the moments of its noise.

    Party k draws K of its N rows, with differences d of the log-likelihood. Let s^2 = sum (d - mean(d))^2 / (K - 1),
    and m3 the third central moment of d. The parties draw independently of each other. The estimates for
    `power` = 1 are

        mean  = sum_k N mean(d)
        sigma2 = sum_k N^2 s^2 / K (1 - K/N if no row is used twice) + sum_k (N/K)^2 noise_sd^2
        third = sum_k N^3 m3 / K^2 (times (1 - K/N)(1 - 2K/N) if no row is used twice)

    For other values of `power`, the three estimates are multiplied by `power`, `power`^2 and `power`^3.

    If a log-likelihood is not finite, the sums and the estimated change are not finite either.
    """
    rows, used, variance_fraction, noise = (
        np.array(values, float)[:, None]
        for values in zip(
            *((stratum.rows, stratum.used, stratum.left, stratum.noise_sd) for stratum in strata), strict=True
        )
    )
    first, second, third = (sums[..., i] / used for i in range(sums.shape[-1]))
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.maximum(second - first**2, 0.0)
        cube = third - 3 * first * second + 2 * first**3
    # The factor 1 - 2K/N for rows drawn without replacement, valid for large N.
    third_cumulant_factor = np.where(variance_fraction < 1, variance_fraction * (2 * variance_fraction - 1), 1.0)
    scale = power * rows
    return Change(
        mean=(scale * first).sum(0),
        parts=scale**2 * square / (used - 1) * variance_fraction,
        known=float(((scale / used * noise) ** 2).sum()),
        third=(scale**3 * cube / used**2 * third_cumulant_factor).sum(0),
    )
