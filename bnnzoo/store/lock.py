"""A lock that allows one writer per run, also between containers and between hosts that share a folder.

The lock is an flock on the file `lock`. The operating system releases it when the process ends, and no process ids are
needed. Hosts that do not see each other's locks use the file `owner.json`: it names the writer, and its modification
time is the writer's last sign of life. If a user breaks the lock, the old owner loses the token that every write
checks.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, cast

from filelock import FileLock, Timeout

from bnnzoo.errors import BnnzooError, BusyError, UsageError
from bnnzoo.shell import quoted
from bnnzoo.store.atomic import make_folder, write_whole

BEAT = 10.0
"""Seconds between two signs of life."""
STALE = 60.0
"""Seconds without a sign of life after which an owner counts as gone, if the operating system cannot see it."""

_LARGEST_CARD = 10_000
"""Largest size in bytes of `owner.json`; a larger file was not written by bnnzoo."""


class Owner(NamedTuple):
    """The process that writes a run."""

    token: str
    host: str
    boot: str
    """The kernel's boot id, which containers on one machine share."""
    pid: int


class RunLock:
    """The lock of the run `out` on the folder of its parts."""

    def __init__(self, out: Path, folder: Path):
        self.out, self.folder = out, folder
        self.owner = Owner(secrets.token_hex(8), platform.node(), _boot(), os.getpid())
        self._lock = FileLock(folder / "lock", timeout=0, thread_local=False)
        self._stop = threading.Event()

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock."""
        return self._lock.is_locked

    def acquire(self, *, break_stale: bool = False) -> None:
        """Take the lock.

        Args:
            break_stale: also take it from an owner that holds it but gave no sign of life for a minute.

        Raises:
            BusyError: if another process holds it.
            UsageError: if its holder gave no sign of life for a minute, or the folder does not support locks.
        """
        try:
            self._take()
        except Timeout:
            self._refuse_or_break(break_stale)
        except OSError as error:
            raise UsageError(f"{self.out}: {self.folder.name} cannot be locked: {error.strerror or error}") from error
        other, age = self._other()
        if other is not None and other.boot != self.owner.boot and age < STALE:
            # The operating system granted the lock, but it may not see a lock of another host.
            if age > -STALE:
                self._lock.release()
                raise BusyError(
                    f"{self.out}: {other.host} wrote this run {max(age, 0):.0f} seconds ago; wait until it has "
                    f"finished, or, if it was stopped, for {STALE - age:.0f} seconds"
                )
            if not break_stale:
                self._lock.release()
                raise UsageError(
                    f"{self.out}: {other.host} wrote this run at a time in the future: its clock is ahead of "
                    f"ours by {-age:.0f} seconds; if that process has ended, use bnnzoo resume "
                    f"{quoted(self.out)} --break-lock"
                )
        write_whole(self._card, lambda file: file.write(json.dumps(self.owner._asdict()).encode()))
        self._stop.clear()
        threading.Thread(target=self._beat, args=(self._stop,), daemon=True).start()

    def check(self) -> None:
        """Check before a write that this process still owns the run.

        Raises:
            BnnzooError: if another process broke the lock and took the run over, or the folder was removed.
        """
        if not self.folder.is_dir():
            raise BnnzooError(
                f"{self.folder}: was removed while the run was written; start it again with [[force=True]]"
            )
        other, _ = self._other()
        if other is None or other.token != self.owner.token:
            raise BnnzooError(f"{self.out}: another process has taken this run over; this process writes no more")

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, so that another process can take over the run.

        Args:
            remove: remove the lock's files, and the folder if nothing else is in it.
        """
        if not self.is_held:
            return
        self._stop.set()
        other, _ = self._other()
        if other is not None and other.token == self.owner.token:
            self._card.unlink(missing_ok=True)
        if remove and self._has_its_name():
            # Remove it while it is held: a process that opened the file earlier then notices that the file has no name.
            self._file.unlink()
        self._lock.release()
        if remove:
            with suppress(OSError):
                self.folder.rmdir()

    def _take(self) -> None:
        """Lock the file that exists now; try again if its last owner removed it meanwhile."""
        while True:
            make_folder(self.folder)  # its last owner may have removed the folder too
            with suppress(FileNotFoundError):
                self._lock.acquire()
                if self._has_its_name():
                    return
                self._lock.release()

    def _has_its_name(self) -> bool:
        """Whether the locked file is still the one that other processes open."""
        try:
            return os.path.samestat(os.fstat(cast("int", self._lock._context.lock_file_fd)), self._file.stat())
        except FileNotFoundError:
            return False

    @property
    def _file(self) -> Path:
        return self.folder / "lock"

    @property
    def _card(self) -> Path:
        return self.folder / "owner.json"

    def _refuse_or_break(self, break_stale: bool) -> None:
        other, age = self._other()
        who = "another process" if other is None else f"process {other.pid} on {other.host}"
        if abs(age) < STALE:
            raise BusyError(f"{self.out}: {who} is writing this run; wait until it has finished, or stop it")
        if not break_stale:
            raise UsageError(
                f"{self.out}: {who} holds this run, but has written nothing for {abs(age):.0f} seconds; if that "
                f"process has ended, use bnnzoo resume {quoted(self.out)} --break-lock"
            )
        # A new file is a new lock; the holder of the old file no longer has the token.
        self._file.unlink(missing_ok=True)
        with suppress(Timeout):
            return self._take()
        raise UsageError(
            f"{self.out}: another process has just taken this run over; wait until it has finished, or stop it"
        )

    def _other(self) -> tuple[Owner | None, float]:
        """Return the owner named in `owner.json`, and the seconds since its last sign of life.

        The owner is None if the file is damaged. The seconds are negative if the other host's clock is ahead.
        """
        try:
            card = self._card.lstat()
            if not stat.S_ISREG(card.st_mode) or card.st_size > _LARGEST_CARD:
                return None, 0.0
            age = time.time() - card.st_mtime
            owner = Owner(**json.loads(self._card.read_bytes()))
            known = all(isinstance(value, kind) for value, kind in zip(owner, (str, str, str, int), strict=True))
            return (owner if known else None), age
        except (OSError, ValueError, TypeError):
            return None, 0.0

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(BEAT):
            with suppress(OSError, BnnzooError):
                self.check()
                os.utime(self._card)


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
