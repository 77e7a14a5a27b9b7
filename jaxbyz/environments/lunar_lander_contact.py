"""Legs on the ground: velocities by Box2D's sequential impulses, many lanes at once.

Arrays are over lanes [L]; contact geometry is [2, 2, L], the g-th of the two terrain segments nearest to leg i by i.
Such a pair holds at most two contact points; their impulses are a tuple (normal 0, normal 1, tangent 0, tangent 1).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.environments.apart import apart
from jaxbyz.environments.lunar_lander_bodies import (
    FAR_LIMIT,
    HULL_INV_INERTIA,
    HULL_INV_MASS,
    LEG_INV_INERTIA,
    LEG_INV_MASS,
    MOTOR_IMPULSE,
    MOTOR_SPEED,
    NEAR_LIMIT,
    REFERENCE,
    SIGN,
    Bodies,
    both_legs,
    joint_levers,
)
from jaxbyz.environments.lunar_lander_collision import Body, Manifold, Pair, collide_leg, neighbouring_segments

FRICTION = (0.2 * 0.1) ** 0.5
CONVERGED = 1e-7  # m/s and rad/s: a sweep that changes no lane by more ends the solve

Impulses = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def leg_contacts(terrain: jax.Array, legs: Body) -> tuple[Manifold, jax.Array]:
    """Contact points of both legs (arrays [2, L]): a manifold of fields [segment, leg, L]; and bits [2, L].

    Bit s of a leg's number says that it touches segment s.
    """
    ground = neighbouring_segments(terrain, legs[0])
    manifold = collide_leg(legs, ground)
    bits = jnp.left_shift(1, jnp.maximum(ground.number, 0))
    bits = jnp.where(manifold.active[0] | manifold.active[1], bits, 0)
    return manifold, bits[0] | bits[1]


class Rows(NamedTuple):
    """Contact rows of leg-segment pairs: directions, levers about the leg's centre, and effective masses."""

    nx: jax.Array
    ny: jax.Array
    tangent_arm: Pair
    normal_arm: Pair
    tangent_mass: Pair
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
    tangent = [-x * nx - y * ny for x, y in zip(rx, ry, strict=True)]
    normal = [x * ny - y * nx for x, y in zip(rx, ry, strict=True)]
    k11 = LEG_INV_MASS + LEG_INV_INERTIA * normal[0] ** 2
    k22 = LEG_INV_MASS + LEG_INV_INERTIA * normal[1] ** 2
    k12 = LEG_INV_MASS + LEG_INV_INERTIA * normal[0] * normal[1]
    det = k11 * k22 - k12 * k12
    pair = active[0] & active[1]
    both = pair & (k11 * k11 < 1000 * det)
    masses = [1 / (LEG_INV_MASS + LEG_INV_INERTIA * arm**2) for arm in tangent]
    return Rows(
        nx,
        ny,
        (tangent[0], tangent[1]),
        (normal[0], normal[1]),
        (masses[0], masses[1]),
        (active[0], active[1] & (both | ~pair)),
        both,
        k11,
        k12,
        k22,
        1 / jnp.where(both, det, 1.0),
    )


@apart
def solve_contact(rows: Rows, body: Body, impulses: Impulses) -> tuple[Body, Impulses]:
    """One visit to a leg-segment pair: friction at each point, then both normals at once.

    Friction: t ← clip(t − m v_t, ±μ n). Normals: the 2 × 2 complementarity problem K x + b ≥ 0 ⟂ x ≥ 0, whose four
    cases are tried in turn.
    """
    vx, vy, w = body
    n0, n1, *tangents = impulses
    for p, n in enumerate((n0, n1)):
        slip = vx * rows.ny - vy * rows.nx + w * rows.tangent_arm[p]
        bound = jnp.where(rows.active[p], FRICTION * n, 0.0)
        new = jnp.clip(tangents[p] - rows.tangent_mass[p] * slip, -bound, bound)
        change, tangents[p] = new - tangents[p], new
        vx, vy = vx + LEG_INV_MASS * change * rows.ny, vy - LEG_INV_MASS * change * rows.nx
        w = w + LEG_INV_INERTIA * rows.tangent_arm[p] * change
    approach = vx * rows.nx + vy * rows.ny
    s0, s1 = approach + w * rows.normal_arm[0], approach + w * rows.normal_arm[1]
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
    m0, m1 = jnp.where(rows.both, pair0, alone0), jnp.where(rows.both, pair1, alone1)
    push = LEG_INV_MASS * (m0 - n0 + m1 - n1)
    turn = LEG_INV_INERTIA * (rows.normal_arm[0] * (m0 - n0) + rows.normal_arm[1] * (m1 - n1))
    return (vx + push * rows.nx, vy + push * rows.ny, w + turn), (m0, m1, tangents[0], tangents[1])


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
def solve_joint(joint: Joint, hull: Body, leg: Body, impulses: Impulses) -> tuple[Body, Body, Impulses]:
    """One visit to a joint: the motor, then point and limit together; impulses are (x, y, limit, motor).

    If the limit would have to pull, it is released and the point solved alone.
    """
    px, py, limit, motor = impulses
    angular = HULL_INV_INERTIA + LEG_INV_INERTIA
    new = jnp.clip(motor - (leg[2] - hull[2] - joint.sign * MOTOR_SPEED) / angular, -MOTOR_IMPULSE, MOTOR_IMPULSE)
    hull = hull[0], hull[1], hull[2] - HULL_INV_INERTIA * (new - motor)
    leg = leg[0], leg[1], leg[2] + LEG_INV_INERTIA * (new - motor)
    cx = leg[0] - leg[2] * joint.by - hull[0] + hull[2] * joint.ay
    cy = leg[1] + leg[2] * joint.bx - hull[1] - hull[2] * joint.ax
    cz = leg[2] - hull[2]
    i_xx, i_xy, i_xz, i_yy, i_yz, i_zz = joint.inverse
    xx, xy, xz, yy, yz = joint.k
    total = limit - (i_xz * cx + i_yz * cy + i_zz * cz)
    holds = (joint.lower & (total >= 0)) | (joint.upper & (total <= 0))
    rx, ry = -cx + limit * xz, -cy + limit * yz
    dx = jnp.where(holds, -(i_xx * cx + i_xy * cy + i_xz * cz), joint.scale * (yy * rx - xy * ry))
    dy = jnp.where(holds, -(i_xy * cx + i_yy * cy + i_yz * cz), joint.scale * (xx * ry - xy * rx))
    total = jnp.where(holds, total, 0.0)
    hull, leg = apply_joint(joint, hull, leg, dx, dy, total - limit)
    return hull, leg, (px + dx, py + dy, total, new)


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
def _give(rows: Rows, legs: Body, impulses: Impulses) -> Body:
    """Velocities of both legs [2, L] after impulses [2, 2, L] at all their contact points."""
    vx, vy, w = legs
    n0, n1, t0, t1 = impulses
    push, slide = LEG_INV_MASS * (n0 + n1), LEG_INV_MASS * (t0 + t1)
    turn = rows.normal_arm[0] * n0 + rows.normal_arm[1] * n1 + rows.tangent_arm[0] * t0 + rows.tangent_arm[1] * t1
    dx, dy = push * rows.nx + slide * rows.ny, push * rows.ny - slide * rows.nx
    return vx + dx[0] + dx[1], vy + dy[0] + dy[1], w + LEG_INV_INERTIA * (turn[0] + turn[1])


