"""Connection to a Dask scheduler, https://distributed.dask.org."""

from __future__ import annotations

from typing import Any

from bnnzoo.errors import UsageError
from bnnzoo.finding import setting

_SECONDS_TO_CONNECT = 10


def connect(address: str) -> Any:
    """Return a client of the scheduler at `address`, such as tcp://host:8786.

    Raises:
        UsageError: if Dask is not installed, or there is no scheduler at the address.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("[[scheduler]]: Dask is not installed; pip install 'bnnzoo[dask]'") from None
    try:
        return Client(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        remedy = (
            "start a scheduler with `dask scheduler`, and a worker on each machine with "
            "`dask worker ADDRESS --nthreads 1`"
        )
        raise UsageError(f"{setting('scheduler', address)}: no Dask scheduler at this address; {remedy}") from error
