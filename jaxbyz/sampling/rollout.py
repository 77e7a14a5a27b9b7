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

from jaxbyz.accelerate.kernels import LARGEST, Scan, pack, scan_kernel, traced_step, unpack
from jaxbyz.accelerate.platform import kernels_run, on_cpu
from jaxbyz.attacks.base import Interference
from jaxbyz.environments import Environment, Step
from jaxbyz.policies import Policy

LAST = 1 / 8  # share of a costly environment's episodes that go on by themselves when the others have ended
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


class _Plan(NamedTuple):
    """What all agents have in common; C steps a chunk, `most` chunks, act: how agents of the mask change actions."""

    environment: Environment
    policy: Policy
    episodes: int
    horizon: int
    act: Callable[[Array, Array], Array] | None

    @property
    def C(self) -> int:
        return chunk_size(self.horizon)

    @property
    def most(self) -> int:
        return -(-self.horizon // self.C)


class _Team(NamedTuple):
    """Who runs: policies' trees with leaves [A, …], keys [A, 3·most] of all chunks' random numbers, mask [A]."""

    trees: Any
    streams: PRNGKeyArray
    mask: Bool[Array, " A"] | None


class _Lanes(NamedTuple):
    """state leaves [A, M, …]; observation [A, O, M]; alive, terminated [A, M]."""

    state: Any
    observation: Array
    alive: Array
    terminated: Array


class _Running(NamedTuple):
    """The next chunk; the lanes; what was recorded, as the first five of `Episodes`."""

    chunk: Array
    lanes: _Lanes
    record: tuple[Array, ...]


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
    act = interference.act if interference is not None and mask is not None else None
    plan = _Plan(environment, policy, episodes, horizon, act)
    A, M, most = parameters.shape[0], episodes, plan.most

    # One split a rollout: every threefry call in a program costs half a second of compilation.
    streams = jax.vmap(lambda key: jax.random.split(key, M + 3 * most))(keys)
    observation, state = jax.vmap(jax.vmap(environment.reset, out_axes=(1, 0)))(streams[:, :M])
    lanes = _Lanes(state, observation, jnp.ones((A, M), bool), jnp.zeros((A, M), bool))
    team = _Team(jax.vmap(policy.unravel)(parameters), streams[:, M:], mask)

    def chunk(c: Array, lanes: _Lanes) -> tuple[_Lanes, tuple[Array, ...]]:
        return _run_chunk(plan, team, c, lanes, _draw(plan, team, c))

    def body(now: _Running) -> _Running:
        lanes, record = chunk(now.chunk, now.lanes)
        return _Running(now.chunk + 1, lanes, jax.tree.map(lambda a, x: a.at[now.chunk].set(x), now.record, record))

    _, shapes = jax.eval_shape(chunk, jnp.int32(0), lanes)
    record = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), shapes)
    last = int(A * M * LAST) if environment.costly and on_cpu() else 0
    end = jax.lax.while_loop(lambda now: _going(plan, now, last), body, _Running(jnp.int32(0), lanes, record))
    if last:
        end = _run_last(plan, team, end, last)
    observations, actions, log_probs, rewards, alive = end.record
    return Episodes(observations, actions, log_probs, rewards, alive, end.lanes.terminated, end.chunk)


def _going(plan: _Plan, now: _Running, last: int = 0) -> Bool[Array, ""]:
    """Whether there are steps left and more than `last` lanes to make them."""
    living = jnp.any(now.lanes.alive) if last == 0 else jnp.sum(now.lanes.alive, dtype=jnp.int32) > last
    return (now.chunk < plan.most) & living


def _draw(plan: _Plan, team: _Team, c: Array) -> dict[str, Array]:
    """All random numbers of chunk c, [C, A, …]: one call a kind instead of one a step."""
    C, M = plan.C, plan.episodes
    noise_key, step_key, lie_key = (team.streams[:, i * plan.most + c] for i in range(3))
    drawn = {
        "noise": jax.vmap(lambda key: plan.policy.noise(key, C, M), out_axes=1)(noise_key),
        "key": jax.vmap(lambda key: jax.random.split(key, (C, M)), out_axes=1)(step_key),
    }
    if plan.act is not None:
        shape = (C, M, plan.environment.actions.draws)
        drawn["lie"] = jax.vmap(lambda key: jax.random.uniform(key, shape), out_axes=1)(lie_key)
    return drawn


