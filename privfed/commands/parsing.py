"""What every command shares: mistakes answered in one line, and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from privfed.foundation.errors import PrivfedError


class Parser(argparse.ArgumentParser):
    """Answers a mistake in one line."""

    hint = "settings are written key=value, for example eps=1; see --help"

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        self.exit(2, f"privfed: {message}; {self.hint}\n")


def guarded(work: Callable[[], None], interrupted: str) -> int:
    """Do the work of a command; its exit code, with one line for whatever went wrong."""
    try:
        work()
    except PrivfedError as error:
        print(f"privfed: {error}", file=sys.stderr)
        return error.exit_code
    except (OSError, MemoryError) as error:
        reason = f"not enough memory ({error})" if isinstance(error, MemoryError) else error
        print(
            f"privfed: {reason}; the ledger in the run's folder says what was released, if anything",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"privfed: {interrupted}", file=sys.stderr)
        return 1
    return 0
