"""Connections (lines) from a coordinator to parties in the same process, or in other processes through Dask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo_federated.messages import Words, printable
from bnnzoo_federated.plain import communications, read_plain_values_only

_ENCRYPTED = ("tls://", "wss://")

Wait = Callable[[float], Words]
"""Function that waits at most the given number of seconds for the answer to a question.

The function raises an OSError, such as TimeoutError, if no answer arrived in this time, and a BnnzooError if no answer
can arrive.
"""


@runtime_checkable
class Line(Protocol):
    """A connection from a coordinator to a party."""

    def begin(self, question: str, words: Words) -> Wait:
        """Send a question with its arguments, and return the function that waits for the answer."""
        ...


class LocalLine:
    """A connection to a party in the same process, for simulation.

    Questions and answers are the same as between processes.
    """

    def __init__(self, party: Any):
        self._party = party

    def begin(self, question: str, words: Words) -> Wait:
        """Return a function that asks the party at once and ignores the time limit."""
        return lambda _: self._party.answer(question, words)


class DaskLine:
    """A connection to a party in another process (`bnnzoo_federated.serve`), through `dask.distributed`.

    One thread runs the event loop of all connections. If a Dask connection is broken or late, it is closed, and the
    next question opens a new one.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _starting = threading.Lock()

    def __init__(self, address: str, *, connection: dict[str, Any] | None = None):
        """Store the address. The first question opens the connection.

        Args:
            address: address of the party, such as tcp://host:8801.
            connection: Dask's connection arguments for tls://, the result of `security`.

        Raises:
            UsageError: if a tls:// address has no `connection`, or another address has one.
        """
        check_certificates(address, has_certificates=bool(connection))
        self.address = address
        self._dask = communications()
        self._connection = connection or {}
        self._comm: Any = None

    def begin(self, question: str, words: Words) -> Wait:
        """Send a question by the thread of the event loop, and return the function that waits for the answer."""
        future = asyncio.run_coroutine_threadsafe(self._ask(question, words), self._running())

        def wait(seconds: float) -> Words:
            try:
                return future.result(seconds)
            except TimeoutError:
                future.cancel()
                raise TimeoutError(f"no reply within {seconds:g} s") from None

        return wait

    async def _ask(self, question: str, words: Words) -> Words:
        read_plain_values_only()
        # While a question waits for its answer, no other question uses the connection. A late answer is dropped
        # together with its connection, so that it is never taken for the answer to a later question.
        comm, self._comm = self._comm, None
        try:
            if comm is None:
                comm = await self._dask.connect(self.address, deserialize=False, **self._connection)
            await comm.write({"question": question, "words": words})
            answer = await comm.read()
            if not isinstance(answer, dict):
                raise TypeError("the reply is not a mapping")
        except BaseException as error:
            if comm is not None:
                comm.abort()
            if isinstance(error, OSError) or not isinstance(error, Exception):
                raise
            raise BnnzooError(
                f"{self.address}: no party answers at this address ({type(error).__name__}: {printable(error)}); "
                "use the address that `bnnzoo party serve` printed"
            ) from error
        self._comm = comm
        return answer

    @classmethod
    def _running(cls) -> asyncio.AbstractEventLoop:
        with cls._starting:
            if cls._loop is None:
                cls._loop = asyncio.new_event_loop()
                threading.Thread(target=cls._loop.run_forever, name="bnnzoo-lines", daemon=True).start()
            return cls._loop


def check_certificates(address: str, *, has_certificates: bool) -> None:
    """Check that an encrypted address has certificates, and that another address has none.

    Args:
        address: the address of a connection or a listener.
        has_certificates: whether there is a result of `security` for the address.

    Raises:
        UsageError: if an encrypted address has no certificates, or another address has certificates.
    """
    is_encrypted = address.startswith(_ENCRYPTED)
    if is_encrypted and not has_certificates:
        raise UsageError(
            f"{address}: requires certificates; give --tls-ca, --tls-cert and --tls-key, or from Python the result of "
            "security(ca, cert, key)"
        )
    if has_certificates and not is_encrypted:
        raise UsageError(
            f"{address}: conflicts with certificates (--tls-ca, --tls-cert, --tls-key), which are for tls:// "
            "addresses; use an address that begins with tls://, or remove the certificates"
        )


def security(ca: Path | None, cert: Path | None, key: Path | None, *, listening: bool = False) -> dict[str, Any]:
    """Return Dask's arguments for a tls:// address: for a listener if `listening`, otherwise for a connection.

    Args:
        ca: file with the certificate of the authority that both sides trust.
        cert: file with the certificate of this side.
        key: file with the private key of this side.
        listening: whether the arguments are for a listener.

    Returns:
        the arguments; empty if all three files are None.

    Raises:
        UsageError: if only one or two of the three files are given, or if a file is missing or invalid.
    """
    paths_given = [path for path in (ca, cert, key) if path is not None]
    if not paths_given:
        return {}
    if len(paths_given) < 3:
        raise UsageError("--tls-ca, --tls-cert, --tls-key: require each other; give all three")
    for path in paths_given:
        if not path.is_file():
            raise UsageError(f"{path}: no such file; give the files of the authority, the certificate and the key")
    communications()
    from distributed import Security

    names = ("tls_worker_cert", "tls_worker_key") if listening else ("tls_client_cert", "tls_client_key")
    dask_security = Security(
        require_encryption=True, tls_ca_file=str(ca), **dict(zip(names, (str(cert), str(key)), strict=True))
    )
    try:
        return dask_security.get_listen_args("worker") if listening else dask_security.get_connection_args("client")
    except OSError as error:  # also an ssl.SSLError
        raise UsageError(
            f"{', '.join(map(str, paths_given))}: cannot be read as an authority, a certificate and its key ({error}); "
            "give three PEM files"
        ) from error
