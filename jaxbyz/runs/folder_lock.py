"""A lock on a run folder, so that only one process works in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from jaxbyz.errors import UsageError
from jaxbyz.files import reason, remove_leftovers

LOCK_FILE = ".lock"
LOCKED_BY_OTHERS = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class BusyError(UsageError):
    """Another process holds the lock of the folder."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder inside the block; it is released when the process ends, however that happens.

    The lock is on a file because network file systems do not lock folders. The file is removed once the folder holds a
    finished run (`metrics.npz`).
    """
    handle = _lock(folder)
    remove_leftovers(folder)  # of a process that was killed while it held the lock
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if os.path.lexists(folder / "metrics.npz"):
                (folder / LOCK_FILE).unlink()
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; False if that cannot be told."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in LOCKED_BY_OTHERS
    finally:
        os.close(handle)
    return False


def _lock(folder: Path) -> int:
    """Open and lock the lock file; try again if its holder removed it between the two."""
    while True:
        try:
            handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written ({reason(error)})") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_open_file(handle, folder / LOCK_FILE):
                return handle
        except OSError as error:
            os.close(handle)
            if error.errno in LOCKED_BY_OTHERS:
                raise BusyError(f"{folder}: another process is working in this folder") from error
            raise UsageError(
                f"{folder}: files cannot be locked there ({error.strerror}); choose another folder"
            ) from error
        os.close(handle)


def _is_open_file(handle: int, path: Path) -> bool:
    """Return whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
