"""The state of a chain of Metropolis on mini-batches."""

from __future__ import annotations

import equinox as eqx
from jaxtyping import Array, Bool, Float

from bnnzoo.samplers.common.control_variate import Anchor
from bnnzoo.samplers.common.preconditioner import Preconditioner
from bnnzoo.samplers.subsampled.batch_sizes import WarmupMeans
from bnnzoo.samplers.subsampled.row_probabilities import RowProbabilities


class PenaltyState(eqx.Module):
    """State of a chain. Warm-up selects batch sizes from `seen`, the means over the present warm-up window."""

    position: Float[Array, " dim"]
    step_size: Float[Array, ""]
    preconditioner: Preconditioner
    anchor: Anchor | None
    seen: WarmupMeans
    auto: Bool[Array, " 3"]
    """Three flags: whether warm-up selects `batch_size`, `num_batches` and `sampling`, in this order."""
    rows: RowProbabilities | None
    """Probabilities with which the rows are drawn; None if they are all equal."""
