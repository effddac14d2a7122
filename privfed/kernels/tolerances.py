"""Limits below which numbers count as zero, for NumPy code and compiled loops alike."""

from __future__ import annotations

import numpy as np

TINY = float(np.finfo(np.float64).tiny)
"""Smallest float of full precision."""

RANK_TOLERANCE = 1e-10
"""A Gram pivot below this fraction of the largest diagonal entry counts as zero."""

LEVERAGE_TOLERANCE = 1e-6
"""Leave-one-out needs 1 - leverage above this, and pivots that leave it some correct digits."""

RIDGE = 1e-9
"""Fraction of its diagonal added to a Gram matrix, so that dependent features have a head."""

CANCELLATION = 1e-3
"""Least norm of a second moment, as a fraction of the two terms whose difference it is."""
