"""Contact points between convex parts of the lander and the moon, element by element over lanes.

The moon is a chain of ten straight segments. Each pair of a polygon and a segment is tested on its own, as in Box2D:

1. *Separating axes.* The segment's normal N (on the side of the polygon's centre) and every polygon normal n_j give
   separations `min_i N·(V_i − P)` and `min_e n_j·(P_e − V_j)`, where V are vertices of the polygon and P ends of the
   segment. If one exceeds the contact distance of 0.02 (both shapes have a margin of 0.01), there is no contact.
2. *Reference face.* This is the segment, unless a polygon face separates clearly better (by 2 % and 0.001), as where a
   hill top touches the flat side of a leg.
3. *Clipping.* The opposing edge, called incident, is cut to the extent of the reference face. Its two ends are the
   contact points; each is kept if it lies within 0.02 of the reference plane.

A choice among a few candidates is a select instead of a gather, which would be slow.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import not_inlined
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.bodies import HULL, LEG, Body, Pair, Polygon

CONTACT_DISTANCE = 0.02
GROUND_SEGMENTS = 10
GROUND_SEGMENT_WIDTH = 2.0  # along x


class GroundSegment(NamedTuple):
    """A piece of ground from (x1, y1) to (x2, y2) with x1 < x2."""

    x1: jax.Array
    y1: jax.Array
    x2: jax.Array
    y2: jax.Array
    length: jax.Array
    number: jax.Array  # 0 to 9 from the left
    exists: jax.Array  # False beyond the ends of the moon


class Manifold(NamedTuple):
    """Two candidate contact points between a polygon and a segment; pairs are over the two points.

    What stays fixed while positions are corrected depends on which shape has the reference face. If it is the ground,
    these are the plane {p: normal·p = plane} in the world and the point `anchor` in the body's frame. Otherwise they
    are the plane {q: face·q = plane} in the body's frame and the point `anchor` in the world.
    """

    active: Pair  # whether the point exists
    key: Pair  # identifies the contact point, so that its impulse can be found in the next step
    point_x: Pair  # half way between the two surfaces
    point_y: Pair
    anchor_x: Pair
    anchor_y: Pair
    normal_x: jax.Array  # from the ground into the polygon
    normal_y: jax.Array
    face_x: jax.Array  # normal of the polygon's face in its own frame
    face_y: jax.Array
    plane: jax.Array
    on_ground: jax.Array  # whether the reference face is the ground segment


def leg_contacts(terrain: jax.Array, legs: Body) -> tuple[Manifold, jax.Array]:
    """Find the contact points of both legs `[2, L]` on terrain `[11, L]`.

    Returns:
        The contact points with fields `[segment, leg, L]`, and `[2, L]`, where bit s says that a leg touches segment s.
    """
    ground = neighbouring_segments(terrain, legs[0])
    faces = _meeting_faces(legs, ground)
    edges = _facing_edges(legs, ground, faces)
    manifold = _manifold(legs, ground, faces, edges.line, _clip_incident_edge(edges))
    bits = jnp.left_shift(1, jnp.maximum(ground.number, 0))
    bits = jnp.where(manifold.active[0] | manifold.active[1], bits, 0)
    return manifold, bits[0] | bits[1]


@not_inlined
def leg_separation(leg: Body, ground: GroundSegment) -> jax.Array:
    """Return the largest separation of a leg from a segment over all axes; at most 0 if they overlap.

    This is their distance, except where two corners face each other.
    """
    return _separation(LEG, leg, ground)


@not_inlined
def hull_separation(hull: Body, ground: GroundSegment) -> jax.Array:
    """Return the same as `leg_separation` for the hull."""
    return _separation(HULL, hull, ground)


def height_at(terrain: jax.Array, index: jax.Array) -> jax.Array:
    """Return `terrain[index]` in every lane, or 0 outside: terrain `[11, L]`, index `[..., L]`."""
    result = jnp.zeros(index.shape, terrain.dtype)
    for i in range(GROUND_SEGMENTS + 1):
        result = jnp.where(index == i, terrain[i], result)
    return result


@not_inlined
def neighbouring_segments(terrain: jax.Array, x: jax.Array) -> GroundSegment:
    """Return the two segments that meet at the terrain corner nearest to `x` `[..., L]`, with fields `[2, ..., L]`.

    No part of the lander is farther than 1 from its own centre, so that no other segment can touch it.
    """
    corner = jnp.clip(jnp.round(x / GROUND_SEGMENT_WIDTH), 0, GROUND_SEGMENTS).astype(jnp.int32)
    left, middle, right = (height_at(terrain, corner + d) for d in (-1, 0, 1))
    index = jnp.stack([corner - 1, corner])
    x1 = GROUND_SEGMENT_WIDTH * index.astype(x.dtype)
    y1, y2 = jnp.stack([left, middle]), jnp.stack([middle, right])
    length = jnp.sqrt(GROUND_SEGMENT_WIDTH**2 + (y2 - y1) ** 2)
    exists = (index >= 0) & (index < GROUND_SEGMENTS)
    return GroundSegment(x1, y1, x1 + GROUND_SEGMENT_WIDTH, y2, length, index, exists)


def _separation(polygon: Polygon, body: Body, ground: GroundSegment) -> jax.Array:
    x, y, angle = body
    axes = _separating_axes(polygon, x, y, cos_sin(angle), ground)
    return jnp.where(ground.exists, jnp.maximum(axes.edge, axes.face), 1.0)


class _Axes(NamedTuple):
    """The separations of a polygon from a segment."""

    edge: jax.Array  # along the segment's normal
    face: jax.Array  # along the normal of the polygon's best face
    best: jax.Array  # index of that face
    incident: jax.Array  # index of the face that opposes the segment most
    side: jax.Array  # +1 if the polygon's centre is above the segment's line, otherwise −1


def _separating_axes(polygon: Polygon, x: jax.Array, y: jax.Array, rotation: Pair, ground: GroundSegment) -> _Axes:
    """Return the separations; `rotation` is the cosine and sine of the polygon's angle."""
    c, s = rotation
    vx, vy = [x + c * px - s * py for px, py in polygon], [y + s * px + c * py for px, py in polygon]
    tx, ty = (ground.x2 - ground.x1) / ground.length, (ground.y2 - ground.y1) / ground.length
    side = jnp.where((y - ground.y1) * tx - (x - ground.x1) * ty > 0, 1.0, -1.0).astype(x.dtype)
    sx, sy = -ty * side, tx * side
    edge = functools.reduce(
        jnp.minimum, [sx * (px - ground.x1) + sy * (py - ground.y1) for px, py in zip(vx, vy, strict=True)]
    )
    gaps, facings = [], []
    for (px, py), ax, ay in zip(_face_normals(polygon), vx, vy, strict=True):
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


