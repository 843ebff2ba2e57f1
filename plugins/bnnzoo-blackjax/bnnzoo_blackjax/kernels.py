"""Samplers from kernels of BlackJAX, in a few lines each. Further kernels can be added in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt
from jaxtyping import Array, Float
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo_blackjax.kernel import AbstractKernel

if TYPE_CHECKING:
    from blackjax.base import SamplingAlgorithm

Exact = Literal["exact"]
_MIN_DEPTH = 4


class Nuts(AbstractKernel):
    """Draws from the posterior by BlackJAX's No-U-Turn sampler (Hoffman and Gelman 2014)."""

    exactness: ClassVar[Exact] = "exact"
    budget_field: ClassVar[str] = "max_tree_depth"

    step_size: Annotated[Number, Gt(0), Doc("step size of the leapfrog integrator (initial value)")] = number(0.01)
    max_tree_depth: Annotated[int, Ge(1), Doc("maximum tree depth: at most 2^depth - 1 leapfrog steps per draw")] = 10
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.8)

    @property
    def gradients(self) -> int:
        """Maximum number of gradients in a step, 2^depth - 1 for the maximum tree depth."""
        return 2**self.max_tree_depth - 1

    def fit_budget(self, posterior: AbstractPosterior, thetas: Float[Array, "chain dim"], gradients: float) -> int:
        """Return the maximum tree depth for at most `gradients` gradients per step, but at least `_MIN_DEPTH`."""
        del posterior, thetas
        return int(np.clip(np.log2(gradients + 1), min(_MIN_DEPTH, self.max_tree_depth), self.max_tree_depth))

    def algorithm(
        self, log_density: Callable, step_size: Float[Array, ""], inverse_mass: Float[Array, " dim"]
    ) -> SamplingAlgorithm:
        """Return BlackJAX's NUTS algorithm."""
        import blackjax

        return blackjax.nuts(log_density, step_size, inverse_mass, max_num_doublings=self.max_tree_depth)


class Hmc(AbstractKernel):
    """Draws from the posterior by BlackJAX's Hamiltonian Monte Carlo (Duane et al. 1987)."""

    exactness: ClassVar[Exact] = "exact"

    step_size: Annotated[Number, Gt(0), Doc("step size of the leapfrog integrator (initial value)")] = number(0.01)
    num_steps: Annotated[int, Ge(1), Doc("leapfrog steps per draw")] = 32
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.8)

    @property
    def gradients(self) -> int:
        """Number of gradients in a step: one per leapfrog step."""
        return self.num_steps

    def algorithm(
        self, log_density: Callable, step_size: Float[Array, ""], inverse_mass: Float[Array, " dim"]
    ) -> SamplingAlgorithm:
        """Return BlackJAX's HMC algorithm."""
        import blackjax

        return blackjax.hmc(log_density, step_size, inverse_mass, self.num_steps)


class Barker(AbstractKernel):
    """Draws from the posterior by BlackJAX's Barker proposal (Livingstone and Zanella 2022).

    The acceptance rate depends less on the step size than the acceptance rate of Langevin proposals.
    """

    exactness: ClassVar[Exact] = "exact"

    step_size: Annotated[Number, Gt(0), Doc("step size: scale of the proposal's noise (initial value)")] = number(0.01)
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.4)

    def algorithm(
        self, log_density: Callable, step_size: Float[Array, ""], inverse_mass: Float[Array, " dim"]
    ) -> SamplingAlgorithm:
        """Return BlackJAX's Barker algorithm."""
        import blackjax

        # BlackJAX's Barker kernel divides its noise by sqrt(inverse_mass). Other BlackJAX kernels multiply by it.
        return blackjax.barker(log_density, step_size, 1 / inverse_mass)
