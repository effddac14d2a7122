"""Replace attributes of the real code for a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

NO_CLIP = 1e90


@contextmanager
def patched(*changes: tuple[object, str, object]) -> Iterator[None]:
    """Attributes of objects, replaced: (owner, name, replacement)."""
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(patch.object(*change))
        yield


def everywhere(original: object, replacement: object) -> Iterator[tuple[object, str, object]]:
    """A function replaced in every module of the project that imported it."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("privfed", "strategies", "clients") and module is not None:
            for key, value in list(vars(module).items()):
                if value is original:
                    yield module, key, replacement


def around(owner: type, name: str, change: Callable) -> tuple[object, str, object]:
    """A method replaced by change(original, self, *arguments)."""
    original = getattr(owner, name)

    def method(self, *given, **more):
        return change(original, self, *given, **more)

    return owner, name, method
