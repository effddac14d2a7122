"""CENTAUR with a network, server side (CENTAUR Algorithm 1).

b       shared representation           zeta    clip norm of a user's update b_i - b
G       noised mean of the updates      eta_g   step size of the server

each round:  b <- b + eta_g G
"""

from __future__ import annotations

from privfed.algorithm.network_strategy import NetworkStrategy


class CentaurNetwork(NetworkStrategy):
    """Shares the representation b; heads stay with their users."""

    whole = False
