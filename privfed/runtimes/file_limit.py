"""Limit of open files of this process: every connection is one."""

from __future__ import annotations

import logging
import resource

OTHERS = 100
"""Files that a server has open besides its connections."""
log = logging.getLogger("privfed.server")


def make_room(connections: int) -> None:
    """Raise the soft limit of open files as far as it is needed and allowed; warn if that is less.

    Args:
        connections: number of connections at a time.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    possible = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, possible), hard))
    if possible < needed:
        log.warning(
            "this process may open %d files, %d connections need %d: about %d nodes can be "
            "connected; raise the hard limit (ulimit -Hn, or LimitNOFILE of systemd)",
            max(soft, possible),
            connections,
            needed,
            max(soft, possible) - OTHERS,
        )
