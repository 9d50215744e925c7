"""Bytes from and to disk: only regular files are read, and a file is either written whole or not at all."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from zbsolve.errors import FileFormatError

__all__ = ["MAX_FILE_BYTES", "collection_paused", "ensure_writable", "read_regular", "write_atomic"]

MAX_FILE_BYTES = 256 * 1024**2
"""Larger files are refused: the largest problem's timetable stays below this."""

PathLike = str | os.PathLike[str]


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection meanwhile: it would walk what grows from a large file again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_regular(path: PathLike) -> bytes:
    """Read a whole regular file.

    Raises
    ------
    FileFormatError
        If it is missing, unreadable, too large, or not a regular file (a pipe would block).
    """
    try:
        _refuse_irregular(path, os.stat(path).st_mode)
        # the file may have been exchanged meanwhile: open without blocking, then look again
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
        )
        with os.fdopen(handle, "rb") as file:
            _refuse_irregular(path, os.fstat(handle).st_mode)
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise FileFormatError(path, "there is no such file; check the path") from None
    except MemoryError:
        raise FileFormatError(path, "the file does not fit in memory") from None
    except (OSError, ValueError) as error:
        raise FileFormatError(path, f"cannot be read: {_reason(error)}") from None
    if len(data) > MAX_FILE_BYTES:
        raise FileFormatError(path, f"is larger than {MAX_FILE_BYTES // 1024**2} MiB; is it the right file?")
    return data


def ensure_writable(path: PathLike) -> None:
    """Tell before the work is done whether `write_atomic` will accept a path.

    Raises
    ------
    FileFormatError
        If it is a directory or a pipe, or if its folder is missing or cannot be written.
    """
    try:
        kind = _irregular_target(path)
        folder = Path(os.path.realpath(path)).parent
        if kind == "device":
            return
        if not folder.is_dir():
            raise FileFormatError(path, f"cannot be written: there is no folder {folder}; create it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise FileFormatError(path, f"cannot be written: the folder {folder} is write-protected")
    except (OSError, ValueError) as error:
        raise FileFormatError(path, f"cannot be written: {_reason(error)}") from None


def write_atomic(path: PathLike, data: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part of it.

    The bytes go to a temporary file beside the target, which then takes its name. An existing
    file keeps its permissions, a link stays a link. A device (``/dev/null``) is written directly.

    Raises
    ------
    FileFormatError
        If the target is a directory or a pipe, or the system refuses.
    """
    ensure_writable(path)
    try:
        if _irregular_target(path) == "device":
            with open(path, "wb") as device:
                device.write(data)
            return
        _replace(Path(os.path.realpath(path)), data)
    except (OSError, ValueError) as error:
        raise FileFormatError(path, f"cannot be written: {_reason(error)}") from None


def _replace(target: Path, data: bytes) -> None:
    # a name of its own, short enough for any file system whatever the target's length
    temporary = target.with_name(f".zbsolve-{secrets.token_hex(8)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode) & 0o777)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, where the system lets a folder be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _irregular_target(path: PathLike) -> str | None:
    """Return "device" for one that takes bytes as they come, None for a file old or new; else refuse."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISCHR(mode):
        return "device"
    if stat.S_ISDIR(mode):
        raise FileFormatError(path, "is a directory; give the name of a file in it")
    if not stat.S_ISREG(mode):
        raise FileFormatError(path, "is not a regular file; use - to write to standard output")
    return None


def _refuse_irregular(path: PathLike, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise FileFormatError(path, "is a directory; give a file")
    if not stat.S_ISREG(mode):
        raise FileFormatError(path, "is not a regular file; use - to read from a pipe")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
