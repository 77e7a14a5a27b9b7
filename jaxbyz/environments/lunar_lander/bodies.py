"""The lander's three bodies and two joints: their numbers, free flight in closed form, and joint position correction.

A body is a tuple (x, y, angle) of its centre of mass, or of their rates, each an array over lanes [L]; three bodies
come in the order hull, leg 0, leg 1. Leg 1 is the mirror image of leg 0; `SIGN` turns its joint into leg 0's, so that
every joint angle lies in [0.4, 0.9] and every motor turns at −0.3 rad/s towards the limit at 0.4.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import apart
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.collision import HULL_CENTRE, Body, Pair

TIME_STEP = 1 / 50
HULL_MASS, HULL_INERTIA = 4.816666603, 0.78388062  # inertia about the centre of mass
LEG_MASS, LEG_INERTIA = 0.07111112, 0.00179094705
ANCHOR_X, ANCHOR_Y = 20 / 30, 18 / 30  # of the joint on leg 1; on leg 0 x changes sign
NEAR_LIMIT, FAR_LIMIT = 0.4, 0.9
REFERENCE = 0.05  # subtracted from a joint's angle by Box2D, with the leg's sign
MOTOR_SPEED, MOTOR_IMPULSE = -0.3, 0.8  # rad/s; 40 N·m for one time step
SIGN = (1.0, -1.0)

SLOP = 0.005  # distance errors below this are tolerated
ANGULAR_SLOP = 2 / 180 * math.pi
MAX_TURN = 8 / 180 * math.pi  # largest correction of a joint limit in one pass

TOTAL_MASS = HULL_MASS + 2 * LEG_MASS
HULL_INV_MASS, HULL_INV_INERTIA = 1 / HULL_MASS, 1 / HULL_INERTIA
LEG_INV_MASS, LEG_INV_INERTIA = 1 / LEG_MASS, 1 / LEG_INERTIA
_MOTOR_K = HULL_INV_INERTIA + LEG_INV_INERTIA

Bodies = tuple[Body, Body, Body]
Reduced = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]  # (vx, vy, ω, w0, w1), each [L]
Impulse = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # of a joint on its leg: (x, y, limit, motor)


class ReducedMass(NamedTuple):
    """Levers and inverse mass of the five coordinates left when both joints hold (see `lunar_lander_physics`).

    (ax, ay) and (bx[i], by[i]) are the joint's levers on hull and legs, turned by 90°. The rest is the inverse of the
    3 × 3 mass matrix of (ω, w0, w1) after the centre-of-mass velocity is eliminated.
    """

    ax: jax.Array
    ay: jax.Array
    bx: Pair
    by: Pair
    hull: jax.Array  # entry (ω, ω)
    mixed: Pair  # entries (ω, w_i)
    own: Pair  # entries (w_i, w_i)
    cross: jax.Array  # entry (w0, w1)


@apart
def reduced_mass(pose: Bodies) -> ReducedMass:
    """Assemble and invert the reduced mass matrix."""
    cos, sin = cos_sin(pose[0][2])
    ax, ay = cos * HULL_CENTRE, sin * HULL_CENTRE
    levers = []
    for i in range(2):
        (cos, sin), side = cos_sin(pose[1 + i][2]), -SIGN[i] * ANCHOR_X
        levers.append((-(sin * side + cos * ANCHOR_Y), cos * side - sin * ANCHOR_Y))
    (bx0, by0), (bx1, by1) = levers
    m_hull = HULL_INERTIA + HULL_CENTRE**2 * (2 * LEG_MASS - 4 * LEG_MASS**2 / TOTAL_MASS)
    m_own = LEG_INERTIA + (LEG_MASS - LEG_MASS**2 / TOTAL_MASS) * (ANCHOR_X**2 + ANCHOR_Y**2)
    m0, m1 = (-LEG_MASS * (1 - 2 * LEG_MASS / TOTAL_MASS) * (ax * bx + ay * by) for bx, by in levers)
    m_cross = -(LEG_MASS**2) / TOTAL_MASS * (bx0 * bx1 + by0 * by1)
    minor = m_own * m_own - m_cross * m_cross
    c0, c1 = m1 * m_cross - m0 * m_own, m0 * m_cross - m1 * m_own
    scale = 1 / (m_hull * minor + m0 * c0 + m1 * c1)
    own = (m_hull * m_own - m1 * m1) * scale, (m_hull * m_own - m0 * m0) * scale
    cross = (m0 * m1 - m_hull * m_cross) * scale
    return ReducedMass(ax, ay, (bx0, bx1), (by0, by1), minor * scale, (c0 * scale, c1 * scale), own, cross)


@apart
def respond(mass: ReducedMass, px: jax.Array, py: jax.Array, pw: jax.Array, p0: jax.Array, p1: jax.Array) -> Reduced:
    """Reduced velocity that carries the generalised momentum (px, py, pw, p0, p1): M⁻¹ p, without forming M."""
    k = LEG_MASS / TOTAL_MASS
    qw = pw - 2 * k * (mass.ax * px + mass.ay * py)
    q0 = p0 + k * (mass.bx[0] * px + mass.by[0] * py)
    q1 = p1 + k * (mass.bx[1] * px + mass.by[1] * py)
    w = mass.hull * qw + mass.mixed[0] * q0 + mass.mixed[1] * q1
    w0 = mass.mixed[0] * qw + mass.own[0] * q0 + mass.cross * q1
    w1 = mass.mixed[1] * qw + mass.cross * q0 + mass.own[1] * q1
    vx = px / TOTAL_MASS + k * (w0 * mass.bx[0] + w1 * mass.bx[1] - 2 * w * mass.ax)
    vy = py / TOTAL_MASS + k * (w0 * mass.by[0] + w1 * mass.by[1] - 2 * w * mass.ay)
    return vx, vy, w, w0, w1


@apart
def momentum(mass: ReducedMass, velocity: Bodies) -> Reduced:
    """Generalised momentum of three velocities that need not agree at the joints."""
    hull, *legs = velocity
    sum_x, sum_y = legs[0][0] + legs[1][0], legs[0][1] + legs[1][1]
    turning = [
        LEG_INERTIA * leg[2] - LEG_MASS * (leg[0] * mass.bx[i] + leg[1] * mass.by[i]) for i, leg in enumerate(legs)
    ]
    return (
        HULL_MASS * hull[0] + LEG_MASS * sum_x,
        HULL_MASS * hull[1] + LEG_MASS * sum_y,
        HULL_INERTIA * hull[2] + LEG_MASS * (sum_x * mass.ax + sum_y * mass.ay),
        turning[0],
        turning[1],
    )


def both_legs(bodies: Bodies) -> Body:
    """The legs of three bodies as one body of arrays [2, L]."""
    x, y, angle = (jnp.stack([bodies[1][c], bodies[2][c]]) for c in range(3))
    return x, y, angle


def each_leg(legs: Body) -> tuple[Body, Body]:
    """The inverse: two bodies of arrays [L]."""
    (x0, y0, a0), (x1, y1, a1) = ((legs[0][i], legs[1][i], legs[2][i]) for i in range(2))
    return (x0, y0, a0), (x1, y1, a1)


def joint_angles(pose: Bodies) -> Pair:
    """Mirrored joint angles; motor and limits act on these."""
    return pose[1][2] - pose[0][2] + REFERENCE, pose[0][2] - pose[2][2] + REFERENCE


@apart
def _spring(angle: jax.Array, z: jax.Array, speed: jax.Array, stiffness: jax.Array) -> jax.Array:
    """The impulse of motor and limit together that solves one joint exactly, the other held.

    Away from the limits the motor reaches its speed or saturates at ±0.8. At the near limit, towards which it pushes,
    the pair acts as a stop that gives way beyond 0.8. At the far limit the stop adds to the saturated motor.
    """
    at_motor_speed, at_rest = z - (speed - MOTOR_SPEED) / stiffness, z - speed / stiffness
    free = jnp.clip(at_motor_speed, -MOTOR_IMPULSE, MOTOR_IMPULSE)
    near = jnp.maximum(at_rest, -MOTOR_IMPULSE)
    far = jnp.clip(at_motor_speed, jnp.minimum(-MOTOR_IMPULSE, at_rest), MOTOR_IMPULSE)
    return jnp.where(angle <= NEAR_LIMIT, near, jnp.where(angle >= FAR_LIMIT, far, free))


def flight_velocity(
    pose: Bodies, velocity: Bodies, kept: tuple[Impulse, Impulse]
) -> tuple[Bodies, tuple[Impulse, Impulse]]:
    """Velocities after joints, motors and limits acted without ground, and the impulses they used.

    `kept` are the joints' impulses of the last step: Box2D's sweeps start from them and have not quite forgotten them
    at the end. The impulses returned are what the next solve starts from.
    """
    mass, angles = reduced_mass(pose), joint_angles(pose)
    u = respond(mass, *momentum(mass, velocity))
    zero = jnp.zeros_like(u[0])
    rows = respond(mass, zero, zero, zero - 1, zero + 1, zero), respond(mass, zero, zero, zero + 1, zero, zero - 1)
    # In terms of the two mirrored joint speeds, which couple only through the heavy hull:
    speed0, speed1 = u[3] - u[2], u[2] - u[4]
    stiffness0, stiffness1, coupling = rows[0][3] - rows[0][2], rows[1][2] - rows[1][4], rows[0][2] - rows[0][4]
    z0 = z1 = zero
    for _ in range(4):  # exact to rounding after four rounds
        z0 = _spring(angles[0], z0, speed0 + stiffness0 * z0 + coupling * z1, stiffness0)
        z1 = _spring(angles[1], z1, speed1 + stiffness1 * z1 + coupling * z0, stiffness1)
    first = _first_visit(mass, angles, velocity, kept)
    motors, springs = _motors(angles, (z0, z1), first, 0.5 * (stiffness0 + stiffness1), coupling)
    return _flight_result(mass, velocity, u, rows, springs, motors)


@apart
def _first_visit(mass: ReducedMass, angles: Pair, velocity: Bodies, kept: tuple[Impulse, Impulse]) -> Pair:
    """The motors' (mirrored) impulses after the first sweep's visit, which meets bodies moved by the kept impulses."""
    hull_spin, spins = velocity[0][2], []
    for i, (px, py, limit, motor) in enumerate(kept):
        turn = motor + jnp.where((angles[i] <= NEAR_LIMIT) | (angles[i] >= FAR_LIMIT), limit, 0.0)
        hull_spin = hull_spin - HULL_INV_INERTIA * (mass.ax * px + mass.ay * py + turn)
        spins.append(velocity[1 + i][2] + LEG_INV_INERTIA * (mass.bx[i] * px + mass.by[i] * py + turn))
    first0, first1 = (
        jnp.clip(
            SIGN[i] * kept[i][3] - (SIGN[i] * (spins[i] - hull_spin) - MOTOR_SPEED) / _MOTOR_K,
            -MOTOR_IMPULSE,
            MOTOR_IMPULSE,
        )
        for i in range(2)
    )
    return first0, first1


@apart
def _motors(angles: Pair, z: Pair, first: Pair, stiffness: jax.Array, coupling: jax.Array) -> tuple[Pair, Pair]:
    """What 179 more sweeps make of the motors' impulses, `first` after one, and of the whole impulses `z`.

    A visit changes the motor's impulse by −(speed error)/k with k = 1/I_hull + 1/I_leg, but the pin then takes back
    all of its effect save the share stiffness/k. Away from the limits the distance from the solution thus shrinks to
    (1 − stiffness/k)¹⁷⁹, about 0.4 %, where the stiffness is that of both legs moving alike or opposed, if both are
    free. At the near limit the joint stands still at every visit, so the motor, which wants 0.3 rad/s, gains 0.3/k each
    time until it saturates, while the limit takes up the difference.
    """
    locked = (jnp.minimum(*angles) <= NEAR_LIMIT) | (jnp.maximum(*angles) >= FAR_LIMIT)
    coupling = jnp.where(locked, 0.0, coupling)
    alike, opposed = (1 - (stiffness + coupling) / _MOTOR_K) ** 179, (1 - (stiffness - coupling) / _MOTOR_K) ** 179
    away0, away1 = first[0] - z[0], first[1] - z[1]
    both, difference = 0.5 * alike * (away0 + away1), 0.5 * opposed * (away0 - away1)
    motors, springs = [], []
    for i, rest in enumerate((both + difference, both - difference)):
        free = jnp.clip(z[i] + rest, -MOTOR_IMPULSE, MOTOR_IMPULSE)
        held = jnp.maximum(first[i] + 179 * MOTOR_SPEED / _MOTOR_K, -MOTOR_IMPULSE)
        near, far = angles[i] <= NEAR_LIMIT, angles[i] >= FAR_LIMIT
        motors.append(jnp.where(near, held, jnp.where(far, jnp.clip(z[i], -MOTOR_IMPULSE, MOTOR_IMPULSE), free)))
        springs.append(jnp.where(near | far, z[i], free))
    return (motors[0], motors[1]), (springs[0], springs[1])


@apart
def _flight_result(
    mass: ReducedMass, velocity: Bodies, u: Reduced, rows: tuple[Reduced, Reduced], springs: Pair, motors: Pair
) -> tuple[Bodies, tuple[Impulse, Impulse]]:
    """All three velocities, and the joints' impulses, from the spring impulses."""
    vx, vy, w, *turning = (a + b * springs[0] + c * springs[1] for a, b, c in zip(u, *rows, strict=True))
    legs, impulses = [], []
    for i, wi in enumerate(turning):
        leg = vx + w * mass.ax - wi * mass.bx[i], vy + w * mass.ay - wi * mass.by[i], wi
        px, py = LEG_MASS * (leg[0] - velocity[1 + i][0]), LEG_MASS * (leg[1] - velocity[1 + i][1])
        legs.append(leg)
        impulses.append((px, py, SIGN[i] * (springs[i] - motors[i]), SIGN[i] * motors[i]))
    return ((vx, vy, w), legs[0], legs[1]), (impulses[0], impulses[1])


