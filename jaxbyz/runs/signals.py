"""Turn SIGINT and SIGTERM into a request to stop at the next safe point of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

GRACE_SECONDS = 2.0  # how long a process may take to end itself after a second signal


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
def acknowledge_signals(print_line: Callable[[str], None]) -> Iterator[None]:
    """Answer SIGINT and SIGTERM at once inside the block, even while the main thread compiles.

    A second signal ends the process.

    Python runs signal handlers between two instructions of the main thread, so none runs while that thread is inside
    XLA. The operating system's handler also writes to a socket, from which another thread reads.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    here, there = socket.socketpair()
    there.setblocking(False)
    before = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_answer, args=(here, print_line), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        there.close()  # ends the thread


def _answer(numbers: socket.socket, print_line: Callable[[str], None]) -> None:
    """Answer the first signal with a line; after the second, end the process unless it does so itself."""
    received = 0
    with numbers:
        while data := numbers.recv(1):
            name = signal.Signals(data[0]).name
            received += name in ("SIGINT", "SIGTERM")
            if received == 1:
                print_line(f"{name}: stopping as soon as possible; a second one ends the process at once")
            elif received == 2:
                numbers.settimeout(GRACE_SECONDS)
                with contextlib.suppress(TimeoutError):
                    while numbers.recv(1):
                        pass
                    return  # the block was left
                os.write(2, b"\x1b[?25h" if os.isatty(2) else b"")  # a progress bar hides the cursor
                os._exit(128 + data[0])


@contextlib.contextmanager
def catch_stop_request() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM inside the block instead of ending the process."""
    request = StopRequest()
    with signal_handler(request.receive, signal.SIGINT, signal.SIGTERM):
        yield request
