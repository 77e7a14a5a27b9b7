"""Offer the state of this node to nodes that ask for it, because they want to join."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.federation.frames import Writer
from jaxbyz.federation.state_vectors import to_vector

BOUNDARIES_SERVED = 3  # a node that asked gets the states of this many iterations
KEPT = 2  # iterations whose states are offered: nodes that wait for others may be one iteration apart
ANSWER_SECONDS = 0.125  # a node that asks more often gets one answer


class StateService:
    """Answers requests for the state at the start of the current iteration.

    The thread of the sockets calls `asked`; the main thread calls `serve`.

    Args:
        writer: makes frames.
        send: `(peer, frame) -> None`.
        lies: whether to send noise instead.
    """

    def __init__(self, writer: Writer, send: Callable[[int, bytes], None], lies: bool):
        self.writer, self.send, self.lies = writer, send, lies
        self.states: dict[int, State] = {}  # of the newest iterations
        self.followers: dict[int, int] = {}  # nodes that asked, and the iterations until they are forgotten
        self.answered: dict[tuple[int, int], float] = {}  # when a node got the state of an iteration

    def asked(self, peer: int) -> bool:
        """Send the states of the newest iterations to a node; return whether any was sent."""
        self.followers[peer] = BOUNDARIES_SERVED
        return any([self._offer(peer, iteration) for iteration in list(self.states)])

    def serve(self, iteration: int, state: State) -> None:
        """Offer the state of the iteration that starts to the nodes that asked."""
        self.states = {
            **{t: old for t, old in self.states.items() if iteration - KEPT < t < iteration},
            iteration: state,
        }
        self.answered = {key: at for key, at in self.answered.items() if key[1] in self.states}
        for peer in list(self.followers):
            self._offer(peer, iteration)
            self.followers[peer] -= 1
            if self.followers[peer] <= 0:
                self.followers.pop(peer, None)

    def _offer(self, peer: int, iteration: int) -> bool:
        """Send a state to a node, unless it just got it; return whether it was sent."""
        state = self.states.get(iteration)
        if state is None or time.monotonic() - self.answered.get((peer, iteration), -1.0) < ANSWER_SECONDS:
            return False
        self.answered[peer, iteration] = time.monotonic()
        vector = to_vector(state)
        if self.lies:
            vector = np.random.default_rng().normal(0, 1e3, vector.shape)
        self.send(peer, self.writer.state(iteration, vector))
        return True
