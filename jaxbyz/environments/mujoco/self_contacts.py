"""Contacts between two links of one limb, or of a limb and the root, as springs that only push.

The links are capsules: all points within a radius of a segment. The closest points of both segments, p and q, give the
normal n = (q − p)/|q − p| and the distance d = |q − p| minus both radii. The contact acts without friction at the place
P midway between the surfaces, as one row of `constraints` with r = the sum of both links' mobilities.

The row needs only the hinges between the two links: turning one of them about its pin A moves P at the rate
n·((P − A) turned by 90°). Because it couples hinges that are far apart in the tree, it is not part of a sweep;
`solver.solve_linear` adds it afterwards.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.accelerate.lane_steps import compute_if_needed
from jaxbyz.accelerate.no_inline import stored
from jaxbyz.environments.mujoco.bodies import Constant, Joints, Link, Model, constant, level_constants
from jaxbyz.environments.mujoco.constraints import impedance, stiffness, weight_of
from jaxbyz.environments.mujoco.kinematics import Pose, Scales, Vector

SHORTEST = 1e-12  # metres; where two segments cross, the normal is not defined


class SelfContacts(NamedTuple):
    """The P pairs of links that can touch each other, `[P, L]` each.

    Attributes:
        row: how fast the distance grows per unit of velocity of the hinges, one entry per level; None for the root.
        weight: D, or 0 if the links do not touch.
        target: the least acceleration of the distance.
    """

    row: tuple[Any, ...]
    weight: Any
    target: Any


class Segments(NamedTuple):
    """One link of each pair.

    Attributes:
        middle: the middle of the segment, from the pin of the root, `[P, L]`.
        half: from the middle to the segment's first end, `[P, L]`.
        square: half·half.
        radius: the distance from the segment to the surface.
    """

    middle: Vector
    half: Vector
    square: Constant
    radius: Constant


def along(row: tuple[Any, ...], hinges: tuple[Any, ...]) -> Any:
    """Return the products of rows with velocities or accelerations of the hinges."""
    return functools.reduce(operator.add, [a * b for a, b in zip(row, hinges, strict=True) if a is not None])


def self_contacts(model: Model, scales: Scales, poses: list[Pose], v: Joints) -> SelfContacts | None:
    """Return the contacts of all pairs, or None if the model has no pairs.

    They are computed only if the circles around two capsules meet in some lane, which is rare.
    """
    if not model.pairs:
        return None
    chain = (model.root, *model.limbs[0])
    names = [link.name for link in chain]
    numbers = [[names.index(pair[side]) for pair in model.pairs] for side in (0, 1)]
    pins = [poses[0].offset]
    for pose in poses[1:]:
        pins.append((pins[-1][0] + pose.offset[0], pins[-1][1] + pose.offset[1]))
    one, two = stored([_segments(chain, poses, pins, side) for side in numbers])
    x, w = stored((two.middle[0] - one.middle[0], two.middle[1] - one.middle[1]))
    reach = np.sqrt(one.square) + np.sqrt(two.square) + one.radius + two.radius + model.contact_margin

    def contacts() -> SelfContacts:
        place, normal, distance = _touch(one, two, (x, w))
        row: list[Any] = [None]
        for level in range(1, len(chain)):
            between = np.array([[float(i < level <= j)] for i, j in zip(*numbers, strict=True)])
            arm = place[0] - pins[level][0], place[1] - pins[level][1]
            row.append(between * level_constants(model)[level].sign * (normal[1] * arm[0] - normal[0] * arm[1]))
        row = stored(row)
        K, B = stiffness(model, model.contact_softness)
        position = distance - model.contact_margin
        imp = impedance(model.contact_softness, position)
        mobility = constant([sum(chain[i].mobility for i in pair) for pair in zip(*numbers, strict=True)])
        target = -B * along(tuple(row), v.hinges) - K * imp * position
        return SelfContacts(tuple(row), weight_of(imp, position, 1 / (mobility * scales.mass)), target)

    def nothing() -> SelfContacts:
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(contacts))

    return compute_if_needed((x * x + w * w < reach * reach).any(), contacts, nothing)


def _segments(chain: tuple[Link, ...], poses: list[Pose], pins: list[Vector], numbers: list[int]) -> Segments:
    """Return the segments of links, one per pair."""
    ends = np.array([[point.centre for point in chain[i].points] for i in numbers])  # [P, 2, 2]
    middle, half = ends.mean(axis=1), (ends[:, 0] - ends[:, 1]) / 2
    lanes = poses[-1].offset[0].shape[-1]

    def rows(get: Any) -> jax.Array:
        return jnp.concatenate([jnp.broadcast_to(get(i), (1, lanes)) for i in numbers])

    cos, sin = rows(lambda i: poses[i].cos), rows(lambda i: poses[i].sin)
    x, w = rows(lambda i: pins[i][0]), rows(lambda i: pins[i][1])
    (mx, mw), (hx, hw) = ((values[:, :1], values[:, 1:]) for values in (middle, half))
    return Segments(
        middle=(x + cos * mx - sin * mw, w + sin * mx + cos * mw),
        half=(cos * hx - sin * hw, sin * hx + cos * hw),
        square=constant((half**2).sum(axis=1)),
        radius=constant([chain[i].points[0].radius for i in numbers]),
    )


def _touch(one: Segments, two: Segments, between: Vector) -> tuple[Vector, Vector, Any]:
    """Return the place of contact, the normal from the first link to the second, and the distance."""
    s, t = closest_places(one, two, between)
    px, pw = one.middle[0] + s * one.half[0], one.middle[1] + s * one.half[1]
    x, w = stored((two.middle[0] + t * two.half[0] - px, two.middle[1] + t * two.half[1] - pw))
    length = jnp.sqrt(jnp.maximum(x * x + w * w, SHORTEST * SHORTEST))
    x, w, length = stored((x / length, w / length, length))
    distance = length - (one.radius + two.radius)
    reach = one.radius + 0.5 * distance
    return (px + reach * x, pw + reach * w), (x, w), distance


def closest_places(one: Segments, two: Segments, between: Vector) -> tuple[Any, Any]:
    """Return where two segments are closest, as multiples of their half vectors from their middles.

    The first guess is where the lines through them meet. Then the place on one of them follows from that on the other,
    clipped to the segment. `between` is the vector from the middle of the first to that of the second.
    """
    (x, w), a, b = between, one.half, two.half
    cross, dot = a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1]
    meeting = (x * b[1] - w * b[0]) / jnp.where(cross == 0, 1.0, cross)
    s = stored(jnp.clip(meeting, -1.0, 1.0))
    t = stored(jnp.clip((s * dot - x * b[0] - w * b[1]) * (1 / two.square), -1.0, 1.0))
    return stored(jnp.clip((t * dot + x * a[0] + w * a[1]) * (1 / one.square), -1.0, 1.0)), t
