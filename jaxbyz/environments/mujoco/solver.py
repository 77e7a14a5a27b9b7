"""Accelerations of a mechanism whose limits and contacts push: an active-set Newton method of articulated-body sweeps.

The acceleration a minimises ½ (a − a₀)ᵀ M (a − a₀) + ½ Σ D min(0, J·a − target)², where M is the mass matrix, a₀ the
acceleration without constraints and the sum runs over the rows of `constraints`. This is strictly convex and piecewise
quadratic. If the set E of rows that push were known, a would solve

    (M + Σ_E D JᵀJ) a = force + Σ_E D target Jᵀ.

So guess E, solve, and take as the next E the rows with J·a < target. When E stays the same, a is the exact minimiser.

**Sweep.** The matrix has the structure of the tree, so that one pass from the leaves to the root and back solves the
system (Featherstone's articulated-body algorithm). Each body has a symmetric matrix in (rotation, x, w) at its pin, the
inertia that it and everything beyond it present to a motion of the pin, and a wrench, the force that is left over:

1. Start from the rigid body: [[Q, −m c_w, m c_x], [·, m, 0], [·, ·, m]] with the moment of inertia Q about the pin.
2. Every contact with lever l and grip G adds the matrix of its rows n = (l_x, 0, 1) and t = (−l_w, 1, 0), that is
   G.nn n nᵀ + G.nt (n tᵀ + t nᵀ) + G.tt t tᵀ, and the wrench of its force G·(target_n, target_t).
3. Add the matrices of the children after moving them from their pin to this one.
4. A hinge turns freely: with d = Q + armature (+ D of a limit that pushes), eliminate its acceleration. What remains
   is the matrix that the parent feels. Q − Q²/d is computed as Q·(d − Q)/d, which has no cancellation.
5. The root's slides are a system of at most two equations. Then go from the root to the leaves: the acceleration of a
   hinge follows from that of its pin.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.lane_steps import compute_if_needed
from jaxbyz.accelerate.no_inline import stored
from jaxbyz.environments.mujoco.bodies import Joints, Level, Model, level_constants
from jaxbyz.environments.mujoco.constraints import Contact, Grip, LimitRow, active_limit, grip
from jaxbyz.environments.mujoco.kinematics import Pose, Wrench
from jaxbyz.environments.mujoco.self_contacts import SelfContacts, along

MOST_SWEEPS = 12


class Problem(NamedTuple):
    """What a sweep needs to know.

    Attributes:
        poses: of all levels.
        wrenches: the forces on the bodies of all levels.
        force: the forces on the joints.
        armature: the inertia of the joints themselves.
        limits: `LimitRow` or None per group of joints.
        contacts: `Contact` or None per level.
        pairs: contacts between links, or None.
    """

    poses: list[Pose]
    wrenches: list[Wrench]
    force: Joints
    armature: Joints
    limits: Joints
    contacts: list[Contact | None]
    pairs: SelfContacts | None


class Active(NamedTuple):
    """Which rows push.

    Attributes:
        limits: the weights of limits per group of joints, or None.
        grips: the grips of contacts per level, or None.
        pairs: the weights of contacts between links, or None.
    """

    limits: Joints
    grips: list[Grip | None]
    pairs: Any


class Motion(NamedTuple):
    """The acceleration of the bodies of a level: rotation, and x and w of the pin, `[n, L]` each."""

    spin: Any
    x: Any
    w: Any


class Inertia(NamedTuple):
    """A symmetric matrix in (rotation, x, w): its rows are (Q, bx, bw), (bx, xx, xw) and (bw, xw, ww)."""

    Q: Any
    bx: Any
    bw: Any
    xx: Any
    xw: Any
    ww: Any


class Hinge(NamedTuple):
    """The acceleration of hinges as a function of their parent's motion: free − (Q, bx, bw)·motion.

    `free` is the torque on the hinge times `inverse`.
    """

    free: Any
    Q: Any
    bx: Any
    bw: Any
    inverse: Any


class Factors(NamedTuple):
    """What a sweep has eliminated: the hinges of all levels, and the matrix that the root's slides feel."""

    hinges: list[Hinge | None]
    root: Inertia


