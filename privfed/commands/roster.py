"""Register who may take part: `privfed roster roster.json alice clinic=100 --simulated x=500`.

`privfed roster rotate FILE NAME ...` gives nodes new tokens, `privfed roster revoke FILE NAME ...`
takes tokens away. A server that runs with this file notices, and ends connections made with old
tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from privfed.commands.parsing import Parser, guarded
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import ConfigError


def parse_member(text: str, simulated: bool) -> Member:
    """Make a member from NAME or NAME=USERS.

    Raises:
        ConfigError: if the text has another form.
    """
    name, _, users = text.partition("=")
    if users and not users.isdecimal():
        raise ConfigError(
            f"{text}: must be NAME, or NAME=USERS with the number of users behind that node"
        )
    return Member(name, int(users or 1), new_token(), simulated)


def with_keys(members: list[Member], keys: Sequence[str]) -> list[Member]:
    """Register public keys, given as NAME=KEY.

    Raises:
        ConfigError: if a text has another form, or names nobody.
    """
    found = {member.name: member for member in members}
    for text in keys:
        name, _, key = text.partition("=")
        if name not in found:
            raise ConfigError(f"--key {text[:40]}: {name!r} is not a node of the roster")
        if not key:
            raise ConfigError(f"--key {text[:40]}: must be NAME=KEY, as --enroll prints it")
        found[name] = replace(found[name], key=key)
    return list(found.values())


def _execute(options: argparse.Namespace) -> None:
    """Add nodes to a roster, new or existing; nodes that it has already keep their tokens."""
    listed = list(Roster.read(options.file)) if options.file.exists() else []
    listed += [parse_member(text, False) for text in options.nodes] + [
        parse_member(text, True) for text in options.simulated
    ]
    Roster(listed)
    roster = Roster(with_keys(listed, options.key))
    tokens = options.file.parent / "tokens"
    try:
        options.file.parent.mkdir(parents=True, exist_ok=True)
        roster.save(options.file)
    except OSError as error:
        raise ConfigError(f"{options.file}: cannot be written ({error.strerror})") from error
    roster.write_tokens(tokens)
    print(
        f"{options.file}: {len(roster)} node(s), {roster.users} user(s). "
        f"Keep it secret; give each node its file in {tokens}/"
    )
    if (digest := roster.digest()) is not None:
        print(
            f"hash of the roster: {digest.hex()}; every node gets it from somebody other than the "
            "server (privfed client --roster-hash)"
        )


def _replace_tokens(options: argparse.Namespace, revoke: bool) -> None:
    """Give nodes new tokens; those of revoked nodes are written nowhere but into the roster.

    A revoked node stays registered: its users count, contribute nothing, and a new token lets the
    node in again.
    """
    roster = Roster.read(options.file).with_new_tokens(options.nodes)
    tokens = options.file.parent / "tokens"
    try:
        roster.save(options.file)
        for name in options.nodes if revoke else ():
            (tokens / f"{name}.token").unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{options.file}: cannot be written ({error.strerror})") from error
    if revoke:
        print(f"{options.file}: revoked {', '.join(options.nodes)}")
        return
    roster.write_tokens(tokens, options.nodes)
    print(f"{options.file}: new token(s) in {tokens}/ for {', '.join(options.nodes)}")


def _change(action: str, arguments: Sequence[str]) -> int:
    """Revoke or rotate tokens; return the exit code."""
    about = {"revoke": "Take tokens away.", "rotate": "Give nodes new tokens."}[action]
    parser = Parser(prog=f"privfed roster {action}", description=about)
    parser.hint = "see --help"
    parser.add_argument("file", type=Path, metavar="FILE", help="the roster")
    parser.add_argument("nodes", nargs="+", metavar="NAME", help="nodes of the roster")
    options = parser.parse_args(arguments)
    return guarded(lambda: _replace_tokens(options, action == "revoke"), "interrupted")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a roster and its tokens; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ("revoke", "rotate"):
        return _change(given[0], given[1:])
    parser = Parser(
        prog="privfed roster", description="Register who may take part in a federation."
    )
    parser.hint = "see --help"
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the roster; nodes are added to an existing one"
    )
    parser.add_argument(
        "nodes",
        nargs="*",
        metavar="NAME[=USERS]",
        help="real nodes, with the number of users behind each",
    )
    parser.add_argument(
        "--simulated",
        nargs="+",
        default=[],
        metavar="NAME[=USERS]",
        help="nodes of simulated users",
    )
    parser.add_argument(
        "--key",
        nargs="+",
        default=[],
        metavar="NAME=KEY",
        help="public keys of nodes, as privfed client --enroll printed them",
    )
    options = parser.parse_args(given)
    return guarded(lambda: _execute(options), "interrupted")
