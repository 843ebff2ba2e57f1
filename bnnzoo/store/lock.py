"""A lock that allows one writer per run, also between containers and between hosts that share a folder.

The lock is an flock on the file `lock`. The operating system releases it when the process ends, and no process ids are
needed. Hosts that do not see each other's locks use the file `owner.json`: it names the writer, and its modification
time shows when the writer last responded. If a user breaks the lock, the old owner loses the token that every write
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
from bnnzoo.files.atomic import make_folder, write_atomically
from bnnzoo.files.shell import quoted

BEAT_SECONDS = 10.0
"""Seconds between two signs of life."""
STALE_SECONDS = 60.0
"""Seconds without a sign of life after which an owner counts as gone, if the operating system cannot see it."""

_MAX_OWNER_BYTES = 10_000
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
        self.owner = Owner(secrets.token_hex(8), platform.node(), _boot_id(), os.getpid())
        self._file, self._owner_file = folder / "lock", folder / "owner.json"
        self._lock = FileLock(self._file, timeout=0, thread_local=False)
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
            self._lock_file()
        except Timeout:
            self._refuse_or_break(break_stale)
        except OSError as error:
            raise UsageError(f"{self.out}: {self.folder.name} cannot be locked: {error.strerror or error}") from error
        owner, age = self._read_owner()
        if owner is not None and owner.boot != self.owner.boot and age < STALE_SECONDS:
            # The operating system granted the lock, but it may not see a lock of another host.
            if age > -STALE_SECONDS:
                self._lock.release()
                raise BusyError(
                    f"{self.out}: {owner.host} wrote this run {max(age, 0):.0f} seconds ago; wait until it has "
                    f"finished, or, if it was stopped, for {STALE_SECONDS - age:.0f} seconds"
                )
            if not break_stale:
                self._lock.release()
                raise UsageError(
                    f"{self.out}: {owner.host} wrote this run at a time in the future: its clock is ahead of "
                    f"ours by {-age:.0f} seconds; if that process has ended, use bnnzoo resume "
                    f"{quoted(self.out)} --break-lock"
                )
        write_atomically(self._owner_file, lambda file: file.write(json.dumps(self.owner._asdict()).encode()))
        self._stop.clear()
        threading.Thread(target=self._touch_regularly, args=(self._stop,), daemon=True).start()

    def check(self) -> None:
        """Check before a write that this process still owns the run.

        Raises:
            BnnzooError: if another process broke the lock and took the run over, or the folder was removed.
        """
        if not self.folder.is_dir():
            raise BnnzooError(
                f"{self.folder}: was removed while the run was written; start it again with [[force=True]]"
            )
        owner, _ = self._read_owner()
        if owner is None or owner.token != self.owner.token:
            raise BnnzooError(f"{self.out}: another process has taken this run over; this process writes no more")

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, so that another process can take over the run.

        Args:
            remove: remove the lock's files, and the folder if nothing else is in it.
        """
        if not self.is_held:
            return
        self._stop.set()
        owner, _ = self._read_owner()
        if owner is not None and owner.token == self.owner.token:
            self._owner_file.unlink(missing_ok=True)
        if remove and self._has_its_name():
            # Remove it while it is held: a process that opened the file earlier then notices that the file has no name.
            self._file.unlink()
        self._lock.release()
        if remove:
            with suppress(OSError):
                self.folder.rmdir()

    def _lock_file(self) -> None:
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

    def _refuse_or_break(self, break_stale: bool) -> None:
        owner, age = self._read_owner()
        holder = "another process" if owner is None else f"process {owner.pid} on {owner.host}"
        if abs(age) < STALE_SECONDS:
            raise BusyError(f"{self.out}: {holder} is writing this run; wait until it has finished, or stop it")
        if not break_stale:
            raise UsageError(
                f"{self.out}: {holder} holds this run, but has written nothing for {abs(age):.0f} seconds; if that "
                f"process has ended, use bnnzoo resume {quoted(self.out)} --break-lock"
            )
        # A new file is a new lock; the holder of the old file no longer has the token.
        self._file.unlink(missing_ok=True)
        with suppress(Timeout):
            return self._lock_file()
        raise UsageError(
            f"{self.out}: another process has just taken this run over; wait until it has finished, or stop it"
        )

    def _read_owner(self) -> tuple[Owner | None, float]:
        """Return the owner named in `owner.json`, and the seconds since its last sign of life.

        The owner is None if the file is damaged. The seconds are negative if the other host's clock is ahead.
        """
        try:
            status = self._owner_file.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_OWNER_BYTES:
                return None, 0.0
            age = time.time() - status.st_mtime
            owner = Owner(**json.loads(self._owner_file.read_bytes()))
            is_valid = all(isinstance(value, kind) for value, kind in zip(owner, (str, str, str, int), strict=True))
            return (owner if is_valid else None), age
        except (OSError, ValueError, TypeError):
            return None, 0.0

    def _touch_regularly(self, stop: threading.Event) -> None:
        while not stop.wait(BEAT_SECONDS):
            with suppress(OSError, BnnzooError):
                self.check()
                os.utime(self._owner_file)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
