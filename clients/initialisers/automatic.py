"""A start that is chosen without data, user side: the tasks of both starts."""

from __future__ import annotations

from clients.initialisers.cascade import CascadeTask
from clients.initialisers.spectral import SpectralTask


class AutomaticTask(CascadeTask, SpectralTask):
    """Answers whichever of the two tasks the server asks for."""
