"""One time step of the lunar lander: hull and two legs, two springy joints, the moon; many lanes at once.

What gymnasium asks of Box2D, written down for someone who never opened it.

**Bodies.** The hull (mass 4.8167, inertia 0.78388 about its centre of mass, which lies 0.1013 above its origin) and two
legs (mass 0.0711, boxes of 0.133 by 0.533) move in a plane: position, angle and their rates. Gravity and engines change
the hull's velocity before the step begins; this module turns the velocities that remain to be reconciled into ones that
joints and ground allow, then moves the bodies by them for 1/50 s. Hull and legs touch only the ground.

**Joints.** Each leg hangs from the hull's origin by a pin (two equations: both bodies' velocities agree at the pin). A
motor turns it at 0.3 rad/s inwards with at most 40 N·m, that is an impulse of 0.8 a step; stops keep the mirrored angle
in [0.4, 0.9]. In flight the motor drives the leg to the stop at 0.4 and holds it there. On landing the leg gives way
against the motor: that is the lander's suspension.

**Rows.** Every constraint is a row J of a matrix: J·v is a speed that must be zero (pin), a given number (motor) or not
negative (stop, ground), and an impulse λ along Jᵀ enforces it, within bounds: |λ| ≤ 0.8 for the motor, λ ≥ 0 for stop
and ground, |λ_tangent| ≤ μ λ_normal for friction, μ = √(0.2·0.1). Changing λ by δ changes the velocities by M⁻¹Jᵀδ, so
visiting one row means δ = −(J·v − target)/(J M⁻¹ Jᵀ), clipped to the bounds. Box2D visits all rows 180 times in turn
("sequential impulses", projected Gauss–Seidel): the two joints, then each contact, friction before normals.

**Flight in closed form.** Without ground both pins can be eliminated. With v the hull's velocity, ω its spin, w_i the
legs' and a, b_i the pin's levers turned by 90°, the legs move at v + ω a − w_i b_i, so that u = (vx, vy, ω, w0, w1) is
all there is. Its mass matrix M follows from the kinetic energy; total momentum p = M u survives any pin impulse; so
u = M⁻¹p (`lunar_lander_bodies.respond`), plus two coupled scalars for motor and stop of each leg. What
180 sweeps would leave undone of it is known too, as a power of their rate of convergence.

**Ground by iteration, with memory.** A leg is 68 times lighter than the hull it carries. Visiting rows in turn passes
the hull's weight to the ground in tiny portions, and 180 sweeps are not enough to converge. Box2D therefore starts each
step from the impulses that the same rows had at the end of the last one (*warm starting*): over a few steps they
accumulate to what holds the lander up. Without it the legs sink and no lander ever comes to rest. Which solution Box2D
shows is thus the *unconverged, remembered* one, and to be faithful is to do the same sweeps in the same order from the
same memory: joint impulses and the impulses of each named contact point are part of the state (`lunar_lander_contact`).

**Positions.** Velocities that obey the rows still let positions drift. After the move, contacts push legs out by a
fifth of what they sank beyond 0.005, joints are closed exactly, and this repeats until all is within tolerance, mostly
at once. A leg that would pass into the ground within the step is stopped at the time of impact (`lunar_lander_impact`).

**Contact flags.** They say what gymnasium's contact listener last heard, not whether a leg touches: leaving a segment
clears the flag even if the leg now stands on the next one. Touching is decided at the start of a step or at an impact.

**Rest.** When all three bodies have been slower than 0.01 m/s and 2°/s for 25 steps the lander sleeps: it has landed.

**Speed.** Lanes lie on the last axis and every formula is element-wise over them. All lanes fly (cheap); the few near
the ground are gathered into small groups, stepped with the ground and put back. `jax.vmap` of `step` sees all lanes at
once through a batching rule, however many axes are mapped, so that this choice is made once for the whole batch. On a
GPU the same formulas become one kernel, 32 lanes to a warp (`kernels.one_kernel`).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.batching import batch_all
from jaxbyz.accelerate.kernels import one_kernel
from jaxbyz.accelerate.no_inline import apart, branches_pay, in_kernel
from jaxbyz.accelerate.platform import kernels_run, on_cpu
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.lunar_lander.bodies import (
    ANCHOR_X,
    ANGULAR_SLOP,
    REFERENCE,
    SLOP,
    TIME_STEP,
    Bodies,
    both_legs,
    correct_joints,
    each_leg,
    flight_velocity,
    joint_angles,
)
from jaxbyz.environments.lunar_lander.collision import (
    HULL,
    HULL_CENTRE,
    LEG,
    SKIN,
    constant_like,
    height_at,
    hull_separation,
    neighbouring_segments,
)
from jaxbyz.environments.lunar_lander.contact import leg_contacts, solve_velocities
from jaxbyz.environments.lunar_lander.impact import correct_positions, impact

VELOCITY_SWEEPS = 180
STILL_STEPS = 25
FLYING_GROUP, LANDING_GROUP = 256, 32  # lanes at a time: enough to fill vectors, few enough to end together
STILL_SPEED = 0.01


class World(NamedTuple):
    """Everything a time step needs and changes. Shapes are one lane's; batches add leading axes."""

    terrain: jax.Array  # [11] heights at x = 0, 2, …, 20
    pose: jax.Array  # [3, 3] hull, leg 0, leg 1 by x, y, angle of the centre of mass
    velocity: jax.Array  # [3, 3] their rates
    joint_impulse: jax.Array  # [2, 4] leg by (x, y, limit, motor)
    contact_key: jax.Array  # [2, 4] names of the contact points of the last step, 0 for none
    contact_impulse: jax.Array  # [2, 4, 2] their (normal, tangent) impulses
    touching: jax.Array  # [2] bit s: this leg touches segment s
    flag: jax.Array  # [2] what the observation reports as contact
    still: jax.Array  # [] steps for which all bodies have been slow
    crashed: jax.Array  # [] the hull touched the ground
    asleep: jax.Array  # [] the lander came to rest