def solve(model: Model, problem: Problem, start: Joints) -> Joints:
    """Return the accelerations of the joints. The first guess of E is the set of rows that push at `start`."""

    def body(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        sweeps, _, active, _ = carry
        acceleration, motions = solve_linear(model, problem, active)
        following = find_active(problem, acceleration, motions)
        return sweeps + 1, acceleration, following, jnp.any(_changed(active, following))

    if not jax.tree.leaves((problem.limits, problem.contacts)):
        return sweep(model, problem, None)[0]
    active = find_active(problem, start, accelerate(model, problem.poses, start))
    carry = (jnp.int32(0), start, active, jnp.bool_(True))
    return lax.while_loop(lambda carry: carry[3] & (carry[0] < MOST_SWEEPS), body, carry)[1]


def _changed(before: Active, after: Active) -> jax.Array:
    """Return whether other rows push than before, `[L]`. The entries nn and nt of a grip determine tt."""
    values = [(active.limits, [grip and grip[:2] for grip in active.grips], active.pairs) for active in (before, after)]
    pairs = zip(*map(jax.tree.leaves, values), strict=True)
    differences = [jnp.abs(a - b).reshape(-1, a.shape[-1]) for a, b in pairs]
    return functools.reduce(operator.add, [row for rows in differences for row in rows]) > 0


def find_active(problem: Problem, acceleration: Joints, motions: list[Motion]) -> Active:
    """Return which rows push at the given acceleration of joints and bodies."""

    def limit(row: LimitRow | None, acceleration: Any) -> Any:
        return None if row is None else active_limit(row, acceleration)

    limits = Joints(
        limit(problem.limits.slides, acceleration.slides),
        tuple(map(limit, problem.limits.hinges, acceleration.hinges)),
    )
    grips = [None if row is None else grip(row, *motion) for row, motion in zip(problem.contacts, motions, strict=True)]
    if problem.pairs is None:
        return Active(limits, grips, None)
    row, weight, target = problem.pairs
    return Active(limits, grips, jnp.where(along(row, acceleration.hinges) < target, weight, 0.0))


def accelerate(model: Model, poses: list[Pose], acceleration: Joints) -> list[Motion]:
    """Return the acceleration of all bodies that joint accelerations cause."""
    slides = acceleration.slides
    spin, x, w = 0.0, slides[:1] if len(model.slides) else 0.0, slides[1:] if len(model.slides) > 1 else 0.0
    result: list[Motion] = []
    for level, pose, turn in zip(level_constants(model), poses, acceleration.hinges, strict=True):
        if result:
            x, w = x - spin * pose.offset[1], w + spin * pose.offset[0]
        spin = spin if turn is None else spin + level.sign * turn
        result.append(Motion(spin, x, w))
    return result


def solve_linear(model: Model, problem: Problem, active: Active) -> tuple[Joints, list[Motion]]:
    """Solve the linear system for a set of rows that push, which may include contacts between links.

    With the matrix A of a sweep and rows j_i of pairs with weights D_i, the solution is x + Σ λ_i y_i, where x is that
    of the sweep, y_i = A⁻¹ j_i, and (1 + D G) λ = D (target − j·x) with G_ik = j_i·y_k.
    """
    x, motions, factors = sweep(model, problem, active)
    pairs = problem.pairs
    if pairs is None:
        return x, motions

    def with_pairs() -> tuple[Joints, list[Motion]]:
        responses = respond(model, problem, factors, pairs.row)
        count = len(pairs.weight)
        y = [jax.tree.map(lambda a, i=i: a[i::count], responses) for i in range(count)]
        row = [tuple(entry if entry is None else entry[i : i + 1] for entry in pairs.row) for i in range(count)]
        weight = [active.pairs[i : i + 1] for i in range(count)]
        lacking = [pairs.target[i : i + 1] - along(row[i], x.hinges) for i in range(count)]
        matrix = [[weight[i] * along(row[i], y[k].hinges) + float(i == k) for k in range(count)] for i in range(count)]
        force = solve_small(matrix, [w * missing for w, missing in zip(weight, lacking, strict=True)])
        total = x
        for one, response in zip(force, y, strict=True):
            total = stored(jax.tree.map(lambda a, b, one=one: a + one * b, total, response))
        return total, accelerate(model, problem.poses, total)

    return compute_if_needed(active.pairs.max() > 0, with_pairs, lambda: (x, motions))


def solve_small(matrix: list[list[Any]], values: list[Any]) -> list[Any]:
    """Solve a linear system of a few equations by elimination; the matrix must not need pivots."""
    size, matrix, values = len(values), [list(row) for row in matrix], list(values)
    for k in range(size):
        for i in range(k + 1, size):
            factor = stored(matrix[i][k] / matrix[k][k])
            matrix[i][k + 1 :] = [a - factor * b for a, b in zip(matrix[i][k + 1 :], matrix[k][k + 1 :], strict=True)]
            values[i] = values[i] - factor * values[k]
    for i in reversed(range(size)):
        known = sum(matrix[i][k] * values[k] for k in range(i + 1, size))
        values[i] = stored((values[i] - known) / matrix[i][i])
    return values


def respond(model: Model, problem: Problem, factors: Factors, torques: tuple[Any, ...]) -> Joints:
    """Return the accelerations of the joints by torques on the hinges alone, from what a sweep has eliminated.

    Args:
        model: the mechanism.
        problem: what the sweep has solved.
        factors: what it has eliminated.
        torques: `[P, L]` per level for P problems, or None where there are none.

    Returns:
        Slides `[2P, L]`, first those along x, and hinges `[P, L]`.
    """
    levels, hinges = level_constants(model), list(factors.hinges)
    wrench = Wrench(0.0, 0.0, 0.0)
    for number in reversed(range(len(levels))):
        if number + 1 < len(levels):
            (rx, rw), torque = problem.poses[number + 1].offset, wrench.torque
            wrench = wrench._replace(torque=torque - rw * wrench.x + rx * wrench.w)
        hinge, own = hinges[number], torques[number]
        if hinge is None:
            continue
        torque = stored(wrench.torque if own is None else levels[number].sign * own + wrench.torque)
        hinges[number] = hinge._replace(free=torque * hinge.inverse)
        wrench = stored(Wrench(*(a - b * torque for a, b in zip(wrench, (hinge.Q, hinge.bx, hinge.bw), strict=True))))
    free = problem._replace(force=jax.tree.map(jnp.zeros_like, problem.force))
    return outwards(model, problem, hinges, solve_slides(model, free, None, factors.root, wrench))[0]


def sweep(model: Model, problem: Problem, active: Active | None) -> tuple[Joints, list[Motion], Factors]:
    """Solve the linear system for a set of rows that push, without pairs.

    Returns:
        The accelerations of the joints and of the bodies, and what was eliminated.
    """
    levels = level_constants(model)
    hinges: list[Hinge | None] = []
    beyond: tuple[Inertia, Wrench] | None = None  # what the levels farther out present at this level's pins
    for number in reversed(range(len(levels))):
        own = rigid(levels[number], problem.poses[number]), problem.wrenches[number]
        row, grip = problem.contacts[number], None if active is None else active.grips[number]
        if row is not None and grip is not None:
            own = add(own, resistance(row, grip))
        inertia, wrench = stored(own if beyond is None else add(own, beyond))
        hinge = None
        if problem.force.hinges[number] is not None:
            torque, diagonal = joint_terms(
                problem.force.hinges[number],
                problem.armature.hinges[number],
                problem.limits.hinges[number],
                None if active is None else active.limits.hinges[number],
            )
            hinge, inertia, wrench = eliminate(inertia, wrench, levels[number].sign * torque, diagonal)
        hinges.insert(0, hinge)
        if number:
            beyond = moved_to_parent(problem.poses[number], inertia, wrench)
            if levels[number - 1].size < levels[number].size:
                beyond = jax.tree.map(over_first_axis, beyond)
    slides = solve_slides(model, problem, active, inertia, wrench)
    return *outwards(model, problem, hinges, slides), Factors(hinges, inertia)


def joint_terms(force: Any, armature: Any, row: LimitRow | None, weight: Any) -> tuple[Any, Any]:
    """Return the force on joints and their diagonal entry, with the contribution of limits that push."""
    if row is None or weight is None:
        return force, armature
    return force + weight * row.side * row.target, armature + weight


def rigid(level: Level, pose: Pose) -> Inertia:
    """Return the matrices of the rigid bodies alone."""
    return Inertia(
        level.inertia, -level.mass * pose.centre[1], level.mass * pose.centre[0], level.mass, 0.0, level.mass
    )


def resistance(row: Contact, grip: Grip) -> tuple[Inertia, Wrench]:
    """Return the matrices and wrenches of contacts, summed over the points of each body."""
    lx, lw = row.lever
    nn, nt, tt = grip
    bx, bw = lx * nt - lw * tt, lx * nn - lw * nt
    normal, tangential = nn * row.normal + nt * row.tangential, nt * row.normal + tt * row.tangential
    bx, bw, normal, tangential = stored((bx, bw, normal, tangential))
    inertia = Inertia(lx * bw - lw * bx, bx, bw, tt, nt, nn)
    wrench = Wrench(lx * normal - lw * tangential, tangential, normal)
    return jax.tree.map(lambda a: over_first_axis(a)[0], (inertia, wrench))


def over_first_axis(values: Any) -> Any:
    """Return the sum over the first axis, which keeps length 1."""
    return functools.reduce(operator.add, [values[i : i + 1] for i in range(values.shape[0])])


def add(one: tuple[Inertia, Wrench], other: tuple[Inertia, Wrench]) -> tuple[Inertia, Wrench]:
    """Return the sum of matrices and wrenches."""
    return jax.tree.map(operator.add, one, other)


def moved_to_parent(pose: Pose, inertia: Inertia, wrench: Wrench) -> tuple[Inertia, Wrench]:
    """Express the matrices and wrenches of bodies at their parent's pin."""
    rx, rw = pose.offset
    Q, bx, bw, xx, xw, ww = inertia
    moved_x, moved_w = bx - xx * rw + xw * rx, bw - xw * rw + ww * rx
    Q = Q - rw * (bx + moved_x) + rx * (bw + moved_w)
    return Inertia(Q, moved_x, moved_w, xx, xw, ww), Wrench(
        wrench.torque - rw * wrench.x + rx * wrench.w, wrench.x, wrench.w
    )


def eliminate(inertia: Inertia, wrench: Wrench, torque: Any, diagonal: Any) -> tuple[Hinge, Inertia, Wrench]:
    """Eliminate hinges; return their acceleration, and the matrices and wrenches that their parents feel."""
    Q, bx, bw, xx, xw, ww = inertia
    inverse = stored(1.0 / (Q + diagonal))
    free, by_x, by_w = (torque + wrench.torque) * inverse, bx * inverse, bw * inverse
    remaining = diagonal * inverse
    felt = Inertia(Q * remaining, bx * remaining, bw * remaining, xx - bx * by_x, xw - bx * by_w, ww - bw * by_w)
    left = Wrench(wrench.torque - Q * free, wrench.x - bx * free, wrench.w - bw * free)
    return stored((Hinge(free, Q * inverse, by_x, by_w, inverse), felt, left))


def solve_slides(model: Model, problem: Problem, active: Active | None, inertia: Inertia, wrench: Wrench) -> Any:
    """Return the acceleration of the root's slides, `[slides, L]`, or None."""
    if not model.slides:
        return None
    limit = None if active is None else active.limits.slides
    force, diagonal = joint_terms(problem.force.slides, problem.armature.slides, problem.limits.slides, limit)
    if len(model.slides) == 1:
        return (wrench.x + force) / (inertia.xx + diagonal)
    diagonal = jnp.broadcast_to(diagonal, force.shape)
    x, w = wrench.x + force[:1], wrench.w + force[1:]
    xx, ww = inertia.xx + diagonal[:1], inertia.ww + diagonal[1:]
    inverse = 1.0 / (xx * ww - inertia.xw * inertia.xw)
    return jnp.concatenate([(ww * x - inertia.xw * w) * inverse, (xx * w - inertia.xw * x) * inverse])


def outwards(model: Model, problem: Problem, hinges: list[Hinge | None], slides: Any) -> tuple[Joints, list[Motion]]:
    """Go from the root to the leaves and return the accelerations of joints and bodies."""
    rows = len(slides) // len(model.slides) if model.slides else 0
    spin, x, w = 0.0, slides[:rows] if rows else 0.0, slides[rows:] if len(model.slides) > 1 else 0.0
    turns: list[Any] = []
    motions: list[Motion] = []
    for level, pose, hinge in zip(level_constants(model), problem.poses, hinges, strict=True):
        if motions:
            x, w = x - spin * pose.offset[1], w + spin * pose.offset[0]
        turn = None
        if hinge is not None:
            relative = hinge.free - hinge.Q * spin - hinge.bx * x - hinge.bw * w
            turn, spin = level.sign * relative, spin + relative
        turn, spin, x, w = stored((turn, spin, x, w))
        turns.append(turn)
        motions.append(Motion(spin, x, w))
    return Joints(slides, tuple(turns)), motions
