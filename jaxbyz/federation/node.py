"""One agent as a process of its own: it meets the others, iterates with them, and comes back after it was away."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxbyz
from jaxbyz.algorithms import State
from jaxbyz.algorithms.metrics import decentralised_bytes
from jaxbyz.errors import UsageError
from jaxbyz.federation import records
from jaxbyz.federation.deadlines import FLOOR_SECONDS, Deadlines
from jaxbyz.federation.frames import ASK, HELLO, NO_NONCE, STATE, VECTOR, Format, Hello, encode, encode_vector
from jaxbyz.federation.inbox import Behind, Collected, Inbox, Stopped
from jaxbyz.federation.keys import Federation, Identity
from jaxbyz.federation.liars import Liar
from jaxbyz.federation.programs import Programs, build_programs, warm_up
from jaxbyz.federation.state_vectors import combine, from_vector, layout_of, to_vector
from jaxbyz.federation.transport import Transport

START_SECONDS = 60.0  # how long to wait for the last f nodes before the first iteration
ASK_SECONDS = 0.25  # between two requests for states
SETTLE_SECONDS = 2.0  # after this long, 2f + 1 states suffice instead of K − f
BOUNDARIES_SERVED = 3  # a node that asked gets the states of this many iterations
HELLO_TICKS = 4  # while running; before that in every tick
FINISH_SECONDS = 10.0  # how long a finished node stays to serve others


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


class Node:
    """One agent of DecByzPG and its connections.

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
        self.liar: Liar | None = None
        if settings.attack != "none":
            mask = np.isin(np.arange(self.K), [self.index, *settings.accomplices])
            self.liar = Liar(self.programs, self.index, mask)
            for other in settings.accomplices:
                self.inbox.trust.suspect(other)  # both would wait for each other's message

    # The three phases of a node.

    def run(self) -> dict[str, np.ndarray]:
        """Take part until the trajectories are spent; return the metrics.

        Raises:
            Stopped: if it was asked to stop; it left a checkpoint.
            UsageError: if it cannot take part.
        """
        self._restore()
        warm_up(self.programs, self.index)
        with self.transport:
            try:
                self._meet()
                while self.t < self.form.iterations:
                    self._iterate_or_rejoin()
                metrics = self.record.metrics(self.form.rounds, self._paper_bytes())
                records.finish(self.folder, self.record, np.asarray(self.state.parameters[0]), metrics)
                self._stay()
                return metrics
            except Stopped:
                self.record.save(self.folder, self.t, to_vector(self.state), self.form.federation)
                self.phase = "stopped"
                raise
            finally:
                self.status_file.write(self.status, now=True)

    def _iterate_or_rejoin(self) -> None:
        self._serve_boundary()
        every = self.settings.checkpoint_every
        if every and self.t and self.t % every == 0:
            self.record.save(self.folder, self.t, to_vector(self.state), self.form.federation)
        self.status_file.write(self.status)
        if self.stop():
            raise Stopped
        try:
            self._iterate()
        except Behind:
            self.log(f"iteration {self.t}: the others are ahead")
            self._join()

    def _iterate(self) -> None:
        """Run one iteration of Algorithm 2."""
        t, state, started = self.t, self.state, time.monotonic()
        self.sent = []
        traffic = self.transport.traffic
        before = traffic.bytes_in, traffic.bytes_out
        coin, index = np.bool_(self.programs.plan.coins[t]), np.int32(self.index)

        # Lines 5 and 6. If the others have finished this round already, nobody would use this node's estimate.
        sampled = None if self._late_for(t) else self.programs.sample(state, coin, index)
        estimate = np.full(self.form.parameters, np.nan, np.float32)
        if sampled is not None:
            estimate = np.asarray(sampled.estimate[0])
        gradients = self._exchange(t, 0, estimate, f"gradients, coin {int(coin)}", started, silent=sampled is None)
        # Lines 7 and 8.
        messages, row, present = self._present(gradients, sampled is not None)
        own = estimate if sampled is not None else np.nanmedian(messages, axis=0)
        proposal = self.programs.propose(state, coin, index, row, own, messages)
        shares = np.zeros(self.K, np.float32)
        shares[present] = proposal.shares
        theta = np.asarray(proposal.state.parameters[0])
        waited, missing = gradients.waited, (~gradients.arrived).astype(np.float32)
        # Line 9.
        for i in range(self.form.rounds):
            collected = self._exchange(t, 1 + i, theta, "parameters", time.monotonic())
            messages, row, _ = self._present(collected, True)
            theta = np.asarray(self.programs.agree(state, np.int32(i), index, row, messages))
            waited, missing = waited + collected.waited, missing + ~collected.arrived
        if not np.isfinite(theta).all():
            raise UsageError(f"iteration {t}: the parameters of node {self.index} became non-finite")

        self.record.add(
            t, sampled, gradient_norm=proposal.norm, shares=shares, waited=waited, missing=missing,
            suspected=np.array(self.inbox.trust.suspected), seconds=time.monotonic() - started, parameters=theta,
            bytes_in=traffic.bytes_in - before[0], bytes_out=traffic.bytes_out - before[1],
        )  # fmt: skip
        self.record.outputs(t, int(self.programs.plan.output_at[0]), np.asarray(state.parameters[0]))
        self.state = proposal.state._replace(parameters=jnp.asarray(theta)[None])
        self.t = t + 1

    def _exchange(
        self, t: int, round: int, vector: np.ndarray, kind: str, started: float, *, silent: bool = False
    ) -> Collected:
        """Send this node's message of a round to everyone and return those of the others."""
        if self.transport.failure is not None:
            raise self.transport.failure
        if self.settings.slow:
            time.sleep(self.settings.slow)
        if self.liar is None and not silent:
            self.sent.append(encode_vector(self.form, VECTOR, self.index, t, round, vector))
            self.transport.broadcast(self.sent[-1])
        collected = self.inbox.collect(t, round, vector, kind, started)
        if self.liar is not None and not silent:
            heard = collected.rows
            lies = (
                self.liar.gradients(self.state, heard)
                if round == 0
                else self.liar.parameters(self.state, round - 1, heard)
            )
            for peer in self.transport.peers():
                self.transport.send(peer, encode_vector(self.form, VECTOR, self.index, t, round, lies[peer]))
        return collected

    def _present(self, collected: Collected, own: bool) -> tuple[np.ndarray, np.int32, np.ndarray]:
        """Return the messages that arrived `[n, D]`, the row of this node among them, and whose they are `[n]`.

        Where the rules need K messages, those that are missing are rows of NaN. `own` tells whether this node sent one.
        """
        arrived = collected.arrived.copy()
        arrived[self.index] = own
        present = np.flatnonzero(arrived)
        if len(present) not in self.programs.sizes:
            present = np.arange(self.K)
        row = int(np.searchsorted(present, self.index)) if own else -1
        return collected.rows[present], np.int32(row), present

    def _late_for(self, t: int) -> bool:
        """Whether the others have finished the exchange of gradients of iteration t without this node."""
        following = (t, 1) if self.form.rounds else (t + 1, 0)
        return self.inbox.count(*following) >= self.inbox.quorum

    def _stay(self) -> None:
        """Serve the last state until everyone has finished, for a limited time."""
        self.phase = "finished"
        self.status_file.write(self.status, now=True)
        self._serve_boundary()
        self._announce()
        until = time.monotonic() + FINISH_SECONDS
        while time.monotonic() < until and not self.stop():
            finished = [i for i, claim in self.inbox.claims.items() if claim[0] >= self.form.iterations]
            if len(finished) == self.K - 1:
                return
            time.sleep(0.05)

    # Before the first iteration, and after an absence.

    def _restore(self) -> None:
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

    def _meet(self) -> None:
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
            self._join()
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

    def _join(self) -> None:
        """Take the state of the current iteration from the others, so that f liars cannot choose it."""
        begun, next_ask = time.monotonic(), 0.0
        inbox, faults = self.inbox, self.f
        with inbox.changed:
            inbox.states.clear()
            inbox.joining = True
        self.phase = "joining"
        try:
            while True:
                now = time.monotonic()
                if now >= next_ask:
                    self.transport.broadcast(encode(self.form, ASK, self.index, self.t, 0))
                    next_ask = now + ASK_SECONDS
                with inbox.changed:
                    inbox.changed.wait(0.05)
                    needed = inbox.quorum if now - begun < SETTLE_SECONDS else 2 * faults + 1
                    offers = {t: dict(rows) for t, rows in inbox.states.items() if t >= self.t and len(rows) >= needed}
                if offers:
                    break
                self.status_file.write(self.status)
                if self.stop():
                    raise Stopped
                if now - begun > self.settings.patience:
                    raise UsageError(f"no {2 * faults + 1} nodes offered a state within {self.settings.patience:.0f} s")
        finally:
            with inbox.changed:
                inbox.joining = False
                inbox.states.clear()
        t, rows = max(offers.items())
        vector = combine(self.layout, np.stack(list(rows.values())), self.programs.agreement)
        if not np.isfinite(vector).all():
            raise UsageError(f"iteration {t}: the state that the others offer is not finite")
        self.state, self.t, self.phase = from_vector(self.layout, vector, t), t, "running"
        self.rejoined += 1
        inbox.position(t, 0)
        self.log(f"joined at iteration {t} with the states of {len(rows)} nodes after {time.monotonic() - begun:.2f} s")

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
            self._announce()

    def _announce(self) -> None:
        """Tell everyone who this is and where it is."""
        running = self.phase in ("running", "finished")
        newest, older = (self.t, 0) if running else self.offered
        for peer in self.transport.peers():
            known = self.inbox.hellos.get(peer)
            heard = NO_NONCE if known is None else known.nonce
            hello = Hello(self.nonce, heard, running, newest, older, self.version)
            self.transport.send(peer, encode(self.form, HELLO, self.index, 0, 0, hello.encode()))

    def _serve_boundary(self) -> None:
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
        if self.liar is not None:
            vector = np.random.default_rng().normal(0, 1e3, vector.shape)
        self.transport.send(peer, encode_vector(self.form, STATE, self.index, served[0], 0, vector))
        return True

    # Small things.

    def _paper_bytes(self) -> float:
        return float(decentralised_bytes(self.K, self.form.parameters, jnp.float32(self.form.rounds))) / self.K

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
