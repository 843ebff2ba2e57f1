"""Public tools for mini-batch samplers: estimates of a log ratio, the noise penalty, control variates, preconditioners.

Plugins import these names from this module. The modules that define them are private and may change.
"""

from bnnzoo.samplers.common.control_variate import ORDER, Anchor, Order
from bnnzoo.samplers.common.control_variate import make_anchor as anchor_at
from bnnzoo.samplers.common.control_variate import next_anchor as next_anchor
from bnnzoo.samplers.common.control_variate import refuse_large as refuse_large_hessian
from bnnzoo.samplers.common.preconditioner import AbstractPreconditionedSampler, Preconditioner, update_precision
from bnnzoo.samplers.common.preconditioner import Shape as PreconditionerShape
from bnnzoo.samplers.common.preconditioner import identity as identity_preconditioner
from bnnzoo.samplers.subsampled.noise_penalty import Difference, noise_penalty
from bnnzoo.samplers.subsampled.noise_penalty import estimate_difference as estimate_difference
from bnnzoo.samplers.subsampled.regime import MAX_SIGMA2, MAX_SKEW_BIAS, MAX_STEP_SKEW, MIN_ACCEPTANCE
from bnnzoo.samplers.subsampled.regime import STATISTICS as NOISE_STATISTICS
from bnnzoo.samplers.subsampled.regime import noise_statistics as noise_statistics

__all__ = [
    "MAX_SIGMA2",
    "MAX_SKEW_BIAS",
    "MAX_STEP_SKEW",
    "MIN_ACCEPTANCE",
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
