"""Episodes of A agents at once, in chunks of time that stop when the last episode has ended.

Axes: A agents (of one run, or of many), M episodes an agent, n chunks of C steps that together cover the horizon, and
L = C·M lanes of a chunk (step by episode, episodes contiguous). All lanes share one loop, so cost follows the longest
living episode and not the horizon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.base import Interference
from jaxbyz.backend import kernels_run
from jaxbyz.environments import Environment, Step
from jaxbyz.kernels import LARGEST, Scan, pack, scan_kernel, traced_step, unpack
from jaxbyz.policies import Policy

CHUNK = 16  # steps between two looks at whether anybody is still alive


class Episodes(NamedTuple):
    """A batch of episodes, chunk by chunk, features before lanes. Entries after an episode's end are zero.

    observations: [n, A, O, L]
    actions:      [n, A, L] discrete, [n, A, a, L] continuous
    log_probs:    [n, A, C, M] of the actions under the policy that ran
    rewards:      [n, A, C, M]
    alive:        [n, A, C, M] True at steps that were taken
    terminated:   [A, M] natural end; False: truncated by the horizon or by the environment's own limit
    chunks:       [] how many chunks hold a living step; the others are zero
    """

    observations: Float[Array, "n A O L"]
    actions: Array
    log_probs: Float[Array, "n A C M"]
    rewards: Float[Array, "n A C M"]
    alive: Bool[Array, "n A C M"]
    terminated: Bool[Array, "A M"]
    chunks: Int[Array, ""]

    @property
    def lengths(self) -> Int[Array, "A M"]:
        """Steps of each episode."""
        return jnp.sum(self.alive, axis=(0, 2), dtype=jnp.int32)

    @property
    def returns(self) -> Float[Array, "A M"]:
        """Undiscounted sum of rewards of each episode."""
        return jnp.sum(self.rewards, axis=(0, 2))


class _Lanes(NamedTuple):
    """state leaves [A, M, …]; observation [A, O, M]; alive, terminated [A, M]."""

    state: Any
    observation: Array
    alive: Array
    terminated: Array


def chunk_size(horizon: int) -> int:
    """C: steps a chunk."""
    return min(CHUNK, horizon)


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
    A, M, C = parameters.shape[0], episodes, chunk_size(horizon)
    most = -(-horizon // C)
    trees = jax.vmap(policy.unravel)(parameters)
    act = interference.act if interference is not None and mask is not None else None
    discrete = environment.actions.discrete
    lanes_last = _over_lanes(environment)

    # One split a rollout: every threefry call in a program costs half a second of compilation.
    streams = jax.vmap(lambda key: jax.random.split(key, M + 3 * most))(keys)
    observation, state = jax.vmap(jax.vmap(environment.reset, out_axes=(1, 0)))(streams[:, :M])
    start = _Lanes(state, observation, jnp.ones((A, M), bool), jnp.zeros((A, M), bool))

    def draw(c: Array) -> dict[str, Array]:
        """All random numbers of chunk c, time first: one call a kind instead of one a step."""
        noise_key, step_key, lie_key = (streams[:, M + i * most + c] for i in range(3))
        drawn = {
            "noise": jax.vmap(lambda key: policy.noise(key, C, M), out_axes=1)(noise_key),
            "key": jax.vmap(lambda key: jax.random.split(key, (C, M)), out_axes=1)(step_key),
        }
        if act is not None:
            shape = (C, M, environment.actions.draws)
            drawn["lie"] = jax.vmap(lambda key: jax.random.uniform(key, shape), out_axes=1)(lie_key)
        return drawn

    def step(trees: Any, lanes: _Lanes, drawn: dict[str, Array], t: Array) -> tuple[_Lanes, tuple[Array, ...]]:
        A, M = lanes.alive.shape
        distribution = jax.vmap(policy.apply)(trees, lanes.observation)
        action = jax.vmap(policy.sample)(distribution, drawn["noise"])
        if act is not None and mask is not None:
            lied = act(drawn["lie"], action if discrete else jnp.swapaxes(action, 1, 2))
            lied = lied if discrete else jnp.swapaxes(lied, 1, 2)
            action = jnp.where(mask.reshape(A, *[1] * (action.ndim - 1)), lied, action)
        after = jax.vmap(lanes_last)(drawn["key"], lanes.state, action)
        alive = lanes.alive & (t < horizon)

        def keep(new: Array, old: Array, lane_axis: int = 1) -> Array:
            shape = [A] + [1] * (new.ndim - 1)
            shape[lane_axis] = M
            return jnp.where(alive.reshape(shape), new, old)

        last = 1 if discrete else 2
        record = (
            keep(lanes.observation, jnp.zeros_like(lanes.observation), 2),
            keep(action, jnp.zeros_like(action), last),
            jnp.where(alive, jax.vmap(policy.log_prob)(distribution, action), 0.0),
            jnp.where(alive, after.reward, 0.0),
            alive,
        )
        following = _Lanes(
            jax.tree.map(keep, after.state, lanes.state),
            keep(after.observation, lanes.observation, 2),
            alive & ~(after.terminated | after.truncated),
            lanes.terminated | (alive & after.terminated),
        )
        return following, record

    def run_chunk(c: Array, lanes: _Lanes) -> tuple[_Lanes, tuple[Array, ...]]:
        drawn = draw(c)
        scan = _for_kernel(step, trees, lanes, drawn["noise"]) if kernels_run() and act is None else None
        if scan is not None:
            shared = (trees, jnp.broadcast_to(c * C, A))
            lanes, record = scan_kernel(scan, shared, lanes, drawn["noise"], C)
        else:
            kinds: list[tuple[tuple[int, ...], Any]] = []

            def packed_step(lanes: _Lanes, x: tuple) -> tuple[_Lanes, Array]:
                """One write a step instead of one for everything that is recorded."""
                lanes, record = step(trees, lanes, *x)
                kinds[:] = [(a.shape[1:-1], a.dtype) for a in record]
                return lanes, pack(record, 1, jnp.result_type(jnp.float32, record[2]))  # log-probabilities

            times = c * C + jnp.arange(C, dtype=jnp.int32)
            lanes, packed = jax.lax.scan(packed_step, lanes, (drawn, times))
            record = tuple(unpack(packed, kinds))
        observations, actions, *rest = record  # [C, A, …, M]
        return lanes, (_chunk(observations), _chunk(actions), *(jnp.swapaxes(x, 0, 1) for x in rest))

    def body(carry: tuple[Array, _Lanes, tuple[Array, ...]]) -> tuple[Array, _Lanes, tuple[Array, ...]]:
        c, lanes, buffers = carry
        lanes, record = run_chunk(c, lanes)
        return c + 1, lanes, jax.tree.map(lambda buffer, x: buffer.at[c].set(x), buffers, record)

    _, record = jax.eval_shape(run_chunk, jnp.int32(0), start)
    buffers = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), record)
    chunks, lanes, buffers = jax.lax.while_loop(
        lambda carry: (carry[0] < most) & jnp.any(carry[1].alive), body, (jnp.int32(0), start, buffers)
    )
    observations, actions, log_probs, rewards, alive = buffers
    return Episodes(observations, actions, log_probs, rewards, alive, lanes.terminated, chunks)


def _for_kernel(step: Callable, trees: Any, lanes: _Lanes, noise: Array) -> Scan | None:
    """The step of one agent, traced for one GPU kernel a chunk; None where a kernel cannot run it.

    It can where policies are small and an environment is a few formulas on the numbers of a lane, without chance.
    """
    size = sum(leaf[0].size for leaf in jax.tree.leaves(trees))
    if size > LARGEST or any(leaf.ndim != 2 for leaf in jax.tree.leaves(lanes.state)):
        return None

    def alone(shared: tuple[Any, Array], lanes: _Lanes, noise: Array, i: Array) -> Any:
        (tree, first), (lanes, noise) = shared, jax.tree.map(lambda a: a[None], (lanes, noise))
        nothing = jnp.broadcast_to(jax.random.key(0), lanes.alive.shape)
        result = step(jax.tree.map(lambda a: a[None], tree), lanes, {"noise": noise, "key": nothing}, first + i)
        return jax.tree.map(lambda a: a[0], result)

    agents = jax.ShapeDtypeStruct(noise.shape[1:2], jnp.int32)
    return traced_step(alone, (trees, agents), lanes, noise)


def _over_lanes(environment: Environment) -> Any:
    """environment.step over lanes: state leaves [M, …], actions [M] or [a, M], observations out as [O, M]."""
    action_axis = 0 if environment.actions.discrete else 1
    return jax.vmap(environment.step, in_axes=(0, 0, action_axis), out_axes=Step(*(1, 0, 0, 0, 0)))  # type: ignore[arg-type]


def _chunk(x: Array) -> Array:
    """[C, A, …, M] to [A, …, L]."""
    x = jnp.moveaxis(x, 0, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
