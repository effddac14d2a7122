"""Atomic file writes: a file is complete or absent, even if the process or the disk fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from privfed.foundation.errors import ConfigError, PrivfedError


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a whole file or nothing, even if the disk is full or the process is killed.

    Args:
        path: file to write.
        content: its content.
        mode: permissions, before the process's umask. No other name ever holds the content with
            wider permissions.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def reserve_room(path: Path, size: int, spare: int = 0) -> None:
    """Reserve room on the disk, so that `write_into_room` cannot fail for lack of it.

    Args:
        path: file that will be written.
        size: bytes that must be free.
        spare: how many of them are left free, for other files.

    Raises:
        OSError: if there are not so many; what was reserved is given back.
    """
    room = _room(path)
    try:
        with os.fdopen(os.open(room, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            if os.fstat(file.fileno()).st_blocks * 512 < size:
                os.posix_fallocate(file.fileno(), 0, size)
                os.ftruncate(file.fileno(), size - spare)
    except OSError:
        room.unlink(missing_ok=True)
        raise


def write_into_room(path: Path, content: bytes) -> None:
    """Write a whole file or nothing, into the room that was reserved for it, if any.

    Args:
        path: file to write.
        content: its content.
    """
    room = _room(path)
    with os.fdopen(os.open(room, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    os.replace(room, path)


def _room(path: Path) -> Path:
    return path.with_name(f".{path.name}.room")


def write_output(option: str, path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file that was named in an option, with a one-line error if that fails.

    Args:
        option: option that named the file.
        path: file to write.
        content: its content.
        mode: permissions; see :func:`write_atomically`.

    Raises:
        ConfigError: the file cannot be written.
        PrivfedError: the disk is full.
    """
    try:
        write_atomically(path, content, mode)
    except OSError as error:
        kind = PrivfedError if error.errno in (errno.ENOSPC, errno.EDQUOT) else ConfigError
        raise kind(f"{option} {path}: cannot write there ({error.strerror})") from error
