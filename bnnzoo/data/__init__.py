"""Data on the host: loading, checking, splitting and scaling with NumPy. Nothing in this package imports JAX."""

from bnnzoo.data.dataset import Dataset, from_arrays
from bnnzoo.data.encoding import Unseen
from bnnzoo.data.load import load, load_inputs, load_like, load_recipe_data
from bnnzoo.data.scaler import Scaler
from bnnzoo.data.signature import Signature
from bnnzoo.data.split import split
from bnnzoo.data.targets import check_labels

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
