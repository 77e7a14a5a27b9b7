"""The lander's engines: the power that an action demands, and the velocity that it gives to the hull."""

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.bodies import HULL_CENTRE, HULL_INERTIA, HULL_MASS, PIXELS_PER_METRE

MAIN_POWER, SIDE_POWER = 13.0, 0.6  # impulse per metre of offset
MAIN_OFFSET, SIDE_OFFSET = 4 / PIXELS_PER_METRE, 12 / PIXELS_PER_METRE
# Where a side engine pushes: gymnasium multiplies 17 pixels by the sine and 14 by the cosine of the angle.
SIDE_X, SIDE_Y = 17 / PIXELS_PER_METRE, 14 / PIXELS_PER_METRE


def thrust(action: jax.typing.ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the power of the main engine, the power of the side engine, and the side engine's direction ±1.

    A scalar is a discrete action: 0 nothing, 1 left, 2 main, 3 right; any other does nothing. A pair a is a continuous
    action and is clipped to [−1, 1]: the main engine runs at (1 + a₀)/2 if a₀ > 0, and the side engine in the direction
    of a₁ at |a₁| if that exceeds 1/2. NaN switches an engine off.
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


def velocity_after_engines(
    hull: jax.Array, angle: jax.Array, main: jax.Array, side: jax.Array, direction: jax.Array, draws: jax.Array
) -> jax.Array:
    """Return the hull's velocity (vx, vy, ω) after the impulses of both engines.

    An impulse J at the offset r from the centre of mass adds J/m to the velocity and (r × J)/I to the spin. The random
    numbers `draws` `[2]` change strength and offset.
    """
    cos, sin = cos_sin(angle)
    d0, d1 = draws[0] / PIXELS_PER_METRE, draws[1] / PIXELS_PER_METRE
    origin_x, origin_y = sin * HULL_CENTRE, -cos * HULL_CENTRE  # from the centre of mass
    main_offset = MAIN_OFFSET + 2 * d0
    ox, oy = sin * main_offset - cos * d1, -cos * main_offset - sin * d1
    jx, jy = -ox * MAIN_POWER * main, -oy * MAIN_POWER * main
    spin = (origin_x + ox) * jy - (origin_y + oy) * jx
    side_offset = 3 * d1 + direction * SIDE_OFFSET
    ox, oy = sin * d0 - cos * side_offset, -cos * d0 - sin * side_offset
    kx, ky = -ox * SIDE_POWER * side, -oy * SIDE_POWER * side
    spin += (origin_x + ox - sin * SIDE_X) * ky - (origin_y + oy + cos * SIDE_Y) * kx
    return hull + jnp.stack([(jx + kx) / HULL_MASS, (jy + ky) / HULL_MASS, spin / HULL_INERTIA])
