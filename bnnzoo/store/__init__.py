"""A run on disk."""

from bnnzoo.store.checkpoint import Checkpoint
from bnnzoo.store.netcdf import add_groups, open_tree, write_table
from bnnzoo.store.parts import parts_folder
from bnnzoo.store.schema import Attributes
from bnnzoo.store.writer import Store, check_room, refuse_existing

__all__ = [
    "Attributes",
    "Checkpoint",
    "Store",
    "add_groups",
    "check_room",
    "open_tree",
    "parts_folder",
    "refuse_existing",
    "write_table",
]
