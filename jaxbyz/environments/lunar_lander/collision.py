"""Where a convex part of the lander touches the moon: edge-against-polygon contact, element by element over lanes.

The moon is a chain of ten straight segments. Each pair (polygon, segment) is tested on its own, as in Box2D:

1. *Separating axes.* The segment's normal N (on the side of the polygon's centre) and every polygon normal n_j give
   separations `min_i N·(V_i − P)` and `min_e n_j·(P_e − V_j)`. If one exceeds the contact distance of 0.02 (both
   shapes carry a skin of 0.01) there is no contact.
2. *Reference face.* The segment, unless a polygon face separates clearly better (by 2 % and 0.001): that is how a
   hill top touches the flat side of a leg.
3. *Clipping.* The opposing ("incident") edge is cut to the extent of the reference face. Its two ends are the contact
   points, each kept if it lies within 0.02 of the reference plane.

Everything is element-wise over lanes: no gathers, choices among a handful of candidates are selects.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import apart
from jaxbyz.accelerate.trigonometry import cos_sin

SCALE = 30.0  # pixels a metre, in gymnasium's source
SKIN = 0.02  # two skins of 0.01
SEGMENTS = 10
SEGMENT_LENGTH = 2.0  # along x

Polygon = tuple[tuple[float, float], ...]  # vertices counter-clockwise, about the body's centre of mass
Body = tuple[jax.Array, jax.Array, jax.Array]  # (x, y, angle) of a centre of mass, or their rates of change
Pair = tuple[jax.Array, jax.Array]

LEG: Polygon = ((-2 / 30, -8 / 30), (2 / 30, -8 / 30), (2 / 30, 8 / 30), (-2 / 30, 8 / 30))
HULL_CENTRE = 0.10130719  # the hull's centre of mass lies this far above its origin
HULL: Polygon = tuple(
    (x / SCALE, y / SCALE - HULL_CENTRE) for x, y in ((-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17))
)


class Segment(NamedTuple):
    """A piece of ground from (x1, y1) to (x2, y2), with x1 < x2; `real` is False beyond the moon's ends."""

    x1: jax.Array
    y1: jax.Array
    x2: jax.Array
    y2: jax.Array
    length: jax.Array
    number: jax.Array  # 0..9 from the left
    real: jax.Array


class Manifold(NamedTuple):
    """Two candidate contact points between a polygon and a segment; pairs are over the two points.

    `normal` points from the ground into the polygon, `point` lies half way between the two surfaces. What stays fixed
    while positions are corrected depends on whose plane is the reference: if `ground`, the world plane
    {p: normal·p = plane} and the body point `anchor` (body frame); else the body plane {q: face·q = plane} and the
    ground point `anchor` (world frame). `key` names the contact point, so that its impulse can be found next step.
    """

    active: Pair
    key: Pair
    point_x: Pair
    point_y: Pair
    anchor_x: Pair
    anchor_y: Pair
    normal_x: jax.Array
    normal_y: jax.Array
    face_x: jax.Array
    face_y: jax.Array
    plane: jax.Array
    ground: jax.Array


def constant_like(reference: jax.Array, value: float | int | bool) -> jax.Array:
    """`value` in the reference's shape, and as device-varying as it is: under `shard_map` loops insist on that."""
    return jnp.where(reference == reference, value, value)


def height_at(terrain: jax.Array, index: jax.Array) -> jax.Array:
    """`terrain[index]` lane by lane, without a gather: terrain [11, L], index [..., L] -> the same shape; 0 outside."""
    result = jnp.zeros(index.shape, terrain.dtype)
    for i in range(SEGMENTS + 1):
        result = jnp.where(index == i, terrain[i], result)
    return result


@apart
def neighbouring_segments(terrain: jax.Array, x: jax.Array) -> Segment:
    """The two segments that meet at the terrain corner nearest to `x` [..., L]: fields [2, ..., L].

    No part of the lander reaches 1 from its own centre, so no other segment can touch it. Terrain is [11, L].
    """
    corner = jnp.clip(jnp.round(x / SEGMENT_LENGTH), 0, SEGMENTS).astype(jnp.int32)
    left, middle, right = (height_at(terrain, corner + d) for d in (-1, 0, 1))
    index = jnp.stack([corner - 1, corner])
    x1 = SEGMENT_LENGTH * index.astype(x.dtype)
    y1, y2 = jnp.stack([left, middle]), jnp.stack([middle, right])
    length = jnp.sqrt(SEGMENT_LENGTH**2 + (y2 - y1) ** 2)
    return Segment(x1, y1, x1 + SEGMENT_LENGTH, y2, length, index, (index >= 0) & (index < SEGMENTS))


