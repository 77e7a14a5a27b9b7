"""Joint limits and contacts with the floor as springs that only push.

MuJoCo replaces every constraint J·a ≥ 0 by a soft one: the acceleration J·a along the row J shall be at least

    target = −B (J·v) − K·imp·p,   with K = 1/(full·t)², B = 2/(full·t),

which is what a critically damped spring with time constant t would do at penetration p and velocity J·v. If it is less,
a force D (target − J·a) acts along J. The impedance imp in (0, 1) grows with the penetration: with
x = min(|p|/width, 1) it is start + y (full − start), where y = 2x² up to x = 1/2 and 1 − 2(1−x)² beyond. The spring's
strength is D = imp / ((1 − imp)·r), where r estimates how mobile the bodies are along the row.

A *limit* is one row, ±1 at its joint: a joint cannot be at both ends of its range. Its r is the joint's mobility.

A *contact* of a sphere with the floor has the distance d = height of the centre − radius, and acts at the height d/2
below the centre. With the lever (l_x, l_w) from the pin to that place, the normal velocity is v_w + ω l_x and the
tangential one v_x − ω l_w. Friction with coefficient μ enters as a pyramid: the rows n + μt and n − μt, and for the two
edges across the plane of motion, twice the row n. All four share D with r = 2μ²(1 + μ²)·mobility. Which of the rows
push decides how a contact resists: as a symmetric 2×2 matrix in (n, t), see `Grip`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import stored
from jaxbyz.environments.mujoco.bodies import Joint, JointLimit, Joints, Level, Model, Softness, constant
from jaxbyz.environments.mujoco.kinematics import Pose, Scales, rotated

SMALLEST_IMPEDANCE, LARGEST_IMPEDANCE = 1e-4, 0.9999
TIME_CONSTANT = 0.02


class LimitRow(NamedTuple):
    """The limits of a group of joints, `[n, L]` each.

    Attributes:
        side: +1 at the lower end of the range, −1 at the upper one.
        weight: D, or 0 if the joint is within its range.
        target: the least acceleration away from the limit.
    """

    side: Any
    weight: Any
    target: Any


class Contact(NamedTuple):
    """The contact points of one level, `[points, n, L]` each.

    Attributes:
        lever: from the pin to the place of contact, x and w.
        weight: D, or 0 if the point does not touch.
        normal: the least normal acceleration of the row n.
        tangential: the same for t.
        friction: the coefficient μ.
    """

    lever: tuple[Any, Any]
    weight: Any
    normal: Any
    tangential: Any
    friction: Any


class Grip(NamedTuple):
    """How a contact resists: the force (n, t) is the matrix [[nn, nt], [nt, tt]] times the missing acceleration.

    If the rows n + μt, n − μt and n push with weights e₁, e₂ and e₃ (D or 0), then nn = e₁ + e₂ + 2e₃, nt = μ(e₁ − e₂)
    and tt = μ²(e₁ + e₂).
    """

    nn: Any
    nt: Any
    tt: Any


def stiffness(model: Model, softness: Softness) -> tuple[float, float]:
    """Return K and B. The time constant is at least two steps of the integrator."""
    scale = min(softness.full, LARGEST_IMPEDANCE) * max(TIME_CONSTANT, 2 * model.time_step)
    return 1 / scale**2, 2 / scale


def impedance(softness: Softness, position: Any) -> Any:
    """Return the impedance at a position, which is negative if the constraint is violated, else irrelevant."""
    start, full = (min(max(s, SMALLEST_IMPEDANCE), LARGEST_IMPEDANCE) for s in softness[:2])
    if start == full:
        return full
    x = jnp.minimum(-position * (1 / softness.width), 1.0)
    rest = 1 - x
    return start + (full - start) * jnp.where(x <= 0.5, 2 * x * x, 1 - 2 * rest * rest)


def weight_of(imp: Any, position: Any, ease: Any) -> Any:
    """Return D, or 0 if the constraint is satisfied; `ease` is 1/r."""
    return jnp.where(position < 0, imp / (1 - imp) * ease, 0.0)


def limit_rows(model: Model, scales: Scales, q: Joints, v: Joints) -> Joints:
    """Return the limits of all joints as `LimitRow`, or None where there are none."""

    def row(joints: list[Joint], q: Any, v: Any) -> LimitRow | None:
        limits = [joint.limit for joint in joints if joint.limit is not None]
        if not limits:
            return None
        low, high, mobility, margin = (
            constant([getattr(one, name) for one in limits]) for name in JointLimit._fields[:4]
        )
        softness = limits[0].softness
        K, B = stiffness(model, softness)
        below, above = q - low, high - q
        side = jnp.where(below < above, 1.0, -1.0).astype(q.dtype)
        position = jnp.minimum(below, above) - margin
        imp = impedance(softness, position)
        weight = weight_of(imp, position, 1 / (mobility * scales.mass))
        return LimitRow(side, weight, -B * side * v - K * imp * position)

    levels = ((model.root,), *zip(*model.limbs, strict=True))
    hinges = [[link.hinge or Joint() for link in links] for links in levels]
    return Joints(
        row(list(model.slides), q.slides, v.slides),
        tuple(row(joints, qs, vs) for joints, qs, vs in zip(hinges, q.hinges, v.hinges, strict=True)),
    )


def contact(model: Model, scales: Scales, level: Level, pose: Pose) -> Contact | None:
    """Return the contacts of one level, or None if it has no points."""
    if not level.points:
        return None
    K, B = stiffness(model, model.contact_softness)
    pose = jax.tree.map(lambda a: a if isinstance(a, float) else a[None], pose)  # for the axis of points
    x, w = rotated(pose.cos, pose.sin, level.point)
    distance = pose.height + w - level.radius
    x, distance, imp = stored((x, distance, impedance(model.contact_softness, distance - model.contact_margin)))
    position = distance - model.contact_margin
    friction = level.friction * scales.friction
    square = friction * friction
    weight = weight_of(imp, position, 1 / (2 * square * (1 + square) * level.mobility * scales.mass))
    lever_w = 0.5 * distance - pose.height
    normal_velocity = pose.velocity[1] + pose.spin * x
    tangential_velocity = pose.velocity[0] - pose.spin * lever_w
    return Contact((x, lever_w), weight, -B * normal_velocity - K * imp * position, -B * tangential_velocity, friction)


def grip(row: Contact, spin: Any, ax: Any, aw: Any) -> Grip:
    """Return how contacts resist if their bodies accelerate by the given amounts, `[n, L]` each."""
    normal = aw + spin * row.lever[0] - row.normal
    tangential = row.friction * (ax - spin * row.lever[1] - row.tangential)
    normal, tangential = stored((normal, tangential))
    ahead, back, down = stored(
        tuple(jnp.where(lacking < 0, row.weight, 0.0) for lacking in (normal + tangential, normal - tangential, normal))
    )
    both = ahead + back
    return stored(Grip(both + 2 * down, row.friction * (ahead - back), row.friction * row.friction * both))


def active_limit(row: LimitRow, acceleration: Any) -> Any:
    """Return the weight of limits, or 0 where the joint accelerates away from its limit sufficiently."""
    return jnp.where(row.side * acceleration < row.target, row.weight, 0.0)


def limit_force(row: LimitRow, acceleration: Any) -> Any:
    """Return the force of limits on their joints."""
    return row.side * row.weight * jnp.maximum(row.target - row.side * acceleration, 0.0)
