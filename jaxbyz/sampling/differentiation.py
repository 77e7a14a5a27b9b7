"""Log-probabilities and gradients over the steps of a batch: where policies with and without a memory differ.

Axes as in `jaxbyz.sampling.rollout`: n chunks, A agents, C steps per chunk, M episodes per agent. Without a memory the
steps of a batch are independent of each other. With one, a batch is a set of sequences: the carry is that of an empty
memory at the start of every episode, and gradients go back through time to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from jaxbyz.accelerate.episode_sums import map_over_steps, sum_over_steps
from jaxbyz.accelerate.through_episodes import gradient_through_episodes, map_through_episodes
from jaxbyz.policies import Policy, initial_carry, respond
from jaxbyz.sampling.rollout import Episodes


def log_probs(policy: Policy, parameters: Float[Array, "A D"], episodes: Episodes) -> Float[Array, "n A C M"]:
    """Compute log π(a_t | s_t; θ) at every step that was taken, zero elsewhere.

    Args:
        policy: the policy π.
        parameters: `[A, D]`, the parameters θ of each agent.
        episodes: the batch.
    """
    trees = jax.vmap(policy.unravel)(parameters)
    steps = (episodes.observations, episodes.actions)
    if policy.recurrence is None:

        def log_prob(tree: Any, steps: tuple[Array, Array]) -> Float[Array, " L"]:
            observations, actions = steps
            return policy.log_prob(policy.apply(tree, observations), actions)

        return map_over_steps(log_prob, trees, steps, episodes.alive, episodes.chunks)

    def of_chunk(distributions: Array, steps: tuple[Array]) -> Float[Array, "C M"]:
        return policy.log_prob(distributions, *steps).reshape(episodes.alive.shape[2:])

    function = _unrolled(policy, of_chunk)
    values = map_through_episodes(function, trees, _starts(policy, episodes.alive), steps, episodes.chunks)[1]
    return jnp.where(episodes.alive, values, 0.0)


def gradient_over_steps(
    function: Callable[[Float[Array, "P L"], Any], Float[Array, ""]],
    policy: Policy,
    parameters: Float[Array, "A D"],
    steps: tuple[Any, ...],
    alive: Bool[Array, "n A C M"],
    chunks: Int[Array, ""],
) -> Float[Array, "A D"]:
    """Compute (1/M) ∇ function(π(· | s; θ), steps) with respect to θ for each agent.

    Args:
        function: `(distributions [P, L], steps of one agent […, L]) -> []`, a sum over steps, in which the terms of
            steps that were not taken have gradient zero.
        policy: the policy π.
        parameters: `[A, D]`, θ of each agent.
        steps: the observations s, then what the function takes; leaves `[n, A, …, C, M]`.
        alive: True at steps that were taken.
        chunks: the number of chunks with such a step.
    """
    trees = jax.vmap(policy.unravel)(parameters)
    if policy.recurrence is None:

        def of_steps(tree: Any, steps: tuple[Any, ...]) -> Array:
            return function(policy.apply(tree, steps[0]), steps[1:])

        sums = sum_over_steps(jax.grad(of_steps), trees, steps, alive, chunks)
    else:
        sums = gradient_through_episodes(_unrolled(policy, function), trees, _starts(policy, alive), steps, chunks)
    return jax.vmap(lambda tree: ravel_pytree(tree)[0])(sums) / alive.shape[3]


def with_memories(policy: Policy, parameters: Float[Array, "A D"], episodes: Episodes) -> Episodes:
    """Return the episodes with what the policy remembers appended to every observation, which it has seen by then.

    Args:
        policy: the policy; without a memory the episodes are returned as they are.
        parameters: `[A, D]`, the parameters of each agent.
        episodes: the batch.
    """
    if policy.recurrence is None:
        return episodes

    def remember(tree: Any, carry: Any, chunk: tuple[Array, Array]) -> tuple[Any, Array]:
        observations, alive = chunk

        def step(carry: Any, now: tuple[Array, Array]) -> tuple[Any, Array]:
            observation, alive = now
            after, _ = respond(policy, tree, carry, observation)
            carry = jax.tree.map(lambda a, b: jax.vmap(jnp.where)(alive, a, b), after, carry)
            return carry, _columns(carry)

        carry, memories = jax.lax.scan(step, carry, (jnp.moveaxis(observations, 1, 0), alive))
        return carry, jnp.moveaxis(memories, 0, 1)

    trees, alive = jax.vmap(policy.unravel)(parameters), episodes.alive
    steps = (episodes.observations, alive)
    carries, memories = map_through_episodes(remember, trees, _starts(policy, alive), steps, episodes.chunks)
    last = jax.vmap(lambda *now: _columns(respond(policy, *now)[0]))(trees, carries, episodes.final_observations)
    memories = jnp.where(alive[:, :, None], memories, 0.0)
    return episodes._replace(
        observations=jnp.concatenate([episodes.observations, memories], axis=2),
        final_observations=jnp.concatenate([episodes.final_observations, last], axis=1),
    )


def memory_size(policy: Policy) -> int:
    """Return how many numbers a policy remembers of an episode."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: initial_carry(policy, 1))))


def _columns(carry: Any) -> Float[Array, "H M"]:
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1).T for leaf in jax.tree.leaves(carry)])


def _starts(policy: Policy, alive: Bool[Array, "n A C M"]) -> Any:
    """Return the carries of all agents at the start of their episodes."""
    A, M = alive.shape[1], alive.shape[3]
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (A, *leaf.shape)), initial_carry(policy, M))


def _unrolled(policy: Policy, function: Callable[[Array, Any], Array]) -> Callable[[Any, Any, Any], tuple[Any, Array]]:
    """Return `(tree, carry, steps […, C, M]) -> (carry, function(distributions [P, C·M], steps […, C·M]))`."""
    assert policy.recurrence is not None
    unroll = policy.recurrence.unroll

    def of_chunk(tree: Any, carry: Any, steps: tuple[Any, ...]) -> tuple[Any, Array]:
        carry, distributions = unroll(tree, carry, steps[0])
        flat = jax.tree.map(lambda x: x.reshape(*x.shape[:-2], -1), (distributions, steps[1:]))
        return carry, function(*flat)

    return of_chunk
