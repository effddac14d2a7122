"""Settings as a person types them into a shell, for messages that say what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z_][\w.%@-]*")


def column_list(key: str, names: Sequence[str]) -> str:
    """Return a setting that lists columns, such as 'data.numeric=[zip]', quoted for a shell."""
    return shell_quoted(f"data.{key}=[{','.join(map(_word, names))}]")


def column_bounds(bounds: Mapping[str, tuple[object, object]]) -> str:
    """Return public bounds of columns, such as 'data.bounds={age:[0,100]}', for a shell."""
    inner = ",".join(f"{_word(name)}:[{low},{high}]" for name, (low, high) in bounds.items())
    return shell_quoted(f"data.bounds={{{inner}}}")


def shell_quoted(text: str) -> str:
    """Return a text in quotes that bash and zsh take as they are: brackets and braces expand."""
    return "'" + text.replace("'", "'\\''") + "'"


def _word(name: str) -> str:
    """Return a name as the settings' grammar takes it: in quotes, unless it is plain."""
    if _PLAIN.fullmatch(name) and name.lower() not in ("null", "true", "false", "nan", "inf"):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
