"""Groups of predictions in the file of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Shaped

from bnnzoo import store
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.store import schema


def add(record: Record, groups: Mapping[str, Mapping[str, Shaped[np.ndarray, "..."]]]) -> None:
    """Write groups of predictions into the file of a run, and open the file again.

    Args:
        record: the run, which must have a file.
        groups: the variables of each group. The variable `draw` of a group lists the draws from which the group was
            computed; this list becomes the coordinate `draw` of the group.
    """
    assert record.file is not None
    inputs = [str(name) for name in tuple(record.tree["constant_data"]["x"].dims)[1:]]
    record.tree.close()
    values = {
        group: {name: array for name, array in arrays.items() if name != "draw"} for group, arrays in groups.items()
    }
    dims = {
        f"{group}/{name}": [*schema.DIMS[group][name], *(inputs if name == "x" else ())][: array.ndim]
        for group, arrays in values.items()
        for name, array in arrays.items()
    }
    coords = {
        group: {"chain": np.arange(record.shape[0]), "draw": arrays["draw"]}
        for group, arrays in groups.items()
        if "draw" in arrays
    }
    store.add_groups(record.file, values, dims, coords)
    record.tree = store.open_tree(record.file)
