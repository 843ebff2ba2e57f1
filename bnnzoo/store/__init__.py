"""Reading and writing of the files of a run."""

from bnnzoo.store.checkpoint import Checkpoint as Checkpoint
from bnnzoo.store.command import Command as Command
from bnnzoo.store.extension import check_extensible as check_extensible
from bnnzoo.store.extension import reopen_finished as reopen_finished
from bnnzoo.store.leftovers import remove_leftovers as remove_leftovers
from bnnzoo.store.netcdf import add_groups as add_groups
from bnnzoo.store.netcdf import check_same_run as check_same_run
from bnnzoo.store.netcdf import write_table as write_table
from bnnzoo.store.netcdf import write_tree as write_tree
from bnnzoo.store.reading import attributes_of as attributes_of
from bnnzoo.store.reading import check as check
from bnnzoo.store.reading import identity_of as identity_of
from bnnzoo.store.reading import is_complete as is_complete
from bnnzoo.store.reading import open_parts as open_parts
from bnnzoo.store.reading import open_tree as open_tree
from bnnzoo.store.reading import parts_state as parts_state
from bnnzoo.store.reading import resumable as resumable
from bnnzoo.store.reading import run_state as run_state
from bnnzoo.store.run_parts import parts_folder as parts_folder
from bnnzoo.store.schema import Attributes as Attributes
from bnnzoo.store.writer import Store as Store
from bnnzoo.store.writer import check_room as check_room
from bnnzoo.store.writer import discard as discard
from bnnzoo.store.writer import refuse_existing as refuse_existing
