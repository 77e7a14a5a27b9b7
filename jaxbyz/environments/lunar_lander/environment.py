"""LunarLander-v3 and LunarLanderContinuous-v3 as gymnax environments that follow gymnasium's Box2D lander.

The pure functions `initial_state`, `transition` and `observe` take every random number as an argument, so that episodes
recorded from Box2D can be replayed. `reset_env` and `step_env` draw these numbers and call them.

After an episode has ended, further steps return the last observation, reward 0 and `terminated`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from jaxbyz.accelerate.lane_steps import constant_like
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander import physics
from jaxbyz.environments.lunar_lander.bodies import (
    ANCHOR_Y,
    HULL_CENTRE,
    HULL_INERTIA,
    HULL_MASS,
    PIXELS_PER_METRE,
    TIME_STEP,
)
from jaxbyz.environments.lunar_lander.engines import thrust, velocity_after_engines

WIDTH, HEIGHT = 600 / PIXELS_PER_METRE, 400 / PIXELS_PER_METRE
PAD_HEIGHT = HEIGHT / 4
MAIN_COST, SIDE_COST = 0.3, 0.03  # cost of one step at full power
INITIAL_FORCE = 1000.0  # newtons, largest component of the initial push
WIND_RANGE = 9999


@struct.dataclass
class EnvState(environment.EnvState):
    """The state of one episode.

    Attributes:
        time: the number of steps.
        world: the physical state.
        shaping: the potential of the last observation, whose differences are the shaping part of the reward.
        wind_index: the phase of the wind's force.
        torque_index: the phase of the wind's torque.
        over: whether the episode has ended.
    """

    time: Any
    world: physics.World
    shaping: jax.Array
    wind_index: jax.Array
    torque_index: jax.Array
    over: jax.Array


@struct.dataclass
class EnvParams(environment.EnvParams):
    """Gravity and weather, with gymnasium's defaults."""

    gravity: Any = -10.0
    enable_wind: Any = False
    wind_power: Any = 15.0
    turbulence_power: Any = 1.5
    max_steps_in_episode: Any = 1000


def terrain(heights: jax.Array) -> jax.Array:
    """Return the heights `[11]` of the terrain's corners from 12 draws: five become the pad, neighbours are averaged.

    smooth[i] = 0.33 (h[i−1] + h[i] + h[i+1]), where h[−1] is the last draw.
    """
    raw = jnp.asarray(heights, jnp.float32)
    index = jnp.arange(12)
    raw = jnp.where((index >= 3) & (index <= 7), jnp.float32(PAD_HEIGHT), raw)
    return 0.33 * (jnp.roll(raw, 1) + raw + jnp.roll(raw, -1))[:11]


def gust(index: jax.Array) -> jax.Array:
    """Return the wind at an index x: tanh(sin 2kx + sin πkx) with k = 0.01, which has no period."""
    x = 0.01 * jnp.asarray(index, jnp.float32)
    return jnp.tanh(cos_sin(2 * x)[1] + cos_sin(jnp.float32(np.pi) * x)[1])