def _bodies(array: jax.Array) -> Bodies:
    """[3, 3, L] as three tuples."""
    hull, leg0, leg1 = ((array[b, 0], array[b, 1], array[b, 2]) for b in range(3))
    return hull, leg0, leg1


def _array(bodies: Bodies) -> jax.Array:
    return jnp.stack([value for body in bodies for value in body]).reshape(3, 3, -1)


def _moved(pose: Bodies, velocity: Bodies) -> Bodies:
    return jax.tree.map(lambda p, v: p + TIME_STEP * v, pose, velocity)


def _flight(world: World) -> World:
    """A step without ground, for every lane."""
    pose, velocity = _bodies(world.pose), _bodies(world.velocity)
    velocity, impulses = flight_velocity(pose, velocity, (tuple(world.joint_impulse[0]), tuple(world.joint_impulse[1])))
    moved, _ = correct_joints(_moved(pose, velocity), joint_angles(pose))
    nowhere = constant_like(world.touching, 0)
    return world._replace(
        pose=_array(moved),
        velocity=_array(velocity),
        joint_impulse=jnp.stack([value for impulse in impulses for value in impulse]).reshape(2, 4, -1),
        contact_key=constant_like(world.contact_key, 0),
        contact_impulse=constant_like(world.contact_impulse, 0.0),
        touching=nowhere,
        flag=updated_flag(world.flag, world.touching, nowhere),
        still=constant_like(world.still, 0),
    )


