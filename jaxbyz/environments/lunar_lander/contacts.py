"""Box2D's visit to the contact rows of legs and ground segments.

A leg is tested against the two ground segments nearest to it, and a pair of leg and segment has at most two contact
points. Arrays of rows are `[2, 2, L]` (segment, leg, lane) or a part of that. The impulses of a pair are a tuple
(normal 0, normal 1, tangent 0, tangent 1) over its points.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import not_inlined
from jaxbyz.environments.lunar_lander.bodies import LEG_INV_INERTIA, LEG_INV_MASS, Body, Pair

FRICTION = (0.2 * 0.1) ** 0.5  # the geometric mean of the coefficients of leg and ground

ContactImpulses = tuple[jax.Array, jax.Array, jax.Array, jax.Array]

_not_inlined_at = functools.partial(not_inlined, static_argnames=("at",))


class ContactRows(NamedTuple):
    """The rows of leg-segment pairs; tuples are over the two contact points."""

    nx: jax.Array  # normal from the ground into the leg
    ny: jax.Array
    tangent_arm: Pair  # change of the speed along the tangent per spin of the leg
    normal_arm: Pair  # the same along the normal
    tangent_mass: Pair  # 1 / (J M⁻¹Jᵀ) of the tangent rows
    tangent_coupling: jax.Array  # change of the speed along one tangent per impulse along the other
    active: Pair  # whether the point exists
    both: jax.Array  # whether both points exist and are solved together
    k11: jax.Array  # entries of the 2 × 2 matrix J M⁻¹Jᵀ of the normal rows
    k12: jax.Array
    k22: jax.Array
    scale: jax.Array  # 1 / determinant of that matrix


@not_inlined
def contact_rows(nx: jax.Array, ny: jax.Array, rx: Pair, ry: Pair, active: Pair) -> ContactRows:
    """Build rows from normals (nx, ny) and vectors (rx, ry) from the leg's centre of mass to the contact points.

    Of two nearly coincident points (condition number above 1000) the second is dropped.
    """
    tangent0, tangent1 = (-x * nx - y * ny for x, y in zip(rx, ry, strict=True))
    normal0, normal1 = (x * ny - y * nx for x, y in zip(rx, ry, strict=True))
    k11 = LEG_INV_MASS + LEG_INV_INERTIA * normal0**2
    k22 = LEG_INV_MASS + LEG_INV_INERTIA * normal1**2
    k12 = LEG_INV_MASS + LEG_INV_INERTIA * normal0 * normal1
    det = k11 * k22 - k12 * k12
    pair = active[0] & active[1]
    both = pair & (k11 * k11 < 1000 * det)
    return ContactRows(
        nx,
        ny,
        tangent_arm=(tangent0, tangent1),
        normal_arm=(normal0, normal1),
        tangent_mass=(
            1 / (LEG_INV_MASS + LEG_INV_INERTIA * tangent0**2),
            1 / (LEG_INV_MASS + LEG_INV_INERTIA * tangent1**2),
        ),
        tangent_coupling=LEG_INV_MASS + LEG_INV_INERTIA * tangent0 * tangent1,
        active=(active[0], active[1] & (both | ~pair)),
        both=both,
        k11=k11,
        k12=k12,
        k22=k22,
        scale=1 / jnp.where(both, det, 1.0),
    )


def solve_contact(
    rows: ContactRows, leg: Body, impulses: ContactImpulses, at: tuple[int, ...]
) -> tuple[Body, ContactImpulses]:
    """Visit the leg-segment pair `rows[at]` once: friction at each point, then both normals together.

    Returns:
        The leg's velocity and the new impulses.
    """
    tangents = _friction(rows, leg, impulses, at=at)
    normals = _normals(rows, leg, impulses, tangents, at=at)
    new = (*normals, *tangents)
    return _apply_change(rows, leg, impulses, new, at=at), new


def apply_contact_impulses(
    rows: ContactRows, leg: Body, n0: jax.Array, n1: jax.Array, t0: jax.Array, t1: jax.Array
) -> Body:
    """Return the leg's velocity after normal impulses n and tangent impulses t at the two points."""
    push, slide = LEG_INV_MASS * (n0 + n1), LEG_INV_MASS * (t0 + t1)
    turn = rows.normal_arm[0] * n0 + rows.normal_arm[1] * n1 + rows.tangent_arm[0] * t0 + rows.tangent_arm[1] * t1
    return (
        leg[0] + push * rows.nx + slide * rows.ny,
        leg[1] + push * rows.ny - slide * rows.nx,
        leg[2] + LEG_INV_INERTIA * turn,
    )