class _Faces(NamedTuple):
    """The faces of a leg and a segment that meet."""

    on_ground: jax.Array  # whether the segment is the reference face
    close: jax.Array  # whether leg and segment are within the contact distance
    chosen: jax.Array  # index of the leg's face
    side: jax.Array  # +1 if the leg's centre is above the segment's line, otherwise −1
    cos: jax.Array  # cosine and sine of the leg's angle
    sin: jax.Array


@not_inlined
def _meeting_faces(leg: Body, ground: GroundSegment) -> _Faces:
    """Make steps 1 and 2 for legs."""
    x, y, angle = leg
    cos, sin = cos_sin(angle)
    axes = _separating_axes(LEG, x, y, (cos, sin), ground)
    on_ground = ~(axes.face > 0.98 * axes.edge + 0.001)
    close = ground.exists & (axes.edge <= CONTACT_DISTANCE) & (axes.face <= CONTACT_DISTANCE)
    return _Faces(on_ground, close, jnp.where(on_ground, axes.incident, axes.best), axes.side, cos, sin)


class _Line(NamedTuple):
    """The line of the reference edge: its unit normal, and the point where the edge starts."""

    normal_x: jax.Array
    normal_y: jax.Array
    x: jax.Array
    y: jax.Array


class _Edges(NamedTuple):
    """The reference edge, and the incident edge from (x1, y1) to (x2, y2)."""

    line: _Line
    direction_x: jax.Array  # unit vector along the reference edge
    direction_y: jax.Array
    extent: jax.Array  # length of the reference edge
    x1: jax.Array
    y1: jax.Array
    x2: jax.Array
    y2: jax.Array


@not_inlined
def _facing_edges(leg: Body, ground: GroundSegment, faces: _Faces) -> _Edges:
    """Return the two edges that step 3 needs."""
    x, y, _ = leg
    on_ground, _, chosen, side, cos, sin = faces
    edges = zip(LEG, LEG[1:] + LEG[:1], _face_normals(LEG), strict=True)
    ax, ay, bx, by, fx, fy = (_table_entry(chosen, c) for c in zip(*(a + b + n for a, b, n in edges), strict=True))
    ax, ay = x + cos * ax - sin * ay, y + sin * ax + cos * ay
    bx, by = x + cos * bx - sin * by, y + sin * bx + cos * by
    fx, fy = cos * fx - sin * fy, sin * fx + cos * fy
    tx, ty = (ground.x2 - ground.x1) / ground.length, (ground.y2 - ground.y1) / ground.length
    with_ground_reference = _Edges(
        _Line(-ty * side, tx * side, ground.x1, ground.y1), tx, ty, ground.length, x1=ax, y1=ay, x2=bx, y2=by
    )
    with_leg_reference = _Edges(
        _Line(fx, fy, ax, ay),
        -fy,
        fx,
        (fx * by - fy * bx) - (fx * ay - fy * ax),
        x1=ground.x1,
        y1=ground.y1,
        x2=ground.x2,
        y2=ground.y2,
    )
    return jax.tree.map(functools.partial(jnp.where, on_ground), with_ground_reference, with_leg_reference)


