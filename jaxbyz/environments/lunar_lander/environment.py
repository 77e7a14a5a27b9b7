"""LunarLander-v3 and LunarLanderContinuous-v3 as gymnax environments, faithful to gymnasium's Box2D lander.

The pure functions `initial_state`, `transition` and `observe` take every random number as an argument, so that an
episode recorded elsewhere can be replayed; `reset_env` and `step_env` draw those numbers and call them.

An episode that has ended stays as it is: further steps repeat the last observation with reward 0 and `terminated`.
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
from jaxbyz.environments.lunar_lander.bodies import HULL_CENTRE, HULL_INERTIA, HULL_MASS, PIXELS_PER_METRE, TIME_STEP

WIDTH, HEIGHT = 600 / PIXELS_PER_METRE, 400 / PIXELS_PER_METRE  # of the world, in metres
PAD_HEIGHT = HEIGHT / 4
LEG_DOWN = 18 / PIXELS_PER_METRE
MAIN_POWER, SIDE_POWER = 13.0, 0.6  # impulse per metre of nozzle offset
MAIN_OFFSET, SIDE_OFFSET = 4 / PIXELS_PER_METRE, 12 / PIXELS_PER_METRE
SIDE_X, SIDE_Y = (
    17 / PIXELS_PER_METRE,
    14 / PIXELS_PER_METRE,
)  # where a side engine pushes: 17 along sin, 14 along cos, as in the source
MAIN_COST, SIDE_COST = 0.3, 0.03
INITIAL_FORCE = 1000.0  # newtons, the range of the initial push
WIND_RANGE = 9999


@struct.dataclass
class EnvState(environment.EnvState):
    """One lander: the physical world, the potential of the last reward, the phases of the wind, and the clock."""

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
    """Heights [11] of the terrain corners from 12 raw draws: five set to the pad's, then a mean of three neighbours.

    smooth[i] = 0.33 (h[i−1] + h[i] + h[i+1]), where h[−1] is the last draw.
    """
    raw = jnp.asarray(heights, jnp.float32)
    index = jnp.arange(12)
    raw = jnp.where((index >= 3) & (index <= 7), jnp.float32(PAD_HEIGHT), raw)
    return 0.33 * (jnp.roll(raw, 1) + raw + jnp.roll(raw, -1))[:11]


def gust(index: jax.Array) -> jax.Array:
    """The wind's never-periodic course in [−1, 1]: tanh(sin 2kx + sin πkx) with k = 0.01 and x the index."""
    x = 0.01 * jnp.asarray(index, jnp.float32)
    return jnp.tanh(cos_sin(2 * x)[1] + cos_sin(jnp.float32(np.pi) * x)[1])


def initial_state(
    params: EnvParams,
    heights: jax.Array,
    force: jax.Array,
    wind_index: jax.Array | int = 0,
    torque_index: jax.Array | int = 0,
) -> EnvState:
    """The state after gymnasium's reset, which includes one step: heights [12] raw draws, force [2] in newtons.

    Heights are uniform on (0, 20/3), the force on (−1000, 1000)²; with wind, the indices on {−9999, …, 9998}.
    """
    check_params(params)
    force = jnp.asarray(force, jnp.float32)
    wind_index, torque_index = jnp.asarray(wind_index, jnp.int32), jnp.asarray(torque_index, jnp.int32)
    blows = jnp.asarray(params.enable_wind, bool)
    wind = jnp.where(blows, params.wind_power * gust(wind_index), 0.0)
    torque = jnp.where(blows, params.turbulence_power * gust(torque_index), 0.0)
    push = TIME_STEP * jnp.stack(
        [(force[0] + wind) / HULL_MASS, params.gravity + force[1] / HULL_MASS, torque / HULL_INERTIA]
    )
    world = physics.initial_world(terrain(heights), WIDTH / 2, HEIGHT, push, TIME_STEP * jnp.float32(params.gravity))
    state = EnvState(
        time=constant_like(force[0], 0),
        world=world,
        shaping=constant_like(force[0], 0.0),
        wind_index=wind_index + blows,
        torque_index=torque_index + blows,
        over=constant_like(force[0], False),
    )
    return state.replace(shaping=potential(observe(params, state)))


