"""A node that lets others replay its iterations, replays theirs, and judges accusations.

In every iteration it commits itself to its state, and with a given probability it asks another node to reveal an
iteration that is over. The other node does not know before whom it will have to show it. A message that cannot be
reproduced is an accusation: it is shown to everybody, and everybody repeats the replay. The liar is excluded, or the
one who accused wrongly. A node that does not let itself be audited is excluded by those who notice.
"""

from __future__ import annotations

import collections
import itertools
import random
import secrets
import time
from typing import Any

import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.federation.evidence import BAD_SIGNATURE, FALSE_ACCUSATION, NOT_AUDITABLE, UNREPRODUCED, Exclusion
from jaxbyz.federation.frames import (
    ACCUSE,
    AUDIT,
    HEADER_BYTES,
    REVEAL,
    VECTOR,
    Frame,
    accused,
    decode,
    decode_own,
)
from jaxbyz.federation.inbox import Collected
from jaxbyz.federation.membership import Membership
from jaxbyz.federation.node import Node
from jaxbyz.federation.programs import NodePrograms, warm_up
from jaxbyz.federation.replay import (
    EXCLUDED,
    NOT_HEARD,
    Finding,
    Transcript,
    Verdict,
    digest,
    judge,
    salt_of,
)
from jaxbyz.federation.signatures import SIGNATURE_BYTES
from jaxbyz.federation.state_vectors import whole_state
from jaxbyz.sampling.page import Drawn

KEPT = 12  # iterations that can be revealed
LATEST = 2  # an audit is of the iteration so many before the one that begins
ANSWERS = 2  # to one node about one iteration
ANSWER_SECONDS = 5.0  # a node that has not answered by then, and two iterations later, has refused
REFUSALS = 5  # in a row, before a node is excluded


class Audit:
    """An audit that has begun.

    Args:
        peer: who is audited.
        iteration: the iteration of it that is replayed.
        own: the messages of the audited node.
        known: for every round, the messages of all nodes.
    """

    def __init__(self, peer: int, iteration: int, own: tuple[Frame, ...], known: list[dict[int, Frame]]):
        self.peer, self.iteration, self.own, self.known = peer, iteration, own, known
        self.since, self.wanted = time.monotonic(), False
        self.reveal: Frame | None = None


