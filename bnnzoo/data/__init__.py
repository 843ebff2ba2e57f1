"""Data on the host: loading, checking, splitting and scaling with NumPy. Nothing in this package imports JAX."""

from bnnzoo.data.encoding.input_encoding import Unseen
from bnnzoo.data.encoding.targets import check_labels
from bnnzoo.data.loading.load import load, load_inputs, load_like
from bnnzoo.data.loading.recipe_data import load_recipe_data
from bnnzoo.data.rows.dataset import Dataset, from_arrays
from bnnzoo.data.rows.scaler import Scaler
from bnnzoo.data.rows.signature import Signature
from bnnzoo.data.rows.split import split

__all__ = [
    "Dataset",
    "Scaler",
    "Signature",
    "Unseen",
    "check_labels",
    "from_arrays",
    "load",
    "load_inputs",
    "load_like",
    "load_recipe_data",
    "split",
]
