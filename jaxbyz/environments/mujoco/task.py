"""What the seven tasks have in common: states, parameters, the step of an episode, and the gymnax environment.

After an episode has ended, further steps return the last observation, reward 0 and `terminated`. An episode whose state
or reward would not be finite, or beyond 1e10 as in MuJoCo, ends before that step with reward 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from jaxbyz.accelerate.lane_steps import all_lanes_at_once, constant_like, update_lanes
from jaxbyz.environments.mujoco.bodies import Joints, Model, split_joints
from jaxbyz.environments.mujoco.engine import move
from jaxbyz.environments.mujoco.kinematics import Scales

LARGEST = 1e10  # MuJoCo gives up beyond this
LANE_GROUP = 512  # the number of lanes that a CPU steps at a time (see `update_lanes`)


@struct.dataclass
class EnvState(environment.EnvState):
    """The state of one episode, `[…]`, or of many with the lanes on a last axis.

    Attributes:
        time: the number of steps.
        qpos: positions of the joints in gymnasium's order.
        qvel: their velocities.
        measured: what MuJoCo measured during the last step, or None if the task does not use that.
        over: whether the episode has ended.
    """

    time: Any
    qpos: jax.Array
    qvel: jax.Array
    measured: Any
    over: jax.Array


@struct.dataclass
class EnvParams(environment.EnvParams):
    """Parameters of all tasks.

    Attributes:
        max_steps_in_episode: the time limit.
        gravity_scale: a factor of gravity.
        mass_scale: a factor of all masses and moments of inertia.
        friction_scale: a factor of the coefficients of friction.
        damping_scale: a factor of the joints' damping.
        reset_noise_scale: the size of the random numbers in the initial state.
    """

    max_steps_in_episode: Any = 1000
    gravity_scale: Any = 1.0
    mass_scale: Any = 1.0
    friction_scale: Any = 1.0
    damping_scale: Any = 1.0
    reset_noise_scale: Any = 0.0


class StepOutcome(NamedTuple):
    """The result of a step before it is known whether the episode goes on, `[…, L]`.

    Attributes:
        before: the state before the step.
        after: the state after it.
        action: the action, not clipped.
        forward: the mean velocity of the first joint.
    """

    before: EnvState
    after: EnvState
    action: jax.Array
    forward: jax.Array


def uniform(key: jax.Array, size: int, scale: Any) -> jax.Array:
    """Return independent random numbers, uniform on (−scale, scale)."""
    return scale * jax.random.uniform(key, (size,), float, -1.0, 1.0)


def uniform_start(position: tuple[float, ...], params: EnvParams, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return an initial state with uniform noise in positions and velocities."""
    keys, size = jax.random.split(key), len(position)
    noise = [uniform(key, size, params.reset_noise_scale) for key in keys]
    return jnp.array(position, float) + noise[0], noise[1]


