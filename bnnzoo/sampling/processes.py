"""One run in several processes, on one machine or many: each has a share of the chains, and all meet between chunks.

Chains never meet inside a program, so what the processes run is compiled for each alone. On the host every one of them
holds what all have: what is tuned from all chains is tuned alike in each, and the first, who writes the file, needs no
other's disk. The engine is `jax.distributed`; whoever started it has said how many processes there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.distributed import global_state  # its client is nowhere public
from jax.experimental import multihost_utils

from bnnzoo.errors import BnnzooError, InterruptedRunError, UsageError

T = TypeVar("T")

_PIECES = (2**14, 2**22)
_GONE = "another process of this run is gone: its own message says why"
_ENOUGH = -1
"""The first process's word that there will be no more chunks."""


class LostProcessError(BnnzooError):
    """Another process of the run is gone."""


class Processes(NamedTuple):
    """How many processes share a run, and which of them this is."""

    count: int = 1
    rank: int = 0

    @classmethod
    def here(cls) -> Processes:
        """Those that JAX knows of. Starts JAX."""
        return cls(jax.process_count(), jax.process_index())

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def own(self, tree: T, axis: int = 0) -> T:
        """This process's share of a tree whose leaves have all chains along `axis`."""
        if self.count == 1:
            return tree

        def share(leaf: Any) -> Any:
            size = leaf.shape[axis] // self.count
            return leaf[(slice(None),) * axis + (slice(self.rank * size, (self.rank + 1) * size),)]

        return jax.tree.map(share, tree)

    def everyones(self, tree: T) -> T:
        """All processes' shares as one tree, chains first; on the host, unless there is but one process.

        Raises:
            LostProcessError: if one is gone.
        """
        if self.count == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        values = [np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for leaf in leaves]
        found, at, whole = self._exchanged(b"".join(value.tobytes() for value in values)), 0, []
        for leaf, value in zip(leaves, values, strict=True):
            shares = [np.frombuffer(one[at : at + value.nbytes], value.dtype).reshape(value.shape) for one in found]
            at, array = at + value.nbytes, np.concatenate(shares)
            whole.append(jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else array)
        return jax.tree.unflatten(structure, whole)

    def firsts(self, tree: T) -> T:
        """The first process's tree of numbers or arrays, which all have alike but for rounding or the clock."""
        if self.count == 1:
            return tree
        found: Any = self.everyones(jax.tree.map(lambda leaf: np.asarray(leaf)[None], tree))

        def first(leaf: np.ndarray, mine: Any) -> Any:
            return type(mine)(leaf[0]) if isinstance(mine, int | float) else np.asarray(leaf[0])

        return jax.tree.map(first, found, tree)

    def largest(self, number: int) -> int:
        """Of the numbers that the processes say.

        Raises:
            LostProcessError: if one is gone.
        """
        return int(np.max(self.everyones(np.array([number], np.int64))))

    def meet(self, count: int, *, leaving: int = 0) -> int:
        """Agree on how many rows the next chunk has: as many as the first process says, 0 at the end.

        Args:
            leaving: the number of the signal for which this process asks all to end.

        Raises:
            InterruptedRunError: where any process asks for it.
            LostProcessError: if one is gone.
        """
        if self.count == 1:
            return count
        said = self.everyones(np.array([[count, leaving]], np.int64))
        if said[0, 0] != _ENOUGH and (number := int(said[:, 1].max())):
            raise InterruptedRunError("another process of this run was asked to stop", number)
        return max(0, int(said[0, 0]))

    def end(self) -> None:
        """The first process's word, where the others wait for the next chunk, that there is none."""
        self.meet(_ENOUGH)

    @contextlib.contextmanager
    def told_of_the_end(self, before: Callable[[], Any] | None) -> Iterator[None]:
        """Around a generator's yield: where the first process closes it there, the others hear of it as they meet.

        Args:
            before: what is still to be done before they meet again; None where they do not.
        """
        try:
            yield
        except GeneratorExit:
            if before is not None and self.is_first and self.count > 1:
                before()
                self.end()
            raise

    @contextlib.contextmanager
    def as_the_first(self) -> Iterator[None]:
        """What ends with an error or a signal in the first process does in each.

        Raises:
            InterruptedRunError: where the first was stopped by a signal.
            BnnzooError: where something else ended it; a `UsageError` where that was one.
        """
        try:
            yield
        except BaseException as error:
            # What is no error of ours happened here alone: the others notice that this process is gone.
            if (self.is_first or isinstance(error, BnnzooError)) and not isinstance(error, LostProcessError):
                with contextlib.suppress(LostProcessError):
                    self.firsts(getattr(error, "exit_code", 1))
            raise
        if code := self.firsts(0):
            text = "the first process of this run ended: its message says why"
            if code > 128:
                raise InterruptedRunError(text, code - 128)
            raise UsageError(text) if code == UsageError.exit_code else BnnzooError(text)

    def part(self) -> None:
        """Wait until all have come to their end."""
        if self.count > 1:
            with contextlib.suppress(LostProcessError):  # whoever is lost will not be back
                self._exchanged(b"", parting=True)

    def take_leave(self) -> None:
        """Let go of the others. The first keeps what they need for that, and goes once they are gone."""
        if not self.is_first:
            jax.distributed.shutdown()
        elif self.count > 1:
            with contextlib.suppress(Exception):  # whoever is lost will not be back
                # Answered once all that are alive have asked: here, once there are no others.
                client: Any = global_state.client
                client.get_live_nodes(list(range(self.count)))

    def _exchanged(self, mine: bytes, *, parting: bool = False) -> list[bytes]:
        """Each process's bytes, of equal length.

        What each says begins with why it says it, and how much: a process that ends with an error of its own would have
        its goodbye taken for draws, or wait for those who wait for its draws.
        """
        header = np.array([parting, len(mine)], np.int64).tobytes()
        said, small = header + mine, _PIECES[0]
        pieces = [_gathered(said[:small], small)]
        if any(one[: len(header)] != header for one in pieces[0]):
            raise LostProcessError(_GONE)
        # As many pieces as there are, of two sizes: each is compiled once.
        size = _PIECES[len(said) > 2 * small]
        pieces += [_gathered(said[at : at + size], size) for at in range(small, len(said), size)]
        return [b"".join(parts)[len(header) :] for parts in zip(*pieces, strict=True)]


def _gathered(part: bytes, size: int) -> list[bytes]:
    """Each process's part, of equal length and no more than `size`; as bytes: what JAX carries may lose 64 bits."""
    piece = np.zeros(size, np.uint8)
    piece[: len(part)] = np.frombuffer(part, np.uint8)
    try:
        found = np.asarray(multihost_utils.process_allgather(piece))
    except jax.errors.JaxRuntimeError as error:
        raise LostProcessError(_GONE) from error
    return [one[: len(part)].tobytes() for one in found]


ALONE = Processes()


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
