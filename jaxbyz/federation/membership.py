"""Being one of the nodes: find the others, exchange messages with them, and take the state from them if they are ahead.

A `Membership` does not change the state of its node. It says where the others are, and what they have sent.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

import jaxbyz
from jaxbyz.algorithms import State
from jaxbyz.errors import UsageError
from jaxbyz.federation.deadlines import Deadlines
from jaxbyz.federation.frames import ASK, HELLO, NO_NONCE, VECTOR, Format, Hello, encode, encode_vector
from jaxbyz.federation.inbox import ITERATIONS_AHEAD, Collected, Inbox
from jaxbyz.federation.keys import FederationDescription, Identity
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.federation.state_service import StateService
from jaxbyz.federation.transport import Transport

HELLO_TICKS = 4  # between two hellos while running; before that, every tick has one
ASK_SECONDS = 0.25  # between two requests for states
SETTLE_SECONDS = 2.0  # after this long, fewer than K − f states may suffice
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
    ):
        self.form, self.settings, self.index, self.standing = form, settings, identity.node, standing
        self.pause, self.log, self.asked_to_stop = pause, log, stop
        self.K, self.f = federation.config.agents, federation.config.byzantine
        self.inbox = Inbox(
            form, self.index, self.f, Deadlines(settings.floor), log, self.should_stop, settings.patience, self._repeat
        )
        queue = 4 * (1 + form.rounds) + 32
        self.transport = Transport(
            federation, identity, form.largest, queue, self._on_frame, self._on_tick, bind=settings.bind
        )
        self.service = StateService(form, self.index, self.transport.send, settings.attack != "none")
        self.nonce, self.version = secrets.token_bytes(8), jaxbyz.__version__
        self.ticks = self.iteration = 0
        self.sent: list[bytes] = []  # this node's messages of the current iteration

    def __enter__(self) -> Self:
        self.transport.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self.transport.__exit__(*details)

    def should_stop(self) -> bool:
        """Return whether the node was asked to stop; raise the error of the socket thread if that has failed."""
        if self.transport.failure is not None:
            raise self.transport.failure
        return self.asked_to_stop()

    # What the socket thread does.

    def _on_frame(self, sender: int, data: bytes) -> None:
        frame = self.inbox.put(sender, data)
        if frame is not None and frame.kind == ASK and self.service.asked(sender):
            for message in list(self.sent):
                self.transport.send(sender, message)

    def _on_tick(self) -> None:
        self.ticks += 1
        if self.ticks % HELLO_TICKS == 0 or not self.standing().running:
            self.announce()

    def announce(self) -> None:
        """Tell everyone who this is and where it is."""
        for peer in self.transport.peers():
            known = self.inbox.hellos.get(peer)
            heard = NO_NONCE if known is None else known.nonce
            hello = Hello(self.nonce, heard, *self.standing(), self.version)
            self.transport.send(peer, encode(self.form, HELLO, self.index, 0, 0, hello.encode()))

    # Messages of an iteration.

    def begin(self, t: int) -> None:
        """Forget the messages that this node sent in the iteration before."""
        self.iteration, self.sent = t, []

    def send(self, round: int, vector: np.ndarray) -> None:
        """Send a message of this round to everyone."""
        self.sent.append(encode_vector(self.form, VECTOR, self.index, self.iteration, round, vector))
        self.transport.broadcast(self.sent[-1])

    def send_each(self, round: int, vectors: np.ndarray) -> None:
        """Send every node its own row of `vectors`, as a liar does."""
        for peer in self.transport.peers():
            frame = encode_vector(self.form, VECTOR, self.index, self.iteration, round, vectors[peer])
            self.transport.send(peer, frame)

    def collect(self, round: int, own: np.ndarray, kind: str, started: float) -> Collected:
        """Wait for the messages of this round; arguments and exceptions as in `Inbox.collect`."""
        return self.inbox.collect(self.iteration, round, own, kind, started)

    def is_over(self, t: int, round: int) -> bool:
        """Return whether K − f nodes have sent what follows this round, so that they have left it."""
        following = (t, round + 1) if round < self.form.rounds else (t + 1, 0)
        return self.inbox.count(*following) >= self.inbox.quorum

    def _repeat(self) -> None:
        """Send the messages of this iteration again, because some may have been lost."""
        for message in list(self.sent):
            self.transport.broadcast(message)

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
                self.transport.broadcast(encode(self.form, ASK, self.index, earliest, 0))
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
            if len(finished) == self.K - 1:
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
