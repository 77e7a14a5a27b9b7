"""What a node has heard and not used yet: the messages of this and the next iterations, claims, and offered states.

The thread of the sockets puts frames in. All memory is bounded: at most one vector per sender, round and iteration of a
short window, and one state per sender and iteration of it.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from jaxbyz.federation.deadlines import Trust
from jaxbyz.federation.evidence import Evidence, Exclusion
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
ROUNDS_KEPT = 3  # rounds that are over whose messages can be passed on and compared
NEW_LIFE_SECONDS = 10.0  # between two starts of a node; one that starts more often is not heard meanwhile

Position = tuple[int, int]  # an iteration and a round in it


class Mailbox:
    """The frames of one node.

    Args:
        form: what frames look like.
        index: the number of this node.
        faults: the number of faulty nodes f that are tolerated.
        log: receives one line about every node that is in time again.
        evidence: who is excluded.
    """

    def __init__(self, form: Format, index: int, faults: int, log: Callable[[str], None], evidence: Evidence):
        self.form, self.index, self.faults, self.log, self.evidence = form, index, faults, log, evidence
        self.trust = Trust(form.agents, faults)
        self.changed = threading.Condition()
        self.now = (0, 0)  # the iteration and round that this node works on
        self.may_start_at = 0  # before the first iteration: the latest one that it may start at
        self.vectors: dict[Position, dict[int, Frame]] = {}
        self.past: dict[Position, dict[int, Frame]] = {}  # of the latest rounds that are over
        self.rounds_kept = ROUNDS_KEPT
        self.said: tuple[Position, bytes] = (-1, 0), b""  # the tags that this node names in its current round
        self.own_tags: dict[Position, bytes] = {}  # of the messages of this node
        self.disputes: list[tuple[int, Position, int]] = []  # who claims to have got another message, when, from whom
        self.lives: dict[int, tuple[int, float]] = {}  # the latest life of every sender, and when it was first seen
        self.states: dict[int, dict[int, np.ndarray]] = {}
        self.joining = False
        self.claims: dict[int, Position] = {}  # the latest position of every sender
        self.hellos: dict[int, Hello] = {}
        self.strangers: dict[int, str] = {}  # listed nodes with another configuration
        self.refused: collections.Counter[str] = collections.Counter()
        self.refused_of: collections.Counter[int] = collections.Counter()
        self.deadline_of: dict[Position, float] = {}  # of rounds that are over, without what credit adds
        self.elapsed = 0.0  # between the last two rounds, in deadlines

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

    def convict(self, node: int, exclusion: Exclusion) -> None:
        """Exclude a node, and keep and show the proof if there is one."""
        with self.changed:
            self.evidence.convict(node, exclusion)
            self._forget_excluded()
            self.changed.notify_all()

    def compare(self, a: Frame, b: Frame) -> None:
        """Exclude the sender of two vectors that contradict each other."""
        with self.changed:
            self.evidence.compare(a, b)
            self._forget_excluded()

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
        if self.said[0] == position:  # a message that comes later does not change what was said
            return self.said[1]
        before = self.before(position)
        past, own = self.past.get(before, {}), self.own_tags.get(before)
        tags = [past[i].tag if i in past else NO_NONCE for i in range(self.form.agents)]
        if own is not None:
            tags[self.index] = own
        self.said = position, b"".join(tags)
        return self.said[1]

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
