"""The joints between hull and legs: Box2D's visit to their velocity rows, and the correction of their positions.

A revolute joint has three rows: two make hull and leg meet at the pin, and one holds the relative angle at a limit. Its
motor is a fourth row of the relative angle.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import not_inlined
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.bodies import (
    ANCHOR_X,
    ANCHOR_Y,
    ANGULAR_SLOP,
    FAR_LIMIT,
    HULL_CENTRE,
    HULL_INV_INERTIA,
    HULL_INV_MASS,
    LEG_INV_INERTIA,
    LEG_INV_MASS,
    MOTOR_IMPULSE,
    MOTOR_INV_MASS,
    MOTOR_SPEED,
    NEAR_LIMIT,
    REFERENCE_ANGLE,
    SIGN,
    SLOP,
    Bodies,
    Body,
    Pair,
)

MAX_LIMIT_CORRECTION = 8 / 180 * math.pi  # largest change of the angle in one pass


def joint_angles(pose: Bodies) -> Pair:
    """Return the mirrored joint angles, on which motors and limits act."""
    return _mirrored_angle(pose[0], pose[1], SIGN[0]), _mirrored_angle(pose[0], pose[2], SIGN[1])


def _mirrored_angle(hull: Body, leg: Body, sign: jax.Array | float) -> jax.Array:
    return sign * (leg[2] - hull[2]) + REFERENCE_ANGLE


def at_limits(angle: jax.Array) -> Pair:
    """Return whether a mirrored joint angle is at its near limit, and whether it is at its far limit."""
    return angle <= NEAR_LIMIT, angle >= FAR_LIMIT


@not_inlined
def joint_arms(hull_angle: jax.Array, leg_angle: jax.Array, sign: jax.Array) -> tuple[jax.Array, ...]:
    """Return the vectors from each centre of mass to the joint in world axes: hull x, y, then leg x, y."""
    (hull_cos, hull_sin), (cos, sin), side = cos_sin(hull_angle), cos_sin(leg_angle), -sign * ANCHOR_X
    hull = hull_sin * HULL_CENTRE, -hull_cos * HULL_CENTRE
    return *hull, cos * side - sin * ANCHOR_Y, sin * side + cos * ANCHOR_Y


class JointRows(NamedTuple):
    """The rows of one joint. Directions x and y are those of the pin, z is the relative angle."""

    ax: jax.Array  # from the hull's centre of mass to the joint
    ay: jax.Array
    bx: jax.Array  # from the leg's centre of mass to the joint
    by: jax.Array
    k: tuple[jax.Array, ...]  # entries xx, xy, xz, yy, yz of the 3 × 3 matrix J M⁻¹Jᵀ
    inverse: tuple[jax.Array, ...]  # entries xx, xy, xz, yy, yz, zz of its inverse
    pin_scale: jax.Array  # 1 / determinant of the 2 × 2 block of the pin
    lower: jax.Array  # whether the angle is at its lower limit
    upper: jax.Array  # whether the angle is at its upper limit
    sign: jax.Array  # `SIGN` of the leg


@not_inlined
def joint_rows(hull: Body, leg: Body, sign: jax.Array) -> JointRows:
    """Build the rows of a joint from the poses of hull and leg."""
    ax, ay, bx, by = joint_arms(hull[2], leg[2], sign)
    linear = HULL_INV_MASS + LEG_INV_MASS
    xx = linear + ay * ay * HULL_INV_INERTIA + by * by * LEG_INV_INERTIA
    xy = -ay * ax * HULL_INV_INERTIA - by * bx * LEG_INV_INERTIA
    xz = -ay * HULL_INV_INERTIA - by * LEG_INV_INERTIA
    yy = linear + ax * ax * HULL_INV_INERTIA + bx * bx * LEG_INV_INERTIA
    yz = ax * HULL_INV_INERTIA + bx * LEG_INV_INERTIA
    zz = MOTOR_INV_MASS
    first = (yy * zz - yz * yz, xz * yz - xy * zz, xy * yz - yy * xz)
    scale = 1 / (xx * first[0] + xy * first[1] + xz * first[2])
    cofactors = (*first, xx * zz - xz * xz, xy * xz - xx * yz, xx * yy - xy * xy)
    inverse = tuple(c * scale for c in cofactors)
    near, far = at_limits(_mirrored_angle(hull, leg, sign))
    lower, upper = jnp.where(sign > 0, near, far), jnp.where(sign > 0, far, near)
    return JointRows(ax, ay, bx, by, (xx, xy, xz, yy, yz), inverse, 1 / (xx * yy - xy * xy), lower, upper, sign)


@not_inlined
def apply_joint_impulse(
    joint: JointRows, hull: Body, leg: Body, px: jax.Array, py: jax.Array, turn: jax.Array
) -> tuple[Body, Body]:
    """Apply the impulse (px, py) at the joint and the angular impulse `turn` to the leg, and their opposites to the
    hull.

    Returns:
        The velocities of hull and leg.
    """
    (hx, hy, hw), (lx, ly, lw) = hull, leg
    hw = hw - HULL_INV_INERTIA * (joint.ax * py - joint.ay * px + turn)
    lw = lw + LEG_INV_INERTIA * (joint.bx * py - joint.by * px + turn)
    hull = hx - HULL_INV_MASS * px, hy - HULL_INV_MASS * py, hw
    return hull, (lx + LEG_INV_MASS * px, ly + LEG_INV_MASS * py, lw)


def solve_joint(
    joint: JointRows, hull: Body, leg: Body, limit: jax.Array, motor: jax.Array
) -> tuple[Body, Body, jax.Array, jax.Array]:
    """Visit a joint once: the motor, then pin and limit together.

    Returns:
        The velocities of hull and leg, and the new impulses of limit and motor.
    """
    new_motor = _motor_impulse(joint, hull, leg, motor)
    px, py, new_limit = _pin_and_limit(joint, hull, leg, limit, new_motor - motor)
    hull, leg = apply_joint_impulse(joint, hull, leg, px, py, new_limit - limit + new_motor - motor)
    return hull, leg, new_limit, new_motor


@not_inlined
def _motor_impulse(joint: JointRows, hull: Body, leg: Body, motor: jax.Array) -> jax.Array:
    """Return the motor's impulse after a visit."""
    error = leg[2] - hull[2] - joint.sign * MOTOR_SPEED
    return jnp.clip(motor - error / MOTOR_INV_MASS, -MOTOR_IMPULSE, MOTOR_IMPULSE)


