"""Data on the host: loading, checking, splitting and scaling. NumPy only; nothing here knows JAX."""

from bnnzoo.data.check import check_labels
from bnnzoo.data.dataset import Dataset, Signature, from_arrays
from bnnzoo.data.load import load, load_inputs, load_like
from bnnzoo.data.scaler import Scaler
from bnnzoo.data.split import split

__all__ = [
    "Dataset",
    "Scaler",
    "Signature",
    "check_labels",
    "from_arrays",
    "load",
    "load_inputs",
    "load_like",
    "split",
]
