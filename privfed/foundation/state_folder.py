"""Folder of what privfed remembers on this machine for one of its users, across runs."""

from __future__ import annotations

import os
from pathlib import Path

STATE = "PRIVFED_STATE"
"""Environment variable that names the folder."""


def state_folder() -> Path:
    """Return the folder: PRIVFED_STATE, else privfed in XDG_STATE_HOME, else in ~/.local/state.

    It may not exist yet.

    Raises:
        OSError: if there is no home.
    """
    if own := os.environ.get(STATE):
        return Path(own)
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "privfed"
    home = os.environ.get("HOME")
    if not home:
        raise FileNotFoundError(2, f"no home folder; set {STATE} or HOME")
    return Path(home) / ".local" / "state" / "privfed"
