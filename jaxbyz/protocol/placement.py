"""Where agents live when they are spread over devices, and what crosses between the devices.

Every agent samples and estimates on the device where it lives. What it says to all others is one all-gather along the
mesh axis `agents`; every device then computes the results of the receivers that live on it. This is the paper's
communication pattern, written as collectives. The adversary is omniscient, so its code may read everything gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

FLOAT_BYTES = 4


@jax.tree_util.register_static
@dataclass(frozen=True)
class Places:
    """How K agents are spread over devices along the mesh axis `agents`.

    Every device has ⌈K/devices⌉ places. If K does not fill them all, the last places repeat the last agent, with the
    same key and the same numbers, and these copies are dropped whenever agents are gathered.

    Attributes:
        agents: the number of agents K.
        devices: the number of devices; 1 means that all agents live on one device.
    """

    agents: int
    devices: int = 1

    @property
    def per_device(self) -> int:
        """Places on each device."""
        return -(-self.agents // self.devices)

    def local(self, everyone: Any) -> Any:
        """Select the rows of the agents on this device: leaves `[K, …]` become `[per_device, …]`."""
        if self.devices == 1:
            return everyone
        first = jax.lax.axis_index("agents") * self.per_device
        index = jnp.minimum(first + jnp.arange(self.per_device), self.agents - 1)
        return jax.tree.map(lambda leaf: leaf[index], everyone)

    def gather(self, local: Any) -> Any:
        """Collect the rows of all agents: float32 leaves `[per_device, …]` become `[K, …]`, in a single collective."""
        if self.devices == 1:
            return local
        leaves, structure = jax.tree.flatten(local)
        flat = [leaf.reshape(self.per_device, -1) for leaf in leaves]
        packed = jax.lax.all_gather(jnp.concatenate(flat, axis=1), "agents", tiled=True)[: self.agents]
        parts = jnp.split(packed, np.cumsum([leaf.shape[1] for leaf in flat])[:-1], axis=1)
        shaped = [part.reshape(self.agents, *leaf.shape[1:]) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def first_agent(self, local: Any) -> Any:
        """Return the row of agent 0, on every device."""
        if self.devices == 1:
            return jax.tree.map(lambda leaf: leaf[0], local)
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf[0], "agents")[0], local)

    def bytes_moved(self, floats: Array | float) -> Array:
        """Return the bytes that cross when every device sends this many floats to each of the others."""
        return jnp.float32((self.devices - 1) * self.devices * FLOAT_BYTES) * floats


@partial(jax.tree_util.register_dataclass, data_fields=["index"], meta_fields=["agents", "devices"])
@dataclass(frozen=True)
class OnePlace(Places):
    """The place of a single agent that computes its own row only, as a process of a federation does.

    Attributes:
        index: `[]`, the number of the agent.
    """

    index: Array | int = 0

    def local(self, everyone: Any) -> Any:
        """Select the row of this agent: leaves `[K, …]` become `[1, …]`."""
        return jax.tree.map(lambda leaf: leaf[self.index][None], everyone)
