"""Node-config of a SuperNode: who it is, and where the rows and heads of its users are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from privfed.config.composition import CONF
from privfed.federation.identity import Identity
from privfed.federation.limits import Limits
from privfed.federation.participant import OwnRows, Participant
from privfed.foundation.errors import ConfigError, nearest

NODE_KEYS = (
    "node",
    "token-file",
    "data",
    "target",
    "test",
    "state",
    "max-clip",
    "max-epsilon",
    "max-delta",
    "min-users",
    "partition-id",
    "num-partitions",
)


def participant_for(node: Mapping[str, Any], say: Callable[[str], None]) -> Participant:
    """Make the participant that answers for a SuperNode.

    Args:
        node: node-config of the SuperNode.
        say: prints a line for the operator of the node.

    Raises:
        ConfigError: if a key is unknown, missing or has a value that is not allowed.
    """
    if unknown := [key for key in node if key not in NODE_KEYS]:
        raise ConfigError(
            f"node-config {unknown[0]}: there is no such setting; {nearest(unknown[0], NODE_KEYS)}"
        )
    own = os.environ.get("PRIVFED_CONFIG_DIR")
    folders = (CONF, Path(own)) if own else (CONF,)
    state = Path(str(node["state"])) if "state" in node else None
    limits = limits_in(node)
    return Participant(identity_in(node), rows_in(node), state, folders, say, limits, one_run=False)


def identity_in(node: Mapping[str, Any]) -> Identity:
    """Return the identity of a SuperNode; one that Flower's simulation started has no token.

    Raises:
        ConfigError: if there is no name, or no token that can be read.
    """
    if "node" not in node:
        if "partition-id" not in node:
            example = 'node="clinic-7" token-file="clinic-7.token"'
            raise ConfigError(f"node-config: say who this node is, as in {example}")
        return Identity(str(node["partition-id"]), "")
    name = str(node["node"])
    if "token-file" not in node:
        raise ConfigError(f'node-config: {name} needs its token, as in token-file="{name}.token"')
    path = Path(str(node["token-file"]))
    try:
        return Identity(name, path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason})") from error


def limits_in(node: Mapping[str, Any]) -> Limits:
    """Return the limits that the operator of a node sets.

    Raises:
        ConfigError: if a value is not allowed.
    """
    given: dict[str, Any] = {}
    for key in (field.name.replace("_", "-") for field in fields(Limits)):
        if key in node:
            value, whole = node[key], key == "min-users"
            kind = int if whole else (int, float)
            if isinstance(value, bool) or not isinstance(value, kind):
                allowed = "must be a whole number" if whole else "must be a number"
                raise ConfigError(f"node-config {key}={value}: {allowed}")
            given[key.replace("-", "_")] = value
    return Limits(**given)


def rows_in(node: Mapping[str, Any]) -> OwnRows | None:
    """Return the file of a real user; None if the users are simulated.

    Raises:
        ConfigError: if `test` is no fraction.
    """
    if "data" not in node:
        return None
    test = node.get("test", 0.2)
    if isinstance(test, bool) or not isinstance(test, int | float) or not 0 <= test < 1:
        allowed = "must be a fraction of the rows, at least 0 and below 1"
        raise ConfigError(f"node-config test={test}: {allowed}")
    return OwnRows(Path(str(node["data"])), str(node.get("target", "target")), float(test))
