"""Procedural images that resemble photographs and cost no privacy: no image was used for them.

They have a vertical gradient with 1/f texture, leaves (ellipses and boxes of all sizes, on top of
each other), a cluster of blobs near the middle as an object, and some blur. They show which patches
and features vary together in images in general.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator

Pictures = NDArray[np.float32]


@lru_cache(maxsize=2)
def scenes(count: int, shape: tuple[int, int, int], seed: int = 0) -> Pictures:
    """Return images (count, C, H, W) with values between 0 and 1, determined by the seed.

    Args:
        count: number of images.
        shape: shape of an image, (C, H, W).
        seed: seed.
    """
    rng = generator(seed, "scenes")
    pictures = np.stack([_scene(rng, *shape[1:]) for _ in range(count)])
    colours = (
        pictures
        if shape[0] == 3
        else np.repeat(pictures.mean(axis=1, keepdims=True), shape[0], axis=1)
    )
    return np.clip(colours, 0.0, 1.0).astype(np.float32)


def _scene(rng: np.random.Generator, height: int, width: int) -> Array:
    rows, columns = np.mgrid[:height, :width]
    side = max(height, width)
    brightness, contrast = rng.uniform(0.2, 0.8), rng.uniform(0.05, 0.3)
    saturation = 0.08 * abs(rng.standard_normal())
    hue = saturation * rng.standard_normal(3)

    def colour() -> Array:
        return (
            brightness
            + hue
            + contrast * rng.standard_normal()
            + 0.7 * (saturation + 0.02) * rng.standard_normal(3)
        )

    top, bottom = colour(), colour()
    ramp = (bottom - top)[:, None, None] * (rows / height - 0.5)
    picture = (
        (top + bottom)[:, None, None] / 2 + ramp + 0.3 * contrast * _texture(rng, height, width)
    )
    texture = _texture(rng, height, width)
    leaves, blobs = int(np.exp(rng.uniform(0.0, np.log(40.0)))), int(rng.integers(3, 9))
    middle = np.array([width / 2, height / 2]) + side / 16 * rng.standard_normal(2)
    size, own = side / 32 * rng.uniform(4.0, 9.0), colour()
    for i in range(leaves + blobs):
        if i < leaves:
            u = rng.random()
            radius = side / 32 / np.sqrt(u / 4 + (1 - u) / 256)
            x, y = rng.random(2) * (side + side / 4) - side / 8
            paint = colour()
        else:
            radius = size * rng.uniform(0.3, 1.0)
            x, y = middle + size * np.array([0.7, 0.5]) * rng.standard_normal(2)
            paint = own + 0.4 * contrast * rng.standard_normal() + 0.03 * rng.standard_normal(3)
        angle = rng.random() * np.pi if rng.random() < 0.5 else rng.choice([0.0, np.pi / 2])
        along = (columns - x) * np.cos(angle) + (rows - y) * np.sin(angle)
        across = -(columns - x) * np.sin(angle) + (rows - y) * np.cos(angle)
        flat = radius * rng.uniform(0.25, 1.0)
        round_ = (along / radius) ** 2 + (across / flat) ** 2 < 1
        inside = (
            round_ if rng.random() < 0.5 else (np.abs(along) < radius) & (np.abs(across) < flat)
        )
        slope = 0.04 * contrast * rng.standard_normal(2)
        shade = (
            slope[0] * along
            + slope[1] * across
            + 0.3 * contrast * abs(rng.standard_normal()) * texture
        )
        picture[:, inside] = paint[:, None] + shade[inside]
    return _blurred(picture, rng.uniform(0.3, 0.9))


def _texture(rng: np.random.Generator, height: int, width: int) -> Array:
    """Return noise of unit variance whose amplitude falls with frequency as in photographs."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None])
    frequency[0, 0] = np.inf
    noise = np.fft.ifft2(np.fft.fft2(rng.standard_normal((height, width))) * frequency**-1.2).real
    return np.asarray(noise / noise.std())


def _blurred(picture: Array, width: float) -> Array:
    kernel = np.exp(-(np.arange(-2, 3) ** 2) / (2 * width**2))
    kernel /= kernel.sum()
    for axis in (1, 2):
        padded = np.pad(picture, [(2, 2) if i == axis else (0, 0) for i in range(3)], mode="edge")
        places = np.arange(picture.shape[axis])
        picture = np.sum(
            [w * np.take(padded, places + i, axis) for i, w in enumerate(kernel)], axis=0
        )
    return picture
