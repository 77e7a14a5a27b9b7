"""Turn SIGINT and SIGTERM into a request to stop at the next safe point of a run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class StopRequest:
    """The first signal that asked a run to stop.

    Attributes:
        signal: its number, or 0 if none was received.
    """

    def __init__(self) -> None:
        self.signal = 0

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; a second one raises KeyboardInterrupt."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


@contextlib.contextmanager
def signal_handler(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    """Install a handler for these signals inside the block.

    Python allows handlers in the main thread only; in other threads this does nothing.
    """
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
def catch_stop_request() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM inside the block instead of ending the process."""
    request = StopRequest()
    with signal_handler(request.receive, signal.SIGINT, signal.SIGTERM):
        yield request
