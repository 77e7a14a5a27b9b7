"""One iteration of Algorithm 2 as one node computes it, whoever delivers the messages of the others."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.errors import UsageError
from jaxbyz.federation.inbox import Collected
from jaxbyz.federation.liars import Liar
from jaxbyz.federation.programs import Aggregate, NodePrograms
from jaxbyz.federation.records import NodeIteration
from jaxbyz.sampling.page import Drawn

Lies = Callable[[np.ndarray], np.ndarray]  # [K, D] -> [K, D], what a liar sends to everyone, given what it has heard


class Lines(abc.ABC):
    """The lines of Algorithm 2, whose names are those of `jaxbyz.algorithms.decbyzpg`.

    Args:
        programs: what a node computes.
        index: the number of the node.
        agents: the number of nodes K.
    """

    liar: Liar | None = None

    def __init__(self, programs: NodePrograms, index: int, agents: int):
        self.programs, self.index, self.K = programs, index, agents

    def sample(self, state: State, coin: np.bool_) -> tuple[Drawn | None, State]:
        """Return a batch, None if the node cannot sample now, and the state with what the node learnt from it."""
        return self.programs.sample(state, coin, np.int32(self.index))

    @abc.abstractmethod
    def send_and_collect(
        self,
        measured: NodeIteration,
        position: tuple[int, int],
        vector: np.ndarray | None,
        kind: str,
        started: float,
        lies: Lies | None,
    ) -> Collected:
        """Send this node's message of a round to everyone and return those of the others.

        Args:
            measured: receives what is recorded.
            position: (message, round): round 0 is that of the gradients, rounds 1 to κ are those of the agreement.
            vector: `[D]`, what to send; None to be silent.
            kind: rounds of the same kind take similar times.
            started: when this node began to work on the round.
            lies: what a liar sends; None for the truth.
        """

    def round_of(self, position: tuple[int, int]) -> int:
        """Return the number of a round in its iteration from its message and its round after that."""
        return position[0] * (1 + self.programs.rounds) + position[1]

    def iterate(self, measured: NodeIteration, before: State, t: int, late: bool) -> State:
        """Return the state after iteration t.

        Args:
            measured: receives what is recorded.
            before: the state before it.
            t: its number.
            late: whether the others are ahead. Then the node samples nothing, because they would ignore its message.
        """
        coin, index = np.bool_(self.programs.plan.coins[t]), np.int32(self.index)
        # Line 5: sample M = N or B trajectories.
        drawn, state = (None, before) if late else self.sample(before, coin)
        for m in range(self.programs.messages):
            # Line 6: the estimate ṽ_t^(k) that this message holds.
            v_tilde = self._estimate(measured, state, drawn, m)
            # Line 7: v_t^(k) ← Aggregate(ṽ_t^(1), …, ṽ_t^(K)).
            v, state = self._exchange(measured, state, coin, m, v_tilde)
            # Line 8: θ̃_{t+1}^(k) = θ_t^(k) + η v_t^(k), or the step of another optimizer.
            proposed = self.programs.optimise(state, coin, index, v.rows, v.rows if v_tilde is None else v_tilde[None])
            # Line 9: θ_{t+1}^(k) ← Avg-Agree_κ(θ̃_{t+1}^(1), …, θ̃_{t+1}^(K)).
            parameters = self._agree(measured, proposed, m, t)
            state = proposed._replace(parameters=jnp.asarray(parameters)[None])
        return state._replace(step=before.step + 1)

    def _estimate(self, measured: NodeIteration, state: State, drawn: Drawn | None, m: int) -> np.ndarray | None:
        """Return the estimate `[D]` that message number m holds; None if this node has not sampled."""
        if m > 0:
            measured.message_started = time.monotonic()
        if drawn is None:
            return None
        measured.sampled = self.programs.estimate(drawn, state.parameters, np.int32(m))
        return np.asarray(measured.sampled.estimate[0])

    def _exchange(
        self, measured: NodeIteration, state: State, coin: np.bool_, m: int, v_tilde: np.ndarray | None
    ) -> tuple[Aggregate, State]:
        """Send the estimate of this node, if it has one, and aggregate those that arrive in time."""
        kind = f"gradients, coin {int(coin)}" if m == 0 else "gradients of the same batch"
        lies = None if self.liar is None else partial(self.liar.gradients, state, m)
        message = v_tilde
        if v_tilde is not None and self.programs.send is not None:
            sent, state = self.programs.send(state, np.int32(self.index), v_tilde)
            message = np.asarray(sent)
        collected = self.send_and_collect(measured, (m, 0), message, kind, measured.message_started, lies)
        rows, row, present = self._present(collected, message is not None)
        own = np.nanmedian(rows, axis=0) if message is None else message
        v, state = self.programs.aggregate(state, np.int32(m), np.int32(self.index), row, own, rows)
        measured.aggregated(float(v.norm), present, np.asarray(v.shares))
        return v, state

    def _agree(self, measured: NodeIteration, proposed: State, m: int, t: int) -> np.ndarray:
        """Run the rounds of agreement that follow message number m; return the parameters `[D]` of this node."""
        theta, index = np.asarray(proposed.parameters[0]), np.int32(self.index)
        for i in range(self.programs.rounds):
            lies = None if self.liar is None else partial(self.liar.parameters, proposed, m, i)
            collected = self.send_and_collect(measured, (m, 1 + i), theta, "parameters", time.monotonic(), lies)
            rows, row, _ = self._present(collected, True)
            theta = np.asarray(self.programs.agree(proposed, np.int32(m), np.int32(i), index, row, rows))
        if not np.isfinite(theta).all():
            raise UsageError(f"iteration {t}: the parameters of node {self.index} became non-finite")
        return theta

    def _present(self, collected: Collected, own: bool) -> tuple[np.ndarray, np.int32, np.ndarray]:
        """Return the messages that count `[n, D]`, the row of this node among them, and whose they are `[n]`.

        Those of excluded nodes count as rows of NaN, because they are among the f that the rules defend against. Where
        the rules need K messages, so do those that are missing. `own` tells whether this node sent one.
        """
        counted = collected.arrived | collected.excluded
        counted[self.index] = own
        present = np.flatnonzero(counted)
        if len(present) not in self.programs.sizes:
            present = np.arange(self.K)
        row = int(np.searchsorted(present, self.index)) if own else -1
        return collected.rows[present], np.int32(row), present
