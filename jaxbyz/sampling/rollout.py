"""Sample episodes of many agents at once.

Axes: A agents (of one run or of several), M episodes per agent, and n chunks of C time steps, which together cover the
horizon. Sampling stops after the chunk in which the last episode ends. Episodes are the last axis of every array,
because arithmetic is fastest along contiguous episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.accelerate.episode_loop import Simulation, run_episodes
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment, OwnParams, end_episodes
from jaxbyz.policies import Policy, initial_carry, respond

CHUNK = 16  # steps between two checks whether any episode is still running


class Episodes(NamedTuple):
    """A batch of episodes. Entries after the end of an episode are zero.

    Attributes:
        observations: `[n, A, O, C, M]`.
        actions: `[n, A, C, M]` if discrete, `[n, A, a, C, M]` if continuous.
        log_probs: log-probabilities of the actions under the policy that drew them.
        rewards: one reward per step.
        alive: True at steps that were taken.
        terminated: True if the episode ended naturally, False if the horizon or the environment's own limit cut it.
        chunks: the number of chunks that contain a step that was taken.
        final_observations: what the agent saw after the last step of each episode.
    """

    observations: Float[Array, "n A O C M"]
    actions: Array
    log_probs: Float[Array, "n A C M"]
    rewards: Float[Array, "n A C M"]
    alive: Bool[Array, "n A C M"]
    terminated: Bool[Array, "A M"]
    chunks: Int[Array, ""]
    final_observations: Float[Array, "A O M"]

    @property
    def lengths(self) -> Int[Array, "A M"]:
        """The number of steps of each episode."""
        return jnp.sum(self.alive, axis=(0, 2), dtype=jnp.int32)

    @property
    def returns(self) -> Float[Array, "A M"]:
        """The undiscounted sum of rewards of each episode."""
        return jnp.sum(self.rewards, axis=(0, 2))


class _Plan(NamedTuple):
    """What all agents have in common. `act` is how Byzantine agents change their actions, if they do."""

    environment: Environment
    policy: Policy
    episodes: int
    horizon: int
    act: Callable[[Array, Array], Array] | None

    @property
    def chunk_size(self) -> int:
        return min(CHUNK, self.horizon)

    @property
    def chunks(self) -> int:
        return -(-self.horizon // self.chunk_size)


class _Agent(NamedTuple):
    """One agent.

    Attributes:
        tree: its policy's parameters.
        byzantine: whether it is Byzantine.
        keys: `[3, n]`, one key per stream and chunk.
        environment: an empty tuple, or the parameters of its own environment as the only entry.
    """

    tree: Any
    byzantine: Bool[Array, ""]
    keys: PRNGKeyArray
    environment: tuple[OwnParams, ...]


class _Lanes(NamedTuple):
    """The running episodes of one agent: `[M]`, observation `[O, M]`, leaves of state `[…, M]` and carry `[M, …]`."""

    state: Any
    carry: Any
    observation: Float[Array, "O M"]
    alive: Bool[Array, " M"]
    terminated: Bool[Array, " M"]


class _Drawn(NamedTuple):
    """Random numbers, `[…, M]` for one step: for the policy, the environment, and what Byzantine agents do instead."""

    noise: Array
    step_keys: PRNGKeyArray
    uniform: Array | None


class _Record(NamedTuple):
    """What one step adds to `Episodes`."""

    observations: Array
    actions: Array
    log_probs: Array
    rewards: Array
    alive: Array


def collect(
    environment: Environment,
    policy: Policy,
    parameters: Float[Array, "A D"],
    keys: PRNGKeyArray,
    episodes: int,
    horizon: int,
    interference: Interference | None = None,
    mask: Bool[Array, " A"] | None = None,
    own: OwnParams | None = None,
) -> Episodes:
    """Sample `episodes` episodes for each of A agents.

    Args:
        environment: the task.
        policy: the policy that all agents share.
        parameters: `[A, D]`, its parameters for each agent.
        keys: `[A]`, one key per agent.
        episodes: the number of episodes per agent, M.
        horizon: the largest number of steps of an episode.
        interference: what Byzantine agents do in the environment. The log-probabilities are still those of the policy.
        mask: `[A]`, True for Byzantine agents; None if there are none.
        own: `{name: [A, …]}`, parameters in which the agents' environments differ; empty or None if they are alike.
    """
    act = interference.act if interference is not None and mask is not None else None
    plan = _Plan(environment, policy, episodes, horizon, act)
    A, M, n = parameters.shape[0], episodes, plan.chunks

    # One split for everything: each call of the random number generator adds half a second of compilation.
    streams = jax.vmap(lambda key: jax.random.split(key, M + 3 * n))(keys)
    own_environment = (own,) if own else ()
    over_episodes = jax.vmap(environment.reset, in_axes=(0, *(None for _ in own_environment)), out_axes=-1)
    observation, state = jax.vmap(over_episodes)(streams[:, :M], *own_environment)
    carry = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (A, *leaf.shape)), initial_carry(policy, M))
    lanes = _Lanes(state, carry, observation, jnp.ones((A, M), bool), jnp.zeros((A, M), bool))
    byzantine = jnp.zeros(A, bool) if mask is None else mask
    trees, step_keys = jax.vmap(policy.unravel)(parameters), streams[:, M:].reshape(A, 3, n)
    agents = _Agent(trees, byzantine, step_keys, own_environment)

    simulation = Simulation(partial(_draw, plan), partial(_step, plan), plan.chunk_size, n)
    end = run_episodes(simulation, agents, lanes)
    end_episodes(environment, end.lanes.state)
    return Episodes(
        **end.record._asdict(), terminated=end.lanes.terminated, chunks=end.chunk,
        final_observations=end.lanes.observation,
    )  # fmt: skip


def _draw(plan: _Plan, agent: _Agent, chunk: Int[Array, ""]) -> _Drawn:
    """Draw all random numbers that one agent needs in a chunk, `[C, …, M]`."""
    C, M = plan.chunk_size, plan.episodes
    noise_key, step_key, uniform_key = agent.keys[:, chunk]
    uniform = None
    if plan.act is not None:
        uniform = jnp.moveaxis(jax.random.uniform(uniform_key, (C, M, plan.environment.actions.draws)), 2, 1)
    return _Drawn(plan.policy.noise(noise_key, C, M), jax.random.split(step_key, (C, M)), uniform)


def _step(plan: _Plan, agent: _Agent, lanes: _Lanes, drawn: _Drawn, t: Int[Array, ""]) -> tuple[_Lanes, _Record]:
    """Take step t in the M episodes of one agent: a_t ~ π(· | s_t), then s_{t+1} and r_t from the environment."""
    policy = plan.policy
    carry, distribution = respond(policy, agent.tree, lanes.carry, lanes.observation)
    action = policy.sample(distribution, drawn.noise)
    if plan.act is not None:
        other = _over_lanes(plan.act)(drawn.uniform, action)
        action = jnp.where(agent.byzantine, other, action)
    step = _over_lanes(lambda *lane: plan.environment.step(*lane, *agent.environment))
    after = step(drawn.step_keys, lanes.state, action)
    alive = lanes.alive & (t < plan.horizon)

    def if_alive(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(jnp.broadcast_to(alive, a.shape), a, b), new, old)

    taken = (lanes.observation, action, policy.log_prob(distribution, action), after.reward)
    observations, actions, log_probs, rewards = if_alive(taken, jax.tree.map(jnp.zeros_like, taken))
    record = _Record(observations, actions, log_probs, rewards, alive)
    following = _Lanes(
        if_alive(after.state, lanes.state),
        carry,
        if_alive(after.observation, lanes.observation),
        alive & ~(after.terminated | after.truncated),
        lanes.terminated | (alive & after.terminated),
    )
    return following, record


def _over_lanes(function: Callable) -> Callable:
    """Map a function over the last axis of its arguments and results."""
    return jax.vmap(function, in_axes=-1, out_axes=-1)