def face_normals(polygon: Polygon) -> Polygon:
    """Outward unit normals of a counter-clockwise polygon, face j running from vertex j to vertex j+1."""
    normals = []
    for (ax, ay), (bx, by) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        length = math.hypot(bx - ax, by - ay)
        normals.append(((by - ay) / length, -(bx - ax) / length))
    return tuple(normals)


class _Axes(NamedTuple):
    """Separations along the segment's normal and along the best polygon face, and which faces those involve."""

    edge: jax.Array
    face: jax.Array
    best: jax.Array  # index of that face
    incident: jax.Array  # index of the face that opposes the segment most
    side: jax.Array  # +1 if the polygon's centre is above the segment's line, else −1


def _separating_axes(polygon: Polygon, x: jax.Array, y: jax.Array, cos: Pair, ground: Segment) -> _Axes:
    c, s = cos
    vx, vy = [x + c * px - s * py for px, py in polygon], [y + s * px + c * py for px, py in polygon]
    tx, ty = (ground.x2 - ground.x1) / ground.length, (ground.y2 - ground.y1) / ground.length
    side = jnp.where((y - ground.y1) * tx - (x - ground.x1) * ty > 0, 1.0, -1.0).astype(x.dtype)
    sx, sy = -ty * side, tx * side
    edge = functools.reduce(
        jnp.minimum, [sx * (px - ground.x1) + sy * (py - ground.y1) for px, py in zip(vx, vy, strict=True)]
    )
    gaps, facings = [], []
    for (px, py), ax, ay in zip(face_normals(polygon), vx, vy, strict=True):
        nx, ny = c * px - s * py, s * px + c * py
        ends = nx * (ground.x1 - ax) + ny * (ground.y1 - ay), nx * (ground.x2 - ax) + ny * (ground.y2 - ay)
        gaps.append(jnp.minimum(*ends))
        facings.append(sx * nx + sy * ny)
    face, opposing = gaps[0], facings[0]
    best = incident = jnp.zeros_like(face, jnp.int32)
    for j in range(1, len(polygon)):
        best, face = jnp.where(gaps[j] > face, j, best), jnp.maximum(gaps[j], face)
        incident, opposing = jnp.where(facings[j] < opposing, j, incident), jnp.minimum(facings[j], opposing)
    return _Axes(edge, face, best, incident, side)


def _separation(polygon: Polygon, body: Body, ground: Segment) -> jax.Array:
    x, y, angle = body
    axes = _separating_axes(polygon, x, y, cos_sin(angle), ground)
    return jnp.where(ground.real, jnp.maximum(axes.edge, axes.face), 1.0)


@apart
def leg_separation(leg: Body, ground: Segment) -> jax.Array:
    """Largest separation over all axes (the distance, save where two corners face each other); ≤ 0 is overlap."""
    return _separation(LEG, leg, ground)


@apart
def hull_separation(hull: Body, ground: Segment) -> jax.Array:
    """The same for the hull."""
    return _separation(HULL, hull, ground)


@apart
def _meeting_faces(leg: Body, ground: Segment) -> tuple[jax.Array, ...]:
    """Steps 1 and 2 for a leg: is the segment the reference, are the two close, which face, which side; cos, sin."""
    x, y, angle = leg
    cos, sin = cos_sin(angle)
    axes = _separating_axes(LEG, x, y, (cos, sin), ground)
    on_ground = ~(axes.face > 0.98 * axes.edge + 0.001)
    close = ground.real & (axes.edge <= SKIN) & (axes.face <= SKIN)
    return on_ground, close, jnp.where(on_ground, axes.incident, axes.best), axes.side, cos, sin


