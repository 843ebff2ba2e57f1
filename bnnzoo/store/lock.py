"""A lock that allows only one writer per run, also between containers and between hosts that share a folder.

The lock is an flock on the file `lock`. The operating system releases it when the process ends, so no process ids are
needed. Some hosts do not see each other's locks. For them, the file `owner.json` names the writer, and its modification
time shows when the writer was last active. The file also contains a token. Before every write, the writer checks that
the file still contains the writer's token. If a user breaks the lock, the new writer's token replaces the old one.
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
from bnnzoo.files.shell import resume_call

BEAT_SECONDS = 10.0
"""Seconds between two updates of the modification time of `owner.json`."""
STALE_SECONDS = 60.0
"""Seconds without an update after which an owner on another host counts as dead."""

_MAX_OWNER_BYTES = 10_000
"""Largest size of `owner.json` in bytes. A larger file was not written by bnnzoo."""


class Owner(NamedTuple):
    """The process that writes a run."""

    token: str
    host: str
    boot: str
    """The boot id of the kernel. Containers on the same machine have the same boot id."""
    pid: int


class RunLock:
    """The lock of the run `out`: a file in the folder of the part files of the run."""

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
            break_stale: also take the lock from another process that was not active for a minute.

        Raises:
            BusyError: if an active process holds the lock.
            UsageError: if the owner was not active for a minute, or its host's clock is a minute ahead, and
                `break_stale` is false. Also if the folder cannot be locked, or if another process breaks the lock at
                the same time.
        """
        try:
            self._lock_file()
        except Timeout:
            self._refuse_or_break(break_stale)
        except OSError as error:
            raise UsageError(f"{self.out}: {self.folder.name} cannot be locked: {error.strerror or error}") from error
        owner, age = self._read_owner()
        if owner is not None and owner.boot != self.owner.boot and age < STALE_SECONDS:
            # The operating system granted the lock, but it may not know of a lock of another host.
            if age > -STALE_SECONDS:
                self._lock.release()
                raise BusyError(
                    f"{self.out}: the host {owner.host} wrote this run {max(age, 0):.0f} seconds ago; wait until the "
                    f"run has finished, or, if its process was stopped, wait {STALE_SECONDS - age:.0f} seconds"
                )
            if not break_stale:
                self._lock.release()
                raise UsageError(
                    f"{self.out}: the clock of the host {owner.host}, which wrote this run, is {-age:.0f} seconds "
                    f"ahead of this computer's clock; if the process on {owner.host} has ended, use "
                    f"{resume_call(self.out, '[[break_lock=True]]')}"
                )
        write_atomically(self._owner_file, lambda file: file.write(json.dumps(self.owner._asdict()).encode()))
        self._stop.clear()
        threading.Thread(target=self._touch_regularly, args=(self._stop,), daemon=True).start()

    def check(self) -> None:
        """Check before a write that this process still owns the run.

        Raises:
            BnnzooError: if another process broke the lock and took over the run, or if the folder was removed.
        """
        if not self.folder.is_dir():
            raise BnnzooError(
                f"{self.folder}: was removed while the run was written; start the run again with [[force=True]]"
            )
        owner, _ = self._read_owner()
        if owner is None or owner.token != self.owner.token:
            raise BnnzooError(f"{self.out}: another process has taken this run over; this process stops writing")

    def release(self, *, remove: bool = False) -> None:
        """Release the lock, so that another process can take over the run.

        Args:
            remove: remove the files of the lock, and the folder if it is then empty.
        """
        if not self.is_held:
            return
        self._stop.set()
        owner, _ = self._read_owner()
        if owner is not None and owner.token == self.owner.token:
            self._owner_file.unlink(missing_ok=True)
        if remove and self._holds_current_file():
            # The file is removed before the lock is released. A process that has opened it then notices the removal.
            self._file.unlink()
        self._lock.release()
        if remove:
            with suppress(OSError):
                self.folder.rmdir()

    def _lock_file(self) -> None:
        """Lock the file `lock`. Try again if its previous owner removed the file at the same time."""
        while True:
            make_folder(self.folder)  # the previous owner of the lock may have removed the folder too
            with suppress(FileNotFoundError):
                self._lock.acquire()
                if self._holds_current_file():
                    return
                self._lock.release()

    def _holds_current_file(self) -> bool:
        """Whether the locked file is still the file with the name `lock`, which other processes open."""
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
                f"{self.out}: {holder} has locked this run, but has written nothing for {abs(age):.0f} seconds; if "
                f"that process has ended, use {resume_call(self.out, '[[break_lock=True]]')}"
            )
        # A new file is a new lock. The old owner then finds another token in `owner.json` and writes no more.
        self._file.unlink(missing_ok=True)
        with suppress(Timeout):
            return self._lock_file()
        raise UsageError(
            f"{self.out}: another process has just taken this run over; wait until it has finished, or stop it"
        )

    def _read_owner(self) -> tuple[Owner | None, float]:
        """Return the owner in `owner.json`, and the seconds since the file was last updated.

        The owner is None if the file is missing or damaged. The seconds are negative if the clock of the other host is
        ahead.
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
