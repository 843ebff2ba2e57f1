"""Reading and writing a run on disk."""

from bnnzoo.store.checkpoint import Checkpoint
from bnnzoo.store.command import Command
from bnnzoo.store.leftovers import remove_leftovers
from bnnzoo.store.netcdf import add_groups, refuse_other, write_table, write_tree
from bnnzoo.store.reading import (
    attributes_of,
    check,
    how_far,
    how_far_beside,
    identity_of,
    is_complete,
    open_parts,
    open_tree,
    resumable,
)
from bnnzoo.store.run_parts import parts_folder
from bnnzoo.store.schema import Attributes
from bnnzoo.store.writer import Store, check_room, discard, refuse_existing

__all__ = [
    "Attributes",
    "Checkpoint",
    "Command",
    "Store",
    "add_groups",
    "attributes_of",
    "check",
    "check_room",
    "discard",
    "how_far",
    "how_far_beside",
    "identity_of",
    "is_complete",
    "open_parts",
    "open_tree",
    "parts_folder",
    "refuse_existing",
    "refuse_other",
    "remove_leftovers",
    "resumable",
    "write_table",
    "write_tree",
]
