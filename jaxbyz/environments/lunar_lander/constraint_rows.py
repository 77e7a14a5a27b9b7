"""One visit of Box2D's velocity solver to a contact or to a joint: the rows, and what a visit changes.

Arrays are over lanes [L], contact rows [2, 2, L]: the g-th of the two terrain segments nearest to leg i by i. Such a
pair holds at most two contact points; their impulses are a tuple (normal 0, normal 1, tangent 0, tangent 1).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import apart
from jaxbyz.environments.lunar_lander.bodies import (
    FAR_LIMIT,
    HULL_INV_INERTIA,
    HULL_INV_MASS,
    LEG_INV_INERTIA,
    LEG_INV_MASS,
    MOTOR_IMPULSE,
    MOTOR_SPEED,
    NEAR_LIMIT,
    REFERENCE,
    joint_levers,
)
from jaxbyz.environments.lunar_lander.collision import Body, Pair

FRICTION = (0.2 * 0.1) ** 0.5  # leg and ground, geometric mean

Impulses = tuple[jax.Array, jax.Array, jax.Array, jax.Array]

_part = functools.partial(apart, static_argnames=("at",))


class Rows(NamedTuple):
    """Contact rows of leg-segment pairs: directions, levers about the leg's centre, and effective masses."""

    nx: jax.Array
    ny: jax.Array
    tangent_arm: Pair
    normal_arm: Pair
    tangent_mass: Pair
    tangent_coupling: jax.Array  # speed along one tangent from an impulse along the other
    active: Pair
    both: jax.Array  # two points, solved together
    k11: jax.Array
    k12: jax.Array
    k22: jax.Array
    scale: jax.Array  # 1 / det of that 2 × 2 block


@apart
def contact_rows(nx: jax.Array, ny: jax.Array, rx: Pair, ry: Pair, active: Pair) -> Rows:
    """Rows for normals (nx, ny) and contact offsets (rx, ry) from the leg's centre.

    Two nearly coincident points (condition number above 1000) are one: the second is dropped.
    """
    tangent0, tangent1 = (-x * nx - y * ny for x, y in zip(rx, ry, strict=True))
    normal0, normal1 = (x * ny - y * nx for x, y in zip(rx, ry, strict=True))
    k11 = LEG_INV_MASS + LEG_INV_INERTIA * normal0**2
    k22 = LEG_INV_MASS + LEG_INV_INERTIA * normal1**2
    k12 = LEG_INV_MASS + LEG_INV_INERTIA * normal0 * normal1
    det = k11 * k22 - k12 * k12
    pair = active[0] & active[1]
    both = pair & (k11 * k11 < 1000 * det)

    return Rows(
        nx,
        ny,
        (tangent0, tangent1),
        (normal0, normal1),
        (1 / (LEG_INV_MASS + LEG_INV_INERTIA * tangent0**2), 1 / (LEG_INV_MASS + LEG_INV_INERTIA * tangent1**2)),
        LEG_INV_MASS + LEG_INV_INERTIA * tangent0 * tangent1,
        (active[0], active[1] & (both | ~pair)),
        both,
        k11,
        k12,
        k22,
        1 / jnp.where(both, det, 1.0),
    )


def _at(rows: Rows, at: tuple[int, ...]) -> Rows:
    return jax.tree.map(lambda field: field[at], rows)


def solve_contact(rows: Rows, leg: Body, impulses: Impulses, at: tuple[int, ...]) -> tuple[Body, Impulses]:
    """One visit to a leg-segment pair, `rows[at]`: friction at each point, then both normals at once."""
    tangents = _friction(rows, leg, impulses, at=at)
    normals = _normals(rows, leg, impulses, tangents, at=at)
    new = (*normals, *tangents)
    return _received(rows, leg, impulses, new, at=at), new


@_part
def _friction(rows: Rows, leg: Body, impulses: Impulses, at: tuple[int, ...]) -> Pair:
    """Friction at each point in turn: t ← clip(t − m v_t, ±μ n)."""
    rows = _at(rows, at)
    n0, n1, t0, t1 = impulses
    slide = leg[0] * rows.ny - leg[1] * rows.nx
    bound0, bound1 = jnp.where(rows.active[0], FRICTION * n0, 0.0), jnp.where(rows.active[1], FRICTION * n1, 0.0)
    slip = slide + leg[2] * rows.tangent_arm[0]
    first = jnp.clip(t0 - rows.tangent_mass[0] * slip, -bound0, bound0)
    slip = slide + leg[2] * rows.tangent_arm[1] + rows.tangent_coupling * (first - t0)
    return first, jnp.clip(t1 - rows.tangent_mass[1] * slip, -bound1, bound1)


