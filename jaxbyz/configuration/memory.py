"""The least memory that a run needs, so that sizes that cannot fit are refused before anything is allocated.

The estimate counts arrays that every program has, so it never refuses a run that fits. A run may need several times as
much.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from jaxbyz.accelerate.memory import available_memory
from jaxbyz.algorithms import Metrics
from jaxbyz.configuration.config import Config
from jaxbyz.errors import UsageError
from jaxbyz.policies.options import policy_takes
from jaxbyz.protocol.placement import FLOAT_BYTES

VECTORS_OF_A_RUN = 5  # parameters, anchor, estimate, and the outputs `sampled` and `best`
ARRAYS_OF_A_STEP = 4  # at least one observation, the action, its log-probability, the reward
COIN_BYTES = 9  # a coin, and the trajectories up to it


class Part(NamedTuple):
    """One group of arrays: what it holds, its bytes, and the options that determine them."""

    holds: str
    bytes: int
    options: tuple[str, ...]


def estimate(config: Config) -> Iterator[Part]:
    """Yield lower bounds of the memory that a run needs, by what is stored there."""
    K, S, T = config.agents, config.seeds, -(-config.trajectories // max(config.N, config.B))
    D = _least_parameters(config)
    rows = 1 if config.traits.central else K
    yield Part("parameters", FLOAT_BYTES * S * rows * D * VECTORS_OF_A_RUN, ("seeds", "agents", "hidden"))
    yield Part("messages", FLOAT_BYTES * S * K * D, ("seeds", "agents", "hidden"))
    yield Part("shares of senders", FLOAT_BYTES * S * rows * K, ("seeds", "agents"))
    yield Part("one agent's episodes", FLOAT_BYTES * config.N * config.horizon * ARRAYS_OF_A_STEP, ("N", "horizon"))
    yield Part("metrics", FLOAT_BYTES * S * T * (len(Metrics._fields) - 2 + 2 * K), ("trajectories", "seeds", "agents"))
    if config.period is None and config.p < 1:
        coins = S if config.coin == "own" else 1
        yield Part("coins", COIN_BYTES * coins * -(-config.trajectories // config.B), ("trajectories", "B"))


def _least_parameters(config: Config) -> int:
    """Return a number of parameters that the policy has at least: those between hidden layers, and their biases."""
    if not policy_takes("hidden").test(config, None):
        return 1
    return sum(config.hidden) + sum(a * b for a, b in pairwise(config.hidden))


def check_memory(config: Config) -> None:
    """Refuse a run that cannot fit into memory.

    Raises:
        UsageError: with what the run needs at least, what is available, and the options to reduce.
    """
    parts = list(estimate(config))
    _refuse("the run", parts, {name: getattr(config, name) for part in parts for name in part.options})


def check_evaluation_memory(policies: int, episodes: int) -> None:
    """Refuse an evaluation that cannot fit into memory: two numbers per episode, and its state while it runs."""
    part = Part("episodes", 3 * FLOAT_BYTES * policies * episodes, ("episodes",))
    _refuse("the evaluation", [part], {"episodes": episodes})


def _refuse(what: str, parts: list[Part], options: dict[str, object]) -> None:
    """Refuse parts that do not fit together; the message names the options of the largest one."""
    needed, available = sum(part.bytes for part in parts), available_memory()
    if available is None or needed <= available:
        return
    largest = max(parts, key=lambda part: part.bytes)
    named = ", ".join(f"{name}={_shown(options[name])}" for name in largest.options)
    raise UsageError(
        f"{named}: {what} needs at least {_size(needed)} of memory, most of it for {largest.holds}, and "
        f"{_size(available)} are available"
    )


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _size(count: int) -> str:
    """Return a number of bytes in gigabytes or megabytes."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