@apart
def _largest_change(before: Bodies, after: Bodies) -> jax.Array:
    change = [jnp.abs(a - b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]
    return functools.reduce(jnp.maximum, change).max()


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
    and (normal, tangent) impulses.
    """
    joints = [joint_rows(pose[0], pose[1 + i], jnp.full_like(pose[0][0], SIGN[i])) for i in range(2)]
    x, y, _ = both_legs(pose)
    rx = manifold.point_x[0] - x, manifold.point_x[1] - x
    ry = manifold.point_y[0] - y, manifold.point_y[1] - y
    rows = contact_rows(manifold.normal_x, manifold.normal_y, rx, ry, manifold.active)
    kept = _kept(rows, manifold, old_keys, old_impulse)
    started = _give(rows, both_legs(velocity), kept)
    row = [[jax.tree.map(lambda field, i=i, g=g: field[g, i], rows) for g in range(2)] for i in range(2)]
    touched = [[(row[i][g].active[0] | row[i][g].active[1]).any() for g in range(2)] for i in range(2)]
    hull, legs = velocity[0], [(started[0][i], started[1][i], started[2][i]) for i in range(2)]
    forces: list[Impulses] = []
    for i, joint in enumerate(joints):
        px, py, limit, motor = (joint_impulse[i, c] for c in range(4))
        limit = jnp.where(joint.lower | joint.upper, limit, 0.0)
        hull, legs[i] = apply_joint(joint, hull, legs[i], px, py, limit + motor)
        forces.append((px, py, limit, motor))

    def sweep(carry: tuple) -> tuple:
        count, hull, (leg0, leg1), forces, impulses, _ = carry
        before = hull, leg0, leg1
        hull, leg1, force1 = solve_joint(joints[1], hull, leg1, forces[1])
        hull, leg0, force0 = solve_joint(joints[0], hull, leg0, forces[0])
        legs, impulses = [leg0, leg1], [list(pair) for pair in impulses]
        for i in (1, 0):
            for g in range(2):
                legs[i], impulses[i][g] = lax.cond(
                    touched[i][g],
                    lambda body, force, row=row[i][g]: solve_contact(row, body, force),
                    lambda *unchanged: unchanged,
                    legs[i],
                    impulses[i][g],
                )
        change = _largest_change(before, (hull, legs[0], legs[1]))
        return count + 1, hull, tuple(legs), (force0, force1), tuple(tuple(pair) for pair in impulses), change

    impulses = tuple(tuple(tuple(value[g, i] for value in kept) for g in range(2)) for i in range(2))
    start = (0, hull, tuple(legs), tuple(forces), impulses, jnp.ones((), hull[0].dtype))
    _, hull, (leg0, leg1), joint_forces, impulses, _ = lax.while_loop(
        lambda carry: (carry[0] < sweeps) & (carry[5] > CONVERGED), sweep, start
    )
    keys = [
        jnp.where(manifold.active[p], manifold.key[p], 0)[g, i] for i in range(2) for g in range(2) for p in range(2)
    ]
    contact = [value for leg in impulses for n0, n1, t0, t1 in leg for value in (n0, t0, n1, t1)]
    lanes = hull[0].shape
    return (
        (hull, leg0, leg1),
        jnp.stack([value for force in joint_forces for value in force]).reshape(2, 4, *lanes),
        jnp.stack(keys).reshape(2, 4, *lanes),
        jnp.stack(contact).reshape(2, 4, 2, *lanes),
    )
