"""Certificates for a federation that has none: ca.crt for every node, server.crt and server.key for the server.

python scripts/make_certificates.py certificates fed.example.org 192.0.2.7
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from privfed.certificates import FILES, LOOPBACK, make_certificates
from privfed.errors import PrivfedError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("hosts", nargs="*", metavar="host", help=f"names and addresses of the server; {' '.join(LOOPBACK)}")
    parser.add_argument("--force", action="store_true", help="replace certificates that exist")
    options = parser.parse_args()
    try:
        make_certificates(options.folder, options.hosts or LOOPBACK, options.force)
    except PrivfedError as error:
        print(f"privfed: {error}", file=sys.stderr)
        return error.exit_code
    print(f"written to {options.folder}: {', '.join(FILES)}; nodes need ca.crt, the server server.crt and server.key")
    return 0


if __name__ == "__main__":
    sys.exit(main())
