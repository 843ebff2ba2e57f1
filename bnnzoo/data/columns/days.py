"""Dates as days since 1970."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from bnnzoo.data.columns.forms import DATE, Style, as_iso

_UNIX_DAY = np.timedelta64(1, "D")


def days_since_1970(series: Any) -> Float[np.ndarray, " row"]:
    """Return the days since 1970 of a pandas series of datetimes, nan where missing."""
    import pandas as pd

    moments = pd.to_datetime(series, utc=True).dt.tz_localize(None).to_numpy()
    return np.where(np.isnat(moments), np.nan, (moments - np.datetime64(0, "s")) / _UNIX_DAY)


def coded_days(style: Style) -> Float[np.ndarray, " code"]:
    """Return the missing-cell codes that are dates, as days since 1970."""
    import pandas as pd

    codes = [as_iso(text) for text in style.codes if DATE.fullmatch(text)]
    return days_since_1970(pd.to_datetime(pd.Series(codes, dtype=object), format="ISO8601", errors="coerce", utc=True))
