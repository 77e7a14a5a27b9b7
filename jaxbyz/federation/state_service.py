"""Offer the state of this node to nodes that ask for it, because they want to join."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.federation.frames import STATE, Format, encode_vector
from jaxbyz.federation.state_vectors import to_vector

BOUNDARIES_SERVED = 3  # a node that asked gets the states of this many iterations
ANSWER_SECONDS = 0.125  # a node that asks more often gets one answer


class StateService:
    """Answers requests for the state at the start of the current iteration.

    The thread of the sockets calls `asked`; the main thread calls `serve`.

    Args:
        form: what frames look like.
        index: the number of this node.
        send: `(peer, frame) -> None`.
        lies: whether to send noise instead.
    """

    def __init__(self, form: Format, index: int, send: Callable[[int, bytes], None], lies: bool):
        self.form, self.index, self.send, self.lies = form, index, send, lies
        self.served: tuple[int, State] | None = None  # the iteration and its state
        self.followers: dict[int, int] = {}  # nodes that asked, and the iterations until they are forgotten
        self.answered: dict[int, tuple[int, float]] = {}  # the last state that each node got: its iteration, and when

    def asked(self, peer: int) -> bool:
        """Send the state of the current iteration to a node; return whether it was sent."""
        self.followers[peer] = BOUNDARIES_SERVED
        return self._offer(peer)

    def serve(self, iteration: int, state: State) -> None:
        """Offer the state of the iteration that starts to the nodes that asked."""
        self.served = (iteration, state)
        for peer in list(self.followers):
            self._offer(peer)
            self.followers[peer] -= 1
            if self.followers[peer] <= 0:
                self.followers.pop(peer, None)

    def _offer(self, peer: int) -> bool:
        """Send the state to a node, unless it just got it; return whether it was sent."""
        served = self.served
        iteration, at = self.answered.get(peer, (-1, 0.0))
        if served is None or (iteration == served[0] and time.monotonic() - at < ANSWER_SECONDS):
            return False
        self.answered[peer] = (served[0], time.monotonic())
        vector = to_vector(served[1])
        if self.lies:
            vector = np.random.default_rng().normal(0, 1e3, vector.shape)
        self.send(peer, encode_vector(self.form, STATE, self.index, served[0], 0, vector))
        return True
