"""Audit a privacy claim, as `privfed audit`: `python -m privfed.audit algo=fedrep eps=1`."""

from __future__ import annotations

import sys

from privfed.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["audit", *sys.argv[1:]]))
