"""Legs on the ground: velocities by Box2D's sequential impulses, many lanes at once (see `lunar_lander_rows`)."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.no_inline import apart, branches_pay
from jaxbyz.environments.lunar_lander.bodies import LEG_MASS, SIGN, Bodies, both_legs, each_leg
from jaxbyz.environments.lunar_lander.collision import Body, Manifold, collide_leg, constant_like, neighbouring_segments
from jaxbyz.environments.lunar_lander.constraint_rows import (
    Impulses,
    Rows,
    apply_joint,
    contact_rows,
    joint_rows,
    pushed,
    solve_contact,
    solve_joint,
)

SWEEPS_BETWEEN_CHECKS = 10
CONVERGED = 1e-7  # m/s and rad/s: sweeps that change no lane by more end the solve


def leg_contacts(terrain: jax.Array, legs: Body) -> tuple[Manifold, jax.Array]:
    """Contact points of both legs (arrays [2, L]): a manifold of fields [segment, leg, L]; and bits [2, L].

    Bit s of a leg's number says that it touches segment s.
    """
    ground = neighbouring_segments(terrain, legs[0])
    manifold = collide_leg(legs, ground)
    bits = jnp.left_shift(1, jnp.maximum(ground.number, 0))
    bits = jnp.where(manifold.active[0] | manifold.active[1], bits, 0)
    return manifold, bits[0] | bits[1]


@apart
def _kept(rows: Rows, manifold: Manifold, old_keys: jax.Array, old_impulse: jax.Array) -> Impulses:
    """Last step's impulses of the contact points that are still there, 0 for new ones."""
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


@apart
def _contact_push(rows: Rows, impulses: Impulses) -> Body:
    """What impulses [2, 2, L] at all contact points add to the velocities of both legs [2, L]."""
    zero = jnp.zeros_like(rows.nx)
    x, y, w = (value[0] + value[1] for value in pushed(rows, (zero, zero, zero), *impulses))
    return x, y, w


@apart
def _largest_change(before: Bodies, after: Bodies) -> jax.Array:
    changes = [jnp.abs(a - b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
    return functools.reduce(jnp.maximum, changes).max()


def solve_velocities(
    pose: Bodies,
    velocity: Bodies,
    manifold: Manifold,
    joint_impulse: jax.Array,
    old_keys: jax.Array,
    old_impulse: jax.Array,
    sweeps: int,
) -> tuple[Bodies, jax.Array, jax.Array, jax.Array]:
    """Sequential impulses over two joints and up to eight contact points, started from last step's impulses.

    joint_impulse [2, 4, L], old_keys [2, 4, L] and old_impulse [2, 4, 2, L] are what the last step returned. The
    velocities already contain this step's forces. Returns velocities, joint impulses, and the contact points' keys
    and (normal, tangent) impulses. `sweeps` is a multiple of 10.
    """
    joints = [joint_rows(pose[0], pose[1 + i], jnp.full_like(pose[0][0], SIGN[i])) for i in range(2)]
    x, y, _ = both_legs(pose)
    rx = manifold.point_x[0] - x, manifold.point_x[1] - x
    ry = manifold.point_y[0] - y, manifold.point_y[1] - y
    rows = contact_rows(manifold.normal_x, manifold.normal_y, rx, ry, manifold.active)
    kept = _kept(rows, manifold, old_keys, old_impulse)
    given = both_legs(velocity)
    started = jax.tree.map(jnp.add, given, _contact_push(rows, kept))
    hull = velocity[0]
    legs: list[Body] = []
    limits: list[jax.Array] = []
    motors: list[jax.Array] = []
    for i, joint in enumerate(joints):
        px, py, limit, motor = (joint_impulse[i, c] for c in range(4))
        limit = jnp.where(joint.lower | joint.upper, limit, 0.0)
        hull, leg = apply_joint(joint, hull, each_leg(started)[i], px, py, limit + motor)
        legs.append(leg)
        limits.append(limit)
        motors.append(motor)
    active = rows.active[0] | rows.active[1]
    touched = [[active[g, i].any() for g in range(2)] for i in range(2)]

    def visit(i: int, g: int, leg: Body, force: Impulses) -> tuple[Body, Impulses]:
        """A visit to one leg-segment pair; where no lane touches it, nothing would change."""
        if not branches_pay():
            return solve_contact(rows, leg, force, at=(g, i))
        return lax.cond(
            touched[i][g], lambda a, b: solve_contact(rows, a, b, at=(g, i)), lambda *same: same, leg, force
        )

    def sweep(_: int, carry: tuple) -> tuple:
        hull, legs, limits, motors, impulses = carry
        legs, limits, motors, impulses = list(legs), list(limits), list(motors), [list(pair) for pair in impulses]
        for i in (1, 0):
            hull, legs[i], limits[i], motors[i] = solve_joint(joints[i], hull, legs[i], limits[i], motors[i])
        for i in (1, 0):
            for g in range(2):
                legs[i], impulses[i][g] = visit(i, g, legs[i], impulses[i][g])
        return hull, tuple(legs), tuple(limits), tuple(motors), tuple(tuple(pair) for pair in impulses)

    def some_sweeps(carry: tuple) -> tuple:
        count, state, _ = carry
        new = lax.fori_loop(0, SWEEPS_BETWEEN_CHECKS, sweep, state)
        return count + SWEEPS_BETWEEN_CHECKS, new, _largest_change((state[0], *state[1]), (new[0], *new[1]))

    held = tuple(tuple(tuple(value[g, i] for value in kept) for g in range(2)) for i in range(2))
    start = hull, tuple(legs), tuple(limits), tuple(motors), held
    _, (hull, (leg0, leg1), stops, drives, final), _ = lax.while_loop(
        lambda carry: (carry[0] < sweeps) & (carry[2] > CONVERGED), some_sweeps, (0, start, constant_like(x.sum(), 1.0))
    )
    # What the pins gave a leg is its change of momentum less what the ground gave it.
    n0, n1, t0, t1 = (jnp.stack([jnp.stack([final[i][g][c] for i in range(2)]) for g in range(2)]) for c in range(4))
    ground = _contact_push(rows, (n0, n1, t0, t1))
    pin_x, pin_y = (LEG_MASS * (jnp.stack([leg0[c], leg1[c]]) - given[c] - ground[c]) for c in range(2))
    forces = [value for i in range(2) for value in (pin_x[i], pin_y[i], stops[i], drives[i])]
    keys = [
        jnp.where(manifold.active[p], manifold.key[p], 0)[g, i] for i in range(2) for g in range(2) for p in range(2)
    ]
    contact = [leg[g][c] for leg in final for g in range(2) for c in (0, 2, 1, 3)]
    lanes = hull[0].shape[-1]
    return (
        (hull, leg0, leg1),
        jnp.stack(forces).reshape(2, 4, lanes),
        jnp.stack(keys).reshape(2, 4, lanes),
        jnp.stack(contact).reshape(2, 4, 2, lanes),
    )
