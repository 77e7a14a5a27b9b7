"""One agent as a process of its own: it runs the iterations of DecByzPG with the other nodes."""

from __future__ import annotations

import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.errors import UsageError
from jaxbyz.federation import records
from jaxbyz.federation.frames import VECTOR, encode_vector
from jaxbyz.federation.inbox import Behind, Collected, Stopped
from jaxbyz.federation.joining import join
from jaxbyz.federation.liars import Liar
from jaxbyz.federation.meeting import meet, restore
from jaxbyz.federation.membership import Membership
from jaxbyz.federation.programs import warm_up
from jaxbyz.protocol.placement import FLOAT_BYTES
from jaxbyz.sampling.page import Drawn, Sampled

FINISH_SECONDS = 10.0  # how long a finished node stays to serve others


class _Message:
    """What is recorded about one message of an iteration, which is a gradient and the agreement that follows it.

    Args:
        agents: the number of nodes K.
    """

    def __init__(self, agents: int):
        self.sampled: Sampled | None = None
        self.norm, self.waited = 0.0, 0.0
        self.shares, self.missing = np.zeros(agents, np.float32), np.zeros(agents, np.float32)

    def add(self, collected: Collected) -> None:
        """Add the messages of one round."""
        self.waited += collected.waited
        self.missing += ~collected.arrived


