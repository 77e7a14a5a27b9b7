"""Episodes of A agents at once, in chunks of time that stop when the last episode has ended.

Axes: A agents (of one run, or of many), M episodes an agent, T steps (the horizon rounded up to whole chunks).
Lanes of one loop share its end, so cost follows the longest living episode and not the horizon.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment
from jaxbyz.policies import Policy

CHUNK = 32  # steps between two looks at whether anybody is still alive


class Episodes(NamedTuple):
    """A batch of episodes, time first. Entries after an episode's end are zero.

    observations [T, A, M, O], actions [T, A, M, …], rewards [T, A, M], log_probs [T, A, M] under the behaviour policy,
    alive [T, A, M] True at steps that were taken, terminated [A, M] natural end (False: truncated by the horizon or by
    the environment's own limit), chunks [] how many chunks hold a living step.
    """

    observations: Float[Array, "T A M O"]
    actions: Array
    rewards: Float[Array, "T A M"]
    log_probs: Float[Array, "T A M"]
    alive: Bool[Array, "T A M"]
    terminated: Bool[Array, "A M"]
    chunks: Int[Array, ""]

    @property
    def lengths(self) -> Int[Array, "A M"]:
        """Steps of each episode."""
        return jnp.sum(self.alive, axis=0, dtype=jnp.int32)

    @property
    def returns(self) -> Float[Array, "A M"]:
        """Undiscounted sum of rewards of each episode."""
        return jnp.sum(self.rewards, axis=0)


class _Lanes(NamedTuple):
    state: Any
    observation: Array
    alive: Array
    terminated: Array


def collect(
    environment: Environment,
    policy: Policy,
    parameters: Float[Array, "A D"],
    keys: PRNGKeyArray,
    episodes: int,
    horizon: int,
    interference: Interference | None = None,
    mask: Bool[Array, " A"] | None = None,
) -> Episodes:
    """Run `episodes` episodes for each of A agents with parameters [A, D] and keys [A].

    Agents marked in `mask` act as `interference` makes them; their log-probabilities are still those of the policy.
    """
    A, M = parameters.shape[0], episodes
    size = min(CHUNK, horizon)
    most = -(-horizon // size)
    trees = jax.vmap(policy.unravel)(parameters)
    apply = jax.vmap(policy.apply)
    reset_keys, noise_keys, step_keys, lie_keys = (
        jax.vmap(lambda key, i=i: jax.random.fold_in(key, i))(keys) for i in range(4)
    )
    observation, state = jax.vmap(lambda key: jax.vmap(environment.reset)(jax.random.split(key, M)))(reset_keys)
    lanes = _Lanes(state, observation, jnp.ones((A, M), bool), jnp.zeros((A, M), bool))
    act = interference.act if interference is not None else None

    def draw(c: Array) -> dict[str, Array]:
        """All random numbers of chunk c, time first: one call a kind instead of one a step."""

        def one(noise_key: PRNGKeyArray, step_key: PRNGKeyArray, lie_key: PRNGKeyArray) -> dict[str, Array]:
            drawn = {
                "noise": policy.noise(jax.random.fold_in(noise_key, c), (size, M)),
                "key": jax.random.split(jax.random.fold_in(step_key, c), (size, M)),
            }
            if act is not None:
                drawn["lie"] = jax.random.uniform(jax.random.fold_in(lie_key, c), (size, M, environment.actions.draws))
            return drawn

        return jax.vmap(one, out_axes=1)(noise_keys, step_keys, lie_keys)

    def step(lanes: _Lanes, drawn: tuple[dict[str, Array], Array]) -> tuple[_Lanes, tuple[Array, ...]]:
        numbers, t = drawn
        distribution = apply(trees, lanes.observation)
        action = policy.sample(distribution, numbers["noise"])
        if act is not None and mask is not None:
            lied = act(numbers["lie"], action)
            action = jnp.where(mask.reshape(A, *([1] * (action.ndim - 1))), lied, action)
        after = jax.vmap(jax.vmap(environment.step))(numbers["key"], lanes.state, action)
        alive = lanes.alive & (t < horizon)

        def keep(new: Array, old: Array) -> Array:
            return jnp.where(alive.reshape(alive.shape + (1,) * (new.ndim - 2)), new, old)

        record = (
            jnp.where(alive[..., None], lanes.observation, 0.0),
            keep(action, jnp.zeros_like(action)),
            jnp.where(alive, after.reward, 0.0),
            jnp.where(alive, policy.log_prob(distribution, action), 0.0),
            alive,
        )
        following = _Lanes(
            jax.tree.map(keep, after.state, lanes.state),
            keep(after.observation, lanes.observation),
            alive & ~(after.terminated | after.truncated),
            lanes.terminated | (alive & after.terminated),
        )
        return following, record

    def chunk(carry: tuple[Array, _Lanes, tuple[Array, ...]]) -> tuple[Array, _Lanes, tuple[Array, ...]]:
        c, lanes, buffers = carry
        lanes, records = jax.lax.scan(step, lanes, (draw(c), c * size + jnp.arange(size, dtype=jnp.int32)))
        buffers = jax.tree.map(
            lambda buffer, rows: jax.lax.dynamic_update_slice_in_dim(buffer, rows, c * size, axis=0), buffers, records
        )
        return c + 1, lanes, buffers

    records = _record_shapes(step, lanes, draw)
    buffers = jax.tree.map(lambda row: jnp.zeros((most * size, *row.shape), row.dtype), records)
    chunks, lanes, buffers = jax.lax.while_loop(
        lambda carry: (carry[0] < most) & jnp.any(carry[1].alive), chunk, (jnp.int32(0), lanes, buffers)
    )
    return Episodes(*buffers, lanes.terminated, chunks)


def _record_shapes(step: Any, lanes: _Lanes, draw: Any) -> Any:
    """Shapes of what one step records."""

    def first(lanes: _Lanes) -> Any:
        numbers = jax.tree.map(lambda x: x[0], draw(jnp.int32(0)))
        return step(lanes, (numbers, jnp.int32(0)))[1]

    return jax.eval_shape(first, lanes)
