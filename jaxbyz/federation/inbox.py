"""What a node has heard and not used yet: the messages of this and the next iterations, claims, and offered states.

The thread of the sockets puts frames in; the main thread waits for the messages of a round. All memory is bounded: at
most one vector per sender, round and iteration of a short window, and one state per sender and iteration of it.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.federation.deadlines import Deadlines, Trust
from jaxbyz.federation.evidence import Evidence
from jaxbyz.federation.frames import (
    HELLO,
    NO_NONCE,
    PROOF,
    STATE,
    TAG_BYTES,
    VECTOR,
    Format,
    Frame,
    Hello,
    decode,
    decode_hello,
)
from jaxbyz.federation.signatures import SIGNATURE_BYTES

ITERATIONS_BEHIND = 2  # a node that joins keeps the messages of so many iterations before the current one
ITERATIONS_AHEAD = 3  # frames of later iterations are discarded; who sends them is just ahead
OFFERS = 3  # states of at most this many iterations before and after the current one are kept
LOOK_SECONDS = 0.2  # how often a waiting node looks at the clock and at requests to stop
QUORUM_LOG_SECONDS = 10.0
REPEAT_SECONDS = 1.0
ROUNDS_KEPT = 3  # rounds that are over whose messages can be passed on and compared
NEW_LIFE_SECONDS = 10.0  # between two starts of a node; one that starts more often is not heard meanwhile


Position = tuple[int, int]  # an iteration and a round in it


class Behind(Exception):  # noqa: N818 (it is not an error)
    """The others have left this iteration, and what they sent in it is lost."""


class Stopped(Exception):  # noqa: N818 (it is not an error)
    """A signal asked the node to stop."""


class Collected(NamedTuple):
    """The messages of one round.

    Attributes:
        rows: `[K, D]`; NaN for every sender whose message did not arrive in time.
        arrived: `[K]`, whose message is there, including the node's own.
        waited: seconds spent waiting.
    """

    rows: np.ndarray
    arrived: np.ndarray
    waited: float


class Inbox:
    """The frames of one node.

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
        self.form, self.index, self.faults, self.deadlines = form, index, faults, deadlines
        self.log, self.stop, self.patience, self.want, self.evidence = log, stop, patience, want, evidence
        self.quorum = form.agents - faults  # K − f, including this node
        self.trust = Trust(form.agents, faults)
        self.changed = threading.Condition()
        self.now = (0, 0)  # the iteration and round that this node works on
        self.may_start_at = 0  # before the first iteration: the latest one that it may start at
        self.vectors: dict[Position, dict[int, Frame]] = {}
        self.past: dict[Position, dict[int, Frame]] = {}  # of the latest rounds that are over
        self.own_tags: dict[Position, bytes] = {}  # of the messages of this node
        self.disputes: list[tuple[int, Position, int]] = []  # who claims to have got another message, when, from whom
        self.lives: dict[int, tuple[int, float]] = {}  # the latest life of every sender, and when it was first seen
        self.states: dict[int, dict[int, np.ndarray]] = {}
        self.joining = False
        self.claims: dict[int, tuple[int, int]] = {}  # the latest position of every sender
        self.hellos: dict[int, Hello] = {}
        self.strangers: dict[int, str] = {}  # listed nodes with another configuration
        self.refused: collections.Counter[str] = collections.Counter()
        self.refused_of: collections.Counter[int] = collections.Counter()
        self.deadline_of: dict[tuple[int, int], float] = {}  # of rounds that are over, without what credit adds
        self.judged_at = time.monotonic()
        self.elapsed = 0.0  # between the last two rounds, in deadlines
        # Of all rounds: the longest wait for the last f nodes, and the longest time beyond the deadline, in seconds.
        self.longest_wait = self.longest_overrun = 0.0

    def put(self, via: int, data: bytes) -> Frame | None:
        """Check a frame and keep what it says; return it if it was accepted.

        Args:
            via: the node that the connection belongs to.
            data: the bytes of the frame.
        """
        frame = decode(self.form, data, via)
        with self.changed:
            problem = frame if isinstance(frame, str) else self.evidence.check(frame) or self._keep(frame)
            self._forget_excluded()
            if problem is not None:
                self.refused[problem] += 1
                self.refused_of[via] += 1
                if problem == "federation":
                    self.strangers[via] = "another configuration"
                self.changed.notify_all()
                return None
            assert isinstance(frame, Frame)
            self.changed.notify_all()
            return frame

    def _keep(self, frame: Frame) -> str | None:
        """Store a frame; return in one word why it is refused, or None."""
        if not self._is_alive(frame):
            return "life"
        if frame.kind == HELLO:
            hello = decode_hello(frame.payload)
            self.hellos[frame.sender] = hello
            if hello.running:
                self._claim(frame.sender, (hello.newest, 0))
            return None
        if frame.kind == PROOF:
            return self.evidence.show(frame)
        if frame.kind == STATE:
            return self._keep_state(frame)
        return self._keep_vector(frame) if frame.kind == VECTOR else None

    def _is_alive(self, frame: Frame) -> bool:
        """Whether a frame belongs to the latest life of its sender, or begins another one, which may not be often."""
        life, since = self.lives.get(frame.sender, (0, -np.inf))
        if frame.life > life:
            now = time.monotonic()
            if now - since < NEW_LIFE_SECONDS:
                return False
            self.lives[frame.sender] = (frame.life, now if life else -np.inf)
        return frame.life >= life

    def _claim(self, sender: int, position: Position) -> None:
        self.claims[sender] = max(self.claims.get(sender, (0, 0)), position)

    def _keep_state(self, frame: Frame) -> str | None:
        if not self.joining:
            return "unasked"
        now = self.majority_iteration()
        if not now - OFFERS <= frame.iteration <= now + OFFERS:
            return "early" if frame.iteration > now else "old"
        self.states = {t: offers for t, offers in self.states.items() if t >= now - OFFERS}
        self.states.setdefault(frame.iteration, {}).setdefault(frame.sender, frame.vector())
        return None

    def _keep_vector(self, frame: Frame) -> str | None:
        sender, position = frame.sender, frame.position
        self._claim(sender, position)
        for known in (self.past.get(position, {}), self.vectors.get(position, {})):
            if sender in known and known[sender].data != frame.data:
                self.evidence.compare(known[sender], frame)
        if position in self.past:
            self.past[position].setdefault(sender, frame)
        if position in self.deadline_of and time.monotonic() <= self.deadline_of[position]:
            if self.trust.arrived(sender, 0.0, self.elapsed):
                self.log(f"node {sender} is in time again")
            return "late"
        first = self.first_useful()
        if position < first:
            return "old"
        latest = max(first[0], self.may_start_at, self.majority_iteration() if self.joining else 0)
        if frame.iteration > latest + ITERATIONS_AHEAD:
            return "early"
        known = self.vectors.setdefault(position, {})
        if sender in known:
            return "repeated"
        known[sender] = frame
        if self.joining:
            self._forget_before(first)
        return None

    def _forget_excluded(self) -> None:
        """Neither wait for excluded nodes nor use what they have sent."""
        if len(self.evidence.excluded) > len(self.trust.excluded):
            self.trust.exclude(self.evidence.excluded)
            for known in self.vectors.values():
                for node in self.evidence.excluded:
                    known.pop(node, None)

    # What others have got.

    def before(self, position: Position) -> Position:
        """Return the round before a round."""
        iteration, round = position
        return (iteration, round - 1) if round else (iteration - 1, self.form.rounds)

    def tags(self, position: Position) -> bytes:
        """Return the tags of the messages that this node has got in the round before this one."""
        before = self.before(position)
        past, own = self.past.get(before, {}), self.own_tags.get(before)
        tags = [past[i].tag if i in past else NO_NONCE for i in range(self.form.agents)]
        if own is not None:
            tags[self.index] = own
        return b"".join(tags)

    def note_own(self, position: Position, frame: bytes) -> None:
        """Remember the tag of the message of this node in a round."""
        self.own_tags[position] = frame[-SIGNATURE_BYTES:][:TAG_BYTES]
        self.own_tags = {at: self.own_tags[at] for at in sorted(self.own_tags)[-ROUNDS_KEPT:]}

    def find_disputes(self, position: Position) -> None:
        """Find out who has got another message in the round before than this node, by what they say in this round."""
        tags = self.tags(position)
        own = np.frombuffer(tags, "<u8")
        for peer, frame in self.past.get(position, {}).items():
            if frame.tags != tags:
                theirs = np.frombuffer(frame.tags, "<u8")
                for i in np.flatnonzero((theirs != own) & (theirs != 0) & (own != 0)):
                    if i != self.index and i not in self.evidence.excluded:
                        self.disputes.append((peer, self.before(position), int(i)))

    def kept(self, position: Position, senders: list[int]) -> list[bytes]:
        """Return the messages of these senders in a round, as far as they are here, to pass them on."""
        with self.changed:
            known = {**self.past.get(position, {}), **self.vectors.get(position, {})}
            return [known[i].data for i in senders if i in known]

    def first_useful(self) -> tuple[int, int]:
        """Return the first position whose messages may still be used: where this node is, or where it will join."""
        return max(self.now, (self.majority_iteration() - ITERATIONS_BEHIND, 0)) if self.joining else self.now

    def majority_iteration(self) -> int:
        """Return an iteration that at least one honest node has reached: the (f + 1)-th largest claim."""
        claims = sorted((position[0] for position in self.claims.values()), reverse=True)
        return claims[self.faults] if len(claims) > self.faults else 0

    def start_between(self, earliest: int, latest: int) -> None:
        """Keep messages from the earliest to the latest iteration that this node may start at, and a few more."""
        self.may_start_at = latest
        self.position(earliest, 0)

    def position(self, iteration: int, round: int) -> None:
        """Move on; messages of earlier rounds are forgotten."""
        with self.changed:
            self.now = (iteration, round)
            self._forget_before(self.now)
            self.deadline_of = {at: time for at, time in self.deadline_of.items() if at[0] >= iteration - 2}

    def _forget_before(self, position: tuple[int, int]) -> None:
        for old in [at for at in self.vectors if at < position]:
            del self.vectors[old]

    def wait_for_hellos(self, seconds: float) -> dict[int, Hello]:
        """Wait until something arrives, for a limited time, and return the last hello of every node."""
        with self.changed:
            self.changed.wait(seconds)
            return dict(self.hellos)

    @contextlib.contextmanager
    def joining_others(self) -> Iterator[None]:
        """Accept states inside the block, and the messages of the iterations where the others are."""
        with self.changed:
            self.states.clear()
            self.joining = True
        try:
            yield
        finally:
            with self.changed:
                self.joining = False
                self.states.clear()

    def wait_for_states(self, seconds: float, earliest: int) -> dict[int, np.ndarray]:
        """Wait until something arrives, for a limited time; return the offered states `[n, S]` per iteration."""
        with self.changed:
            self.changed.wait(seconds)
            return {t: np.stack(list(rows.values())) for t, rows in self.states.items() if t >= earliest}

    def count(self, iteration: int, round: int) -> int:
        """Return how many messages of a round are here."""
        return len(self.vectors.get((iteration, round), ()))

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
            self.past = {at: self.past[at] for at in sorted(self.past)[-ROUNDS_KEPT:]}
            self.find_disputes(here)
            rows = {sender: frame.vector() for sender, frame in known.items()}
        return self._rows({**rows, self.index: own}, time.monotonic() - begun)

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
        return Collected(rows, arrived, waited)

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
