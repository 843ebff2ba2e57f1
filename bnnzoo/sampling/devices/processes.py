"""One run in several processes, on one or more machines.

Each process runs some of the chains. Chains do not interact inside a compiled program, so each process has a separate
program, and the processes communicate only between chunks of draws. After each chunk, every process has the values of
all chains in its host memory. Therefore all processes tune the sampler in the same way. The first process writes the
file, in a folder that all processes can read. The processes communicate by `jax.distributed`, which is started
outside this module.
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
"""Size of the first piece of a message, and of the further pieces of a long message, in bytes."""
_LOST_MESSAGE = "another process of this run has ended; see its own message for the reason"
_END = -1
"""Value that the first process sends instead of a number of rows if there are no more chunks."""


class LostProcessError(BnnzooError):
    """Another process of the run has ended unexpectedly."""


class Processes(NamedTuple):
    """The number of processes that share a run, and the rank of this process, from 0."""

    count: int = 1
    rank: int = 0

    @classmethod
    def current(cls) -> Processes:
        """Return the number and the rank that JAX reports. The call starts JAX."""
        return cls(jax.process_count(), jax.process_index())

    @property
    def is_first(self) -> bool:
        """Whether this process writes the file and the messages."""
        return self.rank == 0

    def own_part(self, tree: T, axis: int = 0) -> T:
        """Return this process's chains from a tree whose leaves have all chains along `axis`."""
        if self.count == 1:
            return tree

        def own_slice(leaf: Any) -> Any:
            size = leaf.shape[axis] // self.count
            return leaf[(slice(None),) * axis + (slice(self.rank * size, (self.rank + 1) * size),)]

        return jax.tree.map(own_slice, tree)

    def gather(self, tree: T) -> T:
        """Concatenate the arrays of all processes along the first axis, in host memory.

        If there is only one process, `tree` is returned unchanged.

        Raises:
            LostProcessError: if another process has ended.
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
        """Return the first process's numbers or arrays in all processes. Rounding and clocks differ by process."""
        if self.count == 1:
            return tree
        gathered: Any = self.gather(jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree))

        def first_value(leaf: np.ndarray, own_value: Any) -> Any:
            return type(own_value)(leaf[0]) if isinstance(own_value, int | float) else np.asarray(leaf[0])

        return jax.tree.map(first_value, gathered, tree)

    def largest(self, number: int) -> int:
        """Return the largest of the values of `number` in all processes.

        Raises:
            LostProcessError: if another process has ended.
        """
        return int(np.max(self.gather(np.array([number], np.int64))))

    def agree_on_rows(self, count: int, *, stop_signal: int = 0) -> int:
        """Return the number of rows of the next chunk, the same in all processes; 0 if there is no further chunk.

        A row is a draw or a warm-up step.

        Args:
            count: number of rows that this process proposes. Only the first process's proposal is used.
            stop_signal: the number of a signal for which this process asks all processes to stop, or 0.

        Raises:
            InterruptedRunError: if any process asks to stop.
            LostProcessError: if another process has ended.
        """
        if self.count == 1:
            return count
        requests = self.gather(np.array([[count, stop_signal]], np.int64))
        if requests[0, 0] != _END and (number := int(requests[:, 1].max())):
            raise InterruptedRunError("a process of this run was stopped", number)
        return max(0, int(requests[0, 0]))

    def announce_end(self) -> None:
        """Tell the other processes that there is no further chunk. Only the first process calls this method."""
        self.agree_on_rows(_END)

    @contextlib.contextmanager
    def announce_close(self, finish_pending: Callable[[], Any] | None) -> Iterator[None]:
        """Wrap the `yield` of a generator. If the first process closes its generator at this `yield`, tell the others.

        Args:
            finish_pending: function that waits for the pending chunk, before the processes communicate. None if the
                other processes already know that there is no further chunk.
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
        """Raise an error in every process if an error or a signal ends the block in the first process.

        Raises:
            InterruptedRunError: if a signal stopped the first process.
            UsageError: if a `UsageError` ended the block in the first process.
            BnnzooError: if another error ended the block in the first process.
        """
        try:
            yield
        except BaseException as error:
            # A process other than the first joins this exchange only after an error of bnnzoo. After any other error it
            # ends, and the other processes notice that.
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
            with contextlib.suppress(LostProcessError):  # a lost process will not come back
                self._exchange(b"", parting=True)

    def disconnect(self) -> None:
        """Disconnect from the other processes. The first process waits until the others have disconnected."""
        if not self.is_first:
            jax.distributed.shutdown()
        elif self.count > 1:
            with contextlib.suppress(Exception):  # a lost process will not come back
                # `get_live_nodes` waits until every living process has called it or has ended. The other processes
                # never call it, so the call returns when all of them have ended.
                client: Any = global_state.client
                client.get_live_nodes(list(range(self.count)))

    def _exchange(self, payload: bytes, *, parting: bool = False) -> list[bytes]:
        """Send `payload` to all processes, and return the payload of each process. All payloads must have equal length.

        Each message starts with its purpose (`parting`: the last message of a process) and its length. Otherwise the
        last message of a failing process could be read as draws, or processes could wait for each other forever.
        """
        header = np.array([parting, len(payload)], np.int64).tobytes()
        message, first_size = header + payload, _PIECES[0]
        pieces = [_gather_bytes(message[:first_size], first_size)]
        if any(piece[: len(header)] != header for piece in pieces[0]):
            raise LostProcessError(_LOST_MESSAGE)
        # There are only two sizes of pieces, so that only two programs are compiled.
        size = _PIECES[len(message) > 2 * first_size]
        pieces += [
            _gather_bytes(message[offset : offset + size], size) for offset in range(first_size, len(message), size)
        ]
        return [b"".join(parts)[len(header) :] for parts in zip(*pieces, strict=True)]


def _gather_bytes(part: bytes, size: int) -> list[bytes]:
    """Return the `part` of each process. All parts have the same length, at most `size`.

    The parts are sent as bytes, because JAX may convert 64-bit types to 32 bits.
    """
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
