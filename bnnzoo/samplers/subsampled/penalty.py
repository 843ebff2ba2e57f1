"""Metropolis-Hastings on mini-batches with a noise penalty."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from typing_extensions import Doc

from bnnzoo.samplers.base import Exactness
from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty


class Penalty(AbstractPenalty):
    """Draws from the posterior, to the order of the correction, using a few mini-batches per step.

    Kawasaki, Holzmann and Adu-Gyamfi, arXiv 2210.09141; Ceperley and Dewing 1999, J. Chem. Phys. 110, 9812.
    A step draws M new batches of n data, K = M n, and uses them for both theta and the proposal theta':

        d_i    = l_i(theta') - l_i(theta)
        delta  = -(log p(theta') - log p(theta)) - beta (N / K) sum_i d_i
        sigma2 = estimate of Var(delta)
        accept with probability min(1, exp(-delta - u) q(theta|theta') / q(theta'|theta))

    The penalty is u = sigma2/2 + sigma2^2/(4(m+1)) + sigma2^3/(3(m+1)(m+3)), m = dof + 1. Its later terms correct for
    sigma2 being an estimate. A control variate subtracts from every d_i the Taylor polynomial of the log-likelihood at
    an anchor and adds its sum over all data, so that only the remainder is noisy. The anchor moves at the ends of
    warm-up windows and is then frozen. Langevin and hmc proposals take gradients from the polynomial (second order) or
    from another mini-batch, independent of the acceptance's and the same for the reverse move.
    """

    exactness: ClassVar[Exactness] = "noise-corrected"

    correction: Annotated[int, Ge(0), Le(3), Doc("number of terms of the penalty; 0 switches it off (biased)")] = 3
    proposal: Annotated[
        Literal["auto", "random-walk", "langevin", "hmc"],
        Doc("theta + eta F eps, theta + eta C grad + sqrt(2 eta) F eps, or leapfrog steps; auto: hmc on all data"),
    ] = "auto"
    sampling: Annotated[
        Literal["auto", "replacement", "disjoint", "importance"],
        Doc(
            "rows drawn uniformly, with replacement or none twice in a step (auto: with automatic sizes, none twice if "
            "a step uses half of the rows or more); or influential rows more often"
        ),
    ] = "auto"

    @property
    def stated_exactness(self) -> Exactness:
        return "noise-corrected" if self.correction else "biased"