@apart
def _facing_edges(leg: Body, ground: Segment, faces: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Step 3: the reference edge (normal, start, direction, extent) and the two ends of the incident edge."""
    x, y, _ = leg
    on_ground, _, chosen, side, cos, sin = faces
    edges = zip(LEG, LEG[1:] + LEG[:1], face_normals(LEG), strict=True)
    ax, ay, bx, by, fx, fy = (_constant(chosen, c) for c in zip(*(a + b + n for a, b, n in edges), strict=True))
    ax, ay = x + cos * ax - sin * ay, y + sin * ax + cos * ay
    bx, by = x + cos * bx - sin * by, y + sin * bx + cos * by
    fx, fy = cos * fx - sin * fy, sin * fx + cos * fy
    tx, ty = (ground.x2 - ground.x1) / ground.length, (ground.y2 - ground.y1) / ground.length
    return (
        *(jnp.where(on_ground, a, b) for a, b in ((-ty * side, fx), (tx * side, fy))),
        *(jnp.where(on_ground, a, b) for a, b in ((ground.x1, ax), (ground.y1, ay), (tx, -fy), (ty, fx))),
        jnp.where(on_ground, ground.length, (fx * by - fy * bx) - (fx * ay - fy * ax)),
        *(jnp.where(on_ground, a, b) for a, b in ((ax, ground.x1), (ay, ground.y1), (bx, ground.x2), (by, ground.y2))),
    )


@apart
def _cut_ends(edges: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Step 3, continued: do the edges overlap, and the ends of the cut incident edge with how each was cut (1, 2)."""
    _, _, rx, ry, qx, qy, extent, ix1, iy1, ix2, iy2 = edges
    t1, t2 = (ix1 - rx) * qx + (iy1 - ry) * qy, (ix2 - rx) * qx + (iy2 - ry) * qy
    overlap = (jnp.maximum(t1, t2) > 0) & (jnp.minimum(t1, t2) < extent)
    span = jnp.where(jnp.abs(t2 - t1) > 1e-9, t2 - t1, 1.0)
    ends = []
    for t in (t1, t2):
        share = (jnp.clip(t, 0, extent) - t1) / span
        cut = jnp.where(t < 0, 1, jnp.where(t > extent, 2, 0))
        ends += [ix1 + share * (ix2 - ix1), iy1 + share * (iy2 - iy1), cut]
    return overlap, *ends


@apart
def _manifold(
    leg: Body,
    ground: Segment,
    faces: tuple[jax.Array, ...],
    edges: tuple[jax.Array, ...],
    ends: tuple[jax.Array, ...],
) -> Manifold:
    """Step 3, continued: the two ends as contact points, in the order Box2D lists them."""
    x, y, _ = leg
    on_ground, close, chosen, side, cos, sin = faces
    overlap, *rest = ends
    px, py, rx, ry = edges
    cuts = rest[2], rest[5]
    points: list[tuple[jax.Array, ...]] = []
    for end in range(2):
        cx, cy, cut = rest[3 * end : 3 * end + 3]
        gap = px * (cx - rx) + py * (cy - ry)
        corner = jnp.where(on_ground, (chosen + end) % len(LEG), 16 * chosen + end)
        key = ((ground.number + 1) * 2 + on_ground) * 256 + jnp.where(cut > 0, 128 + 8 * chosen + cut, corner)
        lx, ly = cos * (cx - x) + sin * (cy - y), -sin * (cx - x) + cos * (cy - y)
        anchor = jnp.where(on_ground, lx, cx), jnp.where(on_ground, ly, cy)
        points.append((close & overlap & (gap <= SKIN), key, cx - 0.5 * gap * px, cy - 0.5 * gap * py, *anchor))
    # Clipping moves a cut end behind the other one; cutting both ends, first side first, moves it back.
    first_side = jnp.where(on_ground & (side > 0), 2, 1)
    swap = (cuts[0] > 0) & ~((cuts[1] > 0) & (cuts[0] == first_side))
    fields = [(jnp.where(swap, v, u), jnp.where(swap, u, v)) for u, v in zip(*points, strict=True)]
    up = jnp.where(on_ground, 1.0, -1.0).astype(x.dtype)
    constants = [(*n, n[0] * a[0] + n[1] * a[1]) for a, n in zip(LEG, face_normals(LEG), strict=True)]
    face_x, face_y, offset = (_constant(chosen, column) for column in zip(*constants, strict=True))
    plane = jnp.where(on_ground, px * rx + py * ry, offset)
    active, name, point_x, point_y, anchor_x, anchor_y = fields
    return Manifold(
        active, name, point_x, point_y, anchor_x, anchor_y, up * px, up * py, face_x, face_y, plane, on_ground
    )


def collide_leg(leg: Body, ground: Segment) -> Manifold:
    """Contact points of legs with segments; all arrays broadcast together."""
    faces = _meeting_faces(leg, ground)
    edges = _facing_edges(leg, ground, faces)
    return _manifold(leg, ground, faces, edges[:4], _cut_ends(edges))


def _constant(index: jax.Array, values: tuple[float, ...]) -> jax.Array:
    """`values[index]` element by element, as a chain of selects."""
    result = jnp.full(index.shape, values[0], jnp.float32)
    for i, value in enumerate(values[1:], 1):
        result = jnp.where(index == i, jnp.float32(value), result)
    return result
