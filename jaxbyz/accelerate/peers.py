"""Notice processes of a distributed run that are frozen or lost, and end with one line.

JAX notices them too, but it aborts the process with a C++ stack. Every process therefore counts up a number in the
store that JAX's coordinator offers, and ends itself if the number of another one stands still for too long.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from typing import Any

from jax._src import distributed

SILENCE_SECONDS = 25.0  # after which a process counts as lost
PAUSE_SECONDS = 2.0  # between two signs of life
LEFT = "left"  # the last sign of a process that ends in the usual way


class Peers:
    """When this process last heard from the others.

    Attributes:
        process: the number of this process.
        heard: other process -> its last sign of life, and when it came.
        round: when all signs were last read.
    """

    def __init__(self, process: int, processes: int):
        now = time.monotonic()
        self.process, self.round = process, now
        self.heard: dict[int, tuple[str | None, float]] = {n: (None, now) for n in range(processes) if n != process}

    def exchange(self, client: Any, sign: str) -> None:
        """Give a sign of life and read those of the others."""
        client.key_value_set(_key(self.process), sign, allow_overwrite=True)
        for peer, (before, _) in list(self.heard.items()):
            found = None
            with contextlib.suppress(Exception):  # it has not given a sign yet
                found = client.key_value_try_get(_key(peer))
            if found == LEFT:
                self.heard.pop(peer)
            elif found != before:
                self.heard[peer] = found, time.monotonic()
        self.round = time.monotonic()

    def delay(self, seconds: float) -> None:
        """Allow for a time in which this process itself did not run."""
        self.round += seconds
        self.heard = {peer: (sign, at + seconds) for peer, (sign, at) in self.heard.items()}

    def lost(self) -> str | None:
        """Return which process has been silent for too long, or None."""
        now = time.monotonic()
        silent = [f"process {peer}" for peer, (_, at) in self.heard.items() if now - at > SILENCE_SECONDS]
        return "the first process" if now - self.round > SILENCE_SECONDS else next(iter(silent), None)


def _key(process: int) -> str:
    return f"jaxbyz/alive/{process}"


def watch_peers(process: int, processes: int) -> None:
    """Watch the other processes in the background until this one ends."""
    client, peers, ended = distributed.global_state.client, Peers(process, processes), threading.Event()

    def exchange() -> None:
        number = 0
        while not ended.wait(PAUSE_SECONDS):
            number += 1
            with contextlib.suppress(Exception):  # `watch` notices if this goes on
                peers.exchange(client, str(number))

    def watch() -> None:
        before = time.monotonic()
        while not ended.wait(1.0):
            now = time.monotonic()
            if now - before > PAUSE_SECONDS:
                peers.delay(now - before)
            before = now
            if (who := peers.lost()) is not None:
                _end(who)

    def leave() -> None:
        ended.set()
        with contextlib.suppress(Exception):
            peers.exchange(client, LEFT)

    for loop in (exchange, watch):
        threading.Thread(target=loop, daemon=True).start()
    atexit.register(leave)


def _end(who: str) -> None:
    """End this process at once: a program that waits for a lost process would never return."""
    line = f"jaxbyz: lost another process ({who} was silent for {SILENCE_SECONDS:.0f} s)"
    print(f"{line}; `jaxbyz resume DIR --distributed` with all processes continues", file=sys.stderr, flush=True)
    os._exit(1)
