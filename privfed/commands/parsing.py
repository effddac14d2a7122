"""What all commands share: options, errors in one line, and exit codes."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from privfed import __version__
from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError, RefutedError

OWN_CONFIGS = "PRIVFED_CONFIG_DIR"
"""Environment variable: a folder of configuration files, also for processes that a run starts."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line."""

    hint = "settings are written key=value, for example eps=1; see --help"

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        self.exit(2, f"privfed: {message}; {self.hint}\n")


def add_settings(parser: Parser) -> None:
    """Add the options of commands that compose a configuration: key=value and --config-dir."""
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, for example algo=fedrep eps=1"
    )
    add_config_dir(parser)


def add_config_dir(parser: Parser, default: str | None = None) -> None:
    """Add --config-dir. See :func:`use_config_dir`."""
    parser.add_argument(
        "--config-dir",
        default=default,
        metavar="DIR",
        help="a folder with configs of your own (algo/mine.yaml, ...)",
    )


def add_general(parser: Parser, quiet: str = "no progress, no summary") -> None:
    """Add --quiet and --version.

    Args:
        parser: parser of the command.
        quiet: help text of --quiet.
    """
    parser.add_argument("--quiet", action="store_true", help=quiet)
    add_version(parser)


def add_version(parser: Parser) -> None:
    """Add --version."""
    parser.add_argument("--version", action="version", version=f"privfed {__version__}")


def add_simulation(parser: Parser, help: str) -> None:
    """Add --simulation, by which one says to know that a model protects nobody.

    Args:
        parser: parser of the command.
        help: what the command does then.
    """
    parser.add_argument("--simulation", action="store_true", help=help)


def use_config_dir(folder: str | None) -> None:
    """Find modules beside configuration files of the user, here and in processes started later.

    Args:
        folder: value of --config-dir; nothing happens if None.
    """
    if folder is not None:
        sys.path.insert(0, folder)
        os.environ[OWN_CONFIGS] = str(Path(folder).resolve())


class JsonLines(logging.Formatter):
    """Formats a record of the log as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        entry = {"time": when, "level": record.levelname.lower(), "from": record.name}
        return json.dumps(entry | {"message": record.getMessage()})


def start_log(level: int, as_json: bool) -> None:
    """Write the log to the screen.

    Args:
        level: least level that is written.
        as_json: whether every line is a JSON object.
    """
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if as_json:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())


@contextmanager
def failures_refute(what: str) -> Iterator[None]:
    """Turn a failure of the code that is checked into a refuted claim, in one line.

    Args:
        what: what fails, in words.

    Raises:
        RefutedError: if the code fails.
    """
    try:
        yield
    except (ConfigError, BudgetError, RefutedError, MemoryError, OSError, BrokenExecutor):
        raise
    except Exception as error:
        raise RefutedError(f"{what} fails ({type(error).__name__}: {error})") from error


def guarded(work: Callable[[], None], interrupted: str) -> int:
    """Do the work of a command; report an error in one line.

    Args:
        work: what the command does.
        interrupted: what to print on Ctrl-C.

    Returns:
        The exit code.
    """
    try:
        work()
    except PrivfedError as error:
        print(f"privfed: {error}", file=sys.stderr)
        return error.exit_code
    except (OSError, MemoryError) as error:
        reason = f"not enough memory ({error})" if isinstance(error, MemoryError) else error
        told = "the ledger in the run's folder says what was released, if anything"
        print(f"privfed: {reason}; {told}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"privfed: {interrupted}", file=sys.stderr)
        return 1
    return 0


def check_trusted(cfg: Any) -> None:
    """Refuse to play steps in which nobody is trusted: checkers hand sums to the server.

    Raises:
        ConfigError: if nobody is.
    """
    if cfg.privacy.trust != "server":
        allowed = "checkers play runs with a trusted server; masks and noise of nodes have tests"
        raise ConfigError.of("privacy.trust", cfg.privacy.trust, allowed)