class Auditor:
    """What a node remembers about its last iterations, and what it finds out about others.

    `on_frame` is called by the thread of the sockets, everything else by the main thread.

    Args:
        programs: those of an honest node.
        others: the other nodes.
        probability: that of an audit per iteration.
    """

    def __init__(self, programs: NodePrograms, others: Membership, probability: float):
        self.programs, self.others, self.probability = programs, others, probability
        self.form, self.inbox, self.evidence = others.form, others.inbox, others.evidence
        self.inbox.rounds_kept, others.iterations_kept = KEPT * (1 + self.form.rounds), KEPT
        self.states: dict[int, bytes] = {}  # at the start of iterations
        self.heard: dict[int, list[Collected]] = {}  # in the rounds of iterations
        self.answers: collections.Counter[tuple[int, int]] = collections.Counter()
        self.audit: Audit | None = None
        self.accusations: dict[int, Frame] = {}  # one of every accuser
        self.accusers: dict[int, set[int]] = collections.defaultdict(set)  # of nodes that could not be judged here
        self.refusals: collections.Counter[int] = collections.Counter()
        self.replays: list[int] = []  # iterations that were replayed and not counted yet
        self.random = random.Random(secrets.randbits(128))  # nobody must know whom this node will audit

    # Being audited.

    def commit(self, t: int, state: State, known: bool) -> None:
        """Commit this node to its state at the start of iteration t; not if the state is that of others."""
        self.states = {at: data for at, data in self.states.items() if at > t - KEPT}
        self.heard = {at: heard for at, heard in self.heard.items() if at > t - KEPT} | {t: []}
        self.answers = collections.Counter({key: n for key, n in self.answers.items() if key[1] > t - KEPT})
        commitment = b""
        if known:
            self.states[t] = whole_state(state)
            commitment = digest(self.states[t])
        self.others.writer = self.others.writer._replace(commitment=commitment)

    def forget(self) -> None:
        """Forget what can be revealed, because this node has taken the state of others."""
        self.states, self.heard = {}, {}

    def on_frame(self, frame: Frame) -> None:
        """Answer a request to reveal an iteration, or keep what others reveal and whom they accuse."""
        audit = self.audit
        if frame.kind == AUDIT and (payload := self._revealed(frame.sender, frame.iteration)) is not None:
            self.others.transport.send(frame.sender, self.others.writer.frame(REVEAL, frame.iteration, 0, payload))
        elif frame.kind == REVEAL and audit is not None:
            if (frame.sender, frame.iteration) == (audit.peer, audit.iteration):
                audit.reveal = frame
        elif frame.kind == ACCUSE and accused(frame) not in self.evidence.excluded:
            self.accusations.setdefault(frame.sender, frame)

    def _revealed(self, peer: int, t: int) -> bytes | None:
        """Return the payload that reveals iteration t of this node; None if it cannot, or has done so for this peer."""
        heard, rounds = self.heard.get(t, []), 1 + self.form.rounds
        if not {t, t + 1} <= self.states.keys() or len(heard) < rounds or self.answers[peer, t] >= ANSWERS:
            return None
        self.answers[peer, t] += 1
        digests = []
        for round, known in enumerate(self._known(t)):
            for sender in range(self.form.agents):
                if sender == self.others.index or not (heard[round].arrived | heard[round].excluded)[sender]:
                    digests.append(NOT_HEARD)
                elif not heard[round].arrived[sender]:
                    digests.append(EXCLUDED)
                elif sender in known:
                    digests.append(digest(known[sender].data))
                else:
                    return None
        return b"".join([self.states[t], self.states[t + 1], *digests])

    def _known(self, t: int) -> list[dict[int, Frame]]:
        """Return the messages of iteration t that are here, by round and sender, with those of this node."""
        rounds = []
        for round in range(1 + self.form.rounds):
            with self.inbox.changed:
                frames = dict(self.inbox.past.get((t, round), {}))
            sent = self.others.sent.get((t, round), {})
            if sent and isinstance(own := decode(self.form, next(iter(sent.values())), self.others.index), Frame):
                frames[self.others.index] = own
            rounds.append(frames)
        return rounds

    # Auditing others.

    def work(self, t: int) -> None:
        """Judge accusations and what was revealed, and begin a new audit with some probability."""
        while self.accusations:
            _, frame = self.accusations.popitem()
            self._judge_accusation(frame)
        if self.audit is not None:
            self._continue(self.audit, t)
        if self.audit is None and self.random.random() < self.probability and t >= LATEST:
            self._begin(t - LATEST)

    def _begin(self, t: int) -> None:
        candidates = [peer for peer in self.others.transport.peers() if peer not in self.evidence.excluded]
        peer, known = self.random.choice(candidates), self._known(t)
        frames = [one.get(peer) for one in (*known, self._known(t + 1)[0])]
        if frames[0] is None:
            return  # it sent no gradient in this iteration
        own = tuple(frame for frame in frames if frame is not None)
        if len({frame.life for frame in own}) > 1:
            return  # it was started again
        if len(own) < len(frames) or not all(any(frame.commitment) for frame in (own[0], own[-1])):
            self._refused(peer, t)
            return
        self.audit = Audit(peer, t, own, known)
        self.others.transport.send(peer, self.others.writer.frame(AUDIT, t))

    def _continue(self, audit: Audit, t: int) -> None:
        """Judge a node that has revealed its iteration, or find out that it will not."""
        if audit.peer in self.evidence.excluded:
            self.audit = None
            return
        if audit.reveal is not None:
            finding = self._judge(Transcript(audit.reveal, audit.own), audit.known)
            if not finding.missing:
                self.audit = None
                if finding.verdict is Verdict.HONEST:
                    self.refusals[audit.peer] = 0
                if finding.verdict is Verdict.LIED:
                    self._accuse(Transcript(audit.reveal, audit.own), finding.round, self.others.index)
                return
            self._want(audit, finding)
        if time.monotonic() - audit.since > ANSWER_SECONDS and t > audit.iteration + LATEST + 1:
            self.audit = None
            self._refused(audit.peer, audit.iteration)

    def _want(self, audit: Audit, finding: Finding) -> None:
        """Ask the audited node for messages that it has heard and this node has not."""
        audit.known = [{**new, **old} for new, old in zip(self._known(audit.iteration), audit.known, strict=True)]
        if audit.wanted:
            return
        audit.wanted = True
        for round in sorted({round for round, _ in finding.missing}):
            senders = [sender for at, sender in finding.missing if at == round]
            self.others.transport.send(audit.peer, self.others.writer.want(audit.iteration, round, senders))

    def _judge(self, transcript: Transcript, known: list[dict[int, Frame]]) -> Finding:
        if not transcript.fits():
            return Finding(Verdict.UNKNOWN)
        self.replays.append(transcript.reveal.iteration)
        return judge(self.programs, self.form, self.others.f, transcript, known)

    def _refused(self, peer: int, t: int) -> None:
        self.refusals[peer] += 1
        if self.refusals[peer] >= REFUSALS:
            self.inbox.convict(peer, Exclusion(NOT_AUDITABLE, t, 0, time.time(), b"", self.others.index))

    def _accuse(self, transcript: Transcript, round: int, shown_by: int) -> None:
        """Exclude a node whose messages this node cannot reproduce, and show everybody why."""
        reveal, own = transcript
        t, last = reveal.iteration, self.form.rounds
        if not all(self.evidence.is_signed(frame) for frame in (reveal, *own)):
            self.inbox.convict(reveal.sender, Exclusion(BAD_SIGNATURE, t, 0, time.time(), b"", self.others.index))
            return
        proof = self.others.writer.frame(ACCUSE, t, min(round, last), b"".join(frame.data for frame in (reveal, *own)))
        exclusion = Exclusion(UNREPRODUCED, t, min(round, last), time.time(), proof, shown_by)
        self.inbox.convict(reveal.sender, exclusion)

    def _judge_accusation(self, frame: Frame) -> None:
        """Repeat the replay that an accusation rests on; exclude the liar, or the one who accused wrongly."""
        transcript = self._transcript(frame)
        if transcript is None or frame.sender in self.evidence.excluded:
            return
        node, known = transcript.reveal.sender, self._known(transcript.reveal.iteration)
        for round, own in enumerate(transcript.own[:-1]):
            if node in known[round] and known[round][node].data != own.data:
                self.inbox.compare(known[round][node], own)
        if node in self.evidence.excluded:
            return
        finding = self._judge(transcript, known)
        if finding.verdict is Verdict.LIED:
            self._accuse(transcript, finding.round, frame.sender)
        elif finding.verdict is Verdict.HONEST:
            t = transcript.reveal.iteration
            self.inbox.convict(frame.sender, Exclusion(FALSE_ACCUSATION, t, 0, time.time(), b"", self.others.index))
        else:
            self.accusers[node].add(frame.sender)
            if len(self.accusers[node]) > self.others.f:  # at least one of them is honest
                exclusion = Exclusion(UNREPRODUCED, *frame.position, time.time(), b"", frame.sender)
                self.inbox.convict(node, exclusion)

    def _transcript(self, frame: Frame) -> Transcript | None:
        """Return what an accusation shows, if the accused node has signed all of it."""
        whole = HEADER_BYTES + self.form.payload_bytes(VECTOR) + SIGNATURE_BYTES
        first = len(frame.payload) - (2 + self.form.rounds) * whole
        cuts = [0, first, *range(first + whole, len(frame.payload) + 1, whole)]
        parts = [decode_own(self.form, bytes(frame.payload[a:b])) for a, b in itertools.pairwise(cuts)]
        frames = [part for part in parts if isinstance(part, Frame)]
        kinds = [part.kind for part in frames]
        if kinds != [REVEAL, *[VECTOR] * (2 + self.form.rounds)]:
            return None
        transcript = Transcript(frames[0], tuple(frames[1:]))
        return transcript if transcript.fits() and all(map(self.evidence.is_signed, frames)) else None


