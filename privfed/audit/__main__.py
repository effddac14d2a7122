"""Audit a privacy claim: `python -m privfed.audit algo=fedrep eps=1`, the same as `privfed audit`."""

from __future__ import annotations

import sys

from privfed.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["audit", *sys.argv[1:]]))
