"""Keep the legs out of the ground: Box2D's position correction and its handling of impacts within a step."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.lane_steps import constant_like
from jaxbyz.accelerate.no_inline import not_inlined
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.bodies import (
    LEG_INV_INERTIA,
    LEG_INV_MASS,
    SLOP,
    TIME_STEP,
    Bodies,
    Body,
    Pair,
    both_legs,
    each_leg,
)
from jaxbyz.environments.lunar_lander.collision import (
    CONTACT_DISTANCE,
    GroundSegment,
    Manifold,
    leg_contacts,
    leg_separation,
    neighbouring_segments,
)
from jaxbyz.environments.lunar_lander.contacts import ContactRows, contact_rows, solve_contact
from jaxbyz.environments.lunar_lander.joints import correct_joints

POSITION_ROUNDS, IMPACT_POSITION_ROUNDS, IMPACT_VELOCITY_SWEEPS, ROOT_STEPS = 60, 20, 10, 8
CORRECTION_RATE, IMPACT_CORRECTION_RATE = 0.2, 0.75  # fraction of a penetration that one visit removes
MAX_CORRECTION = 0.2


def correct_positions(pose: Bodies, manifold: Manifold, angles: Pair, done: jax.Array) -> tuple[Bodies, jax.Array]:
    """Correct contacts, then joints, until all errors are tolerable or 60 rounds have been made.

    Contacts move only the light legs and the joints pull them back, so that a hard landing takes many rounds. A resting
    lander, whose legs may penetrate the contact distance by up to 0.015, takes one.

    Args:
        pose: the positions to correct.
        manifold: the contact points at the start of the step.
        angles: the mirrored joint angles at the start of the step.
        done: `[L]`, lanes that need no correction.

    Returns:
        The positions, and `[L]` whether all errors are tolerable.
    """

    def correct(carry: tuple[int, Bodies, jax.Array]) -> tuple[int, Bodies, jax.Array]:
        count, pose, done = carry
        legs, deepest = _push_out(both_legs(pose), manifold, CORRECTION_RATE)
        moved, tolerable = correct_joints((pose[0], *each_leg(legs)), angles)
        tolerable = tolerable & (deepest >= -3 * SLOP).all(axis=0)
        return count + 1, jax.tree.map(lambda a, b: jnp.where(done, a, b), pose, moved), done | tolerable

    _, pose, done = lax.while_loop(lambda c: (c[0] < POSITION_ROUNDS) & ~c[2].all(), correct, (0, pose, done))
    return pose, done


def stop_at_impact(
    terrain: jax.Array, start: Body, end: Body, velocity: Body, exempt: jax.Array
) -> tuple[Body, Body, jax.Array, jax.Array]:
    """Stop legs that would enter the ground within the step; bodies are both legs, `[2, L]`.

    A leg that reaches the ground is moved back to that moment, pushed out to the contact distance, stopped there by
    impulses of its own and moved on for the rest of the step. The joint is ignored and mends the gap in the next step.

    Args:
        terrain: `[11, L]`, heights.
        start: positions at the start of the step.
        end: positions at its end.
        velocity: velocities at its end.
        exempt: `[L]`, lanes to leave unchanged.

    Returns:
        Positions, velocities, whether an impact happened `[2, L]`, and the segments touched at that moment as bits.
    """
    time = time_of_impact(neighbouring_segments(terrain, end[0]), start, end).min(axis=0)
    impact = (time < 1) & ~exempt
    time = jnp.where(impact, time, 1.0)
    unchanged = end, velocity, constant_like(time, False), constant_like(time, 0)
    return lax.cond(impact.any(), _stop, lambda *_: unchanged, terrain, start, end, velocity, time, impact)


def time_of_impact(ground: GroundSegment, start: Body, end: Body) -> jax.Array:
    """Return when legs first come within 0.005 of a segment, as a fraction of the step, or 2 if they do not.

    The motion is linear from start to end. As in Box2D, the root of separation(t) = 0.005 is sought by alternating
    bisection and secant steps and accepted within 0.00125.
    """
    target, tolerance = SLOP, SLOP / 4
    s1, s2 = leg_separation(start, ground), leg_separation(end, ground)
    at_once = (s1 > 0) & (s1 < target + tolerance)
    crossing = (s1 >= target + tolerance) & (s2 <= target - tolerance)

    def search(carry: tuple) -> tuple:
        n, t, found, t1, s1, t2, s2 = carry
        secant = t1 + (target - s1) * (t2 - t1) / jnp.where(found, -1.0, s2 - s1)
        t = jnp.where(found, t, jnp.where(n % 2 == 0, 0.5 * (t1 + t2), secant))
        s = leg_separation(_between(start, end, t), ground)
        found = found | (jnp.abs(s - target) < tolerance)
        above, below = ~found & (s > target), ~found & (s <= target)
        t1, s1 = jnp.where(above, t, t1), jnp.where(above, s, s1)
        return n + 1, t, found, t1, s1, jnp.where(below, t, t2), jnp.where(below, s, s2)

    zero = constant_like(s1, 0.0)
    first = (0, zero, ~crossing, zero, s1, zero + 1, s2)
    t = lax.while_loop(lambda c: (c[0] < ROOT_STEPS) & ~c[2].all(), search, first)[1]
    return jnp.where(at_once | crossing, t, 2.0)


def _stop(
    terrain: jax.Array, start: Body, end: Body, velocity: Body, time: jax.Array, impact: jax.Array
) -> tuple[Body, Body, jax.Array, jax.Array]:
    """Compute `stop_at_impact` for lanes that have an impact at `time`."""
    legs = _between(start, end, time)
    manifold, bits = leg_contacts(terrain, legs)
    impact = impact & (bits != 0)

    def correct(carry: tuple[int, Body, jax.Array]) -> tuple[int, Body, jax.Array]:
        count, legs, done = carry
        moved, deepest = _push_out(legs, manifold, IMPACT_CORRECTION_RATE)
        legs = jax.tree.map(lambda a, b: jnp.where(done, a, b), legs, moved)
        return count + 1, legs, done | (deepest >= -1.5 * SLOP)

    _, legs, _ = lax.while_loop(lambda c: (c[0] < IMPACT_POSITION_ROUNDS) & ~c[2].all(), correct, (0, legs, ~impact))
    rows = _rows_at(manifold, legs)

    def sweep(_: int, carry: tuple) -> tuple:
        body, (left, right) = carry
        body, left = solve_contact(rows, body, left, at=(0,))
        body, right = solve_contact(rows, body, right, at=(1,))
        return body, (left, right)

    no_impulse = (constant_like(time, 0.0),) * 4
    stopped, _ = lax.fori_loop(0, IMPACT_VELOCITY_SWEEPS, sweep, (velocity, (no_impulse, no_impulse)))
    legs = jax.tree.map(lambda position, speed: position + (1 - time) * TIME_STEP * speed, legs, stopped)
    legs, stopped = jax.tree.map(lambda a, b: jnp.where(impact, a, b), (legs, stopped), (end, velocity))
    return legs, stopped, impact, bits


def _rows_at(manifold: Manifold, legs: Body) -> ContactRows:
    """Build contact rows for legs that have moved since the contact points were found."""
    rotation = cos_sin(legs[2])
    points = [_locate(manifold, manifold.anchor_x[p], manifold.anchor_y[p], legs, rotation) for p in range(2)]
    halves = [jnp.where(manifold.on_ground, -0.5, 0.5) * gap for *_, gap in points]
    rx, ry = ([point[2 + c] + half * point[c] for point, half in zip(points, halves, strict=True)] for c in range(2))
    return contact_rows(points[0][0], points[0][1], (rx[0], rx[1]), (ry[0], ry[1]), manifold.active)


def _push_out(legs: Body, manifold: Manifold, rate: float) -> tuple[Body, jax.Array]:
    """Visit the contact points of both legs `[2, L]` once, and move the legs by rate × penetration beyond the slop.

    Returns:
        The legs, and the smallest separation met, measured from the contact distance and at most 0.
    """
    deepest = jnp.zeros_like(legs[0])
    for g in range(2):
        m = jax.tree.map(lambda field, g=g: field[g], manifold)
        for p in range(2):
            point = _locate(m, m.anchor_x[p], m.anchor_y[p], legs, cos_sin(legs[2]))
            legs, deepest = _push_point(m.active[p], point, legs, deepest, jnp.float32(rate))
    return legs, deepest


@not_inlined
def _push_point(
    active: jax.Array, point: tuple[jax.Array, ...], leg: Body, deepest: jax.Array, rate: jax.Array
) -> tuple[Body, jax.Array]:
    nx, ny, rx, ry, gap = point
    depth = jnp.where(active, gap - CONTACT_DISTANCE, 0.0)
    arm = rx * ny - ry * nx
    correction = jnp.where(active, -jnp.clip(rate * (depth + SLOP), -MAX_CORRECTION, 0.0), 0.0)
    impulse = correction / (LEG_INV_MASS + LEG_INV_INERTIA * arm * arm)
    push, turn = LEG_INV_MASS * impulse, LEG_INV_INERTIA * impulse * arm
    return (leg[0] + push * nx, leg[1] + push * ny, leg[2] + turn), jnp.minimum(deepest, depth)


@not_inlined
def _locate(
    manifold: Manifold, anchor_x: jax.Array, anchor_y: jax.Array, leg: Body, rotation: Pair
) -> tuple[jax.Array, ...]:
    """Return normal, vector from the leg's centre and separation (nx, ny, rx, ry, gap) of a contact of a moved leg.

    `rotation` is the cosine and sine of the leg's angle.
    """
    x, y, (cos, sin) = leg[0], leg[1], rotation
    rx = jnp.where(manifold.on_ground, cos * anchor_x - sin * anchor_y, anchor_x - x)
    ry = jnp.where(manifold.on_ground, sin * anchor_x + cos * anchor_y, anchor_y - y)
    nx = jnp.where(manifold.on_ground, manifold.normal_x, sin * manifold.face_y - cos * manifold.face_x)
    ny = jnp.where(manifold.on_ground, manifold.normal_y, -sin * manifold.face_x - cos * manifold.face_y)
    along = nx * rx + ny * ry
    return nx, ny, rx, ry, jnp.where(manifold.on_ground, along + nx * x + ny * y, -along) - manifold.plane


def _between(start: Body, end: Body, t: jax.Array) -> Body:
    x, y, angle = (a + t * (b - a) for a, b in zip(start, end, strict=True))
    return x, y, angle
