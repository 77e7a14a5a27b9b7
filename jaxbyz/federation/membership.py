"""Being one of the nodes: meet the others, say where this node is, offer states to nodes that join, and join."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxbyz
from jaxbyz.algorithms import State
from jaxbyz.errors import UsageError
from jaxbyz.federation import records
from jaxbyz.federation.deadlines import FLOOR_SECONDS, Deadlines
from jaxbyz.federation.frames import ASK, HELLO, NO_NONCE, STATE, Format, Hello, encode, encode_vector
from jaxbyz.federation.inbox import ITERATIONS_AHEAD, Inbox, Stopped
from jaxbyz.federation.keys import Federation, Identity
from jaxbyz.federation.programs import Programs, build_programs
from jaxbyz.federation.state_vectors import combine, from_vector, layout_of, to_vector
from jaxbyz.federation.transport import Transport

START_SECONDS = 60.0  # how long to wait for the last f nodes before the first iteration
ASK_SECONDS = 0.25  # between two requests for states
SETTLE_SECONDS = 2.0  # after this long, 2f + 1 states suffice instead of K − f
BOUNDARIES_SERVED = 3  # a node that asked gets the states of this many iterations
HELLO_TICKS = 4  # while running; before that in every tick


class NodeSettings(NamedTuple):
    """How a node runs, apart from the configuration that all nodes share.

    Attributes:
        attack: the registered attack that this node plays, `"none"` for an honest node.
        accomplices: other nodes that play the same attack.
        checkpoint_every: iterations between two checkpoints; None writes one only when the node is asked to stop.
        bind: address to listen on, if it differs from the one of the list.
        floor: the shortest deadline in seconds.
        start_wait: how long to wait for the last f nodes before the first iteration.
        patience: seconds without K − f nodes after which the node gives up.
        slow: seconds to wait before every message, for experiments.
    """

    attack: str = "none"
    accomplices: tuple[int, ...] = ()
    checkpoint_every: int | None = None
    bind: str | None = None
    floor: float = FLOOR_SECONDS
    start_wait: float = START_SECONDS
    patience: float = 600.0
    slow: float = 0.0


def format_of(federation: Federation, programs: Programs) -> Format:
    """Return what the frames of a federation look like."""
    state = programs.start
    form = Format(
        federation.identifier(), federation.config.agents, state.parameters.shape[1], layout_of(state).size,
        programs.rounds, programs.plan.iterations,
    )  # fmt: skip
    form.check()
    return form


class Membership:
    """The state of one node and its connections to the others.

    Args:
        folder: where it writes.
        federation: what all nodes have in common.
        identity: its number and keys.
        settings: how it runs.
        log: receives lines for people.
        stop: returns whether the node was asked to stop.
        programs: compiled programs to share between nodes in one process; by default they are built.
    """

    def __init__(
        self,
        folder: Path,
        federation: Federation,
        identity: Identity,
        settings: NodeSettings,
        log: Callable[[str], None],
        stop: Callable[[], bool] = lambda: False,
        programs: Programs | None = None,
    ):
        self.folder, self.federation, self.settings, self.index = folder, federation, settings, identity.node
        self.log, self.stop = records.RateLimitedLog(log), stop
        self.programs = programs or build_programs(federation.config, settings.attack)
        self.K, self.f = federation.config.agents, federation.config.byzantine
        self.form = format_of(federation, self.programs)
        self.layout = layout_of(self.programs.start)
        state = self.programs.start
        if federation.private_randomness:
            state = state._replace(key=jax.random.fold_in(state.key, identity.private_seed()))
            self.layout = self.layout._replace(like=state)
        self.state: State = state
        self.t = 0
        self.record = records.Record(self.programs.plan, self.K, self.form.parameters)
        self.status_file = records.StatusFile(folder)
        self.inbox = Inbox(
            self.form,
            self.index,
            self.f,
            Deadlines(settings.floor),
            self.log,
            self.stop,
            settings.patience,
            self._repeat,
        )
        queue = 4 * (1 + self.form.rounds) + 32
        self.transport = Transport(
            federation, identity, self.form.largest, queue, self._on_frame, self._on_tick, bind=settings.bind
        )
        self.nonce, self.version = secrets.token_bytes(8), jaxbyz.__version__
        self.phase, self.ticks = "meeting", 0
        self.offered: tuple[int, int] = (0, 0)  # the newest and an older iteration that this node can start at
        self.served: tuple[int, State] | None = None  # what a node that asks gets
        self.followers: dict[int, int] = {}  # nodes that asked, and the boundaries until they are forgotten
        self.answered: dict[int, tuple[int, float]] = {}  # the last state that each node got: its iteration, and when
        self.sent: list[bytes] = []  # this node's messages of the current iteration
        self.rejoined = 0

    # The three phases of a node.

    # Before the first iteration, and after an absence.

    def restore(self) -> None:
        """Start from the newest checkpoint that can be read."""
        good = []
        for iteration in reversed(records.checkpoint_iterations(self.folder)):
            vector = self.record.load(self.folder, iteration, self.layout.size, self.form.federation)
            if vector is None:
                self.log(f"the checkpoint of iteration {iteration} is damaged or of another federation; ignored")
                continue
            good.append((iteration, vector))
        if good:
            self.t = good[0][0]
            self.record.load(self.folder, self.t, self.layout.size, self.form.federation)
            self.state = from_vector(self.layout, good[0][1], self.t)
            self.log(f"read the checkpoint of iteration {self.t}")
        self.offered = (self.t, good[1][0] if len(good) > 1 else 0)
        self.inbox.position(self.offered[1], 0)
        self.inbox.may_start_at = self.t

    def meet(self) -> None:
        """Wait until enough nodes are there, and go to the iteration where they are."""
        begun, enough_at = time.monotonic(), None
        confirmed: set[int] = set()
        while True:
            with self.inbox.changed:
                self.inbox.changed.wait(0.1)
                hellos = dict(self.inbox.hellos)
            self._refuse_mismatch(hellos, confirmed)
            ready = [i for i, hello in hellos.items() if hello.heard == self.nonce]
            running = [i for i in ready if hellos[i].running]
            now = time.monotonic()
            self.status_file.write(self.status)
            if self.stop():
                raise Stopped
            if len(ready) + 1 >= self.inbox.quorum:
                enough_at = enough_at or now
                if len(ready) + 1 == self.K or len(running) > self.f or now - enough_at > self.settings.start_wait:
                    break
            elif now - begun > self.settings.patience:
                raise UsageError(
                    f"only {len(ready) + 1} of {self.K} nodes answered within {self.settings.patience:.0f} s"
                )
        if len(running) > self.f:
            there = self.inbox.majority_iteration()
        else:
            offered = [self.offered, *((hellos[i].newest, hellos[i].older) for i in ready)]
            there = common_iteration(offered, self.K, self.f)
        self.log(f"{len(ready) + 1} of {self.K} nodes are there; starting at iteration {there}")
        if there == self.t:
            self.phase = "running"
            return
        older = self.record.load(self.folder, there, self.layout.size, self.form.federation)
        self.t = min(there, self.t)
        if older is not None:
            self.state = from_vector(self.layout, older, there)
        elif there == 0:
            self.state = self.layout.like
        else:
            self.join()
        self.phase = "running"

    def _refuse_mismatch(self, hellos: dict[int, Hello], confirmed: set[int]) -> None:
        """Stop if more nodes than can be lying say that something about this one is wrong."""
        strangers = sorted(self.inbox.strangers)
        if len(strangers) > self.f:
            raise UsageError(
                f"nodes {_numbers(strangers)} have another configuration than {self.folder}/federation.json"
            )
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

    def join(self) -> None:
        """Take the state of the current iteration from the others, so that f liars cannot choose it."""
        begun, self.phase = time.monotonic(), "joining"
        inbox = self.inbox
        with inbox.changed:
            inbox.states.clear()
            inbox.joining = True
        try:
            while True:
                t, offers = self._offers(begun)
                vector = combine(self.layout, offers, self.programs.agreement)
                if inbox.majority_iteration() < t + ITERATIONS_AHEAD:  # or else it took too long
                    break
        finally:
            with inbox.changed:
                inbox.joining = False
                inbox.states.clear()
        if not np.isfinite(vector).all():
            raise UsageError(f"iteration {t}: the state that the others offer is not finite")
        inbox.position(t, 0)
        self.state, self.t, self.phase = from_vector(self.layout, vector, t), t, "running"
        self.rejoined += 1
        self.log(
            f"joined at iteration {t} with the states of {len(offers)} nodes after {time.monotonic() - begun:.2f} s"
        )

    def _offers(self, begun: float) -> tuple[int, np.ndarray]:
        """Ask the others for their states until enough of them offer one of the same iteration; return that."""
        next_ask, fewest = 0.0, 2 * self.f + 1
        while True:
            now = time.monotonic()
            if now >= next_ask:
                self.transport.broadcast(encode(self.form, ASK, self.index, self.t, 0))
                next_ask = now + ASK_SECONDS
            with self.inbox.changed:
                self.inbox.changed.wait(0.05)
                needed = self.inbox.quorum if now - begun < SETTLE_SECONDS else fewest
                found = {t: rows for t, rows in self.inbox.states.items() if t >= self.t and len(rows) >= needed}
                if found:
                    t = max(found)
                    return t, np.stack(list(found[t].values()))
            self.status_file.write(self.status)
            if self.stop():
                raise Stopped
            if now - begun > self.settings.patience:
                raise UsageError(f"no {fewest} nodes offered a state within {self.settings.patience:.0f} s")

    # What the thread of the sockets does.

    def _on_frame(self, sender: int, data: bytes) -> None:
        frame = self.inbox.put(sender, data)
        if frame is not None and frame.kind == ASK:
            self.followers[sender] = BOUNDARIES_SERVED
            if self._offer_state(sender):
                for message in list(self.sent):
                    self.transport.send(sender, message)

    def _on_tick(self) -> None:
        self.ticks += 1
        if self.phase == "meeting" or self.ticks % HELLO_TICKS == 0:
            self.announce()

    def announce(self) -> None:
        """Tell everyone who this is and where it is."""
        running = self.phase in ("running", "finished")
        newest, older = (self.t, 0) if running else self.offered
        for peer in self.transport.peers():
            known = self.inbox.hellos.get(peer)
            heard = NO_NONCE if known is None else known.nonce
            hello = Hello(self.nonce, heard, running, newest, older, self.version)
            self.transport.send(peer, encode(self.form, HELLO, self.index, 0, 0, hello.encode()))

    def serve_boundary(self) -> None:
        """Offer the state of the iteration that starts to the nodes that asked."""
        self.served = (self.t, self.state)
        for peer in list(self.followers):
            self._offer_state(peer)
            self.followers[peer] -= 1
            if self.followers[peer] <= 0:
                self.followers.pop(peer, None)

    def _repeat(self) -> None:
        """Send the messages of this iteration again, because some may have been lost."""
        for message in self.sent:
            self.transport.broadcast(message)

    def _offer_state(self, peer: int) -> bool:
        """Send the state of the current iteration to a node, unless it just got it; return whether it was sent."""
        served = self.served
        iteration, at = self.answered.get(peer, (-1, 0.0))
        if served is None or (iteration == served[0] and time.monotonic() - at < ASK_SECONDS / 2):
            return False
        self.answered[peer] = (served[0], time.monotonic())
        vector = to_vector(served[1])
        if self.settings.attack != "none":
            vector = np.random.default_rng().normal(0, 1e3, vector.shape)
        self.transport.send(peer, encode_vector(self.form, STATE, self.index, served[0], 0, vector))
        return True

    # Small things.

    def status(self) -> dict[str, Any]:
        """Return what `jaxbyz federation status` shows."""
        traffic, trust = self.transport.traffic, self.inbox.trust
        returns = self.record.rows["returns"]
        finite = returns[np.isfinite(returns)]
        return {
            "node": self.index,
            "phase": self.phase,
            "iteration": self.t,
            "iterations": self.form.iterations,
            "attack": self.settings.attack,
            "rejoined": self.rejoined,
            "return": float(finite[-1]) if len(finite) else None,
            "suspected": [i for i in range(self.K) if trust.suspected[i]],
            "refused": dict(self.inbox.refused),
            "refused_of": {str(i): n for i, n in sorted(self.inbox.refused_of.items())},
            "deadlines": {str(kind): self.inbox.deadlines.grace(kind) for kind in self.inbox.deadlines.times},
            **vars(traffic),
        }


def common_iteration(offered: list[tuple[int, int]], agents: int, faults: int) -> int:
    """Return the iteration to start at, given the two latest ones that each node has.

    It is the latest that K − f nodes have, or else the latest that 2f + 1 nodes have, from whom the others can take it.
    Everyone has iteration 0.
    """
    iterations = sorted({t for pair in offered for t in pair} - {0}, reverse=True)
    for needed in (agents - faults, 2 * faults + 1):
        for t in iterations:
            if sum(t in pair for pair in offered) >= needed:
                return t
    return 0


def _numbers(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes[:5])) + (" and others" if len(nodes) > 5 else "")
