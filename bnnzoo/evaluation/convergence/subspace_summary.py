"""The sampled part of a network in a run's summary, where `--stochastic` names a subspace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SHOWN = ("directions", "tau", "variance_fraction")


def of_run(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the subspace of a run's draws, from its root attributes; empty if parameters were sampled.

    - `subspace`: `identified` or `linearised`.
    - `directions`: number of sampled directions. The draws are those of the posterior given the others.
    - `tau`: smallest curvature of a sampled direction, in units of the prior's.
    - `variance_fraction`: fraction of the function's variance at the training rows that the directions contribute.
    """
    if "subspace" not in attributes:
        return {}
    block = json.loads(attributes["subspace"])
    return {"subspace": block["kind"], **{name: block[name] for name in _SHOWN}}
