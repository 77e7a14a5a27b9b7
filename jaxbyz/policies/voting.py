"""One policy from several: the members vote on every action."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.environments import ActionSpace
from jaxbyz.policies.policy import Policy, Recurrence, most_likely

ROUNDS = 32  # of Weiszfeld's algorithm
SMOOTHING = 1e-6  # relative to the median distance of the actions from the result, which no minority controls


def voting(member: Policy, actions: ActionSpace, members: int) -> Policy:
    """Return the policy whose parameters are those of all members, and whose action is what their actions agree on.

    Every member draws its own action. The result is the action that most of them have drawn, the one with the lowest
    number if several are equally frequent; if actions are continuous, it is the geometric median. The probability of
    the result is not computed: `log_prob` is zero, so that such a policy can be run but not trained.

    Args:
        member: the policy of each member, of size D.
        actions: the action space.
        members: the number of members G; the result has size G·D.

    References:
        Fang, Wang and Gong, Provably robust federated reinforcement learning, 2025.
    """
    G = members

    def apply(tree: Any, observations: Array) -> Array:
        distributions = jax.vmap(member.apply, (0, None))(tree, observations)
        return distributions.reshape(-1, observations.shape[1])

    def noise(key: PRNGKeyArray, steps: int, lanes: int) -> Array:
        each = jax.vmap(lambda key: member.noise(key, steps, lanes))(jax.random.split(key, G))  # [G, steps, n, lanes]
        return jnp.swapaxes(each, 0, 1).reshape(steps, -1, lanes)

    def agreed(chosen: Array) -> Array:
        return majority(chosen, actions.n) if actions.discrete else geometric_median(chosen)

    def sample(distribution: Array, drawn: Array) -> Array:
        return agreed(jax.vmap(member.sample)(_by_member(distribution, G), _by_member(drawn, G)))

    def mode(distribution: Array) -> Array:
        return agreed(jax.vmap(lambda own: most_likely(member, own, actions))(_by_member(distribution, G)))

    return Policy(
        size=G * member.size,
        init=lambda key: jnp.ravel(jax.vmap(member.init)(jax.random.split(key, G))),
        unravel=lambda theta: jax.vmap(member.unravel)(theta.reshape(G, -1)),
        apply=apply,
        noise=noise,
        sample=sample,
        log_prob=lambda distribution, action: jnp.zeros(distribution.shape[1:]),
        mode=mode,
        recurrence=None if member.recurrence is None else _of_all(member.recurrence, G),
    )


def _of_all(recurrence: Recurrence, members: int) -> Recurrence:
    """Return how the members remember, each for itself."""

    def start(lanes: int) -> Any:
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * members, axis=1), recurrence.start(lanes))

    def unroll(tree: Any, carry: Any, observations: Array) -> tuple[Any, Array]:
        each = jax.vmap(recurrence.unroll, in_axes=(0, 1, None), out_axes=(1, 0))
        carry, distributions = each(tree, carry, observations)
        return carry, distributions.reshape(-1, *observations.shape[1:])

    return Recurrence(start, unroll)


def _by_member(rows: Float[Array, "R L"], members: int) -> Float[Array, "G P L"]:
    return rows.reshape(members, -1, rows.shape[1])


def majority(chosen: Int[Array, "G L"], count: int) -> Int[Array, " L"]:
    """Return the most frequent of the members' actions 0, …, count − 1 in every lane; the lowest if several are."""
    votes = jnp.sum(chosen[:, None] == jnp.arange(count, dtype=chosen.dtype)[None, :, None], axis=0)
    return jnp.argmax(votes, axis=0).astype(chosen.dtype)


def geometric_median(chosen: Float[Array, "G n L"]) -> Float[Array, "n L"]:
    """Return the point of least summed distance from the members' actions, in every lane.

    Weiszfeld's algorithm starts at the coordinate-wise median, which is the result if actions have one dimension and
    the number of members is odd.
    """

    def closer(_: Any, z: Array) -> Array:
        distance = jnp.sqrt(jnp.sum((chosen - z[None]) ** 2, axis=1, keepdims=True))
        floor = SMOOTHING * jnp.median(distance, axis=0, keepdims=True) + jnp.finfo(z.dtype).tiny
        weight = 1.0 / jnp.maximum(distance, floor)
        return jnp.sum(weight * chosen, axis=0) / jnp.sum(weight, axis=0)

    return jax.lax.fori_loop(0, ROUNDS, closer, jnp.median(chosen, axis=0))
