"""Random shifts and mirror images, the usual augmentation of small pictures."""

from __future__ import annotations

import torch
from torch import Tensor

from privfed.foundation.linalg import Array

MARGIN = 4
"""Pixels that a picture may be shifted by, either way; what comes in from outside is grey."""


def augmented(x: Tensor, draws: Array) -> Tensor:
    """x (N, C, H, W), each picture shifted and mirrored left to right as 3 N uniform numbers say."""
    N, _, H, W = x.shape
    numbers = torch.from_numpy(draws.reshape(N, 3)).to(x.device)
    dy, dx = ((numbers[:, i] * (2 * MARGIN + 1)).long() for i in range(2))
    flip = numbers[:, 2] < 0.5
    columns = torch.arange(W, device=x.device).expand(N, W)
    columns = torch.where(flip[:, None], W - 1 - columns, columns) + dx[:, None]
    rows = torch.arange(H, device=x.device) + dy[:, None]
    padded = torch.nn.functional.pad(x, (MARGIN,) * 4)
    picture = torch.arange(N, device=x.device)[:, None, None]
    return (
        padded[picture, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
    )
