"""Waiting for the messages of a round: for K − f in any case, and for the last ones as long as they are worth it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.federation.deadlines import Deadlines
from jaxbyz.federation.evidence import Evidence
from jaxbyz.federation.frames import Format, Frame
from jaxbyz.federation.mailbox import Mailbox, Position

LOOK_SECONDS = 0.2  # how often a waiting node looks at the clock and at requests to stop
QUORUM_LOG_SECONDS = 10.0
REPEAT_SECONDS = 1.0


class Behind(Exception):  # noqa: N818 (it is not an error)
    """The others have left this iteration, and what they sent in it is lost."""


class Stopped(Exception):  # noqa: N818 (it is not an error)
    """A signal asked the node to stop."""


class Collected(NamedTuple):
    """The messages of one round.

    Attributes:
        rows: `[K, D]`; NaN for every sender whose message did not arrive in time.
        arrived: `[K]`, whose message is there, including the node's own.
        excluded: `[K]`, who is excluded, so that no message can come.
        waited: seconds spent waiting.
    """

    rows: np.ndarray
    arrived: np.ndarray
    excluded: np.ndarray
    waited: float


class Inbox(Mailbox):
    """A mailbox in which the main thread of a node waits for the messages of a round.

    Args:
        form: what frames look like.
        index: the number of this node.
        faults: the number of faulty nodes f that are tolerated.
        deadlines: how long to wait.
        log: receives one line about every suspicion and long wait.
        stop: returns whether the node should stop waiting.
        patience: seconds without K − f messages after which the node gives up.
        want: `(position, senders, everyone)`, asks others for messages that are missing: everyone, about once per
            second, while there are fewer than K − f messages; then f + 1 nodes, before this node gives up waiting.
        evidence: who is excluded.
    """

    def __init__(
        self,
        form: Format,
        index: int,
        faults: int,
        deadlines: Deadlines,
        log: Callable[[str], None],
        stop: Callable[[], bool] = lambda: False,
        patience: float = 600.0,
        want: Callable[[Position, list[int], bool], None] = lambda *_: None,
        *,
        evidence: Evidence,
    ):
        super().__init__(form, index, faults, log, evidence)
        self.deadlines, self.stop, self.patience, self.want = deadlines, stop, patience, want
        self.quorum = form.agents - faults  # K − f, including this node
        self.judged_at = time.monotonic()
        # Of all rounds: the longest wait for the last f nodes, and the longest time beyond the deadline, in seconds.
        self.longest_wait = self.longest_overrun = 0.0

    def collect(self, iteration: int, round: int, own: np.ndarray, kind: str, started: float) -> Collected:
        """Wait for the messages of a round and return them.

        Args:
            iteration: the iteration t.
            round: the round in it.
            own: `[D]`, the node's own message.
            kind: rounds of the same kind take similar times.
            started: when this node began to work on the round, from `time.monotonic()`.

        Raises:
            Behind: if K − f messages can no longer arrive, because the others are elsewhere.
            Stopped: if the node was asked to stop.
            UsageError: if fewer than K − f nodes were heard for longer than the patience.
        """
        self.position(iteration, round)
        here, begun = (iteration, round), time.monotonic()
        next_log, next_repeat = begun + QUORUM_LOG_SECONDS, begun + REPEAT_SECONDS
        with self.changed:
            known = self.vectors.setdefault(here, {})
            while len(known) + 1 < self.quorum:
                clock = time.monotonic()
                self._check_wait(here, [i for i in self._others() if i not in known], clock - begun)
                if clock >= next_repeat:
                    next_repeat = clock + REPEAT_SECONDS
                    self.want(here, [i for i in self._others() if i not in known], True)
                if clock >= next_log:
                    next_log = clock + QUORUM_LOG_SECONDS
                    self.log(f"iteration {iteration}: waiting for {self.quorum} nodes, {len(known) + 1} are here")
                self._wait(LOOK_SECONDS)
            enough_at = time.monotonic()
            self.deadlines.record(kind, begun - started, enough_at - started)
            self._wait_for_the_last(here, known, kind, enough_at)
            self.now = (iteration, round + 1)
            self.past[here] = self.vectors.pop(here)
            self.past = {at: self.past[at] for at in sorted(self.past)[-self.rounds_kept :]}
            self.find_disputes(here)
            rows = {sender: frame.vector() for sender, frame in known.items()}
        return self._rows({**rows, self.index: own}, time.monotonic() - begun)

    def status(self) -> dict[str, Any]:
        """Return what the status of the node says about the others."""
        return {
            "suspected": [i for i in range(self.form.agents) if self.trust.suspected[i]],
            "doubts": {**self.trust.doubts(), **self.evidence.doubts()},
            "refused": dict(self.refused),
            "refused_of": {str(i): n for i, n in sorted(self.refused_of.items())},
            "deadlines": {str(kind): self.deadlines.longest(kind) for kind in list(self.deadlines.own)},
            "longest_wait": self.longest_wait,
            "longest_overrun": self.longest_overrun,
        }

    def _wait(self, seconds: float) -> None:
        """Wait until something arrives, for a limited time."""
        if self.stop():
            raise Stopped
        self.changed.wait(max(seconds, 0.0))

    def _wait_for_the_last(self, here: tuple[int, int], known: dict[int, Frame], kind: str, begun: float) -> None:
        """Wait for the last f messages, for each sender as long as it is worth waiting for, and judge the senders."""
        allowance, longest = self.deadlines.allowance(kind), self.deadlines.longest(kind)
        patience = {i: self.trust.patience(i, allowance, longest) for i in self._others() if i not in known}
        arrival: dict[int, float] = {}  # seconds of those that were waited for
        ask_at: float | None = allowance / 2
        while True:
            waited = time.monotonic() - begun
            arrival |= {i: waited for i in patience if i in known and i not in arrival}
            left = max((patience[i] for i in patience if i not in known), default=0.0) - waited
            if left <= 0:
                break
            if ask_at is not None and waited >= ask_at:
                ask_at = None
                self.want(here, [i for i in patience if i not in known and patience[i] > 0], False)
            self._wait(min(LOOK_SECONDS, left, left if ask_at is None else ask_at - waited))
        now = time.monotonic()
        self.elapsed, self.judged_at = (now - self.judged_at) / longest, now
        for sender in self._others():
            # Nobody is charged for the time that was spent waiting for somebody else.
            seconds = min(arrival.get(sender, waited), patience[sender]) if sender in patience else 0.0
            self._judge(sender, sender in known, max(0.0, seconds - allowance) / longest, here[0])
        self.longest_wait = max(self.longest_wait, waited)
        self.longest_overrun = max(self.longest_overrun, waited - max(patience.values(), default=0.0))
        self.deadline_of[here] = begun + allowance

    def _rows(self, messages: dict[int, np.ndarray], waited: float) -> Collected:
        """Return the messages with one row per node."""
        rows = np.full((self.form.agents, self.form.parameters), np.nan, np.float32)
        arrived = np.zeros(self.form.agents, bool)
        for sender, vector in messages.items():
            rows[sender], arrived[sender] = vector, True
        excluded = np.isin(np.arange(self.form.agents), list(self.trust.excluded))
        return Collected(rows, arrived, excluded, waited)

    def _others(self) -> list[int]:
        return [i for i in range(self.form.agents) if i != self.index]

    def _judge(self, sender: int, in_time: bool, cost: float, iteration: int) -> None:
        """Update how long this node waits for a sender, which cost so many deadlines in this round."""
        if in_time:
            if self.trust.arrived(sender, cost, self.elapsed):
                self.log(f"iteration {iteration}: node {sender} is in time again")
            suspected = self.trust.doubt(sender)
        else:
            suspected = self.trust.late(sender, cost)
        if suspected:
            self.log(f"iteration {iteration}: node {sender} {self.trust.why[sender][0]}; no longer waiting for it")

    def _check_wait(self, here: tuple[int, int], missing: list[int], seconds: float) -> None:
        """Raise if K − f messages of this round will not arrive."""
        gone = sum(self.claims.get(i, (0, 0)) > here for i in missing)
        elsewhere = sum(self.claims.get(i, (0, 0))[0] > here[0] for i in missing)
        # In the same iteration the others repeat their messages when they wait as well.
        if elsewhere > self.faults or (gone > self.faults and seconds > 2 * REPEAT_SECONDS):
            raise Behind
        if seconds > self.patience:
            raise UsageError(
                f"iteration {here[0]}: fewer than {self.quorum} of {self.form.agents} nodes were heard for "
                f"{self.patience:.0f} s; more than {self.faults} are down or cut off"
            )
