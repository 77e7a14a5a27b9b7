"""Being one of the nodes: find the others, exchange messages with them, and take the state from them if they are ahead.

A `Membership` does not change the state of its node. It says where the others are, and what they have sent.
"""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

import jaxbyz
from jaxbyz.algorithms import State
from jaxbyz.errors import UsageError
from jaxbyz.federation.deadlines import Deadlines
from jaxbyz.federation.evidence import Evidence
from jaxbyz.federation.frames import (
    ASK,
    AUDIT_KINDS,
    HELLO,
    NO_NONCE,
    PROOF,
    WANT,
    Format,
    Frame,
    Hello,
    Writer,
    wanted,
)
from jaxbyz.federation.inbox import Collected, Inbox
from jaxbyz.federation.keys import FederationDescription, Identity
from jaxbyz.federation.mailbox import ITERATIONS_AHEAD, Position
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.federation.signatures import signer, verifier
from jaxbyz.federation.state_service import StateService
from jaxbyz.federation.transport import Transport
from jaxbyz.files import read_json, write_json

LIFE_FILE = "life.json"
HELLO_TICKS = 4  # between two hellos while running; before that, every tick has one
ASK_SECONDS = 0.25  # between two requests for states
SETTLE_SECONDS = 2.0  # after this long, fewer than K − f states may suffice
UNHEARD_SECONDS = 3.0  # after so long, a node that nobody hears looks whether an earlier life of it was heard
FRAMES_PER_TICK = 4  # times K: how many messages are passed on to one node per tick
FINISH_SECONDS = 10.0  # how long a finished node stays to serve others


class Standing(NamedTuple):
    """What a node tells the others about itself.

    Attributes:
        running: whether it takes part in iterations.
        newest: the iteration that it is at. Before it runs, that of its newest checkpoint, or 0.
        older: before it runs, the iteration of an older checkpoint, or 0.
    """

    running: bool
    newest: int
    older: int = 0


