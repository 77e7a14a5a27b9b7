"""One time step of the lunar lander: a hull and two legs, two joints with motors, and the moon.

This is what gymnasium asks of the Box2D engine, derived for readers who do not know it.

**Bodies.** The hull (mass 4.8167) and two legs (mass 0.0711, boxes of 0.133 by 0.533) move in a plane. Gravity and
engines change the velocities before the step. The step turns them into velocities that joints and ground allow, and
moves the bodies by these for 1/50 s. Hull and legs collide with the ground only.

**Joints.** A pin connects each leg to the hull's origin: both bodies have the same velocity there. A motor turns the
leg inwards at 0.3 rad/s with at most 40 N·m, which is an impulse of 0.8 per step, and limits keep the mirrored joint
angle in [0.4, 0.9]. In flight the motor holds the leg at 0.4. On landing the leg gives way against the motor, as a
suspension.

**Constraint rows.** Every constraint is a row J: J·v must be zero (pin), a given number (motor) or not negative (limit,
ground). An impulse λ along Jᵀ enforces it within bounds: |λ| ≤ 0.8 for the motor, λ ≥ 0 for limit and ground,
|λ_tangent| ≤ μ λ_normal for friction with μ = √(0.2·0.1). Changing λ by δ changes v by M⁻¹Jᵀδ, so that one visit to a
row adds δ = −(J·v − target)/(J M⁻¹Jᵀ), clipped to the bounds. Box2D visits all rows in turn in 180 sweeps: the joints,
then each contact, friction before normals (sequential impulses, that is projected Gauss–Seidel).

**Flight in closed form** (`flight`). Without ground, the result of these sweeps is known, including the part of the
solution that 180 sweeps do not reach.

**Ground by the same sweeps** (`velocity_solver`). A leg is 68 times lighter than the hull that it carries. The sweeps
transmit the hull's weight to the ground in small portions, and 180 of them do not converge. Box2D therefore starts each
step from the last step's impulses (warm starting), which over several steps grow to what holds the lander up. Without
warm starting the legs sink and no lander comes to rest. To be faithful, we do the same sweeps in the same order from
the same impulses, so that joint impulses and the impulses of each identified contact point are part of the state.

**Positions** (`positions`). After the move, contacts push legs out by a fifth of what they penetrate beyond 0.005 and
joints are closed, repeatedly until all errors are tolerable. A leg that would enter the ground within the step is
stopped at the time of impact.

**Contact flags.** They record the last event that gymnasium's contact listener heard, not whether a leg touches:
leaving a segment clears the flag even if the leg stands on the next segment.

**Sleep.** When all bodies have been slower than 0.01 m/s and 2°/s for 25 steps, the lander sleeps: it has landed.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.lane_steps import all_lanes_at_once, compute_if_needed, constant_like, update_lanes
from jaxbyz.accelerate.no_inline import stored_rows
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.bodies import (
    ANCHOR_X,
    ANGULAR_SLOP,
    HULL,
    HULL_CENTRE,
    LEG,
    REFERENCE_ANGLE,
    SLOP,
    TIME_STEP,
    Bodies,
    both_legs,
    each_leg,
)
from jaxbyz.environments.lunar_lander.collision import (
    CONTACT_DISTANCE,
    GROUND_SEGMENT_WIDTH,
    GROUND_SEGMENTS,
    Manifold,
    height_at,
    hull_separation,
    leg_contacts,
    neighbouring_segments,
)
from jaxbyz.environments.lunar_lander.flight import flight_velocity
from jaxbyz.environments.lunar_lander.joints import correct_joints, joint_angles
from jaxbyz.environments.lunar_lander.positions import correct_positions, stop_at_impact
from jaxbyz.environments.lunar_lander.velocity_solver import solve_velocities

STEPS_UNTIL_SLEEP = 25
SLEEP_SPEED = 0.01
# Numbers of lanes that a CPU steps at a time (see `update_lanes`).
FLIGHT_GROUP, GROUND_GROUP = 256, 32


class World(NamedTuple):
    """The state of one lander, `[…]`; inside this module all fields have the lanes on a further, last axis.

    Attributes:
        terrain: `[11]`, heights at x = 0, 2, …, 20.
        pose: `[3, 3]`, hull, leg 0 and leg 1 by x, y and angle of the centre of mass.
        velocity: `[3, 3]`, the rates of change of `pose`.
        joint_impulse: `[2, 4]`, leg by (x, y, limit, motor).
        contact_key: `[2, 4]`, identifiers of each leg's contact points in the last step, 0 for none.
        contact_impulse: `[2, 4, 2]`, the (normal, tangent) impulses of those points.
        touching: `[2]`, bit s says that the leg touches ground segment s.
        contact_flag: `[2]`, what the observation reports as contact.
        still_steps: `[]`, the number of steps for which all bodies have been slow.
        crashed: `[]`, whether the hull touched the ground.
        asleep: `[]`, whether the lander came to rest.
    """

    terrain: jax.Array
    pose: jax.Array
    velocity: jax.Array
    joint_impulse: jax.Array
    contact_key: jax.Array
    contact_impulse: jax.Array
    touching: jax.Array
    contact_flag: jax.Array
    still_steps: jax.Array
    crashed: jax.Array
    asleep: jax.Array


@all_lanes_at_once
def step(world: World, over: jax.Array) -> World:
    """Advance a lander by 1/50 s, unless it has crashed, sleeps or is `over`; map it with `vmap` for many landers.

    Forces and engine impulses must already be contained in `world.velocity`.
    """
    moving = ~(over | world.crashed | world.asleep)
    no = constant_like(moving, False)
    flown, near, touching = update_lanes(_fly, [moving], FLIGHT_GROUP, (world, no, no), world)
    return update_lanes(_step_near_ground, [touching, near & ~touching], GROUND_GROUP, flown, world, flown)


def initial_world(terrain: jax.Array, x: float, y: float, push: jax.Array, fall: jax.Array) -> World:
    """Return one lander as gymnasium's reset leaves it: after a first step, with the hull's origin started at (x, y).

    The legs are created beside the hull with their joints 0.6 apart, and the first step's position correction pulls
    them together in three passes.

    Args:
        terrain: `[11]`, heights.
        x: the initial horizontal position of the hull's origin.
        y: its initial height.
        push: `[3]`, what forces add to the hull's velocity.
        fall: `[]`, what gravity adds to the legs' vertical velocity.
    """
    zero = jnp.zeros_like(fall)
    pose: Bodies = (
        (zero + x, zero + y + HULL_CENTRE, zero),
        (zero + x + ANCHOR_X, zero + y, zero - REFERENCE_ANGLE),
        (zero + x - ANCHOR_X, zero + y, zero + REFERENCE_ANGLE),
    )
    falling = ((push[0], push[1], push[2]), (zero, fall, zero), (zero, fall, zero))
    velocity, impulses = flight_velocity(pose, falling, ((zero,) * 4,) * 2)
    angles = joint_angles(pose)
    moved = lax.fori_loop(0, 3, lambda _, moved: correct_joints(moved, angles)[0], _moved(pose, velocity))
    world = world_without_contact(terrain, _to_array(moved), _to_array(velocity))
    return world._replace(joint_impulse=_to_array(impulses))


def world_without_contact(terrain: jax.Array, pose: jax.Array, velocity: jax.Array) -> World:
    """Return one lander in flight, without impulses of an earlier step."""
    zero, no = constant_like(terrain[0], 0.0), constant_like(terrain[0], False)
    integer_zero = zero.astype(jnp.int32)
    return World(
        terrain,
        pose,
        velocity,
        joint_impulse=jnp.full((2, 4), zero),
        contact_key=jnp.full((2, 4), integer_zero),
        contact_impulse=jnp.full((2, 4, 2), zero),
        touching=jnp.full(2, integer_zero),
        contact_flag=jnp.full(2, no),
        still_steps=integer_zero,
        crashed=no,
        asleep=no,
    )


def _fly(world: World) -> tuple[World, jax.Array, jax.Array]:
    """Step without ground, and return which lanes need a step with it (see `_near_ground`)."""
    pose, velocity = _to_bodies(world.pose), _to_bodies(world.velocity)
    x0, y0, limit0, motor0, x1, y1, limit1, motor1 = stored_rows(world.joint_impulse)
    previous = (x0, y0, limit0, motor0), (x1, y1, limit1, motor1)
    velocity, impulses = flight_velocity(pose, velocity, previous)
    moved, _ = correct_joints(_moved(pose, velocity), joint_angles(pose))
    nothing = constant_like(world.touching, 0)
    flown = world._replace(
        pose=_to_array(moved),
        velocity=_to_array(velocity),
        joint_impulse=_to_array(impulses),
        contact_key=constant_like(world.contact_key, 0),
        contact_impulse=constant_like(world.contact_impulse, 0.0),
        touching=nothing,
        contact_flag=updated_flag(world.contact_flag, world.touching, nothing),
        still_steps=constant_like(world.still_steps, 0),
    )
    return flown, *_near_ground(world)


def _step_near_ground(world: World, flown: World) -> World:
    """Step with ground; `flown` is the result of the same step without it."""
    pose = _to_bodies(world.pose)
    manifold, now = leg_contacts(world.terrain, both_legs(pose))
    constrained = _constrain(world, flown, manifold, now)
    moved, velocity = constrained.pose, constrained.velocity

    still_steps = jnp.where(_slow(velocity), world.still_steps + 1, 0)
    asleep = (still_steps >= STEPS_UNTIL_SLEEP) & constrained.tolerable
    velocity = jax.tree.map(lambda v: jnp.where(asleep, 0.0, v), velocity)
    flag = updated_flag(world.contact_flag, world.touching, now)
    hulls = jax.tree.map(lambda a, b: jnp.stack([a, b]), pose[0], moved[0])
    gap = hull_separation(hulls, neighbouring_segments(world.terrain, hulls[0])).min(axis=0)
    legs, leg_velocity, impact, at_impact = stop_at_impact(
        world.terrain, both_legs(pose), both_legs(moved), both_legs(velocity), asleep
    )
    return world._replace(
        pose=_to_array((moved[0], *each_leg(legs))),
        velocity=_to_array((velocity[0], *each_leg(leg_velocity))),
        joint_impulse=constrained.joint_impulse,
        contact_key=constrained.contact_key,
        contact_impulse=constrained.contact_impulse,
        touching=jnp.where(impact, at_impact, now),
        contact_flag=jnp.where(impact, updated_flag(flag, now, at_impact), flag),
        still_steps=still_steps,
        crashed=(gap[0] <= CONTACT_DISTANCE) | (gap[1] <= 0.75 * SLOP),
        asleep=asleep,
    )


class _Constrained(NamedTuple):
    """Positions, velocities and impulses that obey joints and ground, and whether all errors are tolerable."""

    pose: Bodies
    velocity: Bodies
    joint_impulse: jax.Array
    contact_key: jax.Array
    contact_impulse: jax.Array
    tolerable: jax.Array


def _constrain(world: World, flown: World, manifold: Manifold, now: jax.Array) -> _Constrained:
    """Solve for velocities, move and correct positions; lanes that touch nothing take the result of `flown`.

    `now` `[2, L]` says by bits which segments the legs touch.
    """
    pose = _to_bodies(world.pose)
    free = ((now | world.touching) == 0).all(axis=0)
    without_ground = _Constrained(
        _to_bodies(flown.pose),
        _to_bodies(flown.velocity),
        flown.joint_impulse,
        flown.contact_key,
        flown.contact_impulse,
        free,
    )

    def with_ground() -> _Constrained:
        velocity, joint_impulse, key, impulse = solve_velocities(
            pose,
            _to_bodies(world.velocity),
            manifold,
            world.joint_impulse,
            world.contact_key,
            world.contact_impulse,
        )
        moved, tolerable = correct_positions(_moved(pose, velocity), manifold, joint_angles(pose), free)
        return _Constrained(moved, velocity, joint_impulse, key, impulse, tolerable)

    result = compute_if_needed(~free.all(), with_ground, lambda: without_ground)
    return jax.tree.map(lambda a, b: jnp.where(free, a, b), without_ground, result)


def _slow(velocity: Bodies) -> jax.Array:
    """Return whether all bodies are slower than 0.01 m/s and 2° per second."""
    slow = [(v[0] ** 2 + v[1] ** 2 <= SLEEP_SPEED**2) & (v[2] ** 2 <= ANGULAR_SLOP**2) for v in velocity]
    return slow[0] & slow[1] & slow[2]


def updated_flag(flag: jax.Array, before: jax.Array, now: jax.Array) -> jax.Array:
    """Return the contact flag as gymnasium's listener sets it, from the segments touched before and now as bits.

    Leaving any segment clears the flag; otherwise, touching a new one sets it.
    """
    began, ended = (now & ~before) != 0, (before & ~now) != 0
    return ~ended & (flag | began)


def _near_ground(world: World) -> tuple[jax.Array, jax.Array]:
    """Return which lanes might touch the ground in this step, and which ones probably do already, `[L]` each.

    Every vertex is compared with the terrain below it, with a margin for the step's motion, and every body with the
    terrain corner nearest to it. The second result only improves the grouping of lanes.
    """
    near, touching = [], [(world.touching != 0).any(axis=0)]
    speed = jnp.abs(world.velocity)
    for body, polygon in enumerate((HULL, LEG, LEG)):
        x, y, angle = world.pose[body]
        cos, sin = cos_sin(angle)
        radius = max(math.hypot(px, py) for px, py in polygon)
        margin = 2 * (CONTACT_DISTANCE + TIME_STEP * (speed[body, 0] + speed[body, 1] + radius * speed[body, 2]))
        corner = jnp.clip(jnp.round(x / GROUND_SEGMENT_WIDTH), 0, GROUND_SEGMENTS).astype(jnp.int32)
        left, middle, right = (height_at(world.terrain, jnp.clip(corner + d, 0, GROUND_SEGMENTS)) for d in (-1, 0, 1))
        offset = x - GROUND_SEGMENT_WIDTH * corner
        lowest = jnp.full_like(y, jnp.inf)
        for px, py in polygon:
            vx, vy = offset + cos * px - sin * py, sin * px + cos * py
            slope = jnp.where(vx < 0, middle - left, right - middle) / GROUND_SEGMENT_WIDTH
            gap = y + vy - middle - slope * vx
            near.append(gap < margin)
            if body:
                touching.append(gap**2 <= CONTACT_DISTANCE**2 * (1 + slope**2))
            lowest = jnp.minimum(lowest, vy)
        near.append((jnp.abs(offset) < radius + 0.1) & (y + lowest - middle < margin))
    return functools.reduce(jnp.logical_or, near), functools.reduce(jnp.logical_or, touching)


def _to_bodies(array: jax.Array) -> Bodies:
    """Convert `[3, 3, L]` to a tuple of bodies."""
    x, y, angle, x0, y0, angle0, x1, y1, angle1 = stored_rows(array)
    return (x, y, angle), (x0, y0, angle0), (x1, y1, angle1)


def _to_array(rows: Sequence[Sequence[jax.Array]]) -> jax.Array:
    """Convert tuples of numbers `[…]` to an array `[rows, columns, …]`; for bodies, the inverse of `_to_bodies`."""
    stacked = jnp.stack([value for row in rows for value in row])
    return stacked.reshape(len(rows), len(rows[0]), *stacked.shape[1:])


def _moved(pose: Bodies, velocity: Bodies) -> Bodies:
    return jax.tree.map(lambda p, v: p + TIME_STEP * v, pose, velocity)
