"""Options that `privfed client` and `privfed supernode` share."""

from __future__ import annotations

from pathlib import Path

from privfed.commands.parsing import Parser
from privfed.foundation.errors import ConfigError


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
        help="a folder, readable by you only, that keeps your head",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to try to connect (default 30)",
    )


def check_data(path: Path) -> None:
    """Check that the file of --data exists.

    Raises:
        ConfigError: if it does not.
    """
    if not path.exists():
        raise ConfigError(f"--data {path}: no such file")