class AuditedNode(Node):
    """A node of a federation with audits; arguments as for `Node`."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.auditor = Auditor(self.programs, self.others, self.programs.plan.config.audit)
        self.others.on_audit = self.auditor.on_frame
        self.knows_past = True  # whether its state is the one that it has computed

    def warm_up(self) -> None:
        """Run every program once."""
        warm_up(self.programs, self.index, np.uint32(0))

    def sample(self, state: State, coin: np.bool_) -> tuple[Drawn, State]:
        """Sample with random keys that nobody has known before."""
        salt = salt_of(self.others.inbox.tags((self.t, 0)), self.t, self.index)
        return self.programs.sample(state, coin, np.int32(self.index), salt)

    def send_and_collect(self, *arguments: Any) -> Collected:
        """Exchange the messages of a round, and remember what was heard."""
        collected = super().send_and_collect(*arguments)
        self.auditor.heard[self.t].append(collected._replace(rows=np.empty(0, np.float32)))
        return collected

    def _join(self) -> None:
        super()._join()
        self.auditor.forget()
        self.knows_past = False

    def _iterate(self) -> None:
        if self.liar is None:
            self.auditor.work(self.t)
            self.record.replayed[self.t] = sum(self.record.batch[self.auditor.replays])
            self.auditor.replays.clear()
        self.auditor.commit(self.t, self.state, self.knows_past)
        self.knows_past = True
        super()._iterate()
