"""SIGINT and SIGTERM as a wish to stop: noted when they come, granted at the next good moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
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
def noted() -> Iterator[Wish]:
    """Note SIGINT and SIGTERM inside the block instead of dying of them. Elsewhere than in the main thread, where
    Python allows no handlers, signals act as ever."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return
    before = {number: signal.signal(number, wish.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
