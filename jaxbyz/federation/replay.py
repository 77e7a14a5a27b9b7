"""Run an iteration of another node again, and compare what comes out with what it sent.

What a node computes in an iteration follows from the state that it has committed to, the messages that it says it has
heard, and random keys that nobody knew before the messages of the round before were sent. So anybody who has these
messages can compute it too. This assumes that the environment is a simulator, and that the machines compute the same:
where rounding leads to another action, a replay leads elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.errors import UsageError
from jaxbyz.federation.frames import DIGEST_BYTES, TAG_BYTES, Format, Frame
from jaxbyz.federation.inbox import Collected
from jaxbyz.federation.lines import Lies, Lines
from jaxbyz.federation.programs import NodePrograms
from jaxbyz.federation.records import NodeIteration
from jaxbyz.federation.state_vectors import far_apart, from_whole_state, relative_distance
from jaxbyz.federation.transport import Traffic
from jaxbyz.sampling.page import Drawn

LIE, EQUAL = 1e-3, 1e-4  # relative distances: above the one it is a lie, below the other it is none
NOT_HEARD, EXCLUDED = bytes(DIGEST_BYTES), b"\xff" * DIGEST_BYTES  # in the place of the digest of a message


class Verdict(Enum):
    """What a replay says about a node: `UNKNOWN` if messages are missing, or the difference is small."""

    HONEST = "honest"
    LIED = "lied"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """A verdict, and what it rests on.

    Attributes:
        verdict: see `Verdict`.
        round: the first round whose message is wrong; that after the last one if it is the state.
        missing: positions of messages that the node says it has heard, and their senders, that are not here.
    """

    verdict: Verdict
    round: int = 0
    missing: tuple[tuple[int, int], ...] = ()


class Transcript(NamedTuple):
    """What a node has signed about one of its iterations.

    Attributes:
        reveal: a frame of the kind `REVEAL`: its state before and after, and digests of what it has heard.
        own: its messages of every round, and the first one of the next iteration.
    """

    reveal: Frame
    own: tuple[Frame, ...]

    def fits(self) -> bool:
        """Whether all frames are those of one node, in one life, at the positions that they should have."""
        t, last = self.reveal.iteration, len(self.own) - 1
        positions = [(t, round) for round in range(last)] + [(t + 1, 0)]
        same = all((one.sender, one.life) == (self.reveal.sender, self.reveal.life) for one in self.own)
        return same and [one.position for one in self.own] == positions


def digest(data: bytes | memoryview) -> bytes:
    """Return what commits a node to a state, or names a message."""
    return hashlib.sha256(data).digest()


def salt_of(tags: bytes, t: int, index: int) -> np.uint32:
    """Return what the random keys of a node in iteration t depend on: the tags of what it heard in the round before.

    Its own message does not count, so that it cannot choose the keys by it.
    """
    others = tags[: TAG_BYTES * index] + bytes(TAG_BYTES) + tags[TAG_BYTES * (index + 1) :]
    return np.uint32(
        int.from_bytes(digest(others + t.to_bytes(8, "little") + index.to_bytes(4, "little"))[:4], "little")
    )


class Replay(Lines):
    """An iteration of another node, with the messages that it has heard.

    Args:
        programs: those of an honest node.
        own: the messages of the node.
        heard: for every round, what it has heard, with its own message.
    """

    def __init__(self, programs: NodePrograms, own: Sequence[Frame], heard: Sequence[Collected]):
        super().__init__(programs, own[0].sender, len(heard[0].arrived))
        self.own, self.heard = own, heard
        self.distances: list[float] = []  # of its messages to those that it should have sent

    def sample(self, state: State, coin: np.bool_) -> tuple[Drawn, State]:
        """Sample what the node should have sampled."""
        salt = salt_of(self.own[0].tags, self.own[0].iteration, self.index)
        return self.programs.sample(state, coin, np.int32(self.index), salt)

    def send_and_collect(
        self,
        measured: NodeIteration,
        position: tuple[int, int],
        vector: np.ndarray | None,
        kind: str,
        started: float,
        lies: Lies | None,
    ) -> Collected:
        """Compare a message with the one that the node sent, and return what it has heard."""
        assert vector is not None
        round = self.round_of(position)
        self.distances.append(relative_distance(vector, self.own[round].vector()))
        return self.heard[round]


def judge(
    programs: NodePrograms, form: Format, faults: int, transcript: Transcript, known: Sequence[Mapping[int, Frame]]
) -> Finding:
    """Run an iteration of another node again and compare.

    Args:
        programs: those of an honest node.
        form: what frames look like.
        faults: the number of faulty nodes f that are tolerated.
        transcript: what the node has signed about the iteration.
        known: for every round, the messages that are here, by sender.
    """
    reveal, own, size = transcript.reveal, transcript.own, form.audited
    before, after = bytes(reveal.payload[:size]), bytes(reveal.payload[size : 2 * size])
    if own[0].commitment != digest(before) or own[-1].commitment != digest(after):
        return Finding(Verdict.LIED)
    heard, missing = _heard(form, transcript, known)
    if missing:
        return Finding(Verdict.UNKNOWN, missing=tuple(missing))
    few = [round for round, one in enumerate(heard) if one.arrived.sum() < form.agents - faults]
    state, end = (from_whole_state(programs.start, data) for data in (before, after))
    if few or int(state.step) != reveal.iteration:
        return Finding(Verdict.LIED, few[0] if few else 0)
    replay = Replay(programs, own, heard)
    try:
        found = replay.iterate(NodeIteration(form.agents, Traffic()), state, reveal.iteration, late=False)
        distances = [*replay.distances, far_apart(found, end)]
    except UsageError:  # its parameters became non-finite, with which it should have ended
        distances = [*replay.distances, np.inf]
    worst = max(distances)
    if worst > LIE:
        return Finding(Verdict.LIED, next(round for round, distance in enumerate(distances) if distance > LIE))
    return Finding(Verdict.HONEST if worst <= EQUAL else Verdict.UNKNOWN)


def _heard(
    form: Format, transcript: Transcript, known: Sequence[Mapping[int, Frame]]
) -> tuple[list[Collected], list[tuple[int, int]]]:
    """Return what the node says it has heard in every round, and the rounds and senders of what is not here."""
    node, digests = transcript.reveal.sender, transcript.reveal.payload[2 * form.audited :]
    heard, missing = [], []
    for round in range(form.rounds + 1):
        rows = np.full((form.agents, form.parameters), np.nan, np.float32)
        arrived, excluded = np.zeros(form.agents, bool), np.zeros(form.agents, bool)
        rows[node], arrived[node] = transcript.own[round].vector(), True
        for sender in range(form.agents):
            start = DIGEST_BYTES * (round * form.agents + sender)
            claimed = bytes(digests[start : start + DIGEST_BYTES])
            frame = known[round].get(sender)
            if sender == node or claimed == NOT_HEARD:
                continue
            if claimed == EXCLUDED:
                excluded[sender] = True
            elif frame is None or digest(frame.data) != claimed:
                missing.append((round, sender))
            else:
                rows[sender], arrived[sender] = frame.vector(), True
        heard.append(Collected(rows, arrived, excluded, 0.0))
    return heard, missing
