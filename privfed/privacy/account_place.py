"""Where accounts are kept, and how data are recognised as those of an account.

Accounts are in a folder of the machine's user: `$PRIVFED_STATE/accounts`, or
`$XDG_STATE_HOME/privfed/accounts`, or `~/.local/state/privfed/accounts`. A file there has a random
name. `marks/` says which account belongs to which data: the name of a mark is a keyed hash of one
fact about the data (its public name; or the path of its file; or the set of its users), and its
content is the name of the account. The key is random, kept in the same folder, and readable by its
owner only: without it nobody can tell whether a mark is that of a certain table.

Data belong to an account if they have one mark of it. New facts of known data become marks, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.state_folder import state_folder

ENDING = ".jsonl"


def accounts_folder() -> Path:
    """Return the folder of accounts of this machine's user; it may not exist yet.

    Raises:
        OSError: there is no home.
    """
    return state_folder() / "accounts"


def known_accounts() -> list[Path]:
    """Return the files of all accounts in the folder."""
    return sorted(accounts_folder().glob(f"*{ENDING}"))


def accounts_for(facts: Sequence[str]) -> list[Path]:
    """Return the files of the accounts of some data; of a new account if there is none.

    Args:
        facts: facts of which each alone identifies the data.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder = accounts_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(folder):
        key = _key(folder / "key")
        marks = folder / "marks"
        marks.mkdir(mode=0o700, exist_ok=True)
        paths = [marks / hmac.new(key, fact.encode(), hashlib.sha256).hexdigest() for fact in facts]
        known = [path.read_text().split() for path in paths if path.exists()]
        names = sorted({name for part in known for name in part}) or [secrets.token_hex(8)]
        for path in paths:
            if not path.exists():
                write_atomically(path, "\n".join(names).encode(), 0o600)
    return [folder / f"{name}{ENDING}" for name in names]


def set_of(names: Iterable[str]) -> str:
    """Return a text that stands for a set of names; as secret as they are."""
    return hashlib.sha256("\0".join(sorted(set(names))).encode()).hexdigest()


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Let only one process at a time use the folder."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _key(path: Path) -> bytes:
    """Return the secret key of the folder; made at the first use."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    key = secrets.token_bytes(32)
    write_atomically(path, key, 0o600)
    return key
