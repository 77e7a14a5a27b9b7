"""How one node runs, apart from the configuration that all nodes share."""

from __future__ import annotations

from typing import NamedTuple

from jaxbyz.federation.deadlines import FLOOR_SECONDS

START_SECONDS = 60.0  # how long to wait for the last f nodes before the first iteration
PATIENCE_SECONDS = 600.0


class NodeSettings(NamedTuple):
    """The settings of one node.

    Attributes:
        attack: the registered attack that this node plays, `"none"` for an honest node.
        accomplices: other nodes that play the same attack.
        checkpoint_every: iterations between two checkpoints; None writes one only when the node is asked to stop.
        bind: address to listen on, if it differs from the one of the list.
        floor: the shortest deadline in seconds.
        start_wait: how long to wait for the last f nodes before the first iteration.
        patience: seconds without K − f nodes after which the node gives up.
        slow: seconds to wait before every message, for experiments.
        env_file: a file with the environment of this node, if it is not that of the federation; see
            `jaxbyz.federation.own_environment`.
    """

    attack: str = "none"
    accomplices: tuple[int, ...] = ()
    checkpoint_every: int | None = None
    bind: str | None = None
    floor: float = FLOOR_SECONDS
    start_wait: float = START_SECONDS
    patience: float = PATIENCE_SECONDS
    slow: float = 0.0
    env_file: str | None = None
