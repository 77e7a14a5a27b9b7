"""The velocities of a lander in flight, in closed form.

Without ground, both pins can be eliminated. With v the hull's velocity, ω its spin, w_i the spins of the legs, and a,
b_i the vectors from the centres of mass to the pin, turned by 90°, leg i moves at v + ω a − w_i b_i. All velocities
follow from u = (vx, vy, ω, w0, w1). The kinetic energy gives its mass matrix M. Impulses at the pins do not change the
generalised momentum p = M u, so that u = M⁻¹p for the momentum p of the given velocities.

Two scalars remain, the impulses z_0 and z_1 of motor and limit of each joint. Box2D's 180 sweeps approach their exact
values at a known rate, so that the error that remains is known too.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import not_inlined
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.bodies import (
    ANCHOR_X,
    ANCHOR_Y,
    HULL_CENTRE,
    HULL_INERTIA,
    HULL_INV_INERTIA,
    HULL_MASS,
    LEG_INERTIA,
    LEG_INV_INERTIA,
    LEG_MASS,
    MOTOR_IMPULSE,
    MOTOR_INV_MASS,
    MOTOR_SPEED,
    SIGN,
    TOTAL_MASS,
    Bodies,
    Pair,
)
from jaxbyz.environments.lunar_lander.joints import at_limits, joint_angles
from jaxbyz.environments.lunar_lander.velocity_solver import VELOCITY_SWEEPS

Reduced = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]  # (vx, vy, ω, w0, w1), each `[L]`
JointImpulse = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # of a joint on its leg: (x, y, limit, motor)


def flight_velocity(
    pose: Bodies, velocity: Bodies, previous: tuple[JointImpulse, JointImpulse]
) -> tuple[Bodies, tuple[JointImpulse, JointImpulse]]:
    """Return the velocities after pins, motors and limits have acted, and the joints' impulses.

    Args:
        pose: positions at the start of the step.
        velocity: velocities that contain this step's forces.
        previous: the joints' impulses of the last step, from which Box2D's sweeps start.
    """
    mass, angles = reduced_mass(pose), joint_angles(pose)
    u = _reduced_velocity(mass, *_momentum(mass, velocity))
    zero = jnp.zeros_like(u[0])
    unit_responses = (
        _reduced_velocity(mass, zero, zero, zero - 1, zero + 1, zero),
        _reduced_velocity(mass, zero, zero, zero + 1, zero, zero - 1),
    )
    first, second = unit_responses
    # The mirrored joint speeds and their response to z_0 and z_1. The joints are coupled only through the heavy hull.
    speed0, speed1 = u[3] - u[2], u[2] - u[4]
    response0, response1, coupling = first[3] - first[2], second[2] - second[4], first[2] - first[4]
    z0 = z1 = zero
    for _ in range(4):  # exact to rounding after four rounds
        z0 = _solve_motor_and_limit(angles[0], z0, speed0 + response0 * z0 + coupling * z1, response0)
        z1 = _solve_motor_and_limit(angles[1], z1, speed1 + response1 * z1 + coupling * z0, response1)
    after_first_sweep = _first_motor_visit(mass, angles, velocity, previous)
    motors, totals = _after_all_sweeps(angles, (z0, z1), after_first_sweep, 0.5 * (response0 + response1), coupling)
    return _velocities_and_impulses(mass, velocity, u, unit_responses, totals, motors)


class ReducedMass(NamedTuple):
    """Geometry and inverse mass matrix of the coordinates u = (vx, vy, ω, w0, w1).

    The last four fields are the inverse of the 3 × 3 mass matrix of (ω, w0, w1) that remains after the velocity of the
    common centre of mass is eliminated.
    """

    ax: jax.Array  # from the hull's centre of mass to the pins, turned by 90°
    ay: jax.Array
    bx: Pair  # the same for the legs
    by: Pair
    hull: jax.Array  # entry (ω, ω)
    mixed: Pair  # entries (ω, w_i)
    own: Pair  # entries (w_i, w_i)
    cross: jax.Array  # entry (w0, w1)


@not_inlined
def reduced_mass(pose: Bodies) -> ReducedMass:
    """Assemble and invert the reduced mass matrix."""
    cos, sin = cos_sin(pose[0][2])
    ax, ay = cos * HULL_CENTRE, sin * HULL_CENTRE
    arms = []
    for i in range(2):
        (cos, sin), side = cos_sin(pose[1 + i][2]), -SIGN[i] * ANCHOR_X
        arms.append((-(sin * side + cos * ANCHOR_Y), cos * side - sin * ANCHOR_Y))
    (bx0, by0), (bx1, by1) = arms
    m_hull = HULL_INERTIA + HULL_CENTRE**2 * (2 * LEG_MASS - 4 * LEG_MASS**2 / TOTAL_MASS)
    m_own = LEG_INERTIA + (LEG_MASS - LEG_MASS**2 / TOTAL_MASS) * (ANCHOR_X**2 + ANCHOR_Y**2)
    m0, m1 = (-LEG_MASS * (1 - 2 * LEG_MASS / TOTAL_MASS) * (ax * bx + ay * by) for bx, by in arms)
    m_cross = -(LEG_MASS**2) / TOTAL_MASS * (bx0 * bx1 + by0 * by1)
    minor = m_own * m_own - m_cross * m_cross
    c0, c1 = m1 * m_cross - m0 * m_own, m0 * m_cross - m1 * m_own
    scale = 1 / (m_hull * minor + m0 * c0 + m1 * c1)
    own = (m_hull * m_own - m1 * m1) * scale, (m_hull * m_own - m0 * m0) * scale
    cross = (m0 * m1 - m_hull * m_cross) * scale
    return ReducedMass(ax, ay, (bx0, bx1), (by0, by1), minor * scale, (c0 * scale, c1 * scale), own, cross)


@not_inlined
def _reduced_velocity(
    mass: ReducedMass, px: jax.Array, py: jax.Array, pw: jax.Array, p0: jax.Array, p1: jax.Array
) -> Reduced:
    """Return u = M⁻¹p for the generalised momentum p = (px, py, pw, p0, p1), without forming M."""
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


@not_inlined
def _momentum(mass: ReducedMass, velocity: Bodies) -> Reduced:
    """Return the generalised momentum of three velocities that need not agree at the pins."""
    hull, *legs = velocity
    sum_x, sum_y = legs[0][0] + legs[1][0], legs[0][1] + legs[1][1]
    p0, p1 = (
        LEG_INERTIA * leg[2] - LEG_MASS * (leg[0] * mass.bx[i] + leg[1] * mass.by[i]) for i, leg in enumerate(legs)
    )
    return (
        HULL_MASS * hull[0] + LEG_MASS * sum_x,
        HULL_MASS * hull[1] + LEG_MASS * sum_y,
        HULL_INERTIA * hull[2] + LEG_MASS * (sum_x * mass.ax + sum_y * mass.ay),
        p0,
        p1,
    )


@not_inlined
def _solve_motor_and_limit(angle: jax.Array, z: jax.Array, speed: jax.Array, response: jax.Array) -> jax.Array:
    """Return the impulse z of motor and limit that solves one joint exactly while the other is held fixed.

    Between the limits, the motor reaches its speed or saturates at ±0.8. At the near limit, towards which it pushes,
    motor and limit act as a stop that gives way beyond 0.8. At the far limit, the stop adds to the saturated motor.
    """
    at_motor_speed, at_rest = z - (speed - MOTOR_SPEED) / response, z - speed / response
    between = jnp.clip(at_motor_speed, -MOTOR_IMPULSE, MOTOR_IMPULSE)
    at_near = jnp.maximum(at_rest, -MOTOR_IMPULSE)
    at_far = jnp.clip(at_motor_speed, jnp.minimum(-MOTOR_IMPULSE, at_rest), MOTOR_IMPULSE)
    near, far = at_limits(angle)
    return jnp.where(near, at_near, jnp.where(far, at_far, between))


@not_inlined
def _first_motor_visit(
    mass: ReducedMass, angles: Pair, velocity: Bodies, previous: tuple[JointImpulse, JointImpulse]
) -> Pair:
    """Return the motors' mirrored impulses after the first sweep, which starts from the last step's impulses."""
    hull_spin, spins = velocity[0][2], []
    for i, (px, py, limit, motor) in enumerate(previous):
        near, far = at_limits(angles[i])
        turn = motor + jnp.where(near | far, limit, 0.0)
        hull_spin = hull_spin - HULL_INV_INERTIA * (mass.ax * px + mass.ay * py + turn)
        spins.append(velocity[1 + i][2] + LEG_INV_INERTIA * (mass.bx[i] * px + mass.by[i] * py + turn))
    first0, first1 = (
        jnp.clip(
            SIGN[i] * previous[i][3] - (SIGN[i] * (spins[i] - hull_spin) - MOTOR_SPEED) / MOTOR_INV_MASS,
            -MOTOR_IMPULSE,
            MOTOR_IMPULSE,
        )
        for i in range(2)
    )
    return first0, first1


@not_inlined
def _after_all_sweeps(
    angles: Pair, z: Pair, first: Pair, response: jax.Array, coupling: jax.Array
) -> tuple[Pair, Pair]:
    """Return the impulses of the motors, and of motors and limits together, after the remaining 179 sweeps.

    A visit changes the motor's impulse by −(speed error)/k with k = 1/I_hull + 1/I_leg, but the pin then undoes all of
    its effect except for the fraction response/k. Between the limits, the distance from the solution thus shrinks by
    (1 − response/k)¹⁷⁹, to about 0.4 %. If both joints are free, the response is that of both legs moving alike or
    opposed. At the near limit the joint stands still at every visit, so that the motor, which aims at 0.3 rad/s, gains
    0.3/k each time until it saturates, while the limit takes up the difference.

    Args:
        angles: the mirrored joint angles.
        z: the exact solution for motors and limits together.
        first: the motors' impulses after the first sweep.
        response: the change of a joint's speed per impulse of its own.
        coupling: the change per impulse of the other joint.
    """
    sweeps = VELOCITY_SWEEPS - 1
    (near0, far0), (near1, far1) = limits = at_limits(angles[0]), at_limits(angles[1])
    coupling = jnp.where(near0 | far0 | near1 | far1, 0.0, coupling)
    alike = (1 - (response + coupling) / MOTOR_INV_MASS) ** sweeps
    opposed = (1 - (response - coupling) / MOTOR_INV_MASS) ** sweeps
    error0, error1 = first[0] - z[0], first[1] - z[1]
    common, difference = 0.5 * alike * (error0 + error1), 0.5 * opposed * (error0 - error1)
    motors, totals = [], []
    for i, remaining_error in enumerate((common + difference, common - difference)):
        between = jnp.clip(z[i] + remaining_error, -MOTOR_IMPULSE, MOTOR_IMPULSE)
        held = jnp.maximum(first[i] + sweeps * MOTOR_SPEED / MOTOR_INV_MASS, -MOTOR_IMPULSE)
        near, far = limits[i]
        motors.append(jnp.where(near, held, jnp.where(far, jnp.clip(z[i], -MOTOR_IMPULSE, MOTOR_IMPULSE), between)))
        totals.append(jnp.where(near | far, z[i], between))
    return (motors[0], motors[1]), (totals[0], totals[1])


@not_inlined
def _velocities_and_impulses(
    mass: ReducedMass, velocity: Bodies, u: Reduced, unit_responses: tuple[Reduced, Reduced], totals: Pair, motors: Pair
) -> tuple[Bodies, tuple[JointImpulse, JointImpulse]]:
    """Return all three velocities and the joints' impulses, given the impulses of motors and limits."""
    vx, vy, w, *leg_spins = (a + b * totals[0] + c * totals[1] for a, b, c in zip(u, *unit_responses, strict=True))
    legs, impulses = [], []
    for i, wi in enumerate(leg_spins):
        leg = vx + w * mass.ax - wi * mass.bx[i], vy + w * mass.ay - wi * mass.by[i], wi
        px, py = LEG_MASS * (leg[0] - velocity[1 + i][0]), LEG_MASS * (leg[1] - velocity[1 + i][1])
        legs.append(leg)
        impulses.append((px, py, SIGN[i] * (totals[i] - motors[i]), SIGN[i] * motors[i]))
    return ((vx, vy, w), legs[0], legs[1]), (impulses[0], impulses[1])
