"""SIGINT and SIGTERM as a wish to stop: noted when they come, granted at the next good moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Wish:
    """Whether a signal came: its number, or 0."""

    def __init__(self) -> None:
        self.signal = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; a second one stops at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """Hand these signals to `handler` inside the block. Elsewhere than in the main thread, where Python allows no
    handlers, signals act as ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def noted() -> Iterator[Wish]:
    """Note SIGINT and SIGTERM inside the block instead of dying of them."""
    wish = Wish()
    with handled(wish.note, signal.SIGINT, signal.SIGTERM):
        yield wish
