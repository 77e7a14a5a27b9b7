"""Where runs and agents live: a mesh of devices with axes `seeds` and `agents`, and what crosses between them.

Seeds need nothing of each other. Agents roll out and estimate where they live; what an agent says to all others is an
all-gather along `agents`, and every device then works for the receivers that live on it: the paper's communication
pattern as collectives. The adversary is omniscient, so its code may look at all that was gathered.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jaxtyping import Array

from jaxbyz.backend import on_cpu, patient
from jaxbyz.registry import UsageError

AXES = ("seeds", "agents")
FLOAT_BYTES = 4
LEAST_HERE = 3  # agents of a core, or of all but the last: with fewer, waiting for each other costs what it gains


class Places(NamedTuple):
    """How K agents are spread over `devices` devices along the mesh axis `agents`; 1: all of them are here.

    A device has `here` = ⌈K/devices⌉ places. Where K does not fill them, the last places repeat the last agent: the
    same key and the same numbers once more, dropped whenever agents are gathered.
    """

    agents: int
    devices: int = 1

    @property
    def here(self) -> int:
        """Places on each device."""
        return -(-self.agents // self.devices)

    def mine(self, everyone: Any) -> Any:
        """Leaves [K, …] to those of the agents that live here, [here, …]."""
        if self.devices == 1:
            return everyone
        first = jax.lax.axis_index("agents") * self.here
        index = jnp.minimum(first + jnp.arange(self.here), self.agents - 1)
        return jax.tree.map(lambda leaf: leaf[index], everyone)

    def gather(self, mine: Any) -> Any:
        """Leaves [here, …] of float32 to all agents' [K, …]: one collective, whatever the number of leaves."""
        if self.devices == 1:
            return mine
        leaves, structure = jax.tree.flatten(mine)
        flat = [leaf.reshape(self.here, -1) for leaf in leaves]
        packed = jax.lax.all_gather(jnp.concatenate(flat, axis=1), "agents", tiled=True)[: self.agents]
        parts = jnp.split(packed, np.cumsum([leaf.shape[1] for leaf in flat])[:-1], axis=1)
        shaped = [part.reshape(self.agents, *leaf.shape[1:]) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def first(self, mine: Any) -> Any:
        """Leaves [here, …] to agent 0's, on every device."""
        if self.devices == 1:
            return jax.tree.map(lambda leaf: leaf[0], mine)
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf[0], "agents")[0], mine)

    def moved(self, floats: Array | float) -> Array:
        """Bytes that cross when every device says so many floats to all the others."""
        return jnp.float32((self.devices - 1) * self.devices * FLOAT_BYTES) * floats


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
            here = max(LEAST_HERE, -(-agents // (devices // along))) if on_cpu() and patient() else agents
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
