"""Storage of machine code between processes.

Nothing here imports Numba: a process that finds no reason to compile never pays for that import.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
SHARED = (
    "kernels/tolerances.py",
    "kernels/random_streams.py",
    "kernels/compiled/random_streams.py",
    "kernels/compiled/least_squares.py",
    "kernels/compiled/simd.py",
    "kernels/compiled/example_weights.py",
    "privacy/summation.py",
)
"""Files that compiled code of other files takes functions and constants from."""


def cache_folder() -> Path | None:
    """Return the first folder that can keep machine code; None if there is none.

    In this order: `NUMBA_CACHE_DIR`, the installed package, the user's cache folder, and a folder
    of the system's temporary files that belongs to this user alone.
    """
    named, home = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("HOME")
    caches = os.environ.get("XDG_CACHE_HOME") or (home and os.path.join(home, ".cache"))
    folders = [
        named and Path(named),
        PACKAGE / "kernels" / "compiled" / "__pycache__",
        caches and Path(caches) / "privfed",
    ]
    for folder in folders:
        if folder and _writable(folder):
            return folder
    shared = Path(tempfile.gettempdir()) / f"privfed-{os.getuid()}"
    return shared if _writable(shared) and _private(shared) else None


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _private(folder: Path) -> bool:
    """Return whether nobody else can have written machine code there."""
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.getuid()
        and not stat.S_IMODE(found.st_mode) & 0o077
    )


@cache
def shared_sources() -> str:
    """Return a digest of the files that compiled code of other files takes something from."""
    return _digest(*((PACKAGE / name).read_bytes() for name in SHARED))


@cache
def _machine() -> str:
    """Return a digest of what machine code depends on besides sources: Numba, Python, processor."""
    numba = find_spec("numba")
    if numba is None or numba.origin is None:
        return ""
    version = Path(numba.origin).with_name("_version.py")
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    kinds = ("vendor_id", "model name", "flags", "Features", "CPU part")
    processor = sorted({line for line in lines if line.startswith(kinds)})
    chosen = [os.environ.get(f"NUMBA_CPU_{name}", "") for name in ("NAME", "FEATURES")]
    texts = [sys.version, platform.machine(), platform.processor(), *processor, *chosen]
    return _digest(version.read_bytes(), *(text.encode() for text in texts))


def can_compile() -> bool:
    """Return whether Numba is installed."""
    return bool(_machine())


def _mark(folder: Path, source: Path, variant: str) -> Path:
    digest = _digest(source.read_bytes(), shared_sources().encode(), _machine().encode())
    return folder / f"{source.stem}-{variant or 'all'}-{digest[:16]}.compiled"


def is_kept(folder: Path | None, source: Path, variant: str) -> bool:
    """Return whether the folder has machine code of this source, for this machine."""
    return folder is not None and _mark(folder, source, variant).exists()


def keep(folder: Path | None, source: Path, variant: str) -> None:
    """Record that machine code of this source is in the folder now."""
    if folder is not None:
        _mark(folder, source, variant).touch()


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Let only one process at a time compile into the folder; the others find its machine code."""
    if folder is None:
        yield
        return
    with (folder / "compiling.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
