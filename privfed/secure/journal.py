"""What a node remembers of a run under secure aggregation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError


@dataclass
class Journal:
    """What a node remembers of a run: enough to answer after a restart, and never twice.

    Attributes:
        run: number of the run.
        terms: JSON text of the terms.
        keys: hexadecimal signed keys of all nodes.
        nonce: hexadecimal nonce of the session.
        session: hexadecimal digest of the session; empty before the first.
        left: hexadecimal digests of all sessions that were left, of this run and of others.
        step: number of the step that was answered last; 0 before the first.
        request: digest of what that step asked for.
        present: hexadecimal flags of the nodes that took part in it.
        sums: JSON text of its sums.
        survivors: hexadecimal flags of the survivors that were vouched for; empty before.
        unmasked: steps for which something was revealed.
        path: file of the journal; None keeps it in memory.
    """

    run: str = ""
    terms: str = ""
    keys: str = ""
    nonce: str = ""
    session: str = ""
    left: list[str] = field(default_factory=list)
    step: int = 0
    request: str = ""
    present: str = ""
    sums: str = ""
    survivors: str = ""
    unmasked: list[int] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def at(cls, path: Path) -> Journal:
        """Read the journal of a file, or begin one.

        Raises:
            ConfigError: the file cannot be read.
        """
        if not path.exists():
            return cls(path=path)
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")), path=path)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: is not the journal of a node") from error

    def write(self) -> None:
        """Write the journal; what it says may leave afterwards."""
        if self.path is not None:
            plain = {name: value for name, value in asdict(self).items() if name != "path"}
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.path, (json.dumps(plain) + "\n").encode(), mode=0o600)
