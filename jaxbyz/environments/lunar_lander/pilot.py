"""gymnasium's hand-written heuristic, a policy that lands, for tests and demonstrations."""

import jax
import jax.numpy as jnp


def _controls(obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the demands to turn and to rise of two proportional-derivative controllers.

    They aim at an angle of at most 0.4 rad that points back to the pad, and at a height proportional to the distance
    from the pad. Once a contact flag is set, the pilot only slows its fall.
    """
    x, y, vx, vy, angle, spin, left, right = obs
    turn = (jnp.clip(0.5 * x + vx, -0.4, 0.4) - angle) * 0.5 - spin
    rise = (0.55 * jnp.abs(x) - y) * 0.5 - vy * 0.5
    landed = (left > 0) | (right > 0)
    return jnp.where(landed, 0.0, turn), jnp.where(landed, -0.5 * vy, rise)


def pilot(obs: jax.Array) -> jax.Array:
    """Return the discrete action for an observation `[8]`: the main engine if rising is more urgent than turning."""
    turn, rise = _controls(obs)
    side = jnp.where(turn < -0.05, 3, jnp.where(turn > 0.05, 1, 0))
    return jnp.where((rise > jnp.abs(turn)) & (rise > 0.05), 2, side)


def continuous_pilot(obs: jax.Array) -> jax.Array:
    """Return the continuous action `[2]` for an observation `[8]`."""
    turn, rise = _controls(obs)
    return jnp.clip(jnp.stack([20 * rise - 1, -20 * turn]), -1.0, 1.0)
