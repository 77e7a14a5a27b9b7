"""Refuse sizes that cannot fit into memory, because JAX and XLA end in a traceback or a crash there.

The sizes are lower bounds, so a run that fits is never refused. A run may need several times as much.
"""

from __future__ import annotations

import os
from itertools import pairwise

import jax

from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.policies.options import policy_takes
from jaxbyz.protocol.placement import FLOAT_BYTES

VECTORS_OF_A_RUN = 5  # parameters, anchor, estimate, and the outputs `sampled` and `best`
ARRAYS_OF_A_STEP = 4  # at least one observation, the action, its log-probability, the reward
ARRAYS_OF_AN_EPISODE = 3  # two numbers, and the state while it runs


def check_memory(config: Config) -> None:
    """Refuse a run whose largest arrays cannot fit into memory.

    Raises:
        UsageError: with what the run needs at least, what there is, and the options to reduce.
    """
    K, seeds = config.agents, config.seeds
    rows = 1 if config.traits.central else K
    vectors = seeds * (VECTORS_OF_A_RUN * rows + K)  # and one message per agent
    iterations = config.trajectories // max(config.N, config.B)
    who, hidden = f"seeds={seeds}, agents={K}", ",".join(map(str, config.hidden))
    counts = {
        f"{who}, hidden={hidden}": vectors * _least_parameters(config),
        who: seeds * rows * K,
        f"N={config.N}, horizon={config.horizon}": ARRAYS_OF_A_STEP * config.N * config.horizon,
        f"{who}, trajectories={config.trajectories}": seeds * K * iterations,
    }
    _refuse("the run", counts)


def check_evaluation_memory(policies: int, episodes: int) -> None:
    """Refuse an evaluation that cannot fit into memory."""
    _refuse("the evaluation", {f"episodes={episodes}": ARRAYS_OF_AN_EPISODE * policies * episodes})


def _least_parameters(config: Config) -> int:
    """Return a number of parameters that the policy has at least: those between hidden layers, and their biases."""
    if not policy_takes("hidden").test(config, None):
        return 1
    return sum(config.hidden) + sum(a * b for a, b in pairwise(config.hidden))


def _refuse(what: str, counts: dict[str, int]) -> None:
    """Refuse the largest of some arrays if it cannot fit: the options that determine it, and its numbers."""
    options = max(counts, key=lambda name: counts[name])
    needed = FLOAT_BYTES * counts[options]
    system = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", system)
    if needed > memory:
        raise UsageError(
            f"{options}: {what} needs at least {needed / 1e9:,.1f} GB of memory, there are {memory / 1e9:,.1f} GB"
        )
