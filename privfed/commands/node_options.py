"""Options that `privfed client` and `privfed supernode` share."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from privfed.commands.parsing import Parser
from privfed.foundation.errors import ConfigError

if TYPE_CHECKING:
    from privfed.federation.limits import Limits
    from privfed.federation.participant import Vow


def add_participation(parser: Parser) -> None:
    """Add the options that say who takes part, and with which data."""
    parser.add_argument("--user", required=True, metavar="ID", help="the name in the roster")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the secret that proves it (default: ID.token)",
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--data", metavar="FILE", type=Path, help="CSV file with a header: your rows, numbers only"
    )
    data.add_argument(
        "--simulate",
        action="store_true",
        help="no data of your own: the users that the server's settings describe",
    )
    parser.add_argument(
        "--target",
        default="target",
        metavar="COLUMN",
        help="the column to predict (default: target)",
    )
    parser.add_argument(
        "--test",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="share of your rows that only judge (default 0.2)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="a folder, readable by you only, that keeps your head and the ledger of what you "
        "answered (default for the ledger: privfed in $XDG_STATE_HOME, or $PRIVFED_STATE)",
    )
    secure = parser.add_argument_group(
        "where nobody is trusted",
        "For servers with privacy.trust=nobody. With these options, sums leave masked or not at "
        "all.",
    )
    secure.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="the secret key that --enroll made (default: ID.key)",
    )
    secure.add_argument(
        "--roster-hash",
        metavar="HEX",
        help="hash of the roster, from somebody other than the server",
    )
    limits = parser.add_argument_group(
        "limits of your own",
        "Refused steps are not answered, and this client leaves. Every answered step is charged, "
        "on this machine, with what the server promised that it costs.",
    )
    limits.add_argument(
        "--max-clip",
        type=float,
        metavar="C",
        help="largest clip norm (default 1e9)",
    )
    limits.add_argument(
        "--max-epsilon",
        type=float,
        metavar="EPS",
        help="most epsilon of all runs and servers together, replace-one (default: any)",
    )
    limits.add_argument(
        "--max-delta",
        type=float,
        metavar="DELTA",
        help="the delta of --max-epsilon (default: that of the run)",
    )
    limits.add_argument(
        "--min-users",
        type=int,
        metavar="N",
        help="fewest users whose parts are added up before noise (default 1)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to try to connect (default 30)",
    )


def vow_in(options: argparse.Namespace) -> Vow | None:
    """Return what the node holds on to where nobody is trusted; None without --roster-hash.

    Raises:
        ConfigError: if the hash or the key is none.
    """
    from privfed.federation.participant import Vow
    from privfed.secure.keys import NodeKey

    if options.roster_hash is None:
        return None
    try:
        roster = bytes.fromhex(options.roster_hash)
    except ValueError:
        roster = b""
    if len(roster) != 32:
        raise ConfigError.of("--roster-hash", options.roster_hash, "must have 64 digits 0-9, a-f")
    return Vow(NodeKey.read(options.key_file or Path(f"{options.user}.key")), roster)


def limits_in(options: argparse.Namespace) -> Limits:
    """Return the limits that the options set.

    Raises:
        ConfigError: if a value is not allowed.
    """
    from privfed.federation.limits import Limits

    given = {field.name: getattr(options, field.name) for field in fields(Limits)}
    return Limits(**{name: value for name, value in given.items() if value is not None})


def check_data(path: Path) -> None:
    """Check that the file of --data exists.

    Raises:
        ConfigError: if it does not.
    """
    if not path.exists():
        raise ConfigError(f"--data {path}: no such file")
