"""Answer Ctrl-C and a request to end in time, although other threads or processes are at work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def interruptible(
    signals: Sequence[signal.Signals] = (signal.SIGTERM,),
    clean_up: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Raise KeyboardInterrupt when one of some signals comes.

    Without it SIGTERM would end this process and leave those that it started. Only the main thread
    can be interrupted: in any other this does nothing.

    Args:
        signals: signals that are answered.
        clean_up: called first, so that nothing keeps the process waiting.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        clean_up()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def answering(number: signal.Signals, answer: Callable[[], object]) -> Iterator[None]:
    """Call a function when a signal comes; what it raises interrupts the main thread.

    Only the main thread can be interrupted: in any other this does nothing.

    Args:
        number: the signal.
        answer: called in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda number, frame: answer())
    try:
        yield
    finally:
        signal.signal(number, before)
