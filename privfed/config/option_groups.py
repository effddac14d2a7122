"""Available choices: groups, their options, and every key with its comment, for help texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"
"""Folder of the package's own configs."""
GROUPS = ("algo", "init", "data", "privacy", "runtime", "model", "preset")
HIDDEN = (
    "defaults", "name", "kind", "open", "strategy", "client", "head", "guarantee",
    "rivals", "_target_",
)  # fmt: skip
"""Keys that nobody sets; help does not show them."""


def options(group: str, folders: Sequence[Path] = (CONF,)) -> list[str]:
    """Return the names of the options of a group, such as `fedrep` and `network/centaur`.

    Args:
        group: one of GROUPS.
        folders: folders with configs.
    """
    found = set()
    for folder in folders:
        for path in (folder / group).rglob("*.yaml"):
            found.add(path.relative_to(folder / group).with_suffix("").as_posix())
    return sorted(found, key=lambda name: ("/" in name, name))


def described(group: str) -> Iterator[tuple[str, str]]:
    """Yield each option of a group with the first comment of its file."""
    for name in options(group):
        lines = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        comments = [line[2:] for line in lines if line[:2] == "# " and line[:3] != "# @"]
        yield name, comments[0] if comments else ""


def settable_lines(path: Path, group: str = "") -> Iterator[str]:
    """Yield the lines of a config file that a user may want to set, with their comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    # A file that also sets other groups has its own keys indented.
    if f"{group}:" in lines:
        lines = [line[2:] for line in lines[lines.index(f"{group}:") + 1 :]]
    inside = ""
    for line in lines:
        key = line.strip().partition(":")[0]
        if not line.startswith((" ", "#")):
            inside = key
        if line[:1] not in ("#", "") and inside not in HIDDEN:
            yield line