def wind_force(
    params: EnvParams, windy: jax.Array, wind_index: jax.Array, torque_index: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the horizontal force and the torque of the wind on the hull."""
    force = jnp.where(windy, params.wind_power * gust(wind_index), 0.0)
    return force, jnp.where(windy, params.turbulence_power * gust(torque_index), 0.0)


def initial_state(
    params: EnvParams,
    heights: jax.Array,
    force: jax.Array,
    wind_index: jax.Array | int = 0,
    torque_index: jax.Array | int = 0,
) -> EnvState:
    """Return the state after gymnasium's reset, which includes one step.

    Args:
        params: gravity and wind.
        heights: `[12]`, raw draws of the terrain, uniform on (0, 20/3).
        force: `[2]`, the initial push in newtons, uniform on (−1000, 1000)².
        wind_index: uniform on {−9999, …, 9998} if there is wind.
        torque_index: as `wind_index`.
    """
    check_params(params)
    force = jnp.asarray(force, jnp.float32)
    wind_index, torque_index = jnp.asarray(wind_index, jnp.int32), jnp.asarray(torque_index, jnp.int32)
    windy = jnp.asarray(params.enable_wind, bool)
    wind, torque = wind_force(params, windy, wind_index, torque_index)
    push = TIME_STEP * jnp.stack(
        [(force[0] + wind) / HULL_MASS, params.gravity + force[1] / HULL_MASS, torque / HULL_INERTIA]
    )
    world = physics.initial_world(terrain(heights), WIDTH / 2, HEIGHT, push, TIME_STEP * jnp.float32(params.gravity))
    state = EnvState(
        time=constant_like(force[0], 0),
        world=world,
        shaping=constant_like(force[0], 0.0),
        wind_index=wind_index + windy,
        torque_index=torque_index + windy,
        over=constant_like(force[0], False),
    )
    return state.replace(shaping=potential(observe(params, state)))


def observe(params: EnvParams, state: EnvState) -> jax.Array:
    """Return the observation `[8]`: the hull's position (2), velocity (2), angle and spin, and two contact flags.

    The position is that of the hull's origin, and the velocity that of its centre of mass.
    """
    (x, y, angle), (vx, vy, w) = state.world.pose[0], state.world.velocity[0]
    cos, sin = cos_sin(angle)
    x, y = x + sin * HULL_CENTRE, y - cos * HULL_CENTRE
    return jnp.stack(
        [
            (x - WIDTH / 2) / (WIDTH / 2),
            (y - (PAD_HEIGHT + ANCHOR_Y)) / (HEIGHT / 2),
            vx * (WIDTH / 2) * TIME_STEP,
            vy * (HEIGHT / 2) * TIME_STEP,
            angle,
            20 * w * TIME_STEP,
            *state.world.contact_flag.astype(jnp.float32),
        ]
    )


def potential(obs: jax.Array) -> jax.Array:
    """Return the potential whose differences are the shaping part of the reward.

    It is −100 (distance + speed + |angle|) + 10 per contact flag.
    """
    distance, speed = jnp.sqrt(obs[0] ** 2 + obs[1] ** 2), jnp.sqrt(obs[2] ** 2 + obs[3] ** 2)
    return -100 * (distance + speed + jnp.abs(obs[4])) + 10 * (obs[6] + obs[7])


def transition(
    params: EnvParams, state: EnvState, action: jax.typing.ArrayLike, draws: jax.Array
) -> tuple[jax.Array, EnvState, jax.Array, jax.Array]:
    """Advance an episode by one step.

    Args:
        params: gravity and wind.
        state: the state before the step.
        action: an integer from 0 to 3, or `[2]` floats for the continuous lander (see `engines.thrust`). An invalid
            action raises an error outside `jit`, and does nothing inside.
        draws: `[2]`, U(−1, 1), the randomness of the engines.

    Returns:
        Observation `[8]`, state, reward, and whether the episode has ended.
    """
    check_action(action)
    check_params(params)
    main, side, direction = thrust(action)
    draws = jnp.asarray(draws, jnp.float32)
    world = state.world
    hull = velocity_after_engines(world.velocity[0], world.pose[0, 2], main, side, direction, draws)
    windy = jnp.asarray(params.enable_wind, bool) & ~(world.contact_flag[0] | world.contact_flag[1])
    wind, torque = wind_force(params, windy, state.wind_index, state.torque_index)
    hull += TIME_STEP * jnp.stack([wind / HULL_MASS, jnp.zeros_like(wind), torque / HULL_INERTIA])
    fall = TIME_STEP * jnp.stack([jnp.zeros(3), jnp.full(3, params.gravity), jnp.zeros(3)], axis=1)
    velocity = jnp.stack([hull, world.velocity[1], world.velocity[2]]) + fall
    new = EnvState(
        time=state.time,
        world=physics.step(world._replace(velocity=velocity), state.over),
        shaping=state.shaping,
        wind_index=state.wind_index + windy,
        torque_index=state.torque_index + windy,
        over=state.over,
    )
    obs = observe(params, new)
    shaping = potential(obs)
    reward = shaping - state.shaping - MAIN_COST * main - SIDE_COST * side
    failed = new.world.crashed | (jnp.abs(obs[0]) >= 1)
    reward = jnp.where(new.world.asleep, 100.0, jnp.where(failed, -100.0, reward))
    new = new.replace(shaping=shaping, over=failed | new.world.asleep)

    obs = jnp.where(state.over, observe(params, state), obs)
    new = jax.tree.map(lambda a, b: jnp.where(state.over, a, b), state, new)
    return obs, new.replace(time=state.time + 1), jnp.where(state.over, 0.0, reward), new.over


def check_action(action: Any) -> None:
    """Raise an error for a concrete action that gymnasium would refuse; traced values cannot be checked."""
    if isinstance(action, jax.core.Tracer):
        return
    value = np.asarray(action)
    if value.ndim == 0:
        if value not in (0, 1, 2, 3):
            raise ValueError(f"action={value} is not one of LunarLander's actions 0, 1, 2, 3")
    elif value.shape != (2,):
        raise ValueError(f"action has shape {value.shape}: one integer, or two floats for the continuous lander")
    elif np.isnan(value).any():
        raise ValueError(f"action={value} contains NaN: both entries must be numbers, and are clipped to [-1, 1]")


def check_params(params: EnvParams) -> None:
    """Raise an error for concrete parameters outside their range."""
    horizon, gravity = params.max_steps_in_episode, params.gravity
    if not isinstance(horizon, jax.core.Tracer) and np.any(np.asarray(horizon) < 1):
        raise ValueError(f"max_steps_in_episode={horizon} must be at least 1")
    if not isinstance(gravity, jax.core.Tracer) and not np.all((np.asarray(gravity) > -12) & (np.asarray(gravity) < 0)):
        raise ValueError(f"gravity={gravity} must lie between -12 and 0, both excluded")


class LunarLander(environment.Environment[EnvState, EnvParams]):
    """The lander with four discrete actions: nothing, left engine, main engine, right engine."""

    continuous = False

    @property
    def default_params(self) -> EnvParams:
        return EnvParams()

    @property
    def name(self) -> str:
        return "LunarLander-v3"

    @property
    def num_actions(self) -> int:
        return 4

    def action_space(self, params: EnvParams | None = None) -> spaces.Space:
        return spaces.Discrete(4)

    def observation_space(self, params: EnvParams | None = None) -> spaces.Box:
        # In NumPy, because JAX would compile a program for each of these operations.
        high = np.array([2.5, 2.5, 10, 10, 2 * np.pi, 10, 1, 1], np.float32)
        low = np.array([*-high[:6], 0, 0], np.float32)
        return spaces.Box(low, high, (8,), dtype=jnp.float32)

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[jax.Array, EnvState]:
        """Draw terrain, initial push and wind, and return the first observation and state."""
        draws = jax.random.uniform(key, (16,))
        heights, force = HEIGHT / 2 * draws[:12], INITIAL_FORCE * (2 * draws[12:14] - 1)
        wind = jnp.floor(WIND_RANGE * (2 * draws[14:] - 1)).astype(jnp.int32)
        state = initial_state(params, heights, force, wind[0], wind[1])
        return observe(params, state), state

    def step_env(
        self, key: jax.Array, state: EnvState, action: int | float | jax.Array, params: EnvParams
    ) -> tuple[jax.Array, EnvState, jax.Array, jax.Array, dict[Any, Any]]:
        """Draw the randomness of the engines and step, without automatic reset."""
        if jnp.ndim(action) != self.continuous:
            kind = "two floats" if self.continuous else "one integer"
            raise ValueError(f"action has shape {jnp.shape(action)}: {self.name} takes {kind}")
        draws = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        obs, state, reward, terminated = transition(params, state, action, draws)
        obs, state = jax.tree.map(jax.lax.stop_gradient, (obs, state))
        return obs, state, reward, terminated, {"discount": 1.0 - terminated}

    def observe(
        self, key: jax.Array, state: EnvState, action: int | float | jax.Array | None, params: EnvParams
    ) -> jax.Array:
        return observe(params, state)

    def is_terminated(self, state: EnvState, params: EnvParams) -> jax.Array:
        return state.over


class LunarLanderContinuous(LunarLander):
    """The lander with two continuous actions in [−1, 1]: the main engine, and the side engines from left to right."""

    continuous = True

    @property
    def name(self) -> str:
        return "LunarLanderContinuous-v3"

    @property
    def num_actions(self) -> int:
        return 2

    def action_space(self, params: EnvParams | None = None) -> spaces.Space:
        return spaces.Box(jnp.full(2, -1.0), jnp.full(2, 1.0), (2,), dtype=jnp.float32)
