"""Deep ensembles."""

from __future__ import annotations

from typing import Annotated

import equinox as eqx
from annotated_types import Ge, Gt
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import Doc

from bnnzoo.posterior import AbstractPosterior
from bnnzoo.posterior.hyperparameter import Number, number
from bnnzoo.samplers.base import Stats
from bnnzoo.samplers.variational import training


class EnsembleState(eqx.Module):
    """State of a chain: the parameters of the network, and the state of the training."""

    position: Float[Array, " dim"]
    adam: training.Adam


class Ensemble(training.AbstractTrainedSampler[EnsembleState]):
    """One trained network per chain; every draw of a chain is that network.

    Lakshminarayanan, Pritzel and Blundell 2017, Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles. Each chain has its own initial position and maximises the log posterior density. The predictions are an
    equally weighted mixture over the trained networks. `--init map` already trains a network for each chain, with early
    stopping, so that no warm-up is needed. If there is a warm-up, it continues the training with Adam on mini-batches
    of n rows, drawn from all N training rows. With beta the likelihood power, a step is

        theta' = theta - rate_t Adam( -grad [ log p(theta) + beta (N/n) sum_batch log p(y_i | x_i, theta) ] / N )
    """

    learning_rate: Annotated[Number, Gt(0), Doc("learning rate of Adam; it falls to 0 over warm-up")] = number(5e-3)
    batch_size: Annotated[int, Ge(1), Doc("n: number of rows per warm-up step")] = 128

    def init(
        self, posterior: AbstractPosterior, theta: Float[Array, " dim"], *, num_warmup: int, key: PRNGKeyArray
    ) -> EnsembleState:
        """Return the state of a chain whose training begins at `theta`."""
        del posterior, key
        return EnsembleState(theta, training.Adam.start(theta, num_warmup))

    def warmup_step(
        self, posterior: AbstractPosterior, state: EnsembleState, *, key: PRNGKeyArray
    ) -> tuple[EnsembleState, Stats]:
        """Make one Adam step on a mini-batch."""
        rows = training.batch(posterior, self.batch_size, key=key)
        adam, position, stats = training.step(
            posterior, state.adam, state.position, lambda t: training.loss(posterior, t, rows), self.learning_rate
        )
        return EnsembleState(position, adam), stats

    def step(
        self, posterior: AbstractPosterior, state: EnsembleState, *, key: PRNGKeyArray
    ) -> tuple[EnsembleState, Stats]:
        """Return the trained network unchanged."""
        del posterior, key
        return state, training.draw_statistics(state.position)
