"""One agent as a process of its own: it runs the iterations of DecByzPG with the other nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxbyz.algorithms import State
from jaxbyz.environments import EnvironmentFailure, check_episodes
from jaxbyz.errors import UsageError
from jaxbyz.federation import records
from jaxbyz.federation.inbox import Behind, Collected, Stopped
from jaxbyz.federation.keys import FederationDescription, Identity
from jaxbyz.federation.liars import Liar
from jaxbyz.federation.lines import Lies, Lines
from jaxbyz.federation.membership import Membership, Standing
from jaxbyz.federation.own_environment import own_environment
from jaxbyz.federation.programs import NodePrograms, build_programs, format_of, warm_up
from jaxbyz.federation.records import NodeIteration
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.federation.state_vectors import from_vector, joined, layout_of
from jaxbyz.files import refuse_links
from jaxbyz.protocol.placement import FLOAT_BYTES
from jaxbyz.sampling.page import Drawn

PROGRESS_SECONDS = 30.0  # between two lines about the progress


class Node(Lines):
    """One agent of DecByzPG. With an attack in the settings, it lies.

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
        federation: FederationDescription,
        identity: Identity,
        settings: NodeSettings,
        log: Callable[[str], None],
        stop: Callable[[], bool] = lambda: False,
        programs: NodePrograms | None = None,
    ):
        config = federation.config
        programs = programs or build_programs(config, settings.attack, own_environment(config, settings.env_file))
        super().__init__(programs, identity.node, federation.config.agents)
        self.folder, self.settings = folder, settings
        self.log = records.RateLimitedLog(log)
        self.form = format_of(federation, self.programs)
        self.start = self.programs.start
        if federation.private_randomness:
            self.start = self.start._replace(key=jax.random.fold_in(self.start.key, identity.private_seed()))
        self.layout = layout_of(self.start)
        self.state: State = self.start
        self.t = 0
        self.phase = "meeting"
        self.offered = (0, 0)  # where it can start: the iterations of its newest and of an older checkpoint, or 0
        self.rejoined = 0
        self.output_at = int(self.programs.plan.output_at(self.form.iterations)[0])
        self.record = records.NodeRecord(self.programs.plan, self.K, self.form.parameters)
        self.checkpoints = records.Checkpoints(folder, self.form.federation.hex())
        self.told_at = time.monotonic()
        self.status_file = records.StatusFile(folder, self.log)
        self.others = Membership(
            federation, identity, self.form, settings, self.standing, self._pause, self.log, stop, folder
        )
        if settings.attack != "none":
            mask = np.isin(np.arange(self.K), [self.index, *settings.accomplices])
            self.liar = Liar(self.programs, self.index, mask)
            self.others.inbox.trust.ignore(settings.accomplices)  # each of them sends after it has heard the others

    def run(self) -> dict[str, np.ndarray]:
        """Take part until the trajectories are spent; return the metrics.

        Raises:
            Stopped: if it was asked to stop; it left a checkpoint.
            UsageError: if it cannot take part.
        """
        self._restore()
        self.warm_up()
        with self.others:
            try:
                self._go_to(self.others.meet())
                self.phase = "running"
                while self.t < self.form.iterations:
                    self._iterate_or_join()
                return self._finish()
            except Stopped:
                self._save()
                self.phase = "stopped"
                raise
            finally:
                self.status_file.write(self.status, now=True)

    def warm_up(self) -> None:
        """Run every program once."""
        warm_up(self.programs, self.index)

    # Where to start.

    def _restore(self) -> None:
        """Start from the newest checkpoint that can be read."""
        refuse_links(self.folder, records.CHECKPOINTS)
        usable = [0]
        for iteration in self.checkpoints.iterations():
            try:
                self._load(iteration)
                usable.append(iteration)
            except UsageError as error:
                self.log(f"the checkpoint of iteration {iteration} is ignored ({error})")
        if self.t:
            self.log(f"read the checkpoint of iteration {self.t}")
        self.offered = (self.t, usable[-2] if self.t else 0)
        self.others.inbox.start_between(self.offered[1], self.t)

    def _go_to(self, t: int) -> None:
        """Take the state at the start of iteration t: that of a checkpoint, that of the others, or the first one."""
        if t == self.t:
            return
        if t == 0:
            self.t, self.state = 0, self.start
        elif t in self.offered:
            self._load(t)
        else:
            self.t = min(t, self.t)
            self._join()

    def _join(self) -> None:
        """Take part again where the others are. The critic stays that of the node."""
        self.phase = "joining"
        combine = partial(joined, self.layout, rule=self.programs.agreement, faults=self.others.f)
        self.t, vector = self.others.ask_for_state(self.t, combine)
        self.state = from_vector(self.layout, vector, self.t)._replace(private=self.state.private)
        self.phase = "running"
        self.rejoined += 1

    # Iterations.

    def _iterate_or_join(self) -> None:
        self.others.offer(self.t, self.state)
        every = self.settings.checkpoint_every
        if every and self.t and self.t % every == 0:
            try:
                self._save()
            except UsageError as error:  # for example a full disk
                self.log(f"{error}; going on without a checkpoint")
        self._pause()
        try:
            self._iterate()
        except Behind:
            self.log(f"iteration {self.t}: the others are ahead")
            self._join()

    def _iterate(self) -> None:
        """Run one iteration and record it."""
        before, measured = self.state, NodeIteration(self.K, self.others.transport.traffic)
        self.others.begin(self.t)
        state = self.iterate(measured, before, self.t, late=self.others.is_over(self.t, 0))
        self.record.add(self.t, measured, np.array(self.others.inbox.trust.suspected), np.asarray(state.parameters[0]))
        self.record.outputs(self.t, self.output_at, np.asarray(before.parameters[0]))
        self.state, self.t = state, self.t + 1

    def sample(self, state: State, coin: np.bool_) -> tuple[Drawn | None, State]:
        """Return a batch; None if the environment of this node has failed, which is then as silent as a late node."""
        sampled = jax.block_until_ready(super().sample(state, coin))
        try:
            check_episodes(self.programs.environment)
        except EnvironmentFailure as failure:
            self.log(f"iteration {self.t}: {failure}; the node skips this round")
            return None, state
        return sampled

    def send_and_collect(
        self,
        measured: NodeIteration,
        position: tuple[int, int],
        vector: np.ndarray | None,
        kind: str,
        started: float,
        lies: Lies | None,
    ) -> Collected:
        """Exchange the messages of a round with the others; see `Lines`."""
        round = self.round_of(position)
        if self.settings.slow:
            time.sleep(self.settings.slow)
        if vector is not None and lies is None:
            self.others.send(round, vector)
        own = np.full(self.form.parameters, np.nan, np.float32) if vector is None else vector
        collected = self.others.collect(round, own, kind, started)
        if vector is not None and lies is not None:
            self.others.send_each(round, lies(collected.rows))
        measured.waited += collected.waited
        measured.missing += ~collected.arrived
        return collected

    # Results, checkpoints and status.

    def _finish(self) -> dict[str, np.ndarray]:
        """Write the results, serve the others for a while, and return the metrics."""
        messages = self.programs.messages
        vectors = messages * (1 + self.programs.rounds)  # from this node to each of K
        paper_bytes = float(vectors * self.K * self.form.parameters * FLOAT_BYTES)
        metrics = self.record.metrics(messages * self.programs.rounds, paper_bytes)
        records.finish(self.folder, self.record, np.asarray(self.state.parameters[0]), metrics)
        self.checkpoints.remove_all()
        self.phase = "finished"
        self.status_file.write(self.status, now=True)
        self.others.offer(self.t, self.state)
        self.others.stay()
        return metrics

    def _save(self) -> None:
        """Write a checkpoint of the start of the current iteration."""
        self.checkpoints.save(self.t, _without_key(self.state), self.record)

    def _load(self, iteration: int) -> None:
        """Go to the start of the iteration of a checkpoint.

        Raises:
            UsageError: if it is damaged or of another federation; nothing has changed then.
        """
        state = self.checkpoints.load(iteration, _without_key(self.start), self.record)
        self.t, self.state = iteration, self.start._replace(**state)

    def _pause(self) -> None:
        """Write the status if it is due, and end the wait if the node cannot or should not go on."""
        self.status_file.write(self.status)
        if time.monotonic() - self.told_at > PROGRESS_SECONDS:
            self.told_at, latest = time.monotonic(), self.status()["return"]
            self.log(f"{self.phase}, iteration {self.t} of {self.form.iterations}; the latest return is {latest}")
        if self.others.should_stop():
            raise Stopped

    def standing(self) -> Standing:
        """Return what this node tells the others about itself."""
        running = self.phase in ("running", "finished")
        return Standing(True, self.t) if running else Standing(False, *self.offered)

    def status(self) -> dict[str, Any]:
        """Return what `jaxbyz federation status` shows."""
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
            "scores": self._scores(),
            **self.others.inbox.status(),
            **vars(self.others.transport.traffic),
        }

    def _scores(self) -> dict[str, float]:
        """Return how much the rule for gradients trusts every node, if it rates them."""
        rate = self.programs.aggregator.scores
        scores = [] if rate is None else np.asarray(rate(jax.tree.map(lambda leaf: leaf[0], self.state.rules))).tolist()
        return {str(node): score for node, score in enumerate(scores) if np.isfinite(score)}


def _without_key(state: State) -> dict[str, Any]:
    """Return what a checkpoint holds of a state: its key follows from the common seed and the keys of the node."""
    return {name: part for name, part in state._asdict().items() if name != "key"}
