"""Settings of a sweep (`-m`): every combination of comma-separated values, with its name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from privfed.foundation.errors import ConfigError

Choice = dict[str, str]
"""Values that a run has for the swept keys."""
LONGEST = 120
"""Longest name of a run's folder, in characters; file systems have limits."""


def combinations(overrides: Sequence[str]) -> list[tuple[Choice, list[str]]]:
    """Return every combination: its values of the swept keys, and all its overrides.

    Args:
        overrides: settings, some with several values.

    Raises:
        ConfigError: `out` has several values, or a value occurs twice.
    """
    parser = OverridesParser.create()
    swept: dict[str, list[str]] = {}
    for override in overrides:
        try:
            parsed = parser.parse_override(override)
            values = list(parsed.sweep_string_iterator()) if parsed.is_sweep_override() else []
        except HydraException:
            # Composing the configuration reports what is wrong with it.
            continue
        key = str(parsed.key_or_group)
        if values and key == "out":
            raise ConfigError(
                f"{override}: a sweep has one folder, with a folder of its own for every run in it"
            )
        if len(set(values)) < len(values):
            raise ConfigError(f"{override}: the same value twice would be the same run twice")
        if values:
            swept[key] = values
    fixed = [override for override in overrides if override.partition("=")[0] not in swept]
    made = []
    for chosen in itertools.product(*swept.values()):
        choice = dict(zip(swept, chosen, strict=True))
        made.append((choice, [*fixed, *(f"{key}={value}" for key, value in choice.items())]))
    return made


def names_of(choices: Sequence[Choice]) -> dict[str, Choice]:
    """Return the choices by the names of their runs' folders."""
    named: dict[str, Choice] = {}
    for i, choice in enumerate(choices):
        text = ",".join(f"{key}={value}" for key, value in choice.items()) or "run"
        name = "".join(
            letter
            for letter in text.replace("/", "-")
            if letter.isprintable() and letter not in "\"'\\"
        )
        if len(name) > LONGEST or name in named:
            name = f"{name[:LONGEST]}...{i}"
        named[name] = choice
    return named
