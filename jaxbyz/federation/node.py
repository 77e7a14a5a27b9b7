"""One agent as a process of its own: it runs the iterations of DecByzPG with the other nodes."""

from __future__ import annotations

import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxbyz.algorithms.metrics import decentralised_bytes
from jaxbyz.errors import UsageError
from jaxbyz.federation import records
from jaxbyz.federation.frames import VECTOR, encode_vector
from jaxbyz.federation.inbox import Behind, Collected, Stopped
from jaxbyz.federation.liars import Liar
from jaxbyz.federation.membership import Membership
from jaxbyz.federation.programs import warm_up
from jaxbyz.federation.state_vectors import to_vector

FINISH_SECONDS = 10.0  # how long a finished node stays to serve others


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
        self.restore()
        warm_up(self.programs, self.index)
        with self.transport:
            try:
                self.meet()
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
        self.serve_boundary()
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
            self.join()

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
        self.serve_boundary()
        self.announce()
        until = time.monotonic() + FINISH_SECONDS
        while time.monotonic() < until and not self.stop():
            finished = [i for i, claim in self.inbox.claims.items() if claim[0] >= self.form.iterations]
            if len(finished) == self.K - 1:
                return
            time.sleep(0.05)

    def _paper_bytes(self) -> float:
        return float(decentralised_bytes(self.K, self.form.parameters, jnp.float32(self.form.rounds))) / self.K
