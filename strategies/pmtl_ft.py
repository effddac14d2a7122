"""Private multi-task learning with mean regularisation and fine-tuning, server side (Hu et al. 2021).

theta <- theta + eta_g G, with G the noised mean of theta_i - theta, each clipped to zeta.
"""

from __future__ import annotations

from privfed.algorithm.network_strategy import NetworkStrategy


class PMTL(NetworkStrategy):
    """Shares the mean of the users' networks."""
