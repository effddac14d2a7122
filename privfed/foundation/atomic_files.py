"""Files that are whole or absent, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from privfed.foundation.errors import ConfigError, PrivfedError


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """The whole file or nothing: a full disk or a killed process leaves no half of it.

    mode: who may read it, before the process's own mask is applied; no other name ever holds the content with wider rights.
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


def write_output(option: str, path: Path, content: bytes, mode: int = 0o666) -> None:
    """The same for a file that a person named in an option; what goes wrong is said in one line."""
    try:
        write_atomically(path, content, mode)
    except OSError as error:
        kind = PrivfedError if error.errno in (errno.ENOSPC, errno.EDQUOT) else ConfigError
        raise kind(f"{option} {path}: cannot write there ({error.strerror})") from error