def _step(
    plan: _Plan, team: _Team, lanes: _Lanes, drawn: dict[str, Array], t: Array
) -> tuple[_Lanes, tuple[Array, ...]]:
    """One step of all lanes, and its record: observations, actions, log-probabilities, rewards, who took it."""
    A, M = lanes.alive.shape
    policy, discrete = plan.policy, plan.environment.actions.discrete
    distribution = jax.vmap(policy.apply)(team.trees, lanes.observation)
    action = jax.vmap(policy.sample)(distribution, drawn["noise"])
    if plan.act is not None and team.mask is not None:
        lied = plan.act(drawn["lie"], action if discrete else jnp.swapaxes(action, 1, 2))
        lied = lied if discrete else jnp.swapaxes(lied, 1, 2)
        action = jnp.where(team.mask.reshape(A, *[1] * (action.ndim - 1)), lied, action)
    after = jax.vmap(_over_lanes(plan.environment))(drawn["key"], lanes.state, action)
    alive = lanes.alive & (t < plan.horizon)

    def keep(new: Array, old: Array, lane_axis: int = 1) -> Array:
        shape = [A] + [1] * (new.ndim - 1)
        shape[lane_axis] = M
        return jnp.where(alive.reshape(shape), new, old)

    record = (
        keep(lanes.observation, jnp.zeros_like(lanes.observation), 2),
        keep(action, jnp.zeros_like(action), 1 if discrete else 2),
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


def _run_chunk(
    plan: _Plan, team: _Team, c: Array, lanes: _Lanes, drawn: dict[str, Array]
) -> tuple[_Lanes, tuple[Array, ...]]:
    """C steps from step c·C on, and their record as in `Episodes`, without its first axis."""
    scan = _for_kernel(plan, team, lanes, drawn["noise"]) if kernels_run() and plan.act is None else None
    if scan is not None:
        shared = (team.trees, jnp.broadcast_to(c * plan.C, lanes.alive.shape[0]))
        lanes, record = scan_kernel(scan, shared, lanes, drawn["noise"], plan.C)
    else:
        kinds: list[tuple[tuple[int, ...], Any]] = []

        def packed_step(lanes: _Lanes, x: tuple) -> tuple[_Lanes, Array]:
            """One write a step instead of one for everything that is recorded."""
            lanes, record = _step(plan, team, lanes, *x)
            kinds[:] = [(a.shape[1:-1], a.dtype) for a in record]
            return lanes, pack(record, 1, jnp.result_type(jnp.float32, record[2]))  # log-probabilities

        times = c * plan.C + jnp.arange(plan.C, dtype=jnp.int32)
        lanes, packed = jax.lax.scan(packed_step, lanes, (drawn, times))
        record = tuple(unpack(packed, kinds))
    observations, actions, *rest = (jnp.moveaxis(x, 0, -2) for x in record)
    return lanes, (_merged(observations), _merged(actions), *rest)


def _run_last(plan: _Plan, team: _Team, now: _Running, last: int) -> _Running:
    """Go on with at most `last` living lanes, gathered: each becomes an agent with one episode."""
    A, M = now.lanes.alive.shape
    chosen = jnp.flatnonzero(now.lanes.alive, size=last, fill_value=A * M)
    agents, mine = chosen // M, chosen % M  # agent A where fewer are alive: read as the last one, not written

    def pick(x: Array, lane_axis: int = 1) -> Array:
        """[A, …] with lanes on an axis to [last, …] with one lane there."""
        return jnp.expand_dims(jnp.moveaxis(x, lane_axis, 1).at[agents, mine].get(mode="clip"), lane_axis)

    some = _Lanes(
        jax.tree.map(pick, now.lanes.state),
        pick(now.lanes.observation, 2),
        pick(now.lanes.alive) & (chosen < A * M)[:, None],
        pick(now.lanes.terminated),
    )
    team = jax.tree.map(lambda x: x.at[agents].get(mode="clip"), team)

    def own(x: Array, lane_axis: int) -> Array:
        """Of an agent's random numbers the lane's own: [C, last, …, M, …] to [C, last, …, 1, …]."""
        return jnp.expand_dims(jnp.moveaxis(x, lane_axis, 2)[:, jnp.arange(last), mine], lane_axis)

    def put(record: Array, c: Array, x: Array) -> Array:
        """What all recorded, [most, A, …, L] or [most, A, …, C, M], with the lanes' own in chunk c."""
        steps = x if x.shape[-1] == plan.C else x[..., 0]  # [last, …, C]
        where = (c, agents, *[slice(None)] * (steps.ndim - 1), mine)
        by_lane = record.reshape(*record.shape[:2], *steps.shape[1:], M)
        return by_lane.at[where].set(steps, mode="drop").reshape(record.shape)

    def body(now: _Running) -> _Running:
        drawn = {name: own(x, 3 if name == "noise" else 2) for name, x in _draw(plan, team, now.chunk).items()}
        some, parts = _run_chunk(plan, team, now.chunk, now.lanes, drawn)
        record = jax.tree.map(lambda whole, part: put(whole, now.chunk, part), now.record, parts)
        return _Running(now.chunk + 1, some, record)

    end = jax.lax.while_loop(lambda now: _going(plan, now), body, now._replace(lanes=some))
    terminated = now.lanes.terminated.at[agents, mine].set(end.lanes.terminated[:, 0], mode="drop")
    return end._replace(lanes=now.lanes._replace(terminated=terminated))


def _for_kernel(plan: _Plan, team: _Team, lanes: _Lanes, noise: Array) -> Scan | None:
    """The step of one agent, traced for one GPU kernel a chunk; None where a kernel cannot run it.

    It can where policies are small and an environment is a few formulas on the numbers of a lane, without chance.
    """
    size = sum(leaf[0].size for leaf in jax.tree.leaves(team.trees))
    if size > LARGEST or any(leaf.ndim != 2 for leaf in jax.tree.leaves(lanes.state)):
        return None

    def alone(shared: tuple[Any, Array], lanes: _Lanes, noise: Array, i: Array) -> Any:
        (tree, first), (lanes, noise) = shared, jax.tree.map(lambda a: a[None], (lanes, noise))
        nothing = jnp.broadcast_to(jax.random.key(0), lanes.alive.shape)
        one = _Team(jax.tree.map(lambda a: a[None], tree), nothing, None)
        result = _step(plan, one, lanes, {"noise": noise, "key": nothing}, first + i)
        return jax.tree.map(lambda a: a[0], result)

    agents = jax.ShapeDtypeStruct(noise.shape[1:2], jnp.int32)
    return traced_step(alone, (team.trees, agents), lanes, noise)


def _over_lanes(environment: Environment) -> Any:
    """environment.step over lanes: state leaves [M, …], actions [M] or [a, M], observations out as [O, M]."""
    action_axis = 0 if environment.actions.discrete else 1
    return jax.vmap(environment.step, in_axes=(0, 0, action_axis), out_axes=Step(*(1, 0, 0, 0, 0)))  # type: ignore[arg-type]


def _merged(x: Array) -> Array:
    """[…, C, M] to […, L]."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
