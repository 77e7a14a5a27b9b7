"""Shapes, masses and joints of the lander's three bodies, as gymnasium defines them for Box2D.

A body is a tuple (x, y, angle) of its centre of mass, or of their rates of change, each an array over lanes `[L]`. The
three bodies are in the order hull, leg 0, leg 1. Leg 1 is the mirror image of leg 0: multiplied by `SIGN`, its joint
behaves as that of leg 0, so that every joint angle lies in [0.4, 0.9] and every motor turns at −0.3 rad/s towards the
limit at 0.4.
"""

import math

import jax
import jax.numpy as jnp

Body = tuple[jax.Array, jax.Array, jax.Array]  # (x, y, angle) of a centre of mass, or their rates of change
Bodies = tuple[Body, Body, Body]  # hull, leg 0, leg 1
Pair = tuple[jax.Array, jax.Array]
Polygon = tuple[tuple[float, float], ...]  # vertices counter-clockwise, relative to the body's centre of mass

TIME_STEP = 1 / 50
PIXELS_PER_METRE = 30.0  # the scale of gymnasium's source

HULL_CENTRE = 0.10130719  # height of the hull's centre of mass above its origin
HULL: Polygon = tuple(
    (x / PIXELS_PER_METRE, y / PIXELS_PER_METRE - HULL_CENTRE)
    for x, y in ((-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17))
)
LEG: Polygon = ((-2 / 30, -8 / 30), (2 / 30, -8 / 30), (2 / 30, 8 / 30), (-2 / 30, 8 / 30))

HULL_MASS, HULL_INERTIA = 4.816666603, 0.78388062  # inertia about the centre of mass
LEG_MASS, LEG_INERTIA = 0.07111112, 0.00179094705
TOTAL_MASS = HULL_MASS + 2 * LEG_MASS
HULL_INV_MASS, HULL_INV_INERTIA = 1 / HULL_MASS, 1 / HULL_INERTIA
LEG_INV_MASS, LEG_INV_INERTIA = 1 / LEG_MASS, 1 / LEG_INERTIA

SIGN = (1.0, -1.0)  # factors that mirror legs 0 and 1
ANCHOR_X, ANCHOR_Y = 20 / 30, 18 / 30  # position of the joint on leg 1; on leg 0, x has the opposite sign
NEAR_LIMIT, FAR_LIMIT = 0.4, 0.9  # bounds of the mirrored joint angle
REFERENCE_ANGLE = 0.05  # magnitude of the angle that Box2D subtracts from a joint's angle; it has the leg's sign
MOTOR_SPEED, MOTOR_IMPULSE = -0.3, 0.8  # rad/s; 40 N·m for one time step
MOTOR_INV_MASS = HULL_INV_INERTIA + LEG_INV_INERTIA  # J M⁻¹ Jᵀ of the relative angle of hull and leg

SLOP = 0.005  # distance errors below this are tolerated
ANGULAR_SLOP = 2 / 180 * math.pi


def both_legs(bodies: Bodies) -> Body:
    """Return the two legs as one body of arrays `[2, L]`."""
    x, y, angle = (jnp.stack([bodies[1][c], bodies[2][c]]) for c in range(3))
    return x, y, angle


def each_leg(legs: Body) -> tuple[Body, Body]:
    """Split arrays `[2, L]` into the bodies of leg 0 and leg 1."""
    (x0, y0, a0), (x1, y1, a1) = ((legs[0][i], legs[1][i], legs[2][i]) for i in range(2))
    return (x0, y0, a0), (x1, y1, a1)