@_part
def _normals(rows: Rows, leg: Body, impulses: Impulses, tangents: Pair, at: tuple[int, ...]) -> Pair:
    """Both normals: the 2 × 2 complementarity problem K x + b ≥ 0 ⟂ x ≥ 0, whose four cases are tried in turn."""
    rows = _at(rows, at)
    n0, n1, t0, t1 = impulses
    spin = leg[2] + LEG_INV_INERTIA * (
        rows.tangent_arm[0] * (tangents[0] - t0) + rows.tangent_arm[1] * (tangents[1] - t1)
    )
    approach = leg[0] * rows.nx + leg[1] * rows.ny
    s0, s1 = approach + spin * rows.normal_arm[0], approach + spin * rows.normal_arm[1]
    b0, b1 = s0 - rows.k11 * n0 - rows.k12 * n1, s1 - rows.k12 * n0 - rows.k22 * n1
    x0, x1 = rows.scale * (rows.k12 * b1 - rows.k22 * b0), rows.scale * (rows.k12 * b0 - rows.k11 * b1)
    y0, y1 = -b0 / rows.k11, -b1 / rows.k22
    press = (x0 >= 0) & (x1 >= 0)
    first = (y0 >= 0) & (rows.k12 * y0 + b1 >= 0)
    second = (y1 >= 0) & (rows.k12 * y1 + b0 >= 0)
    leave = (b0 >= 0) & (b1 >= 0)
    pair0 = jnp.where(press, x0, jnp.where(first, y0, jnp.where(second | leave, 0.0, n0)))
    pair1 = jnp.where(press, x1, jnp.where(first, 0.0, jnp.where(second, y1, jnp.where(leave, 0.0, n1))))
    alone0 = jnp.where(rows.active[0], jnp.maximum(n0 - s0 / rows.k11, 0.0), 0.0)
    alone1 = jnp.where(rows.active[1], jnp.maximum(n1 - s1 / rows.k22, 0.0), 0.0)
    return jnp.where(rows.both, pair0, alone0), jnp.where(rows.both, pair1, alone1)


@_part
def _received(rows: Rows, leg: Body, old: Impulses, new: Impulses, at: tuple[int, ...]) -> Body:
    """The leg's velocity after its impulses changed from old to new."""
    return pushed(_at(rows, at), leg, *(b - a for a, b in zip(old, new, strict=True)))


def pushed(rows: Rows, leg: Body, n0: jax.Array, n1: jax.Array, t0: jax.Array, t1: jax.Array) -> Body:
    push, slide = LEG_INV_MASS * (n0 + n1), LEG_INV_MASS * (t0 + t1)
    turn = rows.normal_arm[0] * n0 + rows.normal_arm[1] * n1 + rows.tangent_arm[0] * t0 + rows.tangent_arm[1] * t1
    return (
        leg[0] + push * rows.nx + slide * rows.ny,
        leg[1] + push * rows.ny - slide * rows.nx,
        leg[2] + LEG_INV_INERTIA * turn,
    )


class Joint(NamedTuple):
    """A revolute joint's levers on hull (a) and leg (b), its 3 × 3 effective mass and the inverse, and its limits."""

    ax: jax.Array
    ay: jax.Array
    bx: jax.Array
    by: jax.Array
    k: tuple[jax.Array, ...]  # xx, xy, xz, yy, yz
    inverse: tuple[jax.Array, ...]  # xx, xy, xz, yy, yz, zz
    scale: jax.Array  # 1 / det of the point block
    lower: jax.Array
    upper: jax.Array
    sign: jax.Array