def normal_start(position: tuple[float, ...], params: EnvParams, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return an initial state with uniform noise in positions and normal noise in velocities."""
    keys, size = jax.random.split(key), len(position)
    qpos = jnp.array(position, float) + uniform(keys[0], size, params.reset_noise_scale)
    return qpos, params.reset_noise_scale * jax.random.normal(keys[1], (size,), float)


class MujocoTask(NamedTuple):
    """A task as pure functions of arrays with or without a last axis of lanes.

    Attributes:
        params: the default parameters.
        model: `params -> Model`, the mechanism.
        initial_position: qpos before random numbers are added.
        observe: `(params, state) -> observation`.
        judge: `(params, outcome) -> (reward, terminated)`.
        draw: `(initial_position, params, key) -> (qpos, qvel)`, a random initial state.
        measure: `(model, scales, qpos, (q, v, a)) -> measured`, from the joints of the last evaluation, or None. In the
            initial state, a is None.
    """

    params: EnvParams
    model: Callable[[Any], Model]
    initial_position: tuple[float, ...]
    observe: Callable[[Any, EnvState], jax.Array]
    judge: Callable[[Any, StepOutcome], tuple[jax.Array, jax.Array]]
    draw: Callable[[tuple[float, ...], Any, jax.Array], tuple[jax.Array, jax.Array]] = uniform_start
    measure: Callable[[Model, Scales, jax.Array, tuple[Joints, Joints, Joints | None]], jax.Array] | None = None


def initial_state(task: MujocoTask, params: EnvParams, qpos: Any, qvel: Any) -> EnvState:
    """Return the state at the beginning of an episode.

    Args:
        task: the task.
        params: its parameters.
        qpos: positions of the joints in gymnasium's order.
        qvel: their velocities.

    Raises:
        ValueError: if an argument has a wrong shape, or is known now and not finite. Inside `jit`, an episode from a
            state that is not finite is over from the beginning.
    """
    check_params(params)
    size = len(task.initial_position)
    for name, value in (("qpos", qpos), ("qvel", qvel)):
        if jnp.shape(value) != (size,):
            raise ValueError(f"{name} has shape {jnp.shape(value)}: {task.model(params).name} needs ({size},)")
        _check_finite(name, value)
    qpos, qvel = jnp.asarray(qpos, float), jnp.asarray(qvel, float)
    lost = ~(_in_range(qpos) & _in_range(qvel))
    qpos, qvel = jnp.where(lost, 0.0, qpos), jnp.where(lost, 0.0, qvel)
    measured = None
    if task.measure is not None:
        model = task.model(params)
        q, v = (split_joints(model, values[: _count_joints(model), None]) for values in (qpos, qvel))
        measured = task.measure(model, Scales(), qpos[:, None], (q, v, None))[:, 0]
    return EnvState(constant_like(qpos[0], 0), qpos, qvel, measured, lost)


def transition(
    task: MujocoTask, params: EnvParams, state: EnvState, action: Any
) -> tuple[jax.Array, EnvState, jax.Array, jax.Array]:
    """Advance an episode by one step.

    Returns:
        Observation, state, reward, and whether the episode has ended.

    Raises:
        ValueError: if the action has a wrong shape, or if action or state are known now and not finite. Inside `jit`,
            such an action or state ends the episode.
    """
    check_params(params)
    shape = (len(task.model(params).motors),)
    if jnp.shape(action) != shape:
        raise ValueError(f"action has shape {jnp.shape(action)}: {task.model(params).name} needs {shape}")
    for name, value in (("action", action), ("qpos", state.qpos), ("qvel", state.qvel)):
        _check_finite(name, value)
    leaves, structure = jax.tree.flatten(params)
    fixed = tuple(leaf if isinstance(leaf, (bool, int, float)) else None for leaf in leaves)
    traced = [jnp.asarray(leaf) for leaf, number in zip(leaves, fixed, strict=True) if number is None]
    return _lane_transition(task, structure, fixed)(traced, state, jnp.asarray(action, state.qpos.dtype))


@functools.cache
def _lane_transition(task: MujocoTask, structure: Any, fixed: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the transition of all lanes as one function; parameters that are plain numbers are constants in it."""

    def with_params(traced: list[jax.Array]) -> EnvParams:
        remaining = iter(traced)
        return jax.tree.unflatten(structure, [next(remaining) if leaf is None else leaf for leaf in fixed])

    def advance(traced: list[jax.Array], state: EnvState, action: jax.Array) -> Any:
        return _step_lanes(task, with_params(traced), state, action)

    @all_lanes_at_once
    def step(traced: list[jax.Array], state: EnvState, action: jax.Array) -> Any:
        ended = task.observe(with_params(traced), state), state, constant_like(state.qpos[0], 0.0), state.over
        obs, state, reward, over = update_lanes(advance, [~state.over], LANE_GROUP, ended, traced, state, action)
        return obs, state.replace(time=state.time + 1), reward, over

    return step


def _step_lanes(task: MujocoTask, params: EnvParams, state: EnvState, action: jax.Array) -> Any:
    model, scales = task.model(params), scales_of(params)
    joints = _count_joints(model)
    moved = move(model, scales, state.qpos[:joints], state.qvel[:joints], action, keep_last=task.measure is not None)
    q = jnp.concatenate([moved.q, state.qpos[joints:] + model.duration * state.qvel[joints:]])
    v = jnp.concatenate([moved.v, state.qvel[joints:]])
    measured = None if task.measure is None else task.measure(model, scales, q, moved.last)
    after = state.replace(qpos=q, qvel=v, measured=measured)
    reward, terminated = task.judge(params, StepOutcome(state, after, action, moved.distance / model.duration))
    lost = ~(_in_range(q) & _in_range(v) & _in_range(action) & (jnp.abs(reward) < LARGEST))
    after = jax.tree.map(lambda old, new: jnp.where(lost, _sensible(old), new), state, after)
    after = after.replace(over=terminated | lost)
    return task.observe(params, after), after, jnp.where(lost, 0.0, reward), after.over


def _check_finite(name: str, value: Any) -> None:
    if not isinstance(value, jax.core.Tracer) and not np.isfinite(np.asarray(value)).all():
        raise ValueError(f"{name}={np.asarray(value)} must be finite")


def _sensible(values: jax.Array) -> jax.Array:
    """Return the same values, with 0 in the place of those that are not finite or absurdly large."""
    return jnp.where(jnp.abs(values) < LARGEST, values, 0) if jnp.issubdtype(values.dtype, jnp.floating) else values


def _in_range(values: jax.Array) -> jax.Array:
    """Return whether all entries of the first axis are finite and not absurdly large."""
    return (jnp.abs(values) < LARGEST).all(axis=0)


def _count_joints(model: Model) -> int:
    return len(model.slides) + (model.root.hinge is not None) + sum(map(len, model.limbs))


def scales_of(params: EnvParams) -> Scales:
    """Return the physical factors, as numbers or arrays `[1, L]`."""
    factors = params.gravity_scale, params.mass_scale, params.friction_scale, params.damping_scale
    return Scales(*(f if isinstance(f, (int, float)) else f[None] for f in factors))


def check_params(params: EnvParams) -> None:
    """Raise an error for parameters that are known now and out of range.

    Raises:
        ValueError: with the parameter, its value and what would be right.
    """
    smallest = {"mass_scale": 0.0, "friction_scale": 0.0}  # excluded; the others may be 0
    for name in ("gravity_scale", "mass_scale", "friction_scale", "damping_scale", "reset_noise_scale"):
        value = getattr(params, name)
        if isinstance(value, jax.core.Tracer):
            continue
        array = np.asarray(value, float)
        if not (np.isfinite(array) & ((array > 0) if name in smallest else (array >= 0))).all():
            raise ValueError(f"{name}={value} must be {'positive' if name in smallest else 'at least 0'} and finite")
    horizon = params.max_steps_in_episode
    if not isinstance(horizon, jax.core.Tracer) and np.any(np.asarray(horizon) < 1):
        raise ValueError(f"max_steps_in_episode={horizon} must be at least 1")


def never(outcome: StepOutcome) -> jax.Array:
    """Return False for every lane."""
    return constant_like(outcome.forward, False)


class MujocoEnvironment(environment.Environment[EnvState, EnvParams]):
    """A gymnax environment of a task."""

    charges_unclipped = True

    def __init__(self, task: MujocoTask):
        self.task, self.model = task, task.model(task.params)

    @property
    def default_params(self) -> EnvParams:
        return self.task.params

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def num_actions(self) -> int:
        return len(self.model.motors)

    def action_space(self, params: EnvParams | None = None) -> spaces.Box:
        high = jnp.array([motor.limit for motor in self.model.motors])
        return spaces.Box(-high, high, high.shape, dtype=jnp.float32)

    def observation_space(self, params: EnvParams | None = None) -> spaces.Box:
        state = jax.eval_shape(lambda key: self.reset_env(key, params or self.task.params)[0], jax.random.key(0))
        return spaces.Box(-jnp.inf, jnp.inf, state.shape, dtype=jnp.float32)

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[jax.Array, EnvState]:
        """Draw an initial state, and return its observation and the state."""
        state = initial_state(self.task, params, *self.task.draw(self.task.initial_position, params, key))
        return self.task.observe(params, state), state

    def step_env(
        self, key: jax.Array, state: EnvState, action: int | float | jax.Array, params: EnvParams
    ) -> tuple[jax.Array, EnvState, jax.Array, jax.Array, dict[Any, Any]]:
        """Step without automatic reset."""
        obs, state, reward, terminated = transition(self.task, params, state, action)
        obs, state = jax.tree.map(jax.lax.stop_gradient, (obs, state))
        return obs, state, reward, terminated, {"discount": 1.0 - terminated}

    def observe(
        self, key: jax.Array, state: EnvState, action: int | float | jax.Array | None, params: EnvParams
    ) -> jax.Array:
        return self.task.observe(params, state)

    def is_terminated(self, state: EnvState, params: EnvParams) -> jax.Array:
        return state.over
