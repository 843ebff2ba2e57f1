"""A server for one party in a separate process. The server answers only the questions of a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from bnnzoo.errors import UsageError
from bnnzoo_federated.lines import check_certificates
from bnnzoo_federated.party import Party
from bnnzoo_federated.plain import communications, read_plain_values_only


def serve(
    party: Party,
    address: str,
    *,
    listening: dict[str, Any] | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Answer the questions to a party until the process ends, through the communications of `dask.distributed`.

    A Dask worker would execute any code that its scheduler sends. This server is not a worker: it uses only Dask's
    communications, reads only plain values, and calls only `Party.answer`.

    Args:
        party: the party.
        address: address to listen at, such as tcp://127.0.0.1:8801; port 0 means any free port.
        listening: Dask's listener arguments for tls://, see `security`.
        ready: function that receives the server's address once the server answers.

    Raises:
        UsageError: if a tls:// address has no `listening`, if another address has one, or if the address is invalid or
            in use.
    """
    check_certificates(address, has_certificates=bool(listening))
    dask = communications()
    asyncio.run(_serve(dask, party, address, listening or {}, ready))


async def _serve(
    dask: Any, party: Party, address: str, listening: dict[str, Any], ready: Callable[[str], None] | None
) -> None:
    async def answer(comm: Any) -> None:
        try:
            while True:
                message = await comm.read()
                # One question at a time, because a party has one log.
                await comm.write(party.answer(message["question"], message["words"]))
        except Exception:
            comm.abort()  # the connection was closed, or the message is invalid

    async def greet(comm: Any) -> None:
        try:
            await dask_greets(comm)
        except Exception as error:
            comm.abort()
            raise dask.CommClosedError("the peer uses another protocol") from error

    read_plain_values_only()
    async with AsyncExitStack() as stack:
        try:
            listener = dask.listen(address, answer, deserialize=False, **listening)
            dask_greets, listener.on_connection = listener.on_connection, greet
            await stack.enter_async_context(listener)
        except (OSError, ValueError) as error:
            raise UsageError(f"{address}: cannot listen at this address ({error}); use another [[listen]]") from error
        if ready is not None:
            ready(listener.contact_address)
        await asyncio.Event().wait()
