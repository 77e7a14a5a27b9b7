"""Take the state of the current iteration from the other nodes, so that f liars cannot choose it."""

from __future__ import annotations

import time

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.federation.frames import ASK, encode
from jaxbyz.federation.inbox import ITERATIONS_AHEAD
from jaxbyz.federation.membership import Membership
from jaxbyz.federation.state_vectors import combine, from_vector

ASK_SECONDS = 0.25  # between two requests for states
SETTLE_SECONDS = 2.0  # after this long, 2f + 1 states suffice instead of K − f


def join(node: Membership) -> None:
    """Take part again where the others are. The critic stays that of the node."""
    begun, node.phase = time.monotonic(), "joining"
    inbox = node.inbox
    with inbox.changed:
        inbox.states.clear()
        inbox.joining = True
    try:
        while True:
            t, offers = _offers(node, begun)
            vector = combine(node.layout, offers, node.programs.agreement)
            if inbox.majority_iteration() < t + ITERATIONS_AHEAD:  # or else it took too long
                break
    finally:
        with inbox.changed:
            inbox.joining = False
            inbox.states.clear()
    if not np.isfinite(vector).all():
        raise UsageError(f"iteration {t}: the state that the others offer is not finite")
    inbox.position(t, 0)
    node.state = from_vector(node.layout, vector, t)._replace(private=node.state.private)
    node.t, node.phase = t, "running"
    node.rejoined += 1
    node.log(f"joined at iteration {t} with the states of {len(offers)} nodes after {time.monotonic() - begun:.2f} s")


def _offers(node: Membership, begun: float) -> tuple[int, np.ndarray]:
    """Ask the others for their states until enough of them offer one of the same iteration; return that."""
    inbox, next_ask, fewest = node.inbox, 0.0, 2 * node.f + 1
    while True:
        now = time.monotonic()
        if now >= next_ask:
            node.transport.broadcast(encode(node.form, ASK, node.index, node.t, 0))
            next_ask = now + ASK_SECONDS
        with inbox.changed:
            inbox.changed.wait(0.05)
            needed = inbox.quorum if now - begun < SETTLE_SECONDS else fewest
            found = {t: rows for t, rows in inbox.states.items() if t >= node.t and len(rows) >= needed}
            if found:
                t = max(found)
                return t, np.stack(list(found[t].values()))
        node.pause()
        if now - begun > node.settings.patience:
            raise UsageError(f"no {fewest} nodes offered a state within {node.settings.patience:.0f} s")
