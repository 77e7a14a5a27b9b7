"""The mesh of devices that runs and agents are spread over, with the axes `seeds` and `agents`."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
from jax.sharding import AxisType, Mesh

from jaxbyz.accelerate.setup import agents_can_share_cores
from jaxbyz.errors import UsageError

AXES = ("seeds", "agents")
LEAST_HERE = 3  # agents of a core, or of all but the last: with fewer, waiting for each other costs what it gains


class Shape(NamedTuple):
    """Devices along each axis of the mesh."""

    seeds: int = 1
    agents: int = 1

    def __str__(self) -> str:
        return f"seeds={self.seeds},agents={self.agents}"


def parse_shape(text: str) -> Shape:
    """`seeds=4,agents=2` -> Shape; an axis left out is 1."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name.strip() not in AXES or name.strip() in sizes or not (size.strip().isdecimal() and int(size) >= 1):
            raise UsageError(f"mesh={text!r}: written seeds=4,agents=2, with whole numbers of devices of at least 1")
        sizes[name.strip()] = int(size)
    return Shape(**sizes)


def choose_shape(shape: Shape | None, seeds: int, agents: int) -> Shape:
    """The shape asked for, checked; or one that fits.

    By default seeds go over the local devices; cores that they leave idle take agents. Several
    processes must all have a part: the seeds take as many devices as divide them up evenly, agents the rest.
    """
    devices = len(jax.devices())
    if shape is None:
        if jax.process_count() == 1:
            along = min(devices, seeds)
            here = max(LEAST_HERE, -(-agents // (devices // along))) if agents_can_share_cores() else agents
            return Shape(along, -(-agents // here))
        along = max(n for n in range(1, min(devices, seeds) + 1) if devices % n == 0)
        shape = Shape(along, devices // along)
    if shape.seeds * shape.agents > devices:
        raise UsageError(f"mesh={shape}: {shape.seeds * shape.agents} devices are needed, there are {devices}")
    if jax.process_count() > 1 and shape.seeds * shape.agents != devices:
        raise UsageError(f"mesh={shape}: {jax.process_count()} processes have {devices} devices, and all must be used")
    for name, most in (("seeds", seeds), ("agents", agents)):
        if getattr(shape, name) > most:
            raise UsageError(f"mesh={shape}: {name}={most} cannot be spread over more than {most} devices")
    return shape


def make_mesh(shape: Shape) -> Mesh | None:
    """The mesh; None when one device is enough. Agents of a run are neighbours, they talk most."""
    count = math.prod(shape)
    if count == 1:
        return None
    return jax.make_mesh(shape, AXES, devices=jax.devices()[:count], axis_types=(AxisType.Auto, AxisType.Auto))
