"""Help text of settings: groups with their options, and every key of the chosen ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from privfed.config.option_groups import CONF, GROUPS, described, options, settable_lines

SHOWN = {
    "algo": "fedrep",
    "init": "spectral",
    "data": "synthetic",
    "privacy": "default",
    "runtime": "inprocess",
}
"""Groups whose keys are shown, with the options that are chosen by default."""


def settings_help(arguments: Sequence[str]) -> str:
    """Return the groups, and every key of the chosen options with its default and its comment.

    Args:
        arguments: arguments of the command line; those that choose an option, as `algo=altmin`,
            decide whose keys are shown.
    """
    lines = ["", "groups (choose one of each):"]
    for group in GROUPS:
        if len(options(group)) > 1:
            lines.append(f"  {group}=")
            lines += [f"    {name:<18} {text}" for name, text in described(group)]
    lines += ["", "top-level keys:"]
    lines += [f"  {line}" for line in settable_lines(CONF / "config.yaml")]
    parts = (argument.partition("=") for argument in arguments)
    chosen = {key: value for key, _, value in parts if value in options(key)}
    for group, name in {**SHOWN, **chosen}.items():
        if group in ("model", *SHOWN):
            lines += ["", f"{group}.* ({name}):", *(f"  {line}" for line in _keys(group, name))]
    return "\n".join(lines) + "\n"


def _keys(group: str, name: str) -> Iterator[str]:
    """Yield the lines of an option's file, after those of the shared file that it builds on."""
    path = CONF / group / f"{name}.yaml"
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("- /shared/"):
            yield from settable_lines(CONF / f"{line.strip()[3:]}.yaml", group)
    yield from settable_lines(path, group)
