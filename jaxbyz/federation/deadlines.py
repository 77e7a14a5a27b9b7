"""How long a node waits for the last f messages of a round, so that nobody can slow the others down for long.

K − f messages always suffice to go on. Waiting for the others is a courtesy to honest nodes that are a little late, and
it is limited in two ways, whatever f liars do:

- The allowance: a fraction φ of the usual time until K − f messages are here. If every honest node waits as long in
  every round, then the others see rounds that are longer by as much, and the allowance settles at c φ / (1 − φ), where
  c is the time of a round without waiting.
- Credit, per peer: at the start, and after it has been in time for long, a peer may be waited for longer, up to the
  deadline. The time beyond the allowance is taken from its credit. Credit grows back with the time in which
  the peer is in time, at a rate at which all f liars together cost all nodes together a share σ of the time.

After the first credit is spent, the federation hence keeps at least (1 − σ)(1 − φ) = 0.52 of its speed. The deadline
follows from what the node itself needs for its own message, which nobody else can stretch.
"""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Hashable, Iterable
from typing import Any

WINDOW = 16  # rounds that medians are computed from
ALLOWANCE = 0.4  # φ
SHARE = 0.125  # σ
FACTOR = 3.0
FLOOR_SECONDS, CAP_SECONDS = 0.5, 60.0
SILENT_AFTER = 2  # messages missed in a row; nobody waits for a silent node at all
CREDIT = 2.0  # deadlines that a peer may cost at first, and the most that it can save
SUSPECTED_BELOW, TRUSTED_FROM = 0.05, 0.5


class Deadlines:
    """How long messages may take: medians over recent rounds of the same kind.

    Args:
        floor: the shortest deadline in seconds.
        cap: the longest.
    """

    def __init__(self, floor: float = FLOOR_SECONDS, cap: float = CAP_SECONDS):
        self.floor, self.cap = floor, cap
        self.own: dict[Hashable, collections.deque[float]] = {}
        self.quorum: dict[Hashable, collections.deque[float]] = {}

    def record(self, kind: Hashable, own: float, quorum: float) -> None:
        """Add how long the node worked on its own message, and how long it took until K − f messages were here."""
        for times, seconds in ((self.own, own), (self.quorum, quorum)):
            times.setdefault(kind, collections.deque(maxlen=WINDOW)).append(seconds)

    def longest(self, kind: Hashable) -> float:
        """Return the deadline: the seconds to wait beyond the allowance for a node that has credit."""
        return min(self.cap, self.floor + FACTOR * statistics.median(self.own[kind]))

    def allowance(self, kind: Hashable) -> float:
        """Return the seconds to wait for every node that is not silent."""
        return min(self.cap, ALLOWANCE * statistics.median(self.quorum[kind]))


class Trust:
    """Which nodes are worth waiting for. Messages of suspected nodes count as well, if they arrive in time.

    Args:
        agents: the number of nodes K.
        faults: the number of faulty nodes f.
    """

    def __init__(self, agents: int, faults: int):
        self.regained = SHARE / (max(faults, 1) * agents)  # credit per deadline of elapsed time
        self.credit = [CREDIT] * agents
        self.missed = [0] * agents
        self.suspected = [False] * agents
        self.why: dict[int, tuple[str, float]] = {}  # why nodes are suspected, and since when, in seconds since 1970
        self.ignored: set[int] = set()  # nobody ever waits for these
        self.excluded: set[int] = set()  # neither for these

    def ignore(self, nodes: Iterable[int]) -> None:
        """Never wait for these nodes."""
        self.ignored.update(nodes)

    def exclude(self, nodes: Iterable[int]) -> None:
        """Never wait for these nodes, which were excluded."""
        self.excluded.update(nodes)
        self.ignore(nodes)

    def doubts(self) -> dict[str, dict[str, Any]]:
        """Return what the status of this node says about the nodes that it suspects."""
        return {str(i): {"state": "suspected", "why": why, "since": at} for i, (why, at) in [*self.why.items()]}

    def patience(self, node: int, allowance: float, longest: float) -> float:
        """Return how many seconds to wait for a node once K − f messages are here."""
        if node in self.ignored or self.missed[node] >= SILENT_AFTER:
            return 0.0
        return allowance if self.suspected[node] else allowance + min(1.0, self.credit[node]) * longest

    def arrived(self, node: int, cost: float, elapsed: float) -> bool:
        """Note a message in time; return whether the node is trusted again from now on.

        Args:
            node: who sent it.
            cost: how long it was waited for beyond the allowance, in deadlines.
            elapsed: the time since the round before, in deadlines.
        """
        self.missed[node] = 0
        self._pay(node, cost - self.regained * elapsed)
        if self.suspected[node] and self.credit[node] >= TRUSTED_FROM:
            self.suspected[node] = False
            self.why.pop(node, None)
            return True
        return False

    def late(self, node: int, cost: float) -> bool:
        """Note a message that is not in time; return whether the node is suspected from now on."""
        self.missed[node] += 1
        self._pay(node, cost)
        return self.doubt(node)

    def doubt(self, node: int) -> bool:
        """Suspect a node that is silent or has no credit left; return whether that is new."""
        if self.suspected[node] or not (self.missed[node] >= SILENT_AFTER or self.credit[node] < SUSPECTED_BELOW):
            return False
        self.suspected[node] = True
        self.why[node] = ("is silent" if self.missed[node] >= SILENT_AFTER else "is late too often", time.time())
        return True

    def _pay(self, node: int, cost: float) -> None:
        self.credit[node] = min(CREDIT, max(0.0, self.credit[node] - cost))