def _grounded(world: World, flown: World, sweeps: int) -> World:
    """A step near the ground; `flown` is the same step without ground, right for lanes that touch nothing at first."""
    pose, velocity = _bodies(world.pose), _bodies(world.velocity)
    manifold, now = leg_contacts(world.terrain, both_legs(pose))
    free = ((now | world.touching) == 0).all(axis=0)

    def touch() -> tuple[Bodies, Bodies, jax.Array, jax.Array, jax.Array, jax.Array]:
        solved, joint_impulse, keys, impulse = solve_velocities(
            pose, velocity, manifold, world.joint_impulse, world.contact_key, world.contact_impulse, sweeps
        )
        moved, good = correct_positions(_moved(pose, solved), manifold, joint_angles(pose), free)
        return moved, solved, joint_impulse, keys, impulse, good

    none = (
        _bodies(flown.pose),
        _bodies(flown.velocity),
        flown.joint_impulse,
        flown.contact_key,
        flown.contact_impulse,
        free,
    )
    result = lax.cond(free.all(), lambda: none, touch) if branches_pay() else touch()
    moved, solved, joint_impulse, keys, impulse, good = jax.tree.map(lambda a, b: jnp.where(free, b, a), result, none)

    still = jnp.where(_slow(solved), world.still + 1, 0)
    asleep = (still >= STILL_STEPS) & good
    solved = jax.tree.map(lambda v: jnp.where(asleep, 0.0, v), solved)
    flag = updated_flag(world.flag, world.touching, now)
    hulls = jax.tree.map(lambda a, b: jnp.stack([a, b]), pose[0], moved[0])
    gap = hull_separation(hulls, neighbouring_segments(world.terrain, hulls[0])).min(axis=0)
    legs, speeds, event, then = impact(world.terrain, both_legs(pose), both_legs(moved), both_legs(solved), asleep)
    return world._replace(
        pose=_array((moved[0], *each_leg(legs))),
        velocity=_array((solved[0], *each_leg(speeds))),
        joint_impulse=joint_impulse,
        contact_key=keys,
        contact_impulse=impulse,
        touching=jnp.where(event, then, now),
        flag=jnp.where(event, updated_flag(flag, now, then), flag),
        still=still,
        crashed=(gap[0] <= SKIN) | (gap[1] <= 0.75 * SLOP),
        asleep=asleep,
    )


def _slow(velocity: Bodies) -> jax.Array:
    """All bodies slower than 0.01 m/s and 2° a second."""
    calm = [(v[0] ** 2 + v[1] ** 2 <= STILL_SPEED**2) & (v[2] ** 2 <= ANGULAR_SLOP**2) for v in velocity]
    return calm[0] & calm[1] & calm[2]


def updated_flag(flag: jax.Array, before: jax.Array, now: jax.Array) -> jax.Array:
    """The contact flag as gymnasium's listener sets it: any segment left clears it, else any segment met sets it."""
    began, ended = (now & ~before) != 0, (before & ~now) != 0
    return ~ended & (flag | began)


def near_ground(world: World) -> tuple[jax.Array, jax.Array]:
    """Lanes that might touch the ground in this step, and those whose legs probably do already; both [L].

    Every vertex is held against the terrain below it, with a margin for the step's motion, and every body against the
    corner nearest to it. The second answer only helps to group lanes: a wrong one costs time.
    """
    near, touching = [], [(world.touching != 0).any(axis=0)]
    speed = jnp.abs(world.velocity)
    for body, polygon in enumerate((HULL, LEG, LEG)):
        x, y, angle = world.pose[body]
        cos, sin = cos_sin(angle)
        reach = max(math.hypot(px, py) for px, py in polygon)
        margin = 2 * (SKIN + TIME_STEP * (speed[body, 0] + speed[body, 1] + reach * speed[body, 2]))
        corner = jnp.clip(jnp.round(x / 2), 0, 10).astype(jnp.int32)
        left, here, right = (height_at(world.terrain, jnp.clip(corner + d, 0, 10)) for d in (-1, 0, 1))
        offset = x - 2 * corner
        lowest = jnp.full_like(y, 9.0)
        for px, py in polygon:
            vx, vy = offset + cos * px - sin * py, sin * px + cos * py
            slope = jnp.where(vx < 0, here - left, right - here) / 2
            gap = y + vy - here - slope * vx
            near.append(gap < margin)
            if body:
                touching.append(gap**2 <= SKIN**2 * (1 + slope**2))
            lowest = jnp.minimum(lowest, vy)
        near.append((jnp.abs(offset) < reach + 0.1) & (y + lowest - here < margin))
    return functools.reduce(jnp.logical_or, near), functools.reduce(jnp.logical_or, touching)


@functools.partial(jax.jit, static_argnames="sweeps")
def _step_lanes(world: World, over: jax.Array, sweeps: int = VELOCITY_SWEEPS) -> World:
    """Step every lane that is not `over`; arrays carry lanes on the last axis."""
    if not on_cpu():
        return _step_together(world, over, sweeps)
    going = _going(world, over)
    before = _packed(world)
    nobody = constant_like(going, False)
    after, near, touching = _in_groups(_fly, (before,), (before, nobody, nobody), [going], FLYING_GROUP)
    land = functools.partial(_land, sweeps=sweeps)
    return _unpacked(*_in_groups(land, (before, after), after, [touching, near & ~touching], LANDING_GROUP))


