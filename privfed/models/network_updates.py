"""What a chunk of users would send: the changes of their networks, each clipped by its own norm before anything is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privfed.foundation.linalg import Array
from privfed.privacy.clipping import clip_factors

BLOCK = 1 << 15
"""Numbers of a user that are made 64-bit at a time, so that they stay in a processor's cache."""


@dataclass(frozen=True)
class Updates:
    """Single-precision changes by parameter, (B, ...) each; norms and sums are computed in double precision."""

    parts: Sequence[Tensor]

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Sum (P,) over users of changes of norm at most clip, and the norms (B,): see `Contributions`."""
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
        total = torch.cat(
            [factors @ block.double() for row in rows for block in row.split(BLOCK, dim=1)]
        )
        return total.cpu().numpy(), norms
