"""PPSGD, server side (Bietti et al. 2022).

theta   shared network                  zeta    clip norm of a user's update theta_i - theta
G       noised mean of the updates      eta_g   step size of the server

each round:  theta <- theta + eta_g G
"""

from __future__ import annotations

from privfed.algorithm.network_strategy import NetworkStrategy


class PPSGD(NetworkStrategy):
    """Shares the whole network; corrections of its head stay with their users."""
