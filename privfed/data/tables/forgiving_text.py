"""Text of a table in which a damaged line harms nothing but itself.

One user's bad byte or open quote must not decide whether a run takes place, or which rows other
users have. So every line stands alone: the quotes of a line in which one is left open, zero bytes
and bytes that are not UTF-8 become U+FFFD, and so does a whole line that is too long.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import BinaryIO

DAMAGED = "\N{REPLACEMENT CHARACTER}"
"""What stands for bytes that are no text; a cell that has it holds no value."""
LOST = f"{DAMAGED}\n".encode()
"""What stands for a line that is too long."""
CHUNK = 1 << 20
"""Bytes read at a time; no line may be longer."""


def forgiving_chunks(file: BinaryIO, separator: str) -> Iterator[bytes]:
    """Yield the text of a file in whole lines, as valid UTF-8.

    Args:
        file: open file.
        separator: mark between the values of a line.
    """
    rest, lost = b"", False
    while chunk := file.read(CHUNK):
        chunk = rest + chunk
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        rest = chunk[end:]
        if end:
            whole = chunk[:end]
            # The rest of a line whose beginning was left out.
            skipped = len(whole.splitlines(keepends=True)[0]) if lost else 0
            yield (LOST if lost else b"") + _repaired(whole[skipped:], separator)
            lost = False
        if len(rest) > CHUNK:
            rest, lost = b"", True
    if lost:
        yield LOST
    elif rest:
        yield _repaired(rest, separator)


def _repaired(text: bytes, separator: str) -> bytes:
    """Return whole lines with every damaged line repaired."""
    if b'"' not in text and b"\0" not in text and _is_utf8(text):
        return text
    return b"".join(_line(line, separator) for line in text.splitlines(keepends=True))


def _line(line: bytes, separator: str) -> bytes:
    text = line.decode("utf-8", errors="replace").replace("\0", DAMAGED)
    if '"' in text:
        try:
            for _ in csv.reader([text], delimiter=separator, strict=True):
                pass
        except csv.Error:
            text = text.replace('"', DAMAGED)
    return text.encode()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class ForgivingStream(io.RawIOBase):
    """The same as a file that others read.

    Args:
        file: open file; closed with this one.
        separator: mark between the values of a line.
    """

    def __init__(self, file: BinaryIO, separator: str) -> None:
        self.file, self.chunks, self.left = file, forgiving_chunks(file, separator), b""

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill a buffer with the next bytes; return their number, 0 at the end."""
        while not self.left:
            following = next(self.chunks, None)
            if following is None:
                return 0
            self.left = following
        size = min(len(buffer), len(self.left))
        buffer[:size], self.left = self.left[:size], self.left[size:]
        return size

    def close(self) -> None:
        """Close the file, too."""
        self.file.close()
        super().close()
