"""Hamiltonian Monte Carlo with a fixed number of leapfrog steps, through NumPyro."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Lt
from jaxtyping import PRNGKeyArray
from numpyro.infer.hmc import HMC
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.mcmc import numpyro_kernels
from bnnzoo.samplers.mcmc.coordinates import WHITEN_LAST_LAYER, Coordinates


class Hmc(numpyro_kernels.AbstractHamiltonianSampler):
    """Draws from the posterior: `num_steps` leapfrog steps of H = -log p(theta) + p' M^-1 p / 2, then Metropolis.

    Duane et al. 1987. p is the momentum and M the mass matrix. NumPyro adapts the step size and a diagonal M over the
    whole warm-up. The random factor of the step size (`jitter`) follows Neal 2011, section 3.2. On a Gaussian target
    each direction oscillates with its own period. If all trajectories had the same length, this length could be close
    to a multiple of a period. The chain would then hardly move in the direction with this period.
    """

    step_size: Annotated[Number, Gt(0), Doc("step size of the leapfrog integrator (initial value)")] = number(0.01)
    num_steps: Annotated[int, Ge(1), Doc("leapfrog steps per draw")] = 32
    jitter: Annotated[
        Number, Ge(0), Lt(1), Doc("each draw multiplies the step size by a uniform number in 1 +- jitter")
    ] = number(0.2)
    target_acceptance: Annotated[Number, Gt(0), Lt(1), Doc("target acceptance rate of the warm-up")] = number(0.8)
    whiten_last_layer: Annotated[bool, Doc(WHITEN_LAST_LAYER)] = True

    @property
    def gradients(self) -> int:
        """Maximum number of gradients of a step: one per leapfrog step."""
        return self.num_steps

    def kernel(self, coordinates: Coordinates) -> HMC:
        """Return NumPyro's HMC kernel."""
        return HMC(
            potential_fn=numpyro_kernels.potential(coordinates),
            step_size=self.step_size,  # type: ignore[arg-type]
            num_steps=self.num_steps,
            trajectory_length=None,  # type: ignore[arg-type]
            target_accept_prob=self.target_acceptance,  # type: ignore[arg-type]
        )

    def step(
        self, posterior: AbstractPosterior, state: numpyro_kernels.HamiltonianState, *, key: PRNGKeyArray
    ) -> tuple[numpyro_kernels.HamiltonianState, Stats]:
        """Make one trajectory with a randomly changed step size, then accept or reject its end point."""
        coordinates = self.coordinates(posterior)
        return numpyro_kernels.step(self.kernel(coordinates), coordinates, state, jitter=self.jitter, key=key)