class Node(Membership):
    """One agent of DecByzPG. Arguments as in `Membership`; with an attack in the settings, it lies."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        settings = self.settings
        self.liar: Liar | None = None
        if settings.attack != "none":
            mask = np.isin(np.arange(self.K), [self.index, *settings.accomplices])
            self.liar = Liar(self.programs, self.index, mask)
            for other in settings.accomplices:
                self.inbox.trust.suspect(other)  # both would wait for each other's message

    def run(self) -> dict[str, np.ndarray]:
        """Take part until the trajectories are spent; return the metrics.

        Raises:
            Stopped: if it was asked to stop; it left a checkpoint.
            UsageError: if it cannot take part.
        """
        restore(self)
        warm_up(self.programs, self.index)
        with self.transport:
            try:
                meet(self)
                while self.t < self.form.iterations:
                    self._iterate_or_rejoin()
                metrics = self.record.metrics(self.programs.messages * self.programs.rounds, self._paper_bytes())
                records.finish(self.folder, self.record, np.asarray(self.state.parameters[0]), metrics)
                self._stay()
                return metrics
            except Stopped:
                self.save()
                self.phase = "stopped"
                raise
            finally:
                self.status_file.write(self.status, now=True)

    def _iterate_or_rejoin(self) -> None:
        self.service.serve(self.t, self.state)
        every = self.settings.checkpoint_every
        if every and self.t and self.t % every == 0:
            self.save()
        self.pause()
        try:
            self._iterate()
        except Behind:
            self.log(f"iteration {self.t}: the others are ahead")
            join(self)

    def _iterate(self) -> None:
        """Run one iteration of Algorithm 2."""
        t, state, started = self.t, self.state, time.monotonic()
        self.sent = []
        traffic = self.transport.traffic
        before = traffic.bytes_in, traffic.bytes_out
        coin = np.bool_(self.programs.plan.coins[t])

        # Line 5. If the others have finished the first round already, nobody would use this node's estimate.
        drawn = None if self._late_for(t) else self.programs.sample(state, coin, np.int32(self.index))
        messages = [_Message(self.K) for _ in range(self.programs.messages)]
        for m, message in enumerate(messages):
            state = self._lines_6_to_9(message, m, state, coin, drawn, started if m == 0 else time.monotonic())

        self.record.add(
            t, messages[-1].sampled, gradient_norm=np.mean([message.norm for message in messages]),
            shares=np.mean([message.shares for message in messages], axis=0),
            waited=sum(message.waited for message in messages), missing=sum(message.missing for message in messages),
            suspected=np.array(self.inbox.trust.suspected), seconds=time.monotonic() - started,
            parameters=np.asarray(state.parameters[0]),
            bytes_in=traffic.bytes_in - before[0], bytes_out=traffic.bytes_out - before[1],
        )  # fmt: skip
        self.record.outputs(t, int(self.programs.plan.output_at[0]), np.asarray(self.state.parameters[0]))
        private = state.private if drawn is None else drawn.private
        self.state, self.t = state._replace(step=state.step + 1, private=private), t + 1

    def _lines_6_to_9(
        self, message: _Message, m: int, state: State, coin: np.bool_, drawn: Drawn | None, started: float
    ) -> State:
        """Estimate, aggregate, take a step and agree, with message number m; return the next state.

        Args:
            message: receives what is recorded.
            m: the number of the message in the iteration.
            state: the state after the message before.
            coin: whether the batch is large.
            drawn: the batch, or None if this node has none and is silent.
            started: when the work on this message began.
        """
        programs, index, number = self.programs, np.int32(self.index), np.int32(m)
        first_round = m * (1 + programs.rounds)
        # Line 6.
        estimate = np.full(self.form.parameters, np.nan, np.float32)
        if drawn is not None:
            message.sampled = programs.estimate(drawn, state.parameters, number)
            estimate = np.asarray(message.sampled.estimate[0])
        kind = f"gradients, coin {int(coin)}" if m == 0 else "gradients of the same batch"
        gradients = self._exchange(state, first_round, estimate, kind, started, silent=drawn is None)
        # Lines 7 and 8.
        rows, row, present = self._present(gradients, drawn is not None)
        own = estimate if drawn is not None else np.nanmedian(rows, axis=0)
        proposal = programs.propose(state, coin, number, index, row, own, rows)
        message.norm, message.shares[present] = float(proposal.norm), proposal.shares
        message.add(gradients)
        # Line 9.
        theta = np.asarray(proposal.state.parameters[0])
        for i in range(programs.rounds):
            collected = self._exchange(state, first_round + 1 + i, theta, "parameters", time.monotonic())
            rows, row, _ = self._present(collected, True)
            theta = np.asarray(programs.agree(state, number, np.int32(i), index, row, rows))
            message.add(collected)
        if not np.isfinite(theta).all():
            raise UsageError(f"iteration {self.t}: the parameters of node {self.index} became non-finite")
        return proposal.state._replace(parameters=jnp.asarray(theta)[None])

    def _exchange(
        self, state: State, round: int, vector: np.ndarray, kind: str, started: float, *, silent: bool = False
    ) -> Collected:
        """Send this node's message of a round to everyone and return those of the others."""
        if self.settings.slow:
            time.sleep(self.settings.slow)
        if self.liar is None and not silent:
            self.sent.append(encode_vector(self.form, VECTOR, self.index, self.t, round, vector))
            self.transport.broadcast(self.sent[-1])
        collected = self.inbox.collect(self.t, round, vector, kind, started)
        if self.liar is not None and not silent:
            m, i = divmod(round, 1 + self.programs.rounds)
            heard = collected.rows
            lies = self.liar.gradients(state, m, heard) if i == 0 else self.liar.parameters(state, m, i - 1, heard)
            for peer in self.transport.peers():
                self.transport.send(peer, encode_vector(self.form, VECTOR, self.index, self.t, round, lies[peer]))
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
        self.service.serve(self.t, self.state)
        self.announce()
        until = time.monotonic() + FINISH_SECONDS
        while time.monotonic() < until and not self.asked_to_stop():
            finished = [i for i, claim in self.inbox.claims.items() if claim[0] >= self.form.iterations]
            if len(finished) == self.K - 1:
                return
            time.sleep(0.05)

    def _paper_bytes(self) -> float:
        vectors = self.programs.messages * (1 + self.programs.rounds)  # from this node to each of K
        return float(vectors * self.K * self.form.parameters * FLOAT_BYTES)