@apart
def _correct_joint(hull: Body, leg: Body, start: jax.Array, sign: jax.Array) -> tuple[Body, Body, jax.Array]:
    angle = sign * (leg[2] - hull[2]) + REFERENCE
    near, far = angle - NEAR_LIMIT, angle - FAR_LIMIT
    at_near, at_far = start <= NEAR_LIMIT, start >= FAR_LIMIT
    excess = jnp.where(at_near, jnp.clip(near + ANGULAR_SLOP, -MAX_TURN, 0), 0.0)
    excess = jnp.where(at_far, jnp.clip(far - ANGULAR_SLOP, 0, MAX_TURN), excess)
    error = jnp.where(at_near, -near, jnp.where(at_far, far, 0.0))
    turn = -sign * excess / (HULL_INV_INERTIA + LEG_INV_INERTIA)
    hull_angle, leg_angle = hull[2] - HULL_INV_INERTIA * turn, leg[2] + LEG_INV_INERTIA * turn
    levers = joint_levers(hull_angle, leg_angle, sign)
    hull, leg, gap = _join((hull[0], hull[1], hull_angle), (leg[0], leg[1], leg_angle), *levers)
    return hull, leg, (gap <= SLOP**2) & (error <= ANGULAR_SLOP)


@apart
def joint_levers(hull_angle: jax.Array, leg_angle: jax.Array, sign: jax.Array) -> tuple[jax.Array, ...]:
    """From each centre of mass to the joint, in world axes: hull x, y, then leg x, y."""
    (hull_cos, hull_sin), (cos, sin), side = cos_sin(hull_angle), cos_sin(leg_angle), -sign * ANCHOR_X
    hull = hull_sin * HULL_CENTRE, -hull_cos * HULL_CENTRE
    return *hull, cos * side - sin * ANCHOR_Y, sin * side + cos * ANCHOR_Y


@apart
def _join(
    hull: Body, leg: Body, ax: jax.Array, ay: jax.Array, bx: jax.Array, by: jax.Array
) -> tuple[Body, Body, jax.Array]:
    """Bring the two anchors together by moving and turning both bodies; also the squared gap there was."""
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


def correct_joints(pose: Bodies, angles: Pair) -> tuple[Bodies, jax.Array]:
    """One pass of Box2D's position correction over both joints, leg 1 first.

    A limit that was active at the start of the step (`angles`) is restored to within 2°, at most 8° at a time; then
    the joint's two anchor points are brought together. Also returns whether every error was tolerable before.
    """
    hull, leg0, leg1 = pose
    hull, leg1, ok1 = _correct_joint(hull, leg1, angles[1], jnp.full_like(angles[1], SIGN[1]))
    hull, leg0, ok0 = _correct_joint(hull, leg0, angles[0], jnp.full_like(angles[0], SIGN[0]))
    return (hull, leg0, leg1), ok0 & ok1
