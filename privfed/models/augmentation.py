"""Random shifts and mirror images: the usual augmentation of small images."""

from __future__ import annotations

import torch
from torch import Tensor

from privfed.foundation.linalg import Array

MARGIN = 4
"""Largest shift of an image in pixels, in each direction; pixels from outside are grey."""


def augmented(x: Tensor, draws: Array) -> Tensor:
    """Return images, each shifted and mirrored left to right at random.

    Args:
        x: images, (N, C, H, W).
        draws: 3 N uniform numbers that decide the shifts and mirrors.

    Returns:
        Images, (N, C, H, W).
    """
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
