"""Conversion of a finished run to an unfinished run, so that more draws can be added.

The file of a finished run contains the last checkpoint of the run (the group `final_state`). Draws, statistics, data
and this checkpoint are written to part files, from which the run continues as if it had never ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnnzoo.errors import UsageError
from bnnzoo.files.atomic import write_atomically
from bnnzoo.files.shell import resume_call
from bnnzoo.store import checkpoint, reading, run_parts
from bnnzoo.store.attributes import storable
from bnnzoo.store.schema import (
    CHECKPOINT_BYTES,
    CONSTANT_DATA,
    FINAL_STATE,
    OBSERVED_DATA,
    POSTERIOR,
    SAMPLE_STATS,
    SAMPLED,
    WARMUP,
    Attributes,
)
from bnnzoo.store.writer import Store, refuse_existing

if TYPE_CHECKING:
    import xarray as xr

_PART_BYTES = 2**24
"""Approximate size of a part file in bytes. It limits the memory use to the same value for runs of any length."""
# fmt: off
_END_ATTRIBUTES = frozenset({
    "absurd", "chain_weights", "chain_weights_error", "chain_weights_gain", "continuation", "converged", "ended",
    "ess_bulk", "noise_remark", "rhat", "stops", "verdict", "verdict_in_python",
})
# fmt: on
"""Optional root attributes that describe the end of a run. They are removed when the run is extended."""


def check_extensible(out: Path) -> None:
    """Check that a file belongs to a finished run with a checkpoint.

    Raises:
        UsageError: if the run is unfinished, or if its file is missing, damaged or has no checkpoint.
    """
    if run_parts.holds_run(run_parts.parts_folder(out)):
        raise UsageError(f"{out}: the run is unfinished; first continue it to its end with {resume_call(out)}")
    reading.check(out)
    if not reading.is_complete(out):
        raise UsageError(
            f"{out}: the run stopped before its end, and its folder {out.name}.parts is missing; start the run again "
            "with [[force=True]]"
        )
    if FINAL_STATE not in reading.groups_of(out):
        raise UsageError(
            f"{out}: draws cannot be added, because the file has no checkpoint (joined runs have none); "
            "start a new run with more [[draws]]"
        )


def reopen_finished(out: Path, attributes: Attributes) -> None:
    """Write part files and a checkpoint beside a finished file, so that `resume` can continue the run.

    The finished file stays until the extended run replaces it. The part files are hidden until all are written (see
    `Store.create`). If the process is killed before that, the finished run can be extended again.

    Args:
        out: the file of the finished run.
        attributes: root attributes of the extended run, with its recipe. Attributes that the user has added are kept if
            they are numbers or texts.

    Raises:
        UsageError: if the run cannot be extended, if its file or checkpoint is damaged, or if another process is
            writing the run.
    """
    check_extensible(out)
    tree, writer = reading.open_tree(out), Store(out)
    refuse_existing(out, force=True)
    writer.claim(force=True)
    try:
        static = {
            group: reading.read_group(out, tree, group)
            for group in (OBSERVED_DATA, CONSTANT_DATA)
            if group in tree.children
        }
        kept_attributes = {name: value for name, value in storable(attributes).items() if name not in _END_ATTRIBUTES}
        writer.create({**kept_attributes, "complete": 0}, _dims(tree), static, is_hidden=True)
        for prefix in (WARMUP, ""):
            _append_draws(writer, tree, prefix)
        state = reading.read_array(out, tree[FINAL_STATE].data_vars[CHECKPOINT_BYTES]).astype(np.uint8).tobytes()
        path = writer.folder / checkpoint.NEWEST
        write_atomically(path, lambda file: file.write(state))
        writer.save(checkpoint.load(path)._replace(num_parts=writer.num_parts))
        writer.reveal()
    except BaseException:
        run_parts.remove_files(writer.folder)
        raise
    finally:
        writer.release()
        tree.close()


def _append_draws(writer: Store, tree: xr.DataTree, prefix: str) -> None:
    names = [prefix + name for name in (POSTERIOR, SAMPLE_STATS) if prefix + name in tree.children]
    datasets = {name: tree.children[name].to_dataset(inherit=False) for name in names}
    if not datasets:
        return
    num_draws = next(iter(datasets.values())).sizes[SAMPLED[1]]
    bytes_of_draw = max(1, sum(dataset.nbytes for dataset in datasets.values()) // max(1, num_draws))
    length = max(1, _PART_BYTES // bytes_of_draw)
    for first in range(0, num_draws, length):
        rows = slice(first, first + length)
        writer.append(
            {
                name: {
                    str(key): reading.read_array(writer.out, values[:, rows])
                    for key, values in dataset.data_vars.items()
                }
                for name, dataset in datasets.items()
            }
        )


def _dims(tree: xr.DataTree) -> Mapping[str, list[str]]:
    """Return the dimension names of the variables of the data groups and of `posterior`, for `Store.create`."""
    dims: dict[str, list[str]] = {}
    for group in (OBSERVED_DATA, CONSTANT_DATA):
        if group in tree.children:
            dims |= {str(name): [str(dim) for dim in v.dims] for name, v in tree[group].data_vars.items()}
    if POSTERIOR in tree.children:
        drawn_dims = {f"{POSTERIOR}/{name}": v.dims[len(SAMPLED) :] for name, v in tree[POSTERIOR].data_vars.items()}
        dims |= {name: [str(dim) for dim in names] for name, names in drawn_dims.items()}
    return dims
