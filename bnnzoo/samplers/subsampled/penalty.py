"""Metropolis-Hastings on mini-batches with a noise penalty."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from typing_extensions import Doc

from bnnzoo.samplers.base import Exactness
from bnnzoo.samplers.subsampled.metropolis import AbstractPenalty


class Penalty(AbstractPenalty):
    """Draws from the posterior with a few mini-batches per step; a noise penalty corrects the acceptance probability.

    Kawasaki, Holzmann and Adu-Gyamfi, arXiv 2210.09141; Ceperley and Dewing 1999, J. Chem. Phys. 110, 9812.
    A step draws M new batches of n data and uses these K = M n data for both theta and the proposal theta'. Let p be
    the prior, l_i the log-likelihood of datum i, beta the likelihood power and N the number of data:

        d_i    = l_i(theta') - l_i(theta)
        delta  = -(log p(theta') - log p(theta)) - beta (N / K) sum_i d_i
        sigma2 = estimate of Var(delta)
        accept with probability min(1, exp(-delta - u) q(theta|theta') / q(theta'|theta))

    The penalty u corrects for the noise of delta: u = sigma2/2 + sigma2^2/(4(m+1)) + sigma2^3/(3(m+1)(m+3)). Here
    m = dof + 1, and dof is the number of degrees of freedom of sigma2. The second and the third term are needed because
    sigma2 is only an estimate of the variance.

    A control variate reduces the noise. It subtracts from every d_i the change of a Taylor polynomial of l_i, and adds
    the sum of these changes over all data. The polynomials are expanded at a point called the anchor. The anchor can
    move at the end of a warm-up window, and is fixed after warm-up.

    Langevin and hmc proposals use gradients. If the polynomials are of second order, the gradients are those of the
    polynomials. Otherwise the gradients come from another mini-batch, which is independent of the batches for the
    acceptance. The reverse move uses the same mini-batch.
    """

    exactness: ClassVar[Exactness] = "noise-corrected"

    correction: Annotated[int, Ge(0), Le(3), Doc("number of terms of the penalty; 0 switches it off (biased)")] = 3
    proposal: Annotated[
        Literal["auto", "random-walk", "langevin", "hmc"],
        Doc(
            "random-walk: theta + eta F eps; langevin: theta + eta C grad + sqrt(2 eta) F eps; hmc: leapfrog steps; "
            "auto: hmc if a step uses all data, or for a subspace if warm-up > 0; else random-walk"
        ),
    ] = "auto"
    sampling: Annotated[
        Literal["auto", "replacement", "disjoint", "importance"],
        Doc(
            "replacement: rows are drawn independently; disjoint: no row is used twice in a step; importance: "
            "influential rows are drawn more often; auto: importance for a subspace and at most 262144 rows, if "
            "warm-up > 0; else disjoint if automatic sizes exceed half of the rows; else replacement"
        ),
    ] = "auto"

    @property
    def stated_exactness(self) -> Exactness:
        return "noise-corrected" if self.correction else "biased"
