"""CENTAUR with a network, server side (CENTAUR Algorithm 1).

b <- b + eta_g G, with G the noised mean of b_i - b, each clipped to zeta.
"""

from __future__ import annotations

from privfed.algorithm.network_strategy import NetworkStrategy


class CentaurNetwork(NetworkStrategy):
    """Shares the representation b; heads stay with their users."""

    whole = False