def observe(params: EnvParams, state: EnvState) -> jax.Array:
    """Observation [8]: position of the hull's origin, velocity of its centre of mass, angle, its rate, leg flags."""
    (x, y, angle), (vx, vy, w) = state.world.pose[0], state.world.velocity[0]
    cos, sin = cos_sin(angle)
    x, y = x + sin * HULL_CENTRE, y - cos * HULL_CENTRE
    return jnp.stack(
        [
            (x - WIDTH / 2) / (WIDTH / 2),
            (y - (PAD_HEIGHT + LEG_DOWN)) / (HEIGHT / 2),
            vx * (WIDTH / 2) * TIME_STEP,
            vy * (HEIGHT / 2) * TIME_STEP,
            angle,
            20 * w * TIME_STEP,
            *state.world.contact_flag.astype(jnp.float32),
        ]
    )


def potential(obs: jax.Array) -> jax.Array:
    """The shaping potential, whose differences are the reward: −100 (distance + speed + |tilt|) + 10 per leg flag."""
    distance, speed = jnp.sqrt(obs[0] ** 2 + obs[1] ** 2), jnp.sqrt(obs[2] ** 2 + obs[3] ** 2)
    return -100 * (distance + speed + jnp.abs(obs[4])) + 10 * (obs[6] + obs[7])


