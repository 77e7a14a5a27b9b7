"""Keeping legs out of the ground: Box2D's position correction and time of impact, many lanes at once.

Arrays are over lanes [L]; see `lunar_lander_contact` for how contact points are kept.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.no_inline import apart
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.bodies import (
    LEG_INV_INERTIA,
    LEG_INV_MASS,
    SLOP,
    TIME_STEP,
    Bodies,
    both_legs,
    correct_joints,
    each_leg,
)
from jaxbyz.environments.lunar_lander.collision import (
    SKIN,
    Body,
    Manifold,
    Pair,
    Segment,
    constant_like,
    leg_separation,
    neighbouring_segments,
)
from jaxbyz.environments.lunar_lander.constraint_rows import contact_rows, solve_contact
from jaxbyz.environments.lunar_lander.contact import leg_contacts

POSITION_SWEEPS, IMPACT_SWEEPS, IMPACT_VELOCITY_SWEEPS, ROOT_STEPS = 60, 20, 10, 8
RATE, IMPACT_RATE = 0.2, 0.75  # share of a penetration removed in one visit
MAX_PUSH = 0.2


@apart
def _located(
    manifold: Manifold, anchor_x: jax.Array, anchor_y: jax.Array, leg: Body, turned: Pair
) -> tuple[jax.Array, ...]:
    """Normal, offset from the leg's centre and separation of a contact point, for a moved leg; turned: cos, sin."""
    x, y, (cos, sin) = leg[0], leg[1], turned
    rx = jnp.where(manifold.ground, cos * anchor_x - sin * anchor_y, anchor_x - x)
    ry = jnp.where(manifold.ground, sin * anchor_x + cos * anchor_y, anchor_y - y)
    nx = jnp.where(manifold.ground, manifold.normal_x, sin * manifold.face_y - cos * manifold.face_x)
    ny = jnp.where(manifold.ground, manifold.normal_y, -sin * manifold.face_x - cos * manifold.face_y)
    along = nx * rx + ny * ry
    return nx, ny, rx, ry, jnp.where(manifold.ground, along + nx * x + ny * y, -along) - manifold.plane


@apart
def _push_point(
    active: jax.Array, place: tuple[jax.Array, ...], leg: Body, deepest: jax.Array, rate: jax.Array
) -> tuple[Body, jax.Array]:
    nx, ny, rx, ry, gap = place
    depth = jnp.where(active, gap - SKIN, 0.0)
    arm = rx * ny - ry * nx
    wanted = jnp.where(active, -jnp.clip(rate * (depth + SLOP), -MAX_PUSH, 0.0), 0.0)
    impulse = wanted / (LEG_INV_MASS + LEG_INV_INERTIA * arm * arm)
    push, turn = LEG_INV_MASS * impulse, LEG_INV_INERTIA * impulse * arm
    return (leg[0] + push * nx, leg[1] + push * ny, leg[2] + turn), jnp.minimum(deepest, depth)


def push_out(legs: Body, manifold: Manifold, rate: float) -> tuple[Body, jax.Array]:
    """One visit to the contact points of both legs [2, L]: move by rate × penetration beyond the slop.

    Returns the legs and the deepest penetration met on the way (≤ 0, skins included).
    """
    deepest = jnp.zeros_like(legs[0])
    for g in range(2):
        m = jax.tree.map(lambda field, g=g: field[g], manifold)
        for p in range(2):
            place = _located(m, m.anchor_x[p], m.anchor_y[p], legs, cos_sin(legs[2]))
            legs, deepest = _push_point(m.active[p], place, legs, deepest, jnp.float32(rate))
    return legs, deepest


def correct_positions(pose: Bodies, manifold: Manifold, angles: Pair, done: jax.Array) -> tuple[Bodies, jax.Array]:
    """Contacts, then joints, until all errors are tolerable or 60 rounds; lanes that are `done` are left alone.

    Contacts move the light legs only and the joints pull them back, so a hard landing takes many rounds and a resting
    lander, whose legs may stay up to 0.015 inside the skins, only one. Also returns which lanes succeeded.
    """

    def round_(carry: tuple) -> tuple:
        count, pose, done = carry
        legs, deepest = push_out(both_legs(pose), manifold, RATE)
        moved, good = correct_joints((pose[0], *each_leg(legs)), angles)
        good = good & (deepest >= -3 * SLOP).all(axis=0)
        return count + 1, jax.tree.map(lambda a, b: jnp.where(done, a, b), pose, moved), done | good

    _, pose, done = lax.while_loop(lambda c: (c[0] < POSITION_SWEEPS) & ~c[2].all(), round_, (0, pose, done))
    return pose, done