@apart
def _fly(here: World) -> tuple[tuple[jax.Array, jax.Array], jax.Array, jax.Array]:
    flown, near, touching = _flying(here)
    return _packed(flown), near, touching


@functools.partial(apart, static_argnames=("sweeps",))
def _land(here: World, there: World, sweeps: int) -> tuple[jax.Array, jax.Array]:
    return _packed(_grounded(here, there, sweeps))


def _going(world: World, over: jax.Array) -> jax.Array:
    return ~(over | world.crashed | world.asleep)


def _step_together(world: World, over: jax.Array, sweeps: int) -> World:
    """Step every lane that is not `over`, all alike: with the ground as soon as one of them is near it."""
    going = _going(world, over)
    flown, near, _ = _flying(world)
    near = near & going

    def land() -> World:
        return jax.tree.map(lambda a, b: jnp.where(near, a, b), _grounded(world, flown, sweeps), flown)

    moved = lax.cond(near.any(), land, lambda: flown) if branches_pay() else land()
    return jax.tree.map(lambda a, b: jnp.where(going, a, b), moved, world)


def step_kernel(world: World, over: jax.Array, sweeps: int = VELOCITY_SWEEPS, interpret: bool = False) -> World:
    """Step lanes on a GPU, 32 at a time, each 32 from begin to end in one kernel; lanes are the first axis here."""

    def together(world: World, over: jax.Array) -> World:
        with in_kernel(), jax.numpy_rank_promotion("allow"):
            return _step_together(world, over, sweeps)

    return one_kernel(together, world, over, interpret=interpret)


def _flying(world: World) -> tuple[World, jax.Array, jax.Array]:
    """A step without ground, and which lanes need one with it: near the ground, and probably touching it."""
    return _flight(world), *near_ground(world)


def _in_groups(function: Callable, worlds: tuple, out: Any, kinds: list[jax.Array], size: int) -> Any:
    """Replace `out` by function(*worlds) at chosen lanes, `size` lanes at a time; the others cost nothing.

    worlds: packed; kinds: disjoint masks [L], lanes of the first kind are taken first; out: arrays with lanes last.
    """
    lanes = kinds[0].shape[0]
    size = min(size, lanes)
    rank, count = jnp.full(lanes, lanes + size), jnp.int32(0)
    for kind in kinds:
        rank = jnp.where(kind, count + jnp.cumsum(kind) - 1, rank)
        count += kind.sum()
    order = jnp.full(lanes + size, lanes, jnp.int32).at[rank].set(jnp.arange(lanes, dtype=jnp.int32), mode="drop")

    def group(carry: tuple) -> tuple:
        first, done = carry
        chosen = lax.dynamic_slice(order, (first,), (size,))
        picked = [_unpacked(*(jnp.take(rows, chosen, axis=-1, mode="clip") for rows in world)) for world in worlds]
        spare = chosen >= lanes  # the last group has room left: nothing there touches anything
        picked[0] = picked[0]._replace(
            terrain=jnp.where(spare, -100.0, picked[0].terrain), touching=jnp.where(spare, 0, picked[0].touching)
        )
        part = function(*picked)
        return first + size, jax.tree.map(lambda a, b: lax.dynamic_update_slice_in_dim(a, b, first, -1), done, part)

    def some() -> Any:
        """Results are stored in order, group after group, and picked up by lane at the end: scattering is slow."""
        room = jax.tree.map(lambda a: jnp.concatenate([a, a[..., :size]], axis=-1), out)
        _, done = lax.while_loop(lambda carry: carry[0] < count, group, (jnp.zeros_like(count), room))
        return jax.tree.map(lambda a, b: jnp.where(rank < lanes, jnp.take(b, rank, axis=-1, mode="clip"), a), out, done)

    return lax.cond(count > 0, some, lambda: out)


_SHAPES = World._make([(11,), (3, 3), (3, 3), (2, 4), (2, 4), (2, 4, 2), (2,), (2,), (), (), ()])  # of one lane
_FLOATS = ("terrain", "pose", "velocity", "joint_impulse", "contact_impulse")
_INTEGERS = ("contact_key", "touching", "flag", "still", "crashed", "asleep")
_FLAGS = ("flag", "crashed", "asleep")