class _CutEdge(NamedTuple):
    """The incident edge after it was cut; pairs are over its two ends."""

    overlap: jax.Array  # whether anything of the edge is left
    x: Pair
    y: Pair
    cut: Pair  # where the end was cut: 0 not at all, 1 at the start of the reference edge, 2 at its end


@not_inlined
def _clip_incident_edge(edges: _Edges) -> _CutEdge:
    """Cut the incident edge to the extent of the reference edge."""
    (_, _, rx, ry), qx, qy, extent, ix1, iy1, ix2, iy2 = edges
    t1, t2 = (ix1 - rx) * qx + (iy1 - ry) * qy, (ix2 - rx) * qx + (iy2 - ry) * qy
    overlap = (jnp.maximum(t1, t2) > 0) & (jnp.minimum(t1, t2) < extent)
    span = jnp.where(jnp.abs(t2 - t1) > 1e-9, t2 - t1, 1.0)
    ends = []
    for t in (t1, t2):
        fraction = (jnp.clip(t, 0, extent) - t1) / span
        cut = jnp.where(t < 0, 1, jnp.where(t > extent, 2, 0))
        ends.append((ix1 + fraction * (ix2 - ix1), iy1 + fraction * (iy2 - iy1), cut))
    return _CutEdge(overlap, *zip(*ends, strict=True))


@not_inlined
def _manifold(leg: Body, ground: GroundSegment, faces: _Faces, line: _Line, edge: _CutEdge) -> Manifold:
    """Return the two ends of the cut edge as contact points, in the order in which Box2D lists them."""
    x, y, _ = leg
    on_ground, close, chosen, side, cos, sin = faces
    px, py, rx, ry = line
    points: list[tuple[jax.Array, ...]] = []
    for end in range(2):
        cx, cy, cut = edge.x[end], edge.y[end], edge.cut[end]
        gap = px * (cx - rx) + py * (cy - ry)
        corner = jnp.where(on_ground, (chosen + end) % len(LEG), 16 * chosen + end)
        key = ((ground.number + 1) * 2 + on_ground) * 256 + jnp.where(cut > 0, 128 + 8 * chosen + cut, corner)
        lx, ly = cos * (cx - x) + sin * (cy - y), -sin * (cx - x) + cos * (cy - y)
        anchor = jnp.where(on_ground, lx, cx), jnp.where(on_ground, ly, cy)
        points.append(
            (close & edge.overlap & (gap <= CONTACT_DISTANCE), key, cx - 0.5 * gap * px, cy - 0.5 * gap * py, *anchor)
        )
    # Box2D's clipping lists a cut end after the other one; if both ends are cut, the order depends on which side is
    # cut first.
    first_side = jnp.where(on_ground & (side > 0), 2, 1)
    swap = (edge.cut[0] > 0) & ~((edge.cut[1] > 0) & (edge.cut[0] == first_side))
    fields = [(jnp.where(swap, v, u), jnp.where(swap, u, v)) for u, v in zip(*points, strict=True)]
    up = jnp.where(on_ground, 1.0, -1.0).astype(x.dtype)
    constants = [(*n, n[0] * a[0] + n[1] * a[1]) for a, n in zip(LEG, _face_normals(LEG), strict=True)]
    face_x, face_y, offset = (_table_entry(chosen, column) for column in zip(*constants, strict=True))
    plane = jnp.where(on_ground, px * rx + py * ry, offset)
    active, name, point_x, point_y, anchor_x, anchor_y = fields
    return Manifold(
        active, name, point_x, point_y, anchor_x, anchor_y, up * px, up * py, face_x, face_y, plane, on_ground
    )


def _face_normals(polygon: Polygon) -> Polygon:
    """Return the outward unit normals of a counter-clockwise polygon, where face j joins vertices j and j + 1."""
    normals = []
    for (ax, ay), (bx, by) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        length = math.hypot(bx - ax, by - ay)
        normals.append(((by - ay) / length, -(bx - ax) / length))
    return tuple(normals)


def _table_entry(index: jax.Array, values: tuple[float, ...]) -> jax.Array:
    """Return `values[index]` element by element, as a chain of selects."""
    result = jnp.full(index.shape, values[0], jnp.float32)
    for i, value in enumerate(values[1:], 1):
        result = jnp.where(index == i, jnp.float32(value), result)
    return result
