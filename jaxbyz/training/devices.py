"""The mesh of devices over which seeds and agents are spread, with the axes `seeds` and `agents`."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
from jax.sharding import AxisType, Mesh

from jaxbyz.accelerate.setup import agents_can_share_cores
from jaxbyz.errors import UsageError

AXES = ("seeds", "agents")
MIN_AGENTS_PER_CORE = 3  # with fewer, synchronising the cores costs as much time as it saves


class Shape(NamedTuple):
    """The number of devices along each axis of the mesh."""

    seeds: int = 1
    agents: int = 1

    def __str__(self) -> str:
        return f"seeds={self.seeds},agents={self.agents}"


def parse_shape(text: str) -> Shape:
    """Return the shape that a text such as `seeds=4,agents=2` describes; a missing axis has size 1."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name.strip() not in AXES or name.strip() in sizes or not (size.strip().isdecimal() and int(size) >= 1):
            raise UsageError(f"mesh={text!r}: must be written like seeds=4,agents=2, with at least 1 device per axis")
        sizes[name.strip()] = int(size)
    return Shape(**sizes)


def choose_shape(shape: Shape | None, seeds: int, agents: int) -> Shape:
    """Return the requested shape if it is possible, or choose one.

    Seeds are spread over the local devices first. If there are more CPU cores than seeds, agents use the others.
    Several processes must all take part: seeds get the largest number of devices that divides the total, agents the
    rest.

    Args:
        shape: the requested shape, or None to choose.
        seeds: the number of runs.
        agents: the number of agents K.

    Raises:
        UsageError: if the shape does not fit the devices, the seeds or the agents.
    """
    devices = len(jax.devices())
    if shape is None:
        if jax.process_count() == 1:
            for_seeds = min(devices, seeds)
            if not agents_can_share_cores():
                return Shape(for_seeds, 1)
            agents_per_core = max(MIN_AGENTS_PER_CORE, math.ceil(agents / (devices // for_seeds)))
            return Shape(for_seeds, math.ceil(agents / agents_per_core))
        for_seeds = max(n for n in range(1, min(devices, seeds) + 1) if devices % n == 0)
        shape = Shape(for_seeds, devices // for_seeds)
    needed = shape.seeds * shape.agents
    if needed > devices:
        raise UsageError(f"mesh={shape}: {needed} devices are needed, there are {devices}")
    if jax.process_count() > 1 and needed != devices:
        raise UsageError(f"mesh={shape}: {jax.process_count()} processes have {devices} devices, and all must be used")
    for name, most in (("seeds", seeds), ("agents", agents)):
        if getattr(shape, name) > most:
            raise UsageError(f"mesh={shape}: {name}={most} cannot be spread over more than {most} devices")
    return shape


def make_mesh(shape: Shape) -> Mesh | None:
    """Return the mesh, or None for a single device.

    The agents of a run are on neighbouring devices, because they exchange the most data.
    """
    count = math.prod(shape)
    if count == 1:
        return None
    return jax.make_mesh(shape, AXES, devices=jax.devices()[:count], axis_types=(AxisType.Auto, AxisType.Auto))