@not_inlined
def _pin_and_limit(
    joint: JointRows, hull: Body, leg: Body, limit: jax.Array, turn: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the impulse (x, y) of the pin and the new impulse of the limit, after the motor's angular impulse `turn`.

    If the limit would have to pull, it is released and the pin is solved alone.
    """
    hull_spin, leg_spin = hull[2] - HULL_INV_INERTIA * turn, leg[2] + LEG_INV_INERTIA * turn
    cx = leg[0] - leg_spin * joint.by - hull[0] + hull_spin * joint.ay
    cy = leg[1] + leg_spin * joint.bx - hull[1] - hull_spin * joint.ax
    cz = leg_spin - hull_spin
    i_xx, i_xy, i_xz, i_yy, i_yz, i_zz = joint.inverse
    xx, xy, xz, yy, yz = joint.k
    total = limit - (i_xz * cx + i_yz * cy + i_zz * cz)
    holds = (joint.lower & (total >= 0)) | (joint.upper & (total <= 0))
    rx, ry = -cx + limit * xz, -cy + limit * yz
    px = jnp.where(holds, -(i_xx * cx + i_xy * cy + i_xz * cz), joint.pin_scale * (yy * rx - xy * ry))
    py = jnp.where(holds, -(i_xy * cx + i_yy * cy + i_yz * cz), joint.pin_scale * (xx * ry - xy * rx))
    return px, py, jnp.where(holds, total, 0.0)


def correct_joints(pose: Bodies, angles: Pair) -> tuple[Bodies, jax.Array]:
    """Make one pass of Box2D's position correction over both joints, leg 1 first.

    A limit that was active at the start of the step is restored to within 2°, by at most 8° per pass; then the two ends
    of the pin are brought together.

    Args:
        pose: the positions to correct.
        angles: the mirrored joint angles at the start of the step.

    Returns:
        The corrected positions, and whether all errors were tolerable before the correction.
    """
    hull, leg0, leg1 = pose
    hull, leg1, tolerable1 = _correct_joint(hull, leg1, angles[1], jnp.full_like(angles[1], SIGN[1]))
    hull, leg0, tolerable0 = _correct_joint(hull, leg0, angles[0], jnp.full_like(angles[0], SIGN[0]))
    return (hull, leg0, leg1), tolerable0 & tolerable1


@not_inlined
def _correct_joint(hull: Body, leg: Body, start_angle: jax.Array, sign: jax.Array) -> tuple[Body, Body, jax.Array]:
    angle = _mirrored_angle(hull, leg, sign)
    near, far = angle - NEAR_LIMIT, angle - FAR_LIMIT
    at_near, at_far = at_limits(start_angle)
    excess = jnp.where(at_near, jnp.clip(near + ANGULAR_SLOP, -MAX_LIMIT_CORRECTION, 0), 0.0)
    excess = jnp.where(at_far, jnp.clip(far - ANGULAR_SLOP, 0, MAX_LIMIT_CORRECTION), excess)
    error = jnp.where(at_near, -near, jnp.where(at_far, far, 0.0))
    turn = -sign * excess / MOTOR_INV_MASS
    hull_angle, leg_angle = hull[2] - HULL_INV_INERTIA * turn, leg[2] + LEG_INV_INERTIA * turn
    arms = joint_arms(hull_angle, leg_angle, sign)
    hull, leg, gap = _close_pin((hull[0], hull[1], hull_angle), (leg[0], leg[1], leg_angle), *arms)
    return hull, leg, (gap <= SLOP**2) & (error <= ANGULAR_SLOP)


@not_inlined
def _close_pin(
    hull: Body, leg: Body, ax: jax.Array, ay: jax.Array, bx: jax.Array, by: jax.Array
) -> tuple[Body, Body, jax.Array]:
    """Bring the two ends of the pin together by moving and turning both bodies; also return their squared distance."""
    cx, cy = leg[0] + bx - hull[0] - ax, leg[1] + by - hull[1] - ay
    kxx = HULL_INV_MASS + LEG_INV_MASS + HULL_INV_INERTIA * ay * ay + LEG_INV_INERTIA * by * by
    kxy = -HULL_INV_INERTIA * ax * ay - LEG_INV_INERTIA * bx * by
    kyy = HULL_INV_MASS + LEG_INV_MASS + HULL_INV_INERTIA * ax * ax + LEG_INV_INERTIA * bx * bx
    scale = -1 / (kxx * kyy - kxy * kxy)
    px, py = scale * (kyy * cx - kxy * cy), scale * (kxx * cy - kxy * cx)
    hull_turn, leg_turn = HULL_INV_INERTIA * (ax * py - ay * px), LEG_INV_INERTIA * (bx * py - by * px)
    hull = hull[0] - HULL_INV_MASS * px, hull[1] - HULL_INV_MASS * py, hull[2] - hull_turn
    leg = leg[0] + LEG_INV_MASS * px, leg[1] + LEG_INV_MASS * py, leg[2] + leg_turn
    return hull, leg, cx * cx + cy * cy
