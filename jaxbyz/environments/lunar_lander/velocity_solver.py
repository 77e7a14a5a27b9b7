"""Box2D's velocity solver for a lander on the ground: sweeps over two joints and up to eight contact points."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.lane_steps import compute_if_needed, constant_like
from jaxbyz.accelerate.no_inline import not_inlined
from jaxbyz.environments.lunar_lander.bodies import LEG_MASS, SIGN, Bodies, Body, Pair, both_legs, each_leg
from jaxbyz.environments.lunar_lander.collision import Manifold
from jaxbyz.environments.lunar_lander.contacts import (
    ContactImpulses,
    ContactRows,
    apply_contact_impulses,
    contact_rows,
    solve_contact,
)
from jaxbyz.environments.lunar_lander.joints import JointRows, apply_joint_impulse, joint_rows, solve_joint

VELOCITY_SWEEPS = 180
SWEEPS_BETWEEN_CHECKS = 10
# The sweeps end if ten of them changed no velocity of the lanes that are solved together (32, see
# `physics.GROUND_GROUP`) by more than this, in m/s and rad/s.
CONVERGED = 1e-7


class _Solution(NamedTuple):
    """What the sweeps change: velocities, and impulses per leg (of contacts per leg and segment)."""

    hull: Body
    legs: tuple[Body, Body]
    limits: Pair
    motors: Pair
    contacts: tuple[tuple[ContactImpulses, ContactImpulses], tuple[ContactImpulses, ContactImpulses]]


def _solution(
    hull: Body,
    legs: Sequence[Body],
    limits: Sequence[jax.Array],
    motors: Sequence[jax.Array],
    contacts: Sequence[Sequence[ContactImpulses]],
) -> _Solution:
    """Convert lists to the tuples of fixed length that a `_Solution` has."""
    (leg0, leg1), (limit0, limit1), (motor0, motor1) = legs, limits, motors
    (first0, second0), (first1, second1) = contacts
    return _Solution(hull, (leg0, leg1), (limit0, limit1), (motor0, motor1), ((first0, second0), (first1, second1)))


def solve_velocities(
    pose: Bodies,
    velocity: Bodies,
    manifold: Manifold,
    joint_impulse: jax.Array,
    contact_key: jax.Array,
    contact_impulse: jax.Array,
) -> tuple[Bodies, jax.Array, jax.Array, jax.Array]:
    """Sweep over all constraints, starting from the last step's impulses.

    Args:
        pose: positions at the start of the step.
        velocity: velocities that contain this step's forces.
        manifold: the contact points.
        joint_impulse: `[2, 4, L]`, result of the last step, as the two that follow.
        contact_key: `[2, 4, L]`.
        contact_impulse: `[2, 4, 2, L]`.

    Returns:
        The velocities, joint impulses, and the keys and impulses of the contact points.
    """
    joints = [joint_rows(pose[0], pose[1 + i], jnp.full_like(pose[0][0], SIGN[i])) for i in range(2)]
    x, y, _ = both_legs(pose)
    rx = manifold.point_x[0] - x, manifold.point_x[1] - x
    ry = manifold.point_y[0] - y, manifold.point_y[1] - y
    rows = contact_rows(manifold.normal_x, manifold.normal_y, rx, ry, manifold.active)
    warm = _warm_start_impulses(rows, manifold, contact_key, contact_impulse)
    solution = _sweep_until_converged(joints, rows, _warm_start(joints, rows, velocity, joint_impulse, warm))

    contacts = solution.contacts
    normal0, normal1, tangent0, tangent1 = (
        jnp.stack([jnp.stack([contacts[i][g][c] for i in range(2)]) for g in range(2)]) for c in range(4)
    )
    # The pins' impulse on a leg is its change of momentum minus the impulse of the ground.
    given, from_ground = both_legs(velocity), _change_by_contacts(rows, (normal0, normal1, tangent0, tangent1))
    leg0, leg1 = solution.legs
    pin_x, pin_y = (LEG_MASS * (jnp.stack([leg0[c], leg1[c]]) - given[c] - from_ground[c]) for c in range(2))
    joint = [v for i in range(2) for v in (pin_x[i], pin_y[i], solution.limits[i], solution.motors[i])]
    keys = [
        jnp.where(manifold.active[p], manifold.key[p], 0)[g, i] for i in range(2) for g in range(2) for p in range(2)
    ]
    contact = [contacts[i][g][c] for i in range(2) for g in range(2) for c in (0, 2, 1, 3)]
    lanes = leg0[0].shape[-1]
    return (
        (solution.hull, leg0, leg1),
        jnp.stack(joint).reshape(2, 4, lanes),
        jnp.stack(keys).reshape(2, 4, lanes),
        jnp.stack(contact).reshape(2, 4, 2, lanes),
    )


@not_inlined
def _warm_start_impulses(
    rows: ContactRows, manifold: Manifold, old_keys: jax.Array, old_impulse: jax.Array
) -> ContactImpulses:
    """Return the last step's impulses of the contact points that still exist, and 0 for new ones."""
    normals, tangents = [], []
    for p in range(2):
        normal = tangent = jnp.zeros_like(rows.nx)
        for old in range(4):
            same = rows.active[p] & (manifold.key[p] == old_keys[:, old])
            normal = jnp.where(same, old_impulse[:, old, 0], normal)
            tangent = jnp.where(same, old_impulse[:, old, 1], tangent)
        normals.append(normal)
        tangents.append(tangent)
    return normals[0], normals[1], tangents[0], tangents[1]


