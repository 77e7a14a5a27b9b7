"""How long a node waits for the others: deadlines that follow measured round times, and whom it waits for at all."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Hashable

WINDOW = 16  # rounds that the deadline is computed from
FACTOR = 3.0
FLOOR_SECONDS, CAP_SECONDS = 0.5, 60.0
SUSPECT_AFTER = 2  # deadlines missed in a row
MOST_ROUNDS_TO_REGAIN_TRUST = 256


class Deadlines:
    """How long to wait for the last f nodes once K − f messages of a round are here.

    The time is a floor plus a multiple of the median time that recent rounds of the same kind took until K − f
    messages were here, including the node's own computation. At least K − f nodes are honest, so liars cannot delay
    that moment, and hence they cannot lengthen the deadline.

    Args:
        floor: the shortest time in seconds.
        cap: the longest.
    """

    def __init__(self, floor: float = FLOOR_SECONDS, cap: float = CAP_SECONDS):
        self.floor, self.cap = floor, cap
        self.times: dict[Hashable, collections.deque[float]] = {}

    def record(self, kind: Hashable, seconds: float) -> None:
        """Add the time that a round of this kind took until K − f messages were here."""
        self.times.setdefault(kind, collections.deque(maxlen=WINDOW)).append(seconds)

    def grace(self, kind: Hashable) -> float:
        """Return the seconds to wait after K − f messages are here; at least one round of this kind was recorded."""
        return min(self.cap, self.floor + FACTOR * statistics.median(self.times[kind]))


class Trust:
    """Which nodes are worth waiting for. Messages of suspected nodes count as well, if they arrive in time.

    A node is suspected after it missed two deadlines in a row, and trusted again after a number of messages in time
    that doubles with every suspicion. Hence even a node that alternates costs few deadlines.

    Args:
        agents: the number of nodes K.
    """

    def __init__(self, agents: int):
        self.missed = [0] * agents
        self.in_time = [0] * agents
        self.suspicions = [0] * agents
        self.suspected = [False] * agents

    def arrived(self, node: int) -> bool:
        """Note a message in time; return whether the node is trusted again from now on."""
        self.missed[node] = 0
        self.in_time[node] += 1
        needed = min(2 ** self.suspicions[node], MOST_ROUNDS_TO_REGAIN_TRUST)
        if self.suspected[node] and self.in_time[node] >= needed:
            self.suspected[node] = False
            return True
        return False

    def late(self, node: int) -> bool:
        """Note a missed deadline; return whether the node is suspected from now on."""
        self.missed[node] += 1
        self.in_time[node] = 0
        if self.suspected[node] or self.missed[node] < SUSPECT_AFTER:
            return False
        self.suspect(node)
        return True

    def suspect(self, node: int) -> None:
        """Stop waiting for a node."""
        self.suspected[node] = True
        self.suspicions[node] += 1
