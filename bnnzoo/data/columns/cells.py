"""The cells of one table column, converted to numbers and levels."""

from __future__ import annotations

import unicodedata
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from bnnzoo.files import mapped

Kind = Literal["number", "boolean", "date", "time", "text"]


class Cells(NamedTuple):
    """One column with a known type.

    `numbers` is a float64 array [N] with nan for missing cells. The other elements are 1 or 0 for booleans, days since
    1970 for dates, hours since midnight for times of day, and positions in `levels` for text (-1 for an unknown level).
    """

    name: str
    kind: Kind
    numbers: Float[np.ndarray, " row"]
    levels: tuple[str, ...] = ()
    zoned: bool = False
    """Whether dates have a time zone."""
    bounds: Float[np.ndarray, "row 2"] | None = None
    """The smallest and largest possible value of each cell of a censored target; equal if the value is known."""

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Mask of the missing cells [N]."""
        return np.isnan(self.numbers)

    @property
    def known(self) -> Float[np.ndarray, " row"]:
        """The numbers [N], with nan for missing cells and for cells with bounds."""
        if self.bounds is None:
            return self.numbers
        return np.where(self.bounds[:, 0] == self.bounds[:, 1], self.numbers, np.nan)

    def with_levels(self, codes: Float[np.ndarray, " row"], levels: tuple[str, ...]) -> Cells:
        """Return this column of text with other `levels`, and with `codes` as the positions in them.

        The codes are stored in a temporary file if `numbers` is in a temporary file.
        """
        return self._replace(numbers=mapped.store(codes) if mapped.is_mapped(self.numbers) else codes, levels=levels)


def as_text(value: Any) -> str:
    """Return a cell as one line of text.

    Whole numbers are written without a decimal point, so that 1 and 1.0 become the same level. Letters with accents are
    composed (NFC), so that the two ways to store é become the same level.
    """
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(value) < 2**53:
        return str(int(value))
    return unicodedata.normalize("NFC", " ".join(str(value).split()))


def quoted(text: str) -> str:
    """Quote the text of a cell for a message: one line, at most 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
