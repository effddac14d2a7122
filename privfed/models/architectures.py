"""Networks of the papers, as plain torch modules whose last layer is named `head`."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from privfed.foundation.errors import ConfigError, check_whole

KERNEL = 5
"""Side of LeNet's filters, in pixels."""


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int]) -> nn.Sequential:
    """Return fully connected layers with ReLU.

    hidden=(256, 128, 16) is CENTAUR's network for EMNIST.

    Args:
        shape: shape of an image, (C, H, W).
        classes: number of classes.
        hidden: sizes of the hidden layers.

    Raises:
        ConfigError: `hidden` is not a list of positive sizes.
    """
    _check_hidden(hidden)
    return nn.Sequential(
        OrderedDict([("flatten", nn.Flatten()), *_dense(math.prod(shape), hidden, classes)])
    )


def lenet(
    shape: Sequence[int], classes: int, channels: Sequence[int], hidden: Sequence[int]
) -> nn.Sequential:
    """Return two convolutions with pooling, followed by fully connected layers.

    64 and 64 channels give CENTAUR's LeNet-5.

    Args:
        shape: shape of an image, (C, H, W).
        classes: number of classes.
        channels: channels of the two convolutions.
        hidden: sizes of the hidden layers.

    Raises:
        ConfigError: sizes are not allowed, or images are too small.
    """
    _check_hidden(hidden)
    if isinstance(channels, int | float | str) or len(channels) != 2:
        raise ConfigError.of(
            "model.module.channels", channels, "LeNet has two convolutions: give two numbers"
        )
    first, second = (check_whole("model.module.channels", size) for size in channels)
    c, height, width = shape
    sides = [((side - KERNEL + 1) // 2 - KERNEL + 1) // 2 for side in (height, width)]
    if min(sides) < 1:
        raise ConfigError.of(
            "data.shape",
            list(shape),
            f"too small for LeNet's {KERNEL}x{KERNEL} filters and two poolings",
        )
    layers = [
        ("conv1", nn.Conv2d(c, first, KERNEL)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Conv2d(first, second, KERNEL)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
    ]
    return nn.Sequential(
        OrderedDict([*layers, *_dense(second * math.prod(sides), hidden, classes)])
    )


def _dense(size: int, hidden: Sequence[int], classes: int) -> list[tuple[str, nn.Module]]:
    layers: list[tuple[str, nn.Module]] = []
    for i, width in enumerate(hidden, start=1):
        layers += [(f"fc{i}", nn.Linear(size, width)), (f"act{i}", nn.ReLU())]
        size = width
    return [*layers, ("head", nn.Linear(size, classes))]


def _check_hidden(hidden: Sequence[int]) -> None:
    if isinstance(hidden, int | float | str):
        raise ConfigError.of("model.module.hidden", hidden, "give a list of sizes, as [64,32]")
    if not hidden:
        raise ConfigError.of(
            "model.module.hidden",
            list(hidden),
            "give at least one hidden layer: it is the representation",
        )
    for width in hidden:
        check_whole("model.module.hidden", width)
