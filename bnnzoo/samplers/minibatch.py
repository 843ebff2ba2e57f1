"""Public tools for mini-batch samplers: the noise of a log ratio, its penalty, its statistics, and control variates.

Plugins import these names from this module. The modules that define them are private and may change.
"""

from bnnzoo.samplers._control_variate import ORDER, Anchor, Order
from bnnzoo.samplers._control_variate import anchored as anchor_at
from bnnzoo.samplers._control_variate import follow as next_anchor
from bnnzoo.samplers._control_variate import refuse_large as refuse_large_hessian
from bnnzoo.samplers._noise import Difference, noise_penalty
from bnnzoo.samplers._noise import estimated as estimate_difference
from bnnzoo.samplers._preconditioner import AbstractPreconditionedSampler, Preconditioner, update_precision
from bnnzoo.samplers._preconditioner import Shape as PreconditionerShape
from bnnzoo.samplers._preconditioner import identity as identity_preconditioner
from bnnzoo.samplers._regime import LEAST_ACCEPTANCE, MOST_SIGMA2, MOST_SKEW_BIAS, MOST_SKEW_OF_A_STEP
from bnnzoo.samplers._regime import STATISTICS as NOISE_STATISTICS
from bnnzoo.samplers._regime import told as noise_statistics

__all__ = [
    "LEAST_ACCEPTANCE",
    "MOST_SIGMA2",
    "MOST_SKEW_BIAS",
    "MOST_SKEW_OF_A_STEP",
    "NOISE_STATISTICS",
    "ORDER",
    "AbstractPreconditionedSampler",
    "Anchor",
    "Difference",
    "Order",
    "Preconditioner",
    "PreconditionerShape",
    "anchor_at",
    "estimate_difference",
    "identity_preconditioner",
    "next_anchor",
    "noise_penalty",
    "noise_statistics",
    "refuse_large_hessian",
    "update_precision",
]