class Membership:
    """One node among the others. Inside its context, its sockets are open.

    Args:
        federation: what all nodes have in common.
        identity: the number and the keys of this node.
        form: what frames look like.
        settings: how the node runs.
        standing: returns what the node says about itself.
        pause: called about ten times per second while the node waits for others to appear.
        log: receives lines for people.
        stop: returns whether the node was asked to stop.
        folder: the folder of the node, for what must outlive its process.
    """

    def __init__(
        self,
        federation: FederationDescription,
        identity: Identity,
        form: Format,
        settings: NodeSettings,
        standing: Callable[[], Standing],
        pause: Callable[[], None],
        log: Callable[[str], None],
        stop: Callable[[], bool],
        folder: Path,
    ):
        self.form, self.settings, self.index, self.standing = form, settings, identity.node, standing
        self.pause, self.log, self.asked_to_stop = pause, log, stop
        self.K, self.f = federation.config.agents, federation.config.defended
        self.life, self.version = next_life(folder), jaxbyz.__version__
        self.writer = Writer(form, self.index, signer(identity.secret_key), self.life)
        verify = verifier([member.signing_key for member in federation.members])
        self.evidence = Evidence(form, self.index, verify, partial(self.writer.frame, PROOF), folder, log)
        self.evidence.read()
        self.inbox = Inbox(
            form, self.index, self.f, Deadlines(settings.floor), log, self.should_stop, settings.patience, self._want,
            evidence=self.evidence,
        )  # fmt: skip
        queue = 4 * (1 + form.rounds) + 32
        self.on_audit: Callable[[Frame], None] = lambda frame: None
        self.transport = Transport(
            federation, identity, form.largest, queue, self._on_frame, self._on_tick, bind=settings.bind
        )
        self.service = StateService(self.writer, self.transport.send, settings.attack != "none")
        self.ticks = self.iteration = 0
        self.iterations_kept = 2
        self.sent: dict[Position, dict[int, bytes]] = {}  # this node's messages of these iterations, by receiver
        self.passed_on: collections.Counter[int] = collections.Counter()  # messages to each node in this tick
        self.disputed: set[int] = set()  # nodes that were asked in this tick to show what they have got

    def __enter__(self) -> Self:
        self.transport.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.transport.__exit__(*details)

    def should_stop(self) -> bool:
        """Return whether the node was asked to stop; raise the error of the socket thread if that has failed."""
        if self.transport.failure is not None:
            raise self.transport.failure
        if (own := self.evidence.excluded.get(self.index)) is not None:
            raise UsageError(f"the others have a proof against this node and exclude it for good: {own.reason}")
        return self.asked_to_stop()

    # What the socket thread does.

    @property
    def nonce(self) -> bytes:
        """The number of this life, as others repeat it."""
        return self.life.to_bytes(len(NO_NONCE), "little")

    def _on_frame(self, via: int, data: bytes) -> None:
        frame = self.inbox.put(via, data)
        while self.evidence.to_show:
            self.transport.broadcast(self.evidence.to_show.pop())
        if frame is None:
            return
        if frame.kind == ASK and self.service.asked(via):
            for message in [*self.evidence.proofs(), *(each[via] for each in list(self.sent.values()))]:
                self.transport.send(via, message)
        if frame.kind == WANT:
            self._pass_on(frame)
        if frame.kind in AUDIT_KINDS:
            self.on_audit(frame)

    def _pass_on(self, frame: Frame) -> None:
        """Send a node the messages that it misses: those of this node, and those that it has got from others."""
        senders = wanted(frame)
        messages = self.inbox.kept(frame.position, [i for i in senders if i not in (self.index, frame.via)])
        own = self.sent.get(frame.position, {}).get(frame.via)
        if own is not None and self.index in senders:
            messages.append(own)
        for message in messages[: max(0, FRAMES_PER_TICK * self.K - self.passed_on[frame.via])]:
            self.passed_on[frame.via] += 1
            self.transport.send(frame.via, message)

    def _want(self, position: Position, senders: list[int], everyone: bool) -> None:
        """Ask others for messages of a round."""
        peers = list(self.transport.peers())
        frame = self.writer.want(*position, senders)
        for peer in peers if everyone else random.sample(peers, min(self.f + 1, len(peers))):
            self.transport.send(peer, frame)

    def _on_tick(self) -> None:
        self.ticks += 1
        self.passed_on.clear()
        self.disputed.clear()
        if self.ticks % HELLO_TICKS == 0 or not self.standing().running:
            self.announce()

    def _settle_disputes(self) -> None:
        """Ask nodes that have got other messages than this one to show them, each for one of them per tick."""
        with self.inbox.changed:
            disputes = {peer: (position, sender) for peer, position, sender in self.inbox.disputes}
            self.inbox.disputes.clear()
        for peer, (position, sender) in disputes.items():
            if peer not in self.disputed:
                self.disputed.add(peer)
                self.transport.send(peer, self.writer.want(*position, [sender]))

    def announce(self) -> None:
        """Tell everyone who this is and where it is."""
        for peer in self.transport.peers():
            known = self.inbox.hellos.get(peer)
            heard = NO_NONCE if known is None else known.nonce
            hello = Hello(self.nonce, heard, *self.standing(), self.version)
            self.transport.send(peer, self.writer.frame(HELLO, payload=hello.encode()))

    # Messages of an iteration.

    def begin(self, t: int) -> None:
        """Forget the messages that this node sent long before this iteration."""
        self.iteration = t
        self.sent = {at: each for at, each in self.sent.items() if at[0] > t - self.iterations_kept}

    def send(self, round: int, vector: np.ndarray) -> None:
        """Send a message of this round to everyone."""
        position = (self.iteration, round)
        if position not in self.sent:  # a second one, after this node joined again, would look like a lie
            frame = self.writer.vector(*position, vector, self.inbox.tags(position))
            self.sent[position] = dict.fromkeys(self.transport.peers(), frame)
            self.inbox.note_own(position, frame)
            self.transport.broadcast(frame)

    def send_each(self, round: int, vectors: np.ndarray) -> None:
        """Send every node its own row of `vectors`, as a liar does."""
        position, tags = (self.iteration, round), self.inbox.tags((self.iteration, round))
        self.sent[position] = {
            peer: self.writer.vector(*position, vectors[peer], tags) for peer in self.transport.peers()
        }
        for peer, frame in self.sent[position].items():
            self.transport.send(peer, frame)

    def collect(self, round: int, own: np.ndarray, kind: str, started: float) -> Collected:
        """Wait for the messages of this round; arguments and exceptions as in `Inbox.collect`."""
        collected = self.inbox.collect(self.iteration, round, own, kind, started)
        self._settle_disputes()
        return collected

    def is_over(self, t: int, round: int) -> bool:
        """Return whether K − f nodes have sent what follows this round, so that they have left it."""
        following = (t, round + 1) if round < self.form.rounds else (t + 1, 0)
        return self.inbox.count(*following) >= self.inbox.quorum

    # Before the first iteration.

    def meet(self) -> int:
        """Wait until enough nodes are there; return the iteration to start at."""
        ready, hellos = self._wait_for_nodes()
        if sum(hellos[i].running for i in ready) > self.f:
            there = self.inbox.majority_iteration()
        else:
            own = self.standing()
            offered = [(own.newest, own.older), *((hellos[i].newest, hellos[i].older) for i in ready)]
            there = common_iteration(offered, self.K, self.f)
        self.log(f"{len(ready) + 1} of {self.K} nodes are there; starting at iteration {there}")
        return there

    def _wait_for_nodes(self) -> tuple[list[int], dict[int, Hello]]:
        """Wait until K − f nodes answer; return who does, and what everyone said."""
        begun, enough_at = time.monotonic(), None
        confirmed: set[int] = set()
        while True:
            hellos = self.inbox.wait_for_hellos(0.1)
            self._refuse_mismatch(hellos, confirmed)
            if not confirmed and time.monotonic() - begun > UNHEARD_SECONDS:
                self._outlive(hellos)
            ready = [i for i, hello in hellos.items() if hello.heard == self.nonce]
            running = sum(hellos[i].running for i in ready)
            self.pause()
            now = time.monotonic()
            if len(ready) + 1 >= self.inbox.quorum:
                enough_at = enough_at or now
                if len(ready) + 1 == self.K or running > self.f or now - enough_at > self.settings.start_wait:
                    return ready, hellos
            elif now - begun > self.settings.patience:
                patience = f"{self.settings.patience:.0f} s"
                raise UsageError(f"only {len(ready) + 1} of {self.K} nodes answered within {patience}")

    def _refuse_mismatch(self, hellos: dict[int, Hello], confirmed: set[int]) -> None:
        """Stop if more than f nodes have another configuration or version, or hear another process of this number."""
        strangers = sorted(self.inbox.strangers)
        if len(strangers) > self.f:
            raise UsageError(f"nodes {_numbers(strangers)} have another configuration than this node's federation.json")
        others = sorted(i for i, hello in hellos.items() if hello.version != self.version)
        if len(others) > self.f:
            theirs = hellos[others[0]].version
            raise UsageError(f"nodes {_numbers(others)} run jaxbyz {theirs}, this node {self.version}: use one version")
        impostors = sorted(i for i in confirmed if i in hellos and hellos[i].heard not in (self.nonce, NO_NONCE))
        if len(impostors) > self.f:
            raise UsageError(
                f"another process speaks as node {self.index}: nodes {_numbers(impostors)} hear it; stop one of them"
            )
        confirmed.update(i for i, hello in hellos.items() if hello.heard == self.nonce)

    def _outlive(self, hellos: dict[int, Hello]) -> None:
        """Begin a later life if an honest node has heard a later one: the disk was lost, and the clock was set back."""
        heard = sorted((int.from_bytes(hello.heard, "little") for hello in hellos.values()), reverse=True)
        if len(heard) > self.f and heard[self.f] > self.life:
            self.life = heard[self.f] + 1
            self.writer = self.service.writer = self.writer._replace(life=self.life)
            self.evidence.prove = partial(self.writer.frame, PROOF)

    # States of other nodes.

    def ask_for_state(
        self, earliest: int, combine: Callable[[np.ndarray], np.ndarray | None]
    ) -> tuple[int, np.ndarray]:
        """Return the iteration that the others are at, and its state as a vector `[S]`.

        Args:
            earliest: the first iteration that is of use.
            combine: `[n, S] -> [S]`, makes one vector of those that n nodes offer; None if it needs more.

        Raises:
            UsageError: if too few nodes offer a state within the patience, or their states are not finite.
        """
        begun = time.monotonic()
        with self.inbox.joining_others():
            while True:
                t, count, vector = self._offered_state(earliest, begun, combine)
                if self.inbox.majority_iteration() < t + ITERATIONS_AHEAD:  # or else it took too long
                    break
        if not np.isfinite(vector).all():
            raise UsageError(f"iteration {t}: the state that the others offer is not finite")
        self.inbox.position(t, 0)
        seconds = time.monotonic() - begun
        self.log(f"joined at iteration {t} with the states of {count} nodes after {seconds:.2f} s")
        return t, vector

    def _offered_state(
        self, earliest: int, begun: float, combine: Callable[[np.ndarray], np.ndarray | None]
    ) -> tuple[int, int, np.ndarray]:
        """Ask the others for their states until those of one iteration suffice.

        Returns:
            The iteration, how many nodes offered it, and the state.
        """
        next_ask, patience = 0.0, self.settings.patience
        while True:
            now = time.monotonic()
            if now >= next_ask:
                self.transport.broadcast(self.writer.frame(ASK, earliest))
                next_ask = now + ASK_SECONDS
            needed = max(self.inbox.quorum, 2 * self.f + 1) if now - begun < SETTLE_SECONDS else self.f + 1
            offered = self.inbox.wait_for_states(0.05, earliest)
            for t in sorted(offered, reverse=True):
                if len(offered[t]) >= needed and (vector := combine(offered[t])) is not None:
                    return t, len(offered[t]), vector
            self.pause()
            if now - begun > patience:
                enough = f"{2 * self.f + 1} nodes offered a state, or {self.f + 1} the same"
                raise UsageError(f"waited {patience:.0f} s in vain until {enough}")

    def offer(self, t: int, state: State) -> None:
        """Offer the state at the start of iteration t to nodes that ask."""
        self.service.serve(t, state)

    def stay(self) -> None:
        """Serve the last state until everyone has finished, for a limited time."""
        self.announce()
        until = time.monotonic() + FINISH_SECONDS
        while time.monotonic() < until and not self.asked_to_stop():
            finished = [i for i, claim in self.inbox.claims.items() if claim[0] >= self.form.iterations]
            if len(finished) >= self.K - 1 - len(self.evidence.excluded):
                return
            time.sleep(0.05)


def common_iteration(offered: list[tuple[int, int]], agents: int, faults: int) -> int:
    """Return the iteration to start at, given the two latest ones that each node has.

    It is the latest iteration that K − f nodes have. If there is none, it is the latest that 2f + 1 nodes have, and the
    others take the state from them. If there is none either, it is 0, which every node has.
    """
    iterations = sorted({t for pair in offered for t in pair} - {0}, reverse=True)
    for needed in (agents - faults, 2 * faults + 1):
        for t in iterations:
            if sum(t in pair for pair in offered) >= needed:
                return t
    return 0


def _numbers(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes[:5])) + (" and others" if len(nodes) > 5 else "")


def next_life(folder: Path) -> int:
    """Return the number of this life of the node, larger than that of its last one, and keep it.

    It is the time in milliseconds, so that it also grows if the folder was lost.
    """
    path = folder / LIFE_FILE
    known = read_json(path).get("life") if path.exists() else 0
    life = max(int(1000 * time.time()), 1 + known if isinstance(known, int) and 0 <= known < 2**62 else 0)
    write_json(path, {"life": life})
    return life
