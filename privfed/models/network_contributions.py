"""Contributions of a chunk of users: changes of their networks, each clipped by its own norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privfed.foundation.linalg import Array
from privfed.privacy.clipping import clip_factors
from privfed.privacy.summation import DEPTH, Total

BLOCK = 1 << 15
"""Numbers per user that are converted to 64 bits at a time, so that they stay in cache."""


@dataclass(frozen=True)
class Updates:
    """Changes of parameters in single precision.

    Norms and sums are computed in double precision.

    Attributes:
        parts: change of each parameter, (B, ...).
    """

    parts: Sequence[Tensor]

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """See :class:`privfed.privacy.clipping.Contributions`; the sum has shape (P,)."""
        rows = [part.detach().reshape(len(part), -1) for part in self.parts]
        squares = sum(
            torch.linalg.vector_norm(row, dim=1, dtype=torch.float64) ** 2 for row in rows
        )
        norms = torch.sqrt(squares).cpu().numpy()
        finite = np.isfinite(norms)
        norms = np.where(finite, norms, 0.0)
        factors = torch.from_numpy(np.where(finite, clip_factors(norms, clip), 0.0)).to(
            rows[0].device
        )
        if not finite.all():
            broken = torch.from_numpy(~finite).to(rows[0].device)
            rows = [row.masked_fill(broken[:, None], 0.0) for row in rows]
        total = Total()
        for start in range(0, max(1, len(norms)), DEPTH):
            some = slice(start, start + DEPTH)
            blocks = [
                factors[some] @ block.double()
                for row in rows
                for block in row[some].split(BLOCK, dim=1)
            ]
            total.add(torch.cat(blocks).cpu().numpy())
        return total.value, norms
