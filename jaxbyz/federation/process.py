"""Run one node in this process: what `jaxbyz node` does, as a function."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.federation.chaos import Chaos
from jaxbyz.federation.keys import read_federation, read_identity
from jaxbyz.federation.launcher import CHAOS
from jaxbyz.federation.node import Node
from jaxbyz.federation.options import check_supported
from jaxbyz.federation.programs import build_programs, format_of
from jaxbyz.federation.records import STATUS_FILE
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.files import write_json
from jaxbyz.runs import run_folder
from jaxbyz.runs.folder_lock import BusyError, lock_folder


def run_node(
    folder: Path, settings: NodeSettings, log: Callable[[str], None], stop: Callable[[], bool] = lambda: False
) -> dict[str, np.ndarray]:
    """Run the node of a folder until the trajectories are spent; return its metrics.

    Args:
        folder: the folder of the node, from `launcher.create`.
        settings: how it runs. The attack `chaos` breaks the protocol instead of taking part.
        log: receives lines for people.
        stop: returns whether the node was asked to stop.

    Raises:
        UsageError: if something is wrong with the folder, the keys or the options; nothing was trained then.
        Stopped: if it was asked to stop; it left a checkpoint.
    """
    federation = read_federation(folder)
    identity = read_identity(folder, federation)
    check_supported(federation.config)
    K = federation.config.agents
    if wrong := [i for i in settings.accomplices if not 0 <= i < K]:
        raise UsageError(f"accomplices: node {wrong[0]} must be from 0 to {K - 1}")
    try:
        lock = lock_folder(folder)
        with lock:
            if settings.attack == CHAOS:
                return _play_chaos(folder, federation, identity, settings, log, stop)
            if run_folder.is_finished(folder):
                raise UsageError(f"{folder}: this node has finished; remove metrics.npz to run it again")
            run_folder.write_start(folder, federation.config)
            node = Node(folder, federation, identity, settings, log, stop)
            return node.run()
    except BusyError as error:
        raise UsageError(f"{folder}: another process is running this node") from error


def _play_chaos(
    folder: Path, federation: Any, identity: Any, settings: NodeSettings, log: Callable[[str], None], stop: Any
) -> dict[str, np.ndarray]:
    """Break the protocol until the others have finished."""
    form = format_of(federation, build_programs(federation.config))
    status = {"node": identity.node, "attack": CHAOS, "phase": "chaos", "time": time.time()}
    write_json(folder / STATUS_FILE, status)
    chaos = Chaos(federation, identity, form, stop, secrets.randbits(32), bind=settings.bind)
    counts = chaos.run()
    write_json(folder / STATUS_FILE, {**status, "phase": "finished", "time": time.time(), "played": counts})
    log("played " + ", ".join(f"{name} {count}×" for name, count in sorted(counts.items())))
    return {}
