"""Network split into a representation that all users share, and one linear head per user.

    features = body(x)            logits = head(features)

Any torch module can be split at a linear layer that computes its output. Shared parameters are sent
as 64-bit arrays in the order of the module's own parameters; users compute with them in single
precision.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from privfed.foundation.errors import ConfigError, nearest
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator

Parameters = dict[str, Tensor]
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SEEDED = threading.Lock()
"""torch has one generator for all threads of a process."""
CACHE = 1 << 24
"""Bytes that the users of a chunk may fill with their own numbers, about a processor's cache."""


class Network:
    """Network split into a body and a head.

    Args:
        module: maps images (B, C, H, W) to logits (B, classes).
        split: name of the linear layer that is the head.
        shape: shape of an image, (C, H, W).
        classes: number of classes.
        device: where networks are computed; auto takes a GPU if there is one.
        precision: precision of products within the body: float32, or bfloat16, which takes half the
            time on processors that support it. Parameters and sums are not affected.

    Raises:
        ConfigError: the module cannot be split there, or an option is unknown.
    """

    def __init__(
        self,
        module: nn.Module,
        split: str,
        shape: Sequence[int],
        classes: int,
        device: str,
        precision: str,
    ) -> None:
        self.shape, self.classes = tuple(shape), classes
        self.device = _device(device)
        if precision not in PRECISIONS:
            raise ConfigError.of(
                "model.precision", precision, f"must be one of {', '.join(PRECISIONS)}"
            )
        self.precision = PRECISIONS[precision]
        _check_module(module)
        layers = dict(module.named_modules())
        if split not in layers or not split:
            named = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
            raise ConfigError.of(
                "model.split", split, f"the network has no such layer; {nearest(str(split), named)}"
            )
        head = layers[split]
        if not is_linear(head):
            raise ConfigError.of(
                "model.split", split, f"is a {type(head).__name__}; the head must be a linear layer"
            )
        self.split = split
        self.head = copy.deepcopy(head).eval().requires_grad_(False)
        self.body = copy.deepcopy(module).eval().requires_grad_(False)
        replace_layer(self.body, split, nn.Identity())
        self._try(copy.deepcopy(module).eval().requires_grad_(True))
        self.convolves = any(isinstance(layer, nn.Conv2d) for layer in self.body.modules())
        self.body.to(self.device)
        self.head.to(self.device)
        self.k = head.in_features
        self.body_names = [name for name, _ in self.body.named_parameters()]
        self.head_names = [f"{split}.{name}" for name, _ in self.head.named_parameters()]

    def sizes(self, whole: bool) -> list[tuple[int, ...]]:
        """Return the shapes of the shared parameters: the body's and, with `whole`, the head's."""
        parameters = [*self.body.parameters(), *(self.head.parameters() if whole else ())]
        return [tuple(parameter.shape) for parameter in parameters]

    def names(self, whole: bool) -> list[str]:
        """Return the names of the shared parameters, in the order of `sizes`."""
        return [*self.body_names, *(self.head_names if whole else ())]

    def initial(self, seed: int, whole: bool) -> list[Array]:
        """Return a public random start, by every layer's own rule.

        Args:
            seed: seed of the start.
            whole: whether the head is included.
        """
        body, head = copy.deepcopy(self.body).cpu(), copy.deepcopy(self.head).cpu()
        with SEEDED, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generator(seed, "network").integers(1 << 62)))
            for layer in (*body.modules(), head):
                reset: Any = getattr(layer, "reset_parameters", None)
                if reset is not None:
                    reset()
        parameters = [*body.parameters(), *(head.parameters() if whole else ())]
        return [parameter.detach().numpy().astype(np.float64) for parameter in parameters]

    def received(self, shared: Sequence[Array]) -> tuple[Parameters, Parameters]:
        """Return the body's and the head's parameters in single precision.

        Args:
            shared: arrays as they are sent; the head's may be missing.
        """
        with np.errstate(over="ignore"):
            tensors = [
                torch.from_numpy(array.astype(np.float32)).to(self.device) for array in shared
            ]
        body = dict(zip(self.body_names, tensors, strict=False))
        head = dict(zip(("weight", "bias"), tensors[len(self.body_names) :], strict=False))
        return body, head

    def images(self, X: Any) -> Tensor:
        """Return pixels as images between -1 and 1, in the fastest layout.

        Args:
            X: pixels from 0 to 255, (B, m, d).

        Returns:
            (B m, C, H, W).
        """
        pixels = torch.from_numpy(np.ascontiguousarray(X)).to(self.device)
        images = (pixels.float() / 127.5 - 1.0).reshape(-1, *self.shape)
        return images.contiguous(memory_format=torch.channels_last) if self.convolves else images

    def fast(self) -> torch.autocast:
        """Return a context in which the body computes in the configured precision."""
        return torch.autocast(
            self.device.type, self.precision, enabled=self.precision != torch.float32
        )

    def chunk(self, copies: int) -> int:
        """Return how many users are computed together.

        Convolutions use the whole processor with one user; with one filter per user they are
        several times slower.

        Args:
            copies: copies of the parameters per user.
        """
        if self.convolves:
            return 1
        each = 4 * copies * sum(math.prod(size) for size in self.sizes(whole=True))
        return int(np.clip(CACHE // each, 1, 64))

    def _try(self, module: nn.Module) -> None:
        """Check that body and head together compute what the whole network does, image by image."""
        x = torch.from_numpy(
            generator(0, "trial").standard_normal((3, *self.shape)).astype(np.float32)
        )
        try:
            logits, fewer = module(x), module(x[:2])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise ConfigError(
                f"model: the network does not take images of data.shape={list(self.shape)}: "
                f"{' '.join(str(error).split())}"
            ) from error
        if not isinstance(logits, Tensor) or logits.shape != (3, self.classes):
            given = list(logits.shape[1:]) if isinstance(logits, Tensor) else type(logits).__name__
            raise ConfigError(
                f"model: the network gives {given} for an image, not one number for each of "
                f"{self.classes} classes"
            )
        # If layers follow the split, they may fail, since they do not get the input they expect.
        try:
            with torch.no_grad():
                fits = torch.allclose(self.head(self.body(x)), logits, atol=1e-5)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            IndexError,
        ):
            fits = False
        if not fits:
            raise ConfigError.of(
                "model.split", self.split, "is not the layer that computes the network's output"
            )
        if not torch.allclose(fewer, logits[:2], atol=1e-5):
            raise ConfigError(
                "model.module: what it gives for an image depends on the other images, as in "
                "batch normalisation: users would "
                "leak into each other's models without noise"
            )
        names, parameters = zip(*module.named_parameters(), strict=True)
        for name, slope in zip(
            names, torch.autograd.grad(logits.sum(), parameters, allow_unused=True), strict=True
        ):
            if slope is None:
                raise ConfigError(f"model.module: {name!r} takes no part in what the network gives")


def _check_module(module: Any) -> None:
    """Check that all parameters can be initialised, and that the module keeps no other state."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.module: {type(module).__name__} is not a torch.nn.Module")
    buffers = [name for name, _ in module.named_buffers()]
    if buffers:
        raise ConfigError(
            f"model.module: keeps {buffers[0]!r} beside its parameters, as batch normalisation "
            "does: users would leak into "
            "each other's models without noise; use group or layer normalisation"
        )
    known = {
        id(parameter)
        for layer in module.modules()
        if hasattr(layer, "reset_parameters")
        for parameter in layer.parameters(recurse=False)
    }
    for name, parameter in module.named_parameters():
        if id(parameter) not in known:
            raise ConfigError(
                f"model.module: nothing says how {name!r} starts; its layer needs a method "
                "reset_parameters"
            )


def is_linear(layer: nn.Module) -> bool:
    """Return whether a layer computes W x + b and nothing else; a subclass may do more."""
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward


def replace_layer(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace the layer called `name` by another one."""
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError.of(
            "model.device", name, "there is no such device; use auto, cpu or cuda"
        ) from error
    return device