def _packed(world: World) -> tuple[jax.Array, jax.Array]:
    """All numbers of every lane as two arrays [rows, L], floats and integers: one gather picks out lanes."""

    def rows(names: tuple[str, ...], kind: jnp.dtype) -> jax.Array:
        fields = [getattr(world, name) for name in names]
        return jnp.concatenate([field.reshape(-1, field.shape[-1]).astype(kind) for field in fields])

    return rows(_FLOATS, jnp.float32), rows(_INTEGERS, jnp.int32)


def _unpacked(floats: jax.Array, integers: jax.Array) -> World:
    """The inverse of `_packed`."""
    fields = {}
    for names, rows in ((_FLOATS, floats), (_INTEGERS, integers)):
        first = 0
        for name in names:
            shape = getattr(_SHAPES, name)
            count = math.prod(shape)
            field = rows[first : first + count].reshape(*shape, -1)
            fields[name] = field != 0 if name in _FLAGS else field
            first += count
    return World(**fields)


@jax.custom_batching.custom_vmap
def step(world: World, over: jax.Array) -> World:
    """Advance by 1/50 s; forces and engine impulses are already in `world.velocity`. Any leading batch axes.

    Lanes that are `over` stay as they are and cost nothing.
    """
    batch = world.still.shape
    ranks = World._make(len(shape) for shape in _SHAPES)
    flat = jax.tree.map(lambda a, rank: a.reshape(-1, *a.shape[a.ndim - rank :]), world, ranks)
    if kernels_run():
        return jax.tree.map(lambda a: a.reshape(*batch, *a.shape[1:]), step_kernel(flat, over.reshape(-1)))
    lanes = jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), flat)
    with jax.numpy_rank_promotion("allow"):  # inside, whatever is per lane applies along all leading axes
        lanes = _step_lanes(lanes, over.reshape(-1))
    return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0).reshape(*batch, *a.shape[:-1]), lanes)


@step.def_vmap
def _step_batch(axis_size: int, in_batched: list[Any], world: World, over: jax.Array) -> tuple[World, World]:
    world, over = batch_all(axis_size, tuple(in_batched), (world, over))
    return step(world, over), jax.tree.map(lambda _: True, world)


def assembled(terrain: jax.Array, x: float, y: float, push: jax.Array, fall: jax.Array) -> World:
    """The lander just after its first step, as gymnasium's reset leaves it: hull origin started at (x, y).

    The legs are created beside the hull with their joints 0.6 apart, and the first step's position correction pulls
    them together in three passes. `push` [3] and `fall` are what forces add to the hull's velocity and the legs' vy.
    """
    zero = jnp.zeros_like(fall)
    pose: Bodies = (
        (zero + x, zero + y + HULL_CENTRE, zero),
        (zero + x + ANCHOR_X, zero + y, zero - REFERENCE),
        (zero + x - ANCHOR_X, zero + y, zero + REFERENCE),
    )
    falling = ((push[0], push[1], push[2]), (zero, fall, zero), (zero, fall, zero))
    velocity, impulses = flight_velocity(pose, falling, ((zero,) * 4,) * 2)
    angles = joint_angles(pose)
    moved = lax.fori_loop(0, 3, lambda _, moved: correct_joints(moved, angles)[0], _moved(pose, velocity))
    world = at_rest(terrain, _array(moved).reshape(3, 3), _array(velocity).reshape(3, 3))
    return world._replace(joint_impulse=jnp.stack([value for force in impulses for value in force]).reshape(2, 4))


def at_rest(terrain: jax.Array, pose: jax.Array, velocity: jax.Array) -> World:
    """A world in which nothing is remembered: no impulses, no contact."""
    nothing = constant_like(terrain[0], 0.0)
    none = constant_like(terrain[0], False)
    return World(
        terrain,
        pose,
        velocity,
        joint_impulse=jnp.full((2, 4), nothing),
        contact_key=jnp.full((2, 4), nothing.astype(jnp.int32)),
        contact_impulse=jnp.full((2, 4, 2), nothing),
        touching=jnp.full(2, nothing.astype(jnp.int32)),
        flag=jnp.full(2, none),
        still=nothing.astype(jnp.int32),
        crashed=none,
        asleep=none,
    )
