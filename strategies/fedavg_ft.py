"""DP-FedAvg with fine-tuning, server side.

theta <- theta + eta_g G, with G the noised mean of theta_i - theta, each clipped to zeta.
"""

from __future__ import annotations

from privfed.algorithm.network_strategy import NetworkStrategy


class FedAvgFT(NetworkStrategy):
    """Shares the whole network."""
