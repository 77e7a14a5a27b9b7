"""The state of an agent as one flat vector, as it is sent to a node that joins, and how K such vectors become one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxbyz.algorithms import State
from jaxbyz.rules import Receiver, Rule

CLOSE = 1e-3  # relative difference of offers that agree
SHORT = 1e-6  # below this length, distances are not relative


class StateLayout(NamedTuple):
    """How the arrays of a state are arranged in a vector.

    Attributes:
        like: a state of the same shapes.
        sizes: the number of elements of each array.
    """

    like: State
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """The length of the vector."""
        return sum(self.sizes)

    def split(self, vectors: np.ndarray) -> list[np.ndarray]:
        """Cut vectors `[…, S]` into one part per array."""
        return np.split(vectors, np.cumsum(self.sizes)[:-1], axis=-1)


def _sent(state: State) -> Any:
    """Return the part of a state that is sent. The key and the iteration are common knowledge; critics stay at home."""
    return (state.parameters, state.anchor, state.estimate, state.optimizer, state.rules)


def layout_of(state: State) -> StateLayout:
    """Return the layout of a state."""
    return StateLayout(state, tuple(int(np.size(leaf)) for leaf in jax.tree.leaves(_sent(state))))


def to_vector(state: State) -> np.ndarray:
    """Return a state as float32 numbers. Whole numbers, such as an optimizer's counter, are exact up to 2²⁴."""
    return np.concatenate([np.asarray(leaf, np.float32).reshape(-1) for leaf in jax.tree.leaves(_sent(state))])


def from_vector(layout: StateLayout, vector: np.ndarray, iteration: int) -> State:
    """Inverse of `to_vector`: the state at the start of an iteration, with the critic of the layout's state."""
    leaves, structure = jax.tree.flatten(_sent(layout.like))
    parts = [_restored(part, leaf) for part, leaf in zip(layout.split(vector), leaves, strict=True)]
    parameters, anchor, estimate, optimizer, rules = jax.tree.unflatten(structure, parts)
    return layout.like._replace(
        step=jnp.int32(iteration), parameters=parameters, anchor=anchor, estimate=estimate, optimizer=optimizer,
        rules=rules,
    )  # fmt: skip


def _whole(state: State) -> Any:
    """Return everything that the next iteration of a node starts from, except the key, which all nodes know."""
    return (state.step, *_sent(state), state.private, state.channel)


def whole_state(state: State) -> bytes:
    """Return everything that the next iteration of a node starts from, to the bit."""
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(_whole(state)))


def from_whole_state(like: State, data: bytes) -> State:
    """Inverse of `whole_state`, for data of the length that a state of the shapes of `like` has."""
    leaves, structure = jax.tree.flatten(_whole(like))
    arrays, start = [], 0
    for leaf in leaves:
        arrays.append(jnp.asarray(np.frombuffer(data, leaf.dtype, leaf.size, start).reshape(leaf.shape)))
        start += leaf.nbytes
    step, parameters, anchor, estimate, optimizer, rules, private, channel = jax.tree.unflatten(structure, arrays)
    return like._replace(
        step=step, parameters=parameters, anchor=anchor, estimate=estimate, optimizer=optimizer, rules=rules,
        private=private, channel=channel,
    )  # fmt: skip


def far_apart(a: State, b: State) -> float:
    """Return the largest distance between two arrays of two states, relative to their length; infinity for counters.

    Arrays that are shorter than `SHORT` are compared with that length.
    """

    def distance(x: Any, y: Any) -> float:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return 0.0 if np.array_equal(x, y) else np.inf
        return relative_distance(np.asarray(x), np.asarray(y))

    return max(jax.tree.leaves(jax.tree.map(distance, _whole(a), _whole(b))))


def relative_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the distance of two arrays relative to the longer one; infinity if one of them is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = [float(np.linalg.norm(x)) for x in (a, b)]
        distance = float(np.linalg.norm(a - b)) / max(*lengths, SHORT)
    return distance if np.isfinite(distance) else np.inf


def _restored(part: np.ndarray, leaf: Any) -> Any:
    """Return the numbers of one array in its shape and type."""
    values = part if jnp.issubdtype(leaf.dtype, jnp.floating) else np.rint(part)
    return jnp.asarray(values.reshape(leaf.shape), leaf.dtype)


def joined(layout: StateLayout, offers: Float[np.ndarray, "n S"], rule: Rule | None, faults: int) -> np.ndarray | None:
    """Return the state `[S]` that a joining node takes from the offers of n nodes, of which at most f lie.

    2f + 1 offers are combined (`combine`). Fewer suffice where others are silent: among f + 1 offers that agree on the
    parameters one is honest, so these parameters are right up to `CLOSE`. The other numbers of the state, such as the
    moments of the optimizer, start anew unless f + 1 offers agree on them as well.

    Returns:
        The state, or None if it cannot be told from these offers.
    """
    if len(offers) > 2 * faults:
        return combine(layout, offers, rule)
    initial = [np.asarray(leaf, np.float32).reshape(-1) for leaf in jax.tree.leaves(_sent(layout.like))]
    whole = [not jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(_sent(layout.like))]
    for centre in offers:
        own = layout.split(centre)
        agreed = [
            sum(_close(mine, theirs) for theirs in parts) > faults
            for mine, parts in zip(own, layout.split(offers), strict=True)
        ]
        if agreed[0]:  # the parameters are the first array
            floats = all(yes for yes, count in zip(agreed, whole, strict=True) if not count)
            take = [yes and (floats or count) for yes, count in zip(agreed, whole, strict=True)]
            take[0] = True
            return np.concatenate([a if yes else b for a, b, yes in zip(own, initial, take, strict=True)])
    return None


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are finite and differ by at most `CLOSE` times their norm."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.linalg.norm(a - b) <= CLOSE * max(np.linalg.norm(a), np.linalg.norm(b)))


def combine(layout: StateLayout, offers: Float[np.ndarray, "n S"], rule: Rule | None) -> Float[np.ndarray, " S"]:
    """Return one state vector from those that n ≥ 2f + 1 nodes offer, of which at most f lie.

    Every array of the state is combined on its own, so that a lie about a small number cannot hide behind large ones.
    The rule of the agreement combines them, as in a round of agreement. MDA keeps n − f vectors no farther apart than
    the honest ones, at least one of which is honest. If the rule needs an own vector, which a joining node does not
    have, the coordinate-wise median does it instead, which lies between two honest values.

    Args:
        layout: the arrangement of the vectors.
        offers: `[n, S]`, one row per node.
        rule: the rule of the agreement, or None.
    """
    by_rule = rule is not None and rule.graph is None and not (rule.personal or rule.random or rule.stateful)

    def part(values: np.ndarray) -> np.ndarray:
        if by_rule and values.shape[1] > 1:
            assert rule is not None
            return np.asarray(_compiled(rule)(values))
        finite = np.isfinite(values).all(axis=1)
        return np.median(values[finite], axis=0) if finite.any() else np.full(values.shape[1], np.nan)

    return np.concatenate([part(values).astype(np.float32) for values in layout.split(offers)])


@lru_cache(maxsize=4)
def _compiled(rule: Rule) -> Callable[[np.ndarray], jax.Array]:
    """Return the program that applies a rule which depends on nothing but the messages."""

    def apply(messages: jax.Array) -> jax.Array:
        receiver = Receiver(messages[0], jnp.int32(0))
        return rule.apply(jax.random.key(0), messages, receiver, rule.init(*messages.shape)).rows[0]

    return jax.jit(apply)
