"""Run one node in this process: what `jaxbyz node` does, as a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.federation.auditor import AuditedNode
from jaxbyz.federation.keys import read_federation, read_identity
from jaxbyz.federation.node import Node
from jaxbyz.federation.options import check_supported
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.runs import run_folder
from jaxbyz.runs.folder_lock import BusyError, lock_folder


def run_node(
    folder: Path, settings: NodeSettings, log: Callable[[str], None], stop: Callable[[], bool] = lambda: False
) -> dict[str, np.ndarray]:
    """Run the node of a folder until the trajectories are spent; return its metrics.

    Args:
        folder: the folder of the node, from `launcher.create`.
        settings: how it runs.
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
            if run_folder.is_finished(folder):
                raise UsageError(f"{folder}: this node has finished; remove metrics.npz to run it again")
            run_folder.write_start(folder, federation.config)
            node = (AuditedNode if federation.config.audit else Node)(folder, federation, identity, settings, log, stop)
            return node.run()
    except BusyError as error:
        raise UsageError(f"{folder}: another process is running this node") from error
