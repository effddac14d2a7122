"""Decision whether loops over users are compiled (Numba); it is made only in this module.

Every compiled loop is a drop-in for NumPy code that gives the same numbers. It is used if it saves
more time than it costs: loading machine code that an earlier process left on this machine, or else
compiling it. The code that knows the size of the job states it (`expect`). A decision holds for the
whole process.

The environment variable PRIVFED_COMPILE says `always` or `never` instead of `auto`, and
NUMBA_DISABLE_JIT=1 means never.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from privfed.foundation import numba_cache
from privfed.foundation.errors import ConfigError

MODES = ("auto", "always", "never")
LOADING = 0.6
"""Seconds that importing Numba and loading machine code take."""
MINOR = 0.2
"""Fraction of its compiling time that a loop has to save if other loops are compiled anyway."""


@dataclass(frozen=True)
class Job:
    """Amount of computation of a process.

    Attributes:
        users: number of users.
        m: examples per user.
        d: features per example.
        k: dimension of the representation.
        rounds: number of rounds.
        candidates: embeddings that are scored per round, for algorithms that select.
    """

    users: int
    m: int
    d: int
    k: int
    rounds: int
    candidates: int = 0

    @property
    def work(self) -> int:
        """Return the approximate number of multiplications."""
        return self.users * self.rounds * self.m * self.d * self.k * max(1, self.candidates)


@dataclass(frozen=True, eq=False)
class DropIn:
    """Module of compiled loops that can replace NumPy code.

    Attributes:
        module: its dotted name. A module `name` has a function prepare_name(variant) that
            compiles what is used of it.
        seconds: time that compiling takes.
        saves: seconds that the loops save in a job, compared with NumPy.
        variant: types of numbers; "" if there is no choice.
        on_demand: whether it is compiled only when asked for, not together with others.
    """

    module: str
    seconds: float
    saves: Callable[[Job], float]
    variant: str = ""
    on_demand: bool = False

    def __post_init__(self) -> None:
        _known.append(self)

    def chosen(self, saved: float = 0.0) -> Any:
        """Return the module of compiled loops, or None if NumPy is used.

        Args:
            saved: seconds that the loops save as far as the caller knows, if the job does not say
                it. Only for loops that give exactly the same numbers, since it may reverse a
                decision.
        """
        with _lock:
            if self not in _chosen or (_chosen[self] is None and saved):
                _chosen[self] = self._load() if self._pays(saved) else None
            return _chosen[self]

    @property
    def source(self) -> Path:
        """Return the file of the module."""
        return numba_cache.PACKAGE.parent / (self.module.replace(".", "/") + ".py")

    def kept(self) -> bool:
        """Return whether the machine code is on this machine."""
        return numba_cache.is_kept(numba_cache.cache_folder(), self.source, self.variant)

    def _pays(self, saved: float) -> bool:
        if mode() != "auto":
            return mode() == "always"
        saved = max(saved, 0.0 if _job is None else self.saves(_job))
        # Other loops were chosen: Numba is loaded, and the job is large.
        if any(_chosen.values()):
            return saved > 0 and (saved > self.seconds * MINOR or self.kept())
        return saved > LOADING and (saved > self.seconds or self.kept())

    def _load(self) -> ModuleType:
        """Import the module; compile it, and others that the job pays for, if necessary."""
        if self.kept():
            return importlib.import_module(self.module)
        folder = numba_cache.cache_folder()
        with numba_cache.alone(folder):
            needed = [each for each in _known if each is self or each._wanted()]
            missing = [each for each in needed if not each.kept()]
            if missing:
                _announce(sum(each.seconds for each in missing))
            for each in missing:
                each._compile()
                numba_cache.keep(folder, each.source, each.variant)
        return importlib.import_module(self.module)

    def _compile(self) -> None:
        module = importlib.import_module(self.module)
        getattr(module, f"prepare_{self.source.stem}")(self.variant)

    def _wanted(self) -> bool:
        """Return whether the stated job makes compiling pay."""
        if self.on_demand or _job is None or mode() != "auto":
            return False
        return self.saves(_job) > self.seconds


_lock = threading.RLock()
_known: list[DropIn] = []
_chosen: dict[DropIn, ModuleType | None] = {}
_job: Job | None = None
_forced: str | None = None
_announced = False


def _announce(seconds: float) -> None:
    """Print once per process why it takes longer to start."""
    global _announced
    if not _announced:
        text = f"compiling the kernels for this machine, once: about {seconds:.0f} s"
        print(f"privfed: {text}", file=sys.stderr, flush=True)
    _announced = True


def expect(job: Job) -> None:
    """State what this process will compute; the largest stated job counts.

    Args:
        job: the whole job, not one node's share, so that all nodes decide alike.
    """
    global _job
    with _lock:
        if _job is None or job.work > _job.work:
            _job = job
            for drop_in in [each for each, module in _chosen.items() if module is None]:
                del _chosen[drop_in]


def mode() -> str:
    """Return auto, always or never.

    Raises:
        ConfigError: PRIVFED_COMPILE is something else.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0") or not numba_cache.can_compile():
        return "never"
    named = _forced or os.environ.get("PRIVFED_COMPILE") or "auto"
    if named not in MODES:
        raise ConfigError.of("PRIVFED_COMPILE", named, f"must be one of {', '.join(MODES)}")
    return named


@contextmanager
def choosing(name: str) -> Iterator[None]:
    """Decide all drop-ins anew by one of MODES until the block ends, for measurements."""
    global _forced
    with _lock:
        before, kept = _forced, dict(_chosen)
        _forced = name
        _chosen.clear()
    try:
        yield
    finally:
        with _lock:
            _forced = before
            _chosen.clear()
            _chosen.update(kept)


def compiled(function: Any = None, *, reorder: bool = True) -> Any:
    """Compile a function of numbers and arrays when it is first called, once per machine.

    NaN, infinity and division by zero behave as in IEEE 754. Numba compiles again if the function's
    own file has changed. Here it also does if a shared file has, since machine code includes its
    constants and functions.

    Args:
        function: function to compile, in a module that is imported only after compiled code was
            chosen.
        reorder: whether sums may be reordered and contracted, for the processor's vector units.
    """
    if function is None:
        return lambda given: compiled(given, reorder=reorder)
    import numba

    folder = numba_cache.cache_folder()
    if folder is not None:
        numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
    made: Any = numba.njit(
        nogil=True,
        cache=folder is not None,
        error_model="numpy",
        fastmath={"reassoc", "contract", "nsz"} if reorder else False,
    )(function)
    # There is no index if Numba's cache or compiler is off.
    index = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if index is not None:
        index._source_stamp = (index._source_stamp, numba_cache.shared_sources())
    return made