@apart
def joint_rows(hull: Body, leg: Body, sign: jax.Array) -> Joint:
    """Effective mass of a joint: two rows for the point, one for the relative angle."""
    ax, ay, bx, by = joint_levers(hull[2], leg[2], sign)
    linear = HULL_INV_MASS + LEG_INV_MASS
    xx = linear + ay * ay * HULL_INV_INERTIA + by * by * LEG_INV_INERTIA
    xy = -ay * ax * HULL_INV_INERTIA - by * bx * LEG_INV_INERTIA
    xz = -ay * HULL_INV_INERTIA - by * LEG_INV_INERTIA
    yy = linear + ax * ax * HULL_INV_INERTIA + bx * bx * LEG_INV_INERTIA
    yz = ax * HULL_INV_INERTIA + bx * LEG_INV_INERTIA
    zz = HULL_INV_INERTIA + LEG_INV_INERTIA
    first = (yy * zz - yz * yz, xz * yz - xy * zz, xy * yz - yy * xz)
    scale = 1 / (xx * first[0] + xy * first[1] + xz * first[2])
    cofactors = (*first, xx * zz - xz * xz, xy * xz - xx * yz, xx * yy - xy * xy)
    angle = sign * (leg[2] - hull[2]) + REFERENCE
    near, far = angle <= NEAR_LIMIT, angle >= FAR_LIMIT
    return Joint(
        ax,
        ay,
        bx,
        by,
        (xx, xy, xz, yy, yz),
        tuple(c * scale for c in cofactors),
        1 / (xx * yy - xy * xy),
        jnp.where(sign > 0, near, far),
        jnp.where(sign > 0, far, near),
        sign,
    )


@apart
def apply_joint(
    joint: Joint, hull: Body, leg: Body, px: jax.Array, py: jax.Array, turn: jax.Array
) -> tuple[Body, Body]:
    """Give the leg the impulse (px, py) at the joint and the angular impulse `turn`, the hull their opposites."""
    (hx, hy, hw), (lx, ly, lw) = hull, leg
    hw = hw - HULL_INV_INERTIA * (joint.ax * py - joint.ay * px + turn)
    lw = lw + LEG_INV_INERTIA * (joint.bx * py - joint.by * px + turn)
    hull = hx - HULL_INV_MASS * px, hy - HULL_INV_MASS * py, hw
    return hull, (lx + LEG_INV_MASS * px, ly + LEG_INV_MASS * py, lw)


@apart
def _motor(joint: Joint, hull: Body, leg: Body, motor: jax.Array) -> jax.Array:
    """The motor's impulse after one visit."""
    error = leg[2] - hull[2] - joint.sign * MOTOR_SPEED
    return jnp.clip(motor - error / (HULL_INV_INERTIA + LEG_INV_INERTIA), -MOTOR_IMPULSE, MOTOR_IMPULSE)


@apart
def _pin(
    joint: Joint, hull: Body, leg: Body, limit: jax.Array, push: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Impulse of the point and the new one of the limit, solved together after the motor pushed.

    If the limit would have to pull, it is released and the point solved alone.
    """
    hull_spin, leg_spin = hull[2] - HULL_INV_INERTIA * push, leg[2] + LEG_INV_INERTIA * push
    cx = leg[0] - leg_spin * joint.by - hull[0] + hull_spin * joint.ay
    cy = leg[1] + leg_spin * joint.bx - hull[1] - hull_spin * joint.ax
    cz = leg_spin - hull_spin
    i_xx, i_xy, i_xz, i_yy, i_yz, i_zz = joint.inverse
    xx, xy, xz, yy, yz = joint.k
    total = limit - (i_xz * cx + i_yz * cy + i_zz * cz)
    holds = (joint.lower & (total >= 0)) | (joint.upper & (total <= 0))
    rx, ry = -cx + limit * xz, -cy + limit * yz
    dx = jnp.where(holds, -(i_xx * cx + i_xy * cy + i_xz * cz), joint.scale * (yy * rx - xy * ry))
    dy = jnp.where(holds, -(i_xy * cx + i_yy * cy + i_yz * cz), joint.scale * (xx * ry - xy * rx))
    return dx, dy, jnp.where(holds, total, 0.0)


def solve_joint(
    joint: Joint, hull: Body, leg: Body, limit: jax.Array, motor: jax.Array
) -> tuple[Body, Body, jax.Array, jax.Array]:
    """One visit to a joint: the motor, then point and limit together."""
    pushed = _motor(joint, hull, leg, motor)
    dx, dy, held = _pin(joint, hull, leg, limit, pushed - motor)
    hull, leg = apply_joint(joint, hull, leg, dx, dy, held - limit + pushed - motor)
    return hull, leg, held, pushed
