"""A listed node that runs the honest code, and deviates from it in one way to slow the others down."""

from __future__ import annotations

import threading
import time

from federation_helpers import Threads

from jaxbyz.federation.settings import NodeSettings

SLOW_DOWNS = ("silent every second round", "late", "withholds from halves", "withholds from one in turn")


class Insider:
    """Makes a node send its true messages, but not to everyone, or not in time. `mode` may be changed at any time.

    Args:
        node: the node.
        mode: "none" or one of `SLOW_DOWNS`.
        late: how many seconds it is late in that mode.
    """

    def __init__(self, node, mode: str = "none", late: float = 0.45):
        self.transport, self.mode, self.late, self.count = node.others.transport, mode, late, 0
        node.others.transport.broadcast = self.broadcast
        self.pass_on = node.others._pass_on
        node.others._pass_on = lambda frame: self.pass_on(frame) if self.mode == "none" else None

    def broadcast(self, frame: bytes) -> None:
        """Deliver a frame as the mode says; without a mode, as it should be."""
        self.count += 1
        peers = list(self.transport.peers())
        if self.mode == "silent every second round":
            peers = peers if self.count % 2 else []
        elif self.mode == "withholds from halves":
            peers = [peer for peer in peers if peer % 2 == self.count % 2]
        elif self.mode == "withholds from one in turn":
            peers = [peer for peer in peers if peer != peers[self.count % len(peers)]]
        if self.mode == "late":
            threading.Timer(self.late, self._deliver, (frame, peers)).start()
        else:
            self._deliver(frame, peers)

    def _deliver(self, frame: bytes, peers: list[int]) -> None:
        for peer in peers:
            if not self.transport.closing.is_set():
                self.transport.send(peer, frame)


class Trial(Threads):
    """A federation of threads whose last node is an insider.

    Args:
        folder: as in `Threads`.
        config: as in `Threads`.
        programs: as in `Threads`.
        floor: the shortest deadline in seconds.
    """

    def __init__(self, folder, config, programs, floor: float = 0.5):
        K = config.agents
        settings = {i: NodeSettings(start_wait=5.0, floor=floor) for i in range(K)}
        super().__init__(folder, config, settings, programs, only=range(K - 1))
        self.start(K - 1, prepare=lambda node: setattr(self, "insider", Insider(node)))

    def iterate(self, count: int, seconds: float = 60.0) -> None:
        """Wait until node 0 has done so many more iterations."""
        until, goal = time.monotonic() + seconds, self.nodes[0].t + count
        while self.nodes[0].t < goal:
            assert time.monotonic() < until, self.lines[-10:]
            time.sleep(0.01)

    def speed(self, seconds: float) -> float:
        """Return the iterations per second of node 0."""
        before, begun = self.nodes[0].t, time.monotonic()
        time.sleep(seconds)
        return (self.nodes[0].t - before) / (time.monotonic() - begun)

    def end(self) -> None:
        """Stop all nodes."""
        for stop in self.stops.values():
            stop.set()
        self.join(60)
