"""Fixed features of images that use no data: edges, colours, whitened random patches, pixels.

    edges        orientations in 4 x 4 cells          of the image and its mirror image together
    colours      histograms on a 3 x 3 grid           likewise
    patches      responses of random filters          likewise
    fine_edges   orientations in cells of 4 pixels    of the image as it is
    pixels       means over 2 x 2 pixels              of the image as it is

Each block but the pixels has unit length. Blocks are weighted relative to their variance over
procedural images (`scenes`). The top principal directions of the features of those images are a
public basis of low dimension, in which a model can be learnt privately.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from privfed.foundation.errors import ConfigError, check_number, check_whole
from privfed.foundation.seeding import generator
from privfed.models.procedural_images import scenes

Weights = tuple[tuple[str, float], ...]
BLOCKS = ("edges", "colours", "patches", "fine_edges", "pixels")
"""Names of the blocks of features, in their order."""
FINE = 4
"""Side of the cells of fine edges, in pixels."""
LEAST = 8
"""Least side of an image, in pixels."""
BATCH = 100
"""Images described at a time."""
PATCH, FLAT, RIDGE, THRESHOLD = 5, 0.01, 0.05, 2.0
"""Side of a patch, offset for flat patches, ridge of the whitening, and response threshold."""
OPPONENTS = torch.nn.functional.normalize(
    torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [0.5, 0.5, -1.0]]), dim=1
)
"""Brightness, red against green, yellow against blue."""


class PublicFeatures:
    """Features (D,) of an image, and a basis (D, k) of them.

    Args:
        shape: shape of an image, (C, H, W).
        classes: number of classes.
        k: dimension of the basis.
        patches: number of random filters.
        pictures: number of procedural images that filters, weights and basis come from.
        weights: weight of each block of features by name; a block of weight 0, or without a
            weight, is not computed.
        whitening: exponent p of `coordinates`: 0 keeps the spread of the directions, 1/2 makes
            all directions vary alike over procedural images.

    Raises:
        ConfigError: a setting is not allowed.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        k: int,
        patches: int,
        pictures: int,
        weights: Mapping[str, float],
        whitening: float = 0.0,
    ) -> None:
        for key, value in (
            ("model.k", k),
            ("model.patches", patches),
            ("model.pictures", pictures),
        ):
            check_whole(key, value)
        given = _checked_weights(weights)
        check_number(
            "model.whitening",
            whitening,
            lambda x: 0 <= x <= 0.5,
            "must lie between 0 and 0.5",
        )
        size = (int(shape[0]), int(shape[1]), int(shape[2]))
        if min(size[1:]) < LEAST:
            raise ConfigError.of(
                "data.shape",
                list(shape),
                f"too small for {PATCH}x{PATCH} patches: at least {LEAST} pixels a side",
            )
        self.shape, self.classes, self.k = size, classes, k
        trial = described(torch.zeros(1, *size), given, torch.zeros(patches, size[0], PATCH, PATCH))
        features = sum(block.shape[1] for block in trial)
        check_number(
            "model.k",
            k,
            lambda x: x <= features,
            f"cannot be larger than the {features} features of a picture",
        )
        self._settings = (size, k, patches, pictures, given)
        self._whitening = float(whitening)

    @property
    def basis(self) -> NDArray[np.float32]:
        """Return the principal directions (D, k) of the features of procedural images."""
        return self._frame.basis

    @property
    def coordinates(self) -> NDArray[np.float64]:
        """Return the basis (D, k) with direction j scaled by (ev_j / ev_1)^-p.

        The ev_j are the variances of procedural images along the directions. All is scaled such
        that the coordinates of procedural images have mean squared length 1.
        """
        basis, ev = self._frame.basis.astype(np.float64), self._frame.variances
        scales = (ev / ev[0]) ** -self._whitening
        return basis * (scales / math.sqrt(np.sum(ev * scales**2)))

    @property
    def _frame(self) -> Frame:
        # Nodes in threads share the cached frame.
        with _one_at_a_time:
            return frame(*self._settings)

    def __call__(self, X: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return features: pixels X (..., d) from 0 to 255 -> (..., D)."""
        # One thread per cohort, since cohorts run in parallel.
        torch.set_num_threads(1)
        known, flat = self._frame, np.ascontiguousarray(X).reshape(-1, *self.shape)
        features = np.empty((len(flat), len(known.basis)), dtype=np.float32)
        for start in range(0, len(flat), BATCH):
            pixels = torch.from_numpy(flat[start : start + BATCH]).float()
            features[start : start + BATCH] = known.describe(pixels / 255.0)
        return features.reshape(*X.shape[:-1], -1)


@dataclass(frozen=True)
class Frame:
    """Quantities that follow from the settings alone.

    Attributes:
        weights: names and weights of the blocks.
        filters: (K, C, 5, 5).
        scales: scale of each block.
        basis: (D, k).
        variances: variances (k,) of procedural images along the directions of the basis, at least
            1e-6 of the first.
    """

    weights: Weights
    filters: Tensor
    scales: tuple[float, ...]
    basis: NDArray[np.float32]
    variances: NDArray[np.float64]

    def describe(self, x: Tensor) -> NDArray[np.float32]:
        """Return features: images x (N, C, H, W) between 0 and 1 -> (N, D)."""
        blocks = described(x, self.weights, self.filters)
        return torch.cat(
            [scale * block for scale, block in zip(self.scales, blocks, strict=True)], 1
        ).numpy()


_one_at_a_time = threading.Lock()


@lru_cache(maxsize=4)
def frame(
    shape: tuple[int, int, int], k: int, patches: int, pictures: int, weights: Weights
) -> Frame:
    """Make the frame from procedural images; the same settings give the same frame."""
    public = torch.from_numpy(scenes(pictures, shape))
    filters = whitened_patches(public[: max(1, pictures // 2)], patches)
    parts = [described(some, weights, filters) for some in public.split(BATCH)]
    blocks = [torch.cat(block).numpy() for block in zip(*parts, strict=True)]
    scales = tuple(
        math.sqrt(weight / max(float(block.var(axis=0).sum()), 1e-12))
        for (_, weight), block in zip(weights, blocks, strict=True)
    )
    features = np.concatenate(
        [scale * block for scale, block in zip(scales, blocks, strict=True)], axis=1
    )
    centred = (features - features.mean(axis=0)).astype(np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    T = vectors[:, ::-1][:, :k]
    signs = np.sign(T[np.argmax(np.abs(T), axis=0), np.arange(T.shape[1])])
    variances = np.maximum(values[::-1][:k], 1e-6 * values[-1]) / pictures
    return Frame(weights, filters, scales, (T * signs).astype(np.float32), variances)


def _checked_weights(weights: Mapping[str, float]) -> Weights:
    """Return the blocks that have a weight, in their order."""
    allowed = f"give a weight for each of {', '.join(BLOCKS)}, as {{edges: 2.0, colours: 2.0}}"
    if not isinstance(weights, Mapping) or not set(weights) <= set(BLOCKS):
        raise ConfigError.of("model.weights", weights, allowed)
    for name, weight in weights.items():
        check_number(
            f"model.weights.{name}", weight, lambda x: 0 <= x < math.inf, "must be at least 0"
        )
    given = tuple((name, float(weights[name])) for name in BLOCKS if weights.get(name))
    if not given:
        raise ConfigError.of("model.weights", dict(weights), "one of them must be above 0")
    return given


def cell_of(shape: tuple[int, int, int]) -> int:
    """Return the side of the cells in which edges are counted."""
    return min(shape[1:]) // 4


def whitened_patches(pictures: Tensor, count: int) -> Tensor:
    """Return random patches of images (N, C, H, W), whitened, of zero mean: (count, C, 5, 5)."""
    C = pictures.shape[1]
    patches = (
        pictures.unfold(2, PATCH, 3)
        .unfold(3, PATCH, 3)
        .permute(0, 2, 3, 1, 4, 5)
        .reshape(-1, C * PATCH**2)
    )
    patches = patches - patches.mean(1, keepdim=True)
    patches = patches / (patches.var(1, keepdim=True) + FLAT).sqrt()
    patches = patches[patches.var(1) > 0.3]
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    W = vectors @ torch.diag((values.clamp(min=0) + RIDGE).rsqrt()) @ vectors.T
    # Some patches repeat if there are few images.
    chosen = np.resize(generator(0, "patches").permutation(len(patches)), count)
    white = functional.normalize(patches[torch.from_numpy(chosen)] @ W, dim=1) @ W
    filters = white.reshape(-1, C, PATCH, PATCH)
    return filters - filters.mean((1, 2, 3), keepdim=True)


def described(x: Tensor, weights: Weights, filters: Tensor) -> list[Tensor]:
    """Return the blocks of features (N, .) that have a weight.

    Args:
        x: images with values between 0 and 1, (N, C, H, W).
        weights: names and weights of the blocks.
        filters: (K, C, 5, 5).
    """
    mirror = x.flip(3)
    cell = cell_of((x.shape[1], x.shape[2], x.shape[3]))
    makers: dict[str, Callable[[], Tensor]] = {
        "edges": lambda: edges(x, cell) + edges(mirror, cell),
        "colours": lambda: colours(x) + colours(mirror),
        "patches": lambda: (patches(x, filters) + patches(mirror, filters)).sqrt(),
        "fine_edges": lambda: edges(x, FINE),
    }
    return [
        functional.avg_pool2d(x, 2).flatten(1)
        if name == "pixels"
        else functional.normalize(makers[name]().flatten(1), dim=1, eps=1e-8)
        for name, _ in weights
    ]


def edges(x: Tensor, cell: int, orientations: int = 9) -> Tensor:
    """Return histograms of gradient orientations per cell, normalised by their neighbourhood."""
    padded = functional.pad(x, (1, 1, 1, 1), mode="replicate")
    gx, gy = (
        padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2],
        padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1],
    )
    length = (gx**2 + gy**2).sqrt()
    channel = length.argmax(1, keepdim=True)
    length, gx, gy = (value.gather(1, channel) for value in (length, gx, gy))
    place = (torch.atan2(gy, gx) / math.pi * orientations) % orientations
    low = place.floor()
    share, bin = place - low, low.long() % orientations
    votes = torch.zeros(len(x), orientations, *x.shape[2:])
    votes.scatter_add_(1, bin, length * (1 - share))
    votes.scatter_add_(1, (bin + 1) % orientations, length * share)
    ramp = torch.cat([torch.arange(1, cell + 1), torch.arange(cell - 1, 0, -1)]).float() / cell
    window = (ramp[:, None] * ramp).expand(orientations, 1, -1, -1)
    cells = (
        functional.conv2d(votes, window, stride=cell, padding=cell // 2, groups=orientations)
        / cell**2
    )
    energy = functional.avg_pool2d(
        (cells**2).sum(1, keepdim=True), 3, 1, 1, count_include_pad=False
    )
    return cells / (energy.sqrt() + 0.02)


def colours(x: Tensor, grid: int = 3) -> Tensor:
    """Return histograms of brightness and opponent colours, single and joint, on a grid.

    Images without three channels have brightness only.
    """
    if x.shape[1] != 3:
        histograms = [soft_bins(x.mean(1, keepdim=True), 0.0, 1.0, 6)]
    else:
        opponent = torch.einsum("oc,nchw->nohw", OPPONENTS, x)
        ranges = ((0.0, 1.73), (-0.5, 0.5), (-0.6, 0.6))
        histograms = [
            soft_bins(opponent[:, i : i + 1], *limits, 6) for i, limits in enumerate(ranges)
        ]
        red, yellow = (
            soft_bins(opponent[:, 1:2], -0.3, 0.3, 5),
            soft_bins(opponent[:, 2:3], -0.4, 0.4, 5),
        )
        histograms.append((red[:, :, None] * yellow[:, None]).flatten(1, 2))
    return torch.cat([functional.adaptive_avg_pool2d(h, grid) for h in histograms], 1).sqrt()


def soft_bins(value: Tensor, low: float, high: float, bins: int) -> Tensor:
    """Return how much each pixel (N, 1, H, W) belongs to each bin: (N, bins, H, W)."""
    centres = torch.linspace(low, high, bins)[None, :, None, None]
    return (1 - ((value - centres) * (bins - 1) / (high - low)).abs()).clamp(min=0)


def patches(x: Tensor, filters: Tensor, stride: int = 2, grid: int = 2) -> Tensor:
    """Return strong responses, of either sign, of normalised patches, pooled on a grid."""
    mean = functional.avg_pool2d(x.mean(1, keepdim=True), PATCH, stride)
    variance = functional.avg_pool2d((x**2).mean(1, keepdim=True), PATCH, stride) - mean**2
    response = functional.conv2d(x, filters, stride=stride) / (variance.clamp(min=0) + FLAT).sqrt()
    signs = [(response - THRESHOLD).relu(), (-response - THRESHOLD).relu()]
    return torch.cat([functional.adaptive_avg_pool2d(part, grid) for part in signs], 1)
