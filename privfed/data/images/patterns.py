"""Synthetic images for tests and first tries: noisy, shifted copies of one pattern per class.

Users are drawn in small public blocks from streams keyed by (seed, purpose, block). User i
therefore has the same images for any n and any distribution of users over nodes.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from privfed.data.cohort import Cohort, Ids
from privfed.data.images.image_source import Classes, HeldOut, ImageShape, ImageUsers
from privfed.data.images.partition import counts_of
from privfed.foundation.constraints import WHOLE, Number, Whole
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator

BLOCK = 32
"""Users per public block."""
FRESH = 64
"""Fresh users who judge the model during training."""
GREY, CONTRAST = 128.0, 36.0
"""Mean and standard deviation of the patterns' pixels, in grey levels."""
PIXEL_NOISE = Number(lambda x: 0 <= x <= 100, "must be a number between 0 and 100")
SHIFTS = [(rows, columns) for rows in (-1, 0, 1) for columns in (-1, 0, 1)]


class Patterns(ImageUsers):
    """Users with noisy images of at most S classes each.

    An image is shifted by at most one pixel in each direction and wraps around at the edges.

    Args:
        n: number of users.
        m: training images per user.
        t: test images per user.
        size: rows and columns of an image.
        channels: channels of an image.
        classes: number of classes.
        S: largest number of classes per user.
        noise: standard deviation of a pixel's noise; that of the patterns is 1.
        shape: (channels, size, size); models read it.
        seed: seed of everything.

    Raises:
        ConfigError: if `shape` differs from (channels, size, size), or S > classes.
    """

    def __init__(
        self,
        n: Annotated[int, WHOLE],
        m: Annotated[int, WHOLE],
        t: Annotated[int, WHOLE],
        size: Annotated[int, Whole(2)],
        channels: Annotated[int, WHOLE],
        classes: Classes,
        S: int,
        noise: Annotated[float, PIXEL_NOISE],
        shape: ImageShape,
        seed: int,
    ) -> None:
        super().__init__(shape, classes, seed)
        if self.shape != (channels, size, size):
            raise ConfigError.of(
                "data.shape", list(shape), "follows from data.channels and data.size; set those"
            )
        self.n, self.m, self.t, self.S, self.noise = n, m, t, self.check_S(S), float(noise)

    def cohort(self, first: int, last: int) -> Cohort:
        """Return the users first..last-1: X (B, m, d) bytes, y (B, m) classes."""
        return self._users("user", first, last)

    def validation(self, users: int = FRESH) -> Cohort:
        """Return fresh users of the same population, who never take part in training."""
        return self._users("validation", 0, users)

    def describe_split(self) -> Ids:
        """Count the training images of each user and class (n, classes)."""
        blocks = range(-(-self.n // BLOCK))
        y = np.concatenate([self._labels("user", block)[:, : self.m] for block in blocks])[: self.n]
        return counts_of(np.arange(y.size).reshape(y.shape), y.ravel(), self.classes)

    def prototypes(self) -> Array:
        """Return the patterns in all shifts (9, classes, C, size, size).

        They have mean 0, variance 1 and only low frequencies.
        """
        _, size, _ = self.shape
        white = generator(self.seed, "patterns").standard_normal((self.classes, *self.shape))
        frequency = np.minimum(np.arange(size), size - np.arange(size))
        keep = np.exp(-0.5 * (frequency[:, None] ** 2 + frequency**2) / max(1.0, size / 6) ** 2)
        keep[0, 0] = 0.0
        smooth = np.fft.ifft2(np.fft.fft2(white) * keep).real
        smooth /= smooth.std(axis=(1, 2, 3), keepdims=True)
        return np.stack([np.roll(smooth, shift, axis=(2, 3)) for shift in SHIFTS])

    def _labels(self, purpose: str, block: int) -> Ids:
        """Return the classes (BLOCK, m + t) of all images of a block's users."""
        chosen = (
            generator(self.seed, purpose, "classes", block)
            .random((BLOCK, self.classes))
            .argsort(axis=1)[:, : self.S]
        )
        which = generator(self.seed, purpose, "labels", block).integers(
            0, self.S, (BLOCK, self.m + self.t)
        )
        return np.take_along_axis(chosen, which, axis=1)

    def _users(self, purpose: str, first: int, last: int) -> Cohort:
        X: Any = np.empty((last - first, self.m + self.t, self.d), dtype=np.uint8)
        y, patterns = np.empty(X.shape[:2]), self.prototypes()
        for block in range(first // BLOCK, -(-last // BLOCK)):
            a, b = max(first, block * BLOCK), min(last, (block + 1) * BLOCK)
            mine, part = slice(a - first, b - first), slice(a - block * BLOCK, b - block * BLOCK)
            labels = self._labels(purpose, block)
            shifts = generator(self.seed, purpose, "shifts", block).integers(
                0, len(SHIFTS), labels.shape
            )
            clean = patterns[shifts[part], labels[part]].reshape(b - a, self.m + self.t, self.d)
            noise = generator(self.seed, purpose, "noise", block).standard_normal(
                (BLOCK, *X.shape[1:]), dtype=np.float32
            )
            X[mine] = np.clip(np.rint(GREY + CONTRAST * (clean + self.noise * noise[part])), 0, 255)
            y[mine] = labels[part]
        held_out = HeldOut(X[:, self.m :], y[:, self.m :])
        train = X[:, : self.m], y[:, : self.m]
        return Cohort(np.arange(first, last), *train, held_out)  # type: ignore[arg-type]
