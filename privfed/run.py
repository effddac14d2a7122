"""Start a run: `python -m privfed.run algo=fedrep eps=1`, the same as `privfed run`."""

from __future__ import annotations

import sys

from privfed.commands.run import main

if __name__ == "__main__":
    sys.exit(main())
