"""Being one of the nodes: the state of a node, its connections to the others, and what it tells them about itself."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxbyz
from jaxbyz.algorithms import State
from jaxbyz.federation import records
from jaxbyz.federation.deadlines import Deadlines
from jaxbyz.federation.frames import ASK, HELLO, NO_NONCE, Hello, encode
from jaxbyz.federation.inbox import Inbox, Stopped
from jaxbyz.federation.keys import Federation, Identity
from jaxbyz.federation.programs import Programs, build_programs, format_of
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.federation.state_service import StateService
from jaxbyz.federation.state_vectors import from_checkpoint, layout_of, to_checkpoint
from jaxbyz.federation.transport import Transport

HELLO_TICKS = 4  # while running; before that in every tick


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
        self.log, self.asked_to_stop = records.RateLimitedLog(log), stop
        self.programs = programs or build_programs(federation.config, settings.attack)
        self.K, self.f = federation.config.agents, federation.config.byzantine
        self.form = format_of(federation, self.programs)
        state = self.programs.start
        if federation.private_randomness:
            state = state._replace(key=jax.random.fold_in(state.key, identity.private_seed()))
        self.layout = layout_of(state)
        self.state: State = state
        self.t = 0
        self.record = records.Record(self.programs.plan, self.K, self.form.parameters)
        self.status_file = records.StatusFile(folder)
        self.inbox = Inbox(
            self.form, self.index, self.f, Deadlines(settings.floor), self.log, self._stopping, settings.patience,
            self._repeat,
        )  # fmt: skip
        queue = 4 * (1 + self.form.rounds) + 32
        self.transport = Transport(
            federation, identity, self.form.largest, queue, self._on_frame, self._on_tick, bind=settings.bind
        )
        self.service = StateService(self.form, self.index, self.transport.send, settings.attack != "none")
        self.nonce, self.version = secrets.token_bytes(8), jaxbyz.__version__
        self.phase, self.ticks = "meeting", 0
        self.offered: tuple[int, int] = (0, 0)  # the newest and an older iteration that this node can start at
        self.sent: list[bytes] = []  # this node's messages of the current iteration
        self.rejoined = 0

    # What the main thread does while it waits.

    def pause(self) -> None:
        """Write the status if it is due, and end the wait if the node cannot or should not go on."""
        self.status_file.write(self.status)
        if self._stopping():
            raise Stopped

    def _stopping(self) -> bool:
        """Return whether the node was asked to stop; raise what ended the thread of the sockets."""
        if self.transport.failure is not None:
            raise self.transport.failure
        return self.asked_to_stop()

    def _repeat(self) -> None:
        """Send the messages of this iteration again, because some may have been lost."""
        for message in list(self.sent):
            self.transport.broadcast(message)

    # What the thread of the sockets does.

    def _on_frame(self, sender: int, data: bytes) -> None:
        frame = self.inbox.put(sender, data)
        if frame is not None and frame.kind == ASK and self.service.asked(sender):
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

    # Checkpoints and status.

    def save(self) -> None:
        """Write a checkpoint of the start of the current iteration."""
        self.record.save(self.folder, self.t, to_checkpoint(self.state), self.form.federation)

    def load(self, iteration: int) -> State | None:
        """Read the checkpoint of an iteration; None if there is none, or it is damaged or of another federation."""
        vector = self.record.load(self.folder, iteration, self.layout.checkpoint_size, self.form.federation)
        return None if vector is None else from_checkpoint(self.layout, vector, iteration)

    def status(self) -> dict[str, Any]:
        """Return what `jaxbyz federation status` shows."""
        inbox, returns = self.inbox, self.record.rows["returns"]
        finite = returns[np.isfinite(returns)]
        return {
            "node": self.index,
            "phase": self.phase,
            "iteration": self.t,
            "iterations": self.form.iterations,
            "attack": self.settings.attack,
            "rejoined": self.rejoined,
            "return": float(finite[-1]) if len(finite) else None,
            "suspected": [i for i in range(self.K) if inbox.trust.suspected[i]],
            "refused": dict(inbox.refused),
            "refused_of": {str(i): n for i, n in sorted(inbox.refused_of.items())},
            "deadlines": {str(kind): inbox.deadlines.grace(kind) for kind in list(inbox.deadlines.times)},
            "longest_wait": inbox.longest_wait,
            "longest_overrun": inbox.longest_overrun,
            **vars(self.transport.traffic),
        }
