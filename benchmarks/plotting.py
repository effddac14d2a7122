"""matplotlib, for pictures in files: it needs no screen."""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["plt"]