def _warm_start(
    joints: list[JointRows], rows: ContactRows, velocity: Bodies, joint_impulse: jax.Array, warm: ContactImpulses
) -> _Solution:
    """Apply the last step's impulses to the velocities."""
    started = each_leg(jax.tree.map(jnp.add, both_legs(velocity), _change_by_contacts(rows, warm)))
    hull = velocity[0]
    legs, limits, motors = [], [], []
    for i, joint in enumerate(joints):
        px, py, limit, motor = (joint_impulse[i, c] for c in range(4))
        limit = jnp.where(joint.lower | joint.upper, limit, 0.0)
        hull, leg = apply_joint_impulse(joint, hull, started[i], px, py, limit + motor)
        legs.append(leg)
        limits.append(limit)
        motors.append(motor)
    contacts = [[_pair_impulses(warm, g, i) for g in range(2)] for i in range(2)]
    return _solution(hull, legs, limits, motors, contacts)


def _pair_impulses(impulses: ContactImpulses, segment: int, leg: int) -> ContactImpulses:
    n0, n1, t0, t1 = (value[segment, leg] for value in impulses)
    return n0, n1, t0, t1


def _sweep_until_converged(joints: list[JointRows], rows: ContactRows, start: _Solution) -> _Solution:
    """Make `VELOCITY_SWEEPS` sweeps, or fewer if all lanes have converged, which is checked every ten sweeps."""
    active = rows.active[0] | rows.active[1]
    touched = [[active[g, i].any() for g in range(2)] for i in range(2)]

    def sweep(_: int, solution: _Solution) -> _Solution:
        hull, legs, limits, motors = solution.hull, list(solution.legs), list(solution.limits), list(solution.motors)
        contacts = [list(pair) for pair in solution.contacts]
        for i in (1, 0):
            hull, legs[i], limits[i], motors[i] = solve_joint(joints[i], hull, legs[i], limits[i], motors[i])
        for i in (1, 0):
            for g in range(2):
                visit = functools.partial(solve_contact, rows, at=(g, i))
                legs[i], contacts[i][g] = compute_if_needed(
                    touched[i][g], visit, lambda *unchanged: unchanged, legs[i], contacts[i][g]
                )
        return _solution(hull, legs, limits, motors, contacts)

    def sweep_and_check(carry: tuple[int, _Solution, jax.Array]) -> tuple[int, _Solution, jax.Array]:
        count, old, _ = carry
        new = lax.fori_loop(0, SWEEPS_BETWEEN_CHECKS, sweep, old)
        return count + SWEEPS_BETWEEN_CHECKS, new, _largest_change((old.hull, *old.legs), (new.hull, *new.legs))

    def goes_on(carry: tuple[int, _Solution, jax.Array]) -> jax.Array:
        count, _, change = carry
        return (count < VELOCITY_SWEEPS) & (change > CONVERGED)

    return lax.while_loop(goes_on, sweep_and_check, (0, start, constant_like(rows.nx.sum(), 1.0)))[1]


@not_inlined
def _change_by_contacts(rows: ContactRows, impulses: ContactImpulses) -> Body:
    """Return what impulses `[2, 2, L]` at all contact points add to the velocities of both legs `[2, L]`."""
    zero = jnp.zeros_like(rows.nx)
    x, y, w = (value[0] + value[1] for value in apply_contact_impulses(rows, (zero, zero, zero), *impulses))
    return x, y, w


@not_inlined
def _largest_change(before: Bodies, after: Bodies) -> jax.Array:
    changes = [jnp.abs(a - b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
    return functools.reduce(jnp.maximum, changes).max()