def _between(start: Body, end: Body, t: jax.Array) -> Body:
    x, y, angle = (a + t * (b - a) for a, b in zip(start, end, strict=True))
    return x, y, angle


def first_impact(ground: Segment, start: Body, end: Body) -> jax.Array:
    """When, as a fraction of the step, legs first come within 0.005 of a segment; 2 if never.

    The motion is a straight sweep from start to end. The root of separation(t) = 0.005 is sought by bisection and
    secant steps in turn and accepted within 0.00125, as in Box2D.
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
    begin = (0, zero, ~crossing, zero, s1, zero + 1, s2)
    t = lax.while_loop(lambda c: (c[0] < ROOT_STEPS) & ~c[2].all(), search, begin)[1]
    return jnp.where(at_once | crossing, t, 2.0)


def impact(
    terrain: jax.Array, start: Body, end: Body, velocity: Body, exempt: jax.Array
) -> tuple[Body, Body, jax.Array, jax.Array]:
    """Stop legs that would sink into the ground within the step; bodies are both legs, [2, L].

    A leg that reaches the ground is taken back to that moment, pushed out of the skin, stopped there by impulses of
    its own (the joint is not asked: it mends the gap in the next step) and moved on for the rest of the step. Returns
    legs, velocities, whether it happened and the segments touched at that moment as bits.
    """
    time = first_impact(neighbouring_segments(terrain, end[0]), start, end).min(axis=0)
    event = (time < 1) & ~exempt
    time = jnp.where(event, time, 1.0)
    none = end, velocity, constant_like(time, False), constant_like(time, 0)
    return lax.cond(event.any(), _stop, lambda *_: none, terrain, start, end, velocity, time, event)


def _stop(
    terrain: jax.Array, start: Body, end: Body, velocity: Body, time: jax.Array, event: jax.Array
) -> tuple[Body, Body, jax.Array, jax.Array]:
    legs = _between(start, end, time)
    manifold, bits = leg_contacts(terrain, legs)
    event = event & (bits != 0)

    def round_(carry: tuple) -> tuple:
        count, legs, done = carry
        moved, deepest = push_out(legs, manifold, IMPACT_RATE)
        legs = jax.tree.map(lambda a, b: jnp.where(done, a, b), legs, moved)
        return count + 1, legs, done | (deepest >= -1.5 * SLOP)

    _, legs, _ = lax.while_loop(lambda c: (c[0] < IMPACT_SWEEPS) & ~c[2].all(), round_, (0, legs, ~event))
    turned = cos_sin(legs[2])
    places = [_located(manifold, manifold.anchor_x[p], manifold.anchor_y[p], legs, turned) for p in range(2)]
    halves = [jnp.where(manifold.ground, -0.5, 0.5) * place[4] for place in places]
    rx, ry = ([place[2 + c] + half * place[c] for place, half in zip(places, halves, strict=True)] for c in range(2))
    rows = contact_rows(places[0][0], places[0][1], (rx[0], rx[1]), (ry[0], ry[1]), manifold.active)

    def sweep(_: int, carry: tuple) -> tuple:
        body, (left, right) = carry
        body, left = solve_contact(rows, body, left, at=(0,))
        body, right = solve_contact(rows, body, right, at=(1,))
        return body, (left, right)

    still = (constant_like(time, 0.0),) * 4
    stopped, _ = lax.fori_loop(0, IMPACT_VELOCITY_SWEEPS, sweep, (velocity, (still, still)))
    legs = jax.tree.map(lambda place, speed: place + (1 - time) * TIME_STEP * speed, legs, stopped)
    legs, stopped = jax.tree.map(lambda a, b: jnp.where(event, a, b), (legs, stopped), (end, velocity))
    return legs, stopped, event, bits