def thrust(action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Main power, side power and side direction of an action.

    A scalar is discrete: 0 nothing, 1 left, 2 main, 3 right; anything else does nothing. A pair is continuous and
    clipped to [−1, 1]: the main engine runs at (1 + a₀)/2 if a₀ > 0, the side engine on the side of a₁ at |a₁| if that
    exceeds 1/2; NaN is off.
    """
    action = jnp.asarray(action)
    if action.ndim == 0:
        main = jnp.where(action == 2, 1.0, 0.0)
        side = jnp.where((action == 1) | (action == 3), 1.0, 0.0)
        return main, side, jnp.where(action == 1, -1.0, 1.0)
    main, side = jnp.clip(action.astype(jnp.float32), -1.0, 1.0)
    power = jnp.abs(side)
    return (
        jnp.where(main > 0, (main + 1) / 2, 0.0),
        jnp.where(power > 0.5, power, 0.0),
        jnp.where(side < 0, -1.0, 1.0),
    )


def kicked(
    hull: jax.Array, angle: jax.Array, main: jax.Array, side: jax.Array, direction: jax.Array, draws: jax.Array
) -> jax.Array:
    """The hull's velocity (vx, vy, ω) after both engines' impulses, whose strength and lever are scattered by `draws`.

    An impulse J at an offset r from the centre of mass adds J/m to the velocity and (r × J)/I to the spin.
    """
    cos, sin = cos_sin(angle)
    d0, d1 = draws[0] / PIXELS_PER_METRE, draws[1] / PIXELS_PER_METRE
    origin_x, origin_y = sin * HULL_CENTRE, -cos * HULL_CENTRE  # from the centre of mass
    reach = MAIN_OFFSET + 2 * d0
    ox, oy = sin * reach - cos * d1, -cos * reach - sin * d1
    jx, jy = -ox * MAIN_POWER * main, -oy * MAIN_POWER * main
    spin = (origin_x + ox) * jy - (origin_y + oy) * jx
    reach = 3 * d1 + direction * SIDE_OFFSET
    ox, oy = sin * d0 - cos * reach, -cos * d0 - sin * reach
    kx, ky = -ox * SIDE_POWER * side, -oy * SIDE_POWER * side
    spin += (origin_x + ox - sin * SIDE_X) * ky - (origin_y + oy + cos * SIDE_Y) * kx
    return hull + jnp.stack([(jx + kx) / HULL_MASS, (jy + ky) / HULL_MASS, spin / HULL_INERTIA])


def transition(
    params: EnvParams, state: EnvState, action: jax.Array, draws: jax.Array
) -> tuple[jax.Array, EnvState, jax.Array, jax.Array]:
    """One step: (observation [8], state, reward, terminated) from an action and two U(−1, 1) draws [2].

    The action is an integer 0..3, or a pair of floats for the continuous lander (see `thrust`). Outside `jit` an
    integer out of range or a NaN is an error; inside it does nothing.
    """
    check_action(action)
    check_params(params)
    main, side, direction = thrust(action)
    draws = jnp.asarray(draws, jnp.float32)
    world = state.world
    hull = kicked(world.velocity[0], world.pose[0, 2], main, side, direction, draws)
    blows = jnp.asarray(params.enable_wind, bool) & ~(world.contact_flag[0] | world.contact_flag[1])
    wind = jnp.where(blows, params.wind_power * gust(state.wind_index), 0.0)
    torque = jnp.where(blows, params.turbulence_power * gust(state.torque_index), 0.0)
    hull += TIME_STEP * jnp.stack([wind / HULL_MASS, jnp.zeros_like(wind), torque / HULL_INERTIA])
    fall = TIME_STEP * jnp.stack([jnp.zeros(3), jnp.full(3, params.gravity), jnp.zeros(3)], axis=1)
    velocity = jnp.stack([hull, world.velocity[1], world.velocity[2]]) + fall
    new = EnvState(
        time=state.time,
        world=physics.step(world._replace(velocity=velocity), state.over),
        shaping=state.shaping,
        wind_index=state.wind_index + blows,
        torque_index=state.torque_index + blows,
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
    """Raise on a concrete action that gymnasium would refuse; traced ones cannot be looked at."""
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
    """Raise on concrete parameters that make no sense."""
    horizon, gravity = params.max_steps_in_episode, params.gravity
    if not isinstance(horizon, jax.core.Tracer) and np.any(np.asarray(horizon) < 1):
        raise ValueError(f"max_steps_in_episode={horizon} must be at least 1")
    if not isinstance(gravity, jax.core.Tracer) and not np.all((np.asarray(gravity) > -12) & (np.asarray(gravity) < 0)):
        raise ValueError(f"gravity={gravity} must lie between -12 and 0, both excluded")


class LunarLander(environment.Environment[EnvState, EnvParams]):
    """The lander with four discrete actions: nothing, left, main, right."""

    continuous = False
    costly = True

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
        high = jnp.array([2.5, 2.5, 10, 10, 2 * np.pi, 10, 1, 1], jnp.float32)
        low = -high.at[6:].set(0.0)
        return spaces.Box(low, high, (8,), dtype=jnp.float32)

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[jax.Array, EnvState]:
        """Draw terrain, initial push and wind."""
        draws = jax.random.uniform(key, (16,))
        heights, force = HEIGHT / 2 * draws[:12], INITIAL_FORCE * (2 * draws[12:14] - 1)
        wind = jnp.floor(WIND_RANGE * (2 * draws[14:] - 1)).astype(jnp.int32)
        state = initial_state(params, heights, force, wind[0], wind[1])
        return observe(params, state), state

    def step_env(
        self, key: jax.Array, state: EnvState, action: int | float | jax.Array, params: EnvParams
    ) -> tuple[jax.Array, EnvState, jax.Array, jax.Array, dict[Any, Any]]:
        """Draw the engines' scatter and step; no reset."""
        check_action(action)
        if jnp.ndim(action) != self.continuous:
            kind = "two floats" if self.continuous else "one integer"
            raise ValueError(f"action has shape {jnp.shape(action)}: {self.name} takes {kind}")
        draws = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        obs, state, reward, terminated = transition(params, state, jnp.asarray(action), draws)
        obs, state = jax.tree.map(jax.lax.stop_gradient, (obs, state))
        return obs, state, reward, terminated, {"discount": 1.0 - terminated}

    def observe(
        self, key: jax.Array, state: EnvState, action: int | float | jax.Array | None, params: EnvParams
    ) -> jax.Array:
        return observe(params, state)

    def get_obs(self, state: EnvState, params: EnvParams | None = None, key: jax.Array | None = None) -> jax.Array:
        return observe(params or self.default_params, state)

    def is_terminated(self, state: EnvState, params: EnvParams) -> jax.Array:
        return state.over


class LunarLanderContinuous(LunarLander):
    """The lander with two throttles in [−1, 1]: main engine, and left to right."""

    continuous = True

    @property
    def name(self) -> str:
        return "LunarLanderContinuous-v3"

    @property
    def num_actions(self) -> int:
        return 2

    def action_space(self, params: EnvParams | None = None) -> spaces.Space:
        return spaces.Box(jnp.full(2, -1.0), jnp.full(2, 1.0), (2,), dtype=jnp.float32)
