"""One run in several processes, on one or more machines.

Each process has part of the chains, and all processes communicate between chunks. Chains do not interact inside a
program, so each process compiles its own. On the host, every process holds the values of all chains. All processes
therefore tune in the same way, and the first process, which writes the file, does not need the disks of the others. The
transport is `jax.distributed`; whoever started it has set the number of processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.distributed import global_state  # JAX has no public name for its client
from jax.experimental import multihost_utils

from bnnzoo.errors import BnnzooError, InterruptedRunError, UsageError

T = TypeVar("T")

_PIECES = (2**14, 2**22)
_LOST_MESSAGE = "another process of this run has ended; see its own message for the reason"
_END = -1
"""Message of the first process that there are no more chunks."""


class LostProcessError(BnnzooError):
    """Another process of the run is gone."""


class Processes(NamedTuple):
    """The number of processes that share a run, and the rank of this one."""

    count: int = 1
    rank: int = 0

    @classmethod
    def current(cls) -> Processes:
        """Return the processes that JAX reports. This starts JAX."""
        return cls(jax.process_count(), jax.process_index())

    @property
    def is_first(self) -> bool:
        """Whether this process writes the file and the messages."""
        return self.rank == 0

    def own_part(self, tree: T, axis: int = 0) -> T:
        """Return this process's part of a tree whose leaves have all chains along `axis`."""
        if self.count == 1:
            return tree

        def own_slice(leaf: Any) -> Any:
            size = leaf.shape[axis] // self.count
            return leaf[(slice(None),) * axis + (slice(self.rank * size, (self.rank + 1) * size),)]

        return jax.tree.map(own_slice, tree)

    def gather(self, tree: T) -> T:
        """Join all processes' parts into one tree along the first axis; on the host, unless there is only one process.

        Raises:
            LostProcessError: if another process is gone.
        """
        if self.count == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        values = [np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for leaf in leaves]
        payloads, offset, joined_leaves = self._exchange(b"".join(value.tobytes() for value in values)), 0, []
        for leaf, value in zip(leaves, values, strict=True):
            process_arrays = [
                np.frombuffer(payload[offset : offset + value.nbytes], value.dtype).reshape(value.shape)
                for payload in payloads
            ]
            offset, array = offset + value.nbytes, np.concatenate(process_arrays)
            joined_leaves.append(jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else array)
        return jax.tree.unflatten(structure, joined_leaves)

    def broadcast_first(self, tree: T) -> T:
        """Return the first process's tree of numbers or arrays. Rounding and clocks differ between processes."""
        if self.count == 1:
            return tree
        gathered: Any = self.gather(jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree))

        def first_value(leaf: np.ndarray, own_value: Any) -> Any:
            return type(own_value)(leaf[0]) if isinstance(own_value, int | float) else np.asarray(leaf[0])

        return jax.tree.map(first_value, gathered, tree)

    def largest(self, number: int) -> int:
        """Return the largest of all processes' numbers.

        Raises:
            LostProcessError: if another process is gone.
        """
        return int(np.max(self.gather(np.array([number], np.int64))))

    def agree_on_rows(self, count: int, *, stop_signal: int = 0) -> int:
        """Agree on the number of rows of the next chunk: the first process's number, or 0 at the end.

        Args:
            count: this process's number; only the first one's counts.
            stop_signal: the number of a signal for which this process asks all to stop, or 0.

        Raises:
            InterruptedRunError: if any process asks to stop.
            LostProcessError: if another process is gone.
        """
        if self.count == 1:
            return count
        requests = self.gather(np.array([[count, stop_signal]], np.int64))
        if requests[0, 0] != _END and (number := int(requests[:, 1].max())):
            raise InterruptedRunError("another process of this run was stopped", number)
        return max(0, int(requests[0, 0]))

    def announce_end(self) -> None:
        """Tell the processes that wait for the next chunk that there is none; called by the first process."""
        self.agree_on_rows(_END)

    @contextlib.contextmanager
    def announce_close(self, finish_pending: Callable[[], Any] | None) -> Iterator[None]:
        """Wrap a generator's yield: if the first process closes the generator there, the other processes are told.

        Args:
            finish_pending: work to finish before the processes communicate again; None if they do not.
        """
        try:
            yield
        except GeneratorExit:
            if finish_pending is not None and self.is_first and self.count > 1:
                finish_pending()
                self.announce_end()
            raise

    @contextlib.contextmanager
    def share_first_error(self) -> Iterator[None]:
        """End the block with an error in every process if an error or a signal ends it in the first one.

        Raises:
            InterruptedRunError: if a signal stopped the first process.
            BnnzooError: if another error ended it; a `UsageError` if that was one.
        """
        try:
            yield
        except BaseException as error:
            # An unexpected error outside the first process is not announced: the others notice that the process is
            # gone.
            if (self.is_first or isinstance(error, BnnzooError)) and not isinstance(error, LostProcessError):
                with contextlib.suppress(LostProcessError):
                    self.broadcast_first(getattr(error, "exit_code", 1))
            raise
        if code := self.broadcast_first(0):
            text = "the first process of this run has ended; see its message for the reason"
            if code > 128:
                raise InterruptedRunError(text, code - 128)
            raise UsageError(text) if code == UsageError.exit_code else BnnzooError(text)

    def wait_for_all(self) -> None:
        """Wait until all processes have finished."""
        if self.count > 1:
            with contextlib.suppress(LostProcessError):  # whoever is lost will not be back
                self._exchange(b"", parting=True)

    def disconnect(self) -> None:
        """Disconnect from the other processes. The first one keeps the connection open until the others are gone."""
        if not self.is_first:
            jax.distributed.shutdown()
        elif self.count > 1:
            with contextlib.suppress(Exception):  # whoever is lost will not be back
                # The call returns when all living processes have made it: here, once no other process is left.
                client: Any = global_state.client
                client.get_live_nodes(list(range(self.count)))

    def _exchange(self, payload: bytes, *, parting: bool = False) -> list[bytes]:
        """Return each process's bytes, of equal length.

        Each message starts with its purpose and its length. Otherwise the final message of a failing process could be
        taken for draws, or the process would wait for others that wait for its draws.
        """
        header = np.array([parting, len(payload)], np.int64).tobytes()
        message, first_size = header + payload, _PIECES[0]
        pieces = [_gather_bytes(message[:first_size], first_size)]
        if any(piece[: len(header)] != header for piece in pieces[0]):
            raise LostProcessError(_LOST_MESSAGE)
        # The number of pieces varies, but there are only two sizes, each of which is compiled once.
        size = _PIECES[len(message) > 2 * first_size]
        pieces += [
            _gather_bytes(message[offset : offset + size], size) for offset in range(first_size, len(message), size)
        ]
        return [b"".join(parts)[len(header) :] for parts in zip(*pieces, strict=True)]


def _gather_bytes(part: bytes, size: int) -> list[bytes]:
    """Return each process's part, of equal length up to `size`, as bytes because JAX may drop 64-bit types."""
    buffer = np.zeros(size, np.uint8)
    buffer[: len(part)] = np.frombuffer(part, np.uint8)
    try:
        gathered = np.asarray(multihost_utils.process_allgather(buffer))
    except jax.errors.JaxRuntimeError as error:
        raise LostProcessError(_LOST_MESSAGE) from error
    return [row[: len(part)].tobytes() for row in gathered]


SINGLE_PROCESS = Processes()


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