@_not_inlined_at
def _friction(rows: ContactRows, leg: Body, impulses: ContactImpulses, at: tuple[int, ...]) -> Pair:
    """Return the tangent impulses after visiting one point after the other: t ← clip(t − m v_t, ±μ n)."""
    rows = _select(rows, at)
    n0, n1, t0, t1 = impulses
    slide = leg[0] * rows.ny - leg[1] * rows.nx
    bound0, bound1 = jnp.where(rows.active[0], FRICTION * n0, 0.0), jnp.where(rows.active[1], FRICTION * n1, 0.0)
    slip = slide + leg[2] * rows.tangent_arm[0]
    first = jnp.clip(t0 - rows.tangent_mass[0] * slip, -bound0, bound0)
    slip = slide + leg[2] * rows.tangent_arm[1] + rows.tangent_coupling * (first - t0)
    return first, jnp.clip(t1 - rows.tangent_mass[1] * slip, -bound1, bound1)


@_not_inlined_at
def _normals(rows: ContactRows, leg: Body, impulses: ContactImpulses, tangents: Pair, at: tuple[int, ...]) -> Pair:
    """Return the normal impulses that solve K x + b ≥ 0 ⟂ x ≥ 0, whose four cases are tried in turn."""
    rows = _select(rows, at)
    n0, n1, t0, t1 = impulses
    spin = leg[2] + LEG_INV_INERTIA * (
        rows.tangent_arm[0] * (tangents[0] - t0) + rows.tangent_arm[1] * (tangents[1] - t1)
    )
    approach = leg[0] * rows.nx + leg[1] * rows.ny
    s0, s1 = approach + spin * rows.normal_arm[0], approach + spin * rows.normal_arm[1]
    b0, b1 = s0 - rows.k11 * n0 - rows.k12 * n1, s1 - rows.k12 * n0 - rows.k22 * n1
    x0, x1 = rows.scale * (rows.k12 * b1 - rows.k22 * b0), rows.scale * (rows.k12 * b0 - rows.k11 * b1)
    y0, y1 = -b0 / rows.k11, -b1 / rows.k22
    both_press = (x0 >= 0) & (x1 >= 0)
    first_presses = (y0 >= 0) & (rows.k12 * y0 + b1 >= 0)
    second_presses = (y1 >= 0) & (rows.k12 * y1 + b0 >= 0)
    both_leave = (b0 >= 0) & (b1 >= 0)
    pair0 = jnp.where(both_press, x0, jnp.where(first_presses, y0, jnp.where(second_presses | both_leave, 0.0, n0)))
    pair1 = jnp.where(second_presses, y1, jnp.where(both_leave, 0.0, n1))
    pair1 = jnp.where(both_press, x1, jnp.where(first_presses, 0.0, pair1))
    alone0 = jnp.where(rows.active[0], jnp.maximum(n0 - s0 / rows.k11, 0.0), 0.0)
    alone1 = jnp.where(rows.active[1], jnp.maximum(n1 - s1 / rows.k22, 0.0), 0.0)
    return jnp.where(rows.both, pair0, alone0), jnp.where(rows.both, pair1, alone1)


@_not_inlined_at
def _apply_change(
    rows: ContactRows, leg: Body, old: ContactImpulses, new: ContactImpulses, at: tuple[int, ...]
) -> Body:
    """Return the leg's velocity after its impulses changed from old to new."""
    return apply_contact_impulses(_select(rows, at), leg, *(b - a for a, b in zip(old, new, strict=True)))


def _select(rows: ContactRows, at: tuple[int, ...]) -> ContactRows:
    return jax.tree.map(lambda field: field[at], rows)
