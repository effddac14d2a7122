"""Private multi-task learning with mean regularisation, server side (Hu et al. 2021).

theta   mean of the users' networks     zeta    clip norm of a user's update theta_i - theta
G       noised mean of the updates      eta_g   step size of the server

each round:  theta <- theta + eta_g G
"""

from __future__ import annotations

from privfed.algorithm.network_strategy import NetworkStrategy


class PMTL(NetworkStrategy):
    """Shares the mean of the users' networks."""
