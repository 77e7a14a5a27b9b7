"""Federations whose nodes are threads of the test process, connected over the loopback interface."""

from __future__ import annotations

import threading
from pathlib import Path

import jax
import numpy as np

from jaxbyz.configuration.resolving import resolve
from jaxbyz.federation import keys, launcher
from jaxbyz.federation.auditor import AuditedNode
from jaxbyz.federation.frames import Writer
from jaxbyz.federation.node import Node
from jaxbyz.federation.programs import build_programs, warm_up
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.federation.signatures import SIGNATURE_BYTES
from jaxbyz.runs import run_folder
from jaxbyz.runs.plan import make_plan

PATIENT = 60.0  # a shortest deadline that is never reached, however busy the machine is
# Without a baseline: with it, equal returns would leave nothing but rounding errors, which Adam would enlarge.
QUICK = {
    "horizon": 12, "N": 2, "B": 1, "p": 0.5, "hidden": (4,), "trajectories": 30, "kappa": "2", "baseline": "none"
}  # fmt: skip


def unsigned(form, sender):
    """A writer of frames whose signatures nobody checks."""
    return Writer(form, sender, lambda data: bytes(SIGNATURE_BYTES))


def small_config(**options):
    return resolve(**{**QUICK, **options})


class Threads:
    """K nodes as threads. `nodes[i]` is node i, `errors[i]` what ended it, `lines` what all of them logged."""

    def __init__(self, folder: Path, config, settings=None, programs=None, only=None, own_programs=None):
        self.folder, self.config = folder, config
        self.federation = (
            keys.read_federation(folder)
            if (folder / keys.FEDERATION_FILE).exists()
            else keys.write_federation(folder, config, launcher._addresses(config.agents, (), None), False)
        )
        self.settings, self.lines, self.errors = settings or {}, [], {}
        self.programs, self.own_programs = programs or build_programs(config), own_programs or {}
        warm_up(
            self.programs, 0, *[np.uint32(0)] * (config.audit > 0)
        )  # once, instead of in every thread at the same time
        self.stops = {i: threading.Event() for i in range(config.agents)}
        self.nodes, self.threads = {}, {}
        for index in range(config.agents) if only is None else only:
            self.start(index)

    def start(self, index, settings=None, prepare=lambda node: None):
        """Start a node, or start it again after it ended; `prepare` may change it before it runs."""
        settings = settings or self.settings.get(index, NodeSettings(floor=PATIENT))
        own = self.folder / keys.node_name(index)
        identity = keys.read_identity(own, self.federation)
        run_folder.write_start(own, self.config)
        self.stops[index].clear()
        node = (AuditedNode if self.config.audit else Node)(
            own, self.federation, identity, settings, lambda line: self.lines.append(f"node {index}: {line}"),
            self.stops[index].is_set, self.own_programs.get(index, self.programs),
        )  # fmt: skip
        self.nodes[index] = node
        prepare(node)
        self.threads[index] = threading.Thread(target=self._run, args=(index, node), daemon=True)
        self.threads[index].start()

    def _run(self, index, node):
        try:
            node.run()
        except BaseException as error:
            self.errors[index] = error

    def stop(self, index):
        self.stops[index].set()
        self.threads[index].join(60)

    def join(self, seconds=500):
        for index, thread in self.threads.items():
            thread.join(seconds)
            assert not thread.is_alive(), (index, self.nodes[index].status(), self.lines[-20:])
        return self

    def parameters(self, indices=None):
        indices = self.nodes if indices is None else indices
        return np.stack([np.asarray(self.nodes[i].state.parameters[0]) for i in indices])


def simulated(config):
    """The parameters `[K, D]` that the simulation ends with."""
    plan = make_plan(config)
    step = jax.jit(lambda state, coin: plan.algorithm.step(state, coin)[0])
    state = jax.jit(plan.algorithm.init)(plan.keys[0])
    for coin in plan.coins:
        state = step(state, coin)
    return np.asarray(state.parameters)
