"""Hamiltonian Monte Carlo with a fixed number of leapfrog steps, through NumPyro."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Gt, Lt
from numpyro.infer.hmc import HMC
from typing_extensions import Doc

from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.mcmc import numpyro_kernels
from bnnzoo.samplers.mcmc.coordinates import WHITEN_LAST_LAYER


class Hmc(numpyro_kernels.AbstractHamiltonianSampler):
    """Draws from the posterior: `num_steps` leapfrog steps of H = -log p(theta) + p' M^-1 p / 2, then Metropolis.

    Duane et al. 1987. p is the momentum and M the mass matrix. Warm-up adapts the step size. It also sets M^-1, a
    diagonal plus low-rank matrix, from the positions and gradients of all chains (`low_rank`). The random factor of the
    step size (`jitter`) follows Neal 2011, section 3.2. On a Gaussian target each direction oscillates with its own
    period. If all trajectories had the same length, this length could be close to a multiple of a period. The chain
    would then hardly move in the direction with this period.
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

    def kernel(self, potential: numpyro_kernels.Potential, step_size: Number, *, warmup: bool) -> HMC:
        """Return NumPyro's HMC kernel."""
        del warmup
        return HMC(
            potential_fn=potential,
            step_size=step_size,  # type: ignore[arg-type]
            adapt_step_size=False,
            adapt_mass_matrix=False,
            num_steps=self.num_steps,
            trajectory_length=None,  # type: ignore[arg-type]
        )
