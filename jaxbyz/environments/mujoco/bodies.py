"""What a planar model consists of: a root body and limbs that are chains of links, joints, motors and contact points.

All lengths are in metres and masses in kilograms. A point of the plane is (x, w), where w is the height z for models
that are seen from the side and y for those that are seen from above. Positions on a body are measured in its own frame
from its *pin*, the axis of the hinge that holds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Pair = tuple[float, float]
Constant = float | np.ndarray  # one number, or an array `[n, 1]` with one number per limb


class Softness(NamedTuple):
    """How a constraint gives way: its impedance grows from `start` to `full` within a penetration of `width`.

    Attributes:
        start: the impedance at first touch, between 0 and 1.
        full: the impedance from penetration `width` on.
        width: metres or radians.
    """

    start: float
    full: float
    width: float


STIFF = Softness(0.9, 0.95, 0.001)


class JointLimit(NamedTuple):
    """The range of a joint.

    Attributes:
        low: the lowest angle or position.
        high: the highest one.
        mobility: MuJoCo's `dof_invweight0`, the acceleration that a unit force causes in the initial position.
        margin: the distance at which the limit begins to act.
        softness: how it gives way.
    """

    low: float
    high: float
    mobility: float
    margin: float = 0.0
    softness: Softness = STIFF


class Joint(NamedTuple):
    """A hinge, or a slide along an axis of the world.

    Attributes:
        sign: +1 if a positive angle turns the body counter-clockwise, −1 if clockwise. Slides have +1.
        damping: the resisting force per unit of velocity.
        stiffness: the restoring force per unit of displacement.
        armature: the inertia of the motor.
        limit: the joint's range, or None.
    """

    sign: float = 1.0
    damping: float = 0.0
    stiffness: float = 0.0
    armature: float = 0.0
    limit: JointLimit | None = None


class Point(NamedTuple):
    """A sphere at the end of a capsule, which can touch the floor.

    Attributes:
        centre: its position from the pin.
        radius: its radius.
        friction: the coefficient of friction with the floor.
        reachable: whether it can touch the floor before a healthy episode ends.
    """

    centre: Pair
    radius: float
    friction: float
    reachable: bool = True


class Link(NamedTuple):
    """A rigid body.

    Attributes:
        name: MuJoCo's name of the body.
        offset: its pin, in the parent's frame from the parent's pin.
        centre: its centre of mass.
        mass: its mass.
        inertia: its moment of inertia about the centre of mass.
        hinge: the joint that turns it, or None for a cart.
        points: where it can touch the floor; as many for every link at the same place in its limb.
        mobility: MuJoCo's `body_invweight0`, the acceleration that a unit force causes in the initial position.
        bar: both ends of the bar that pictures show.
    """

    name: str
    offset: Pair
    centre: Pair
    mass: float
    inertia: float
    hinge: Joint | None = None
    points: tuple[Point, ...] = ()
    mobility: float = 0.0
    bar: tuple[Pair, Pair] = ((0.0, 0.0), (0.0, 0.0))


class Motor(NamedTuple):
    """A motor, whose force is `gear` times the action clipped to ±`limit`.

    Attributes:
        joint: the number of the joint, in the order of gymnasium's velocities.
        gear: force or torque per unit of action.
        limit: the largest action.
    """

    joint: int
    gear: float
    limit: float = 1.0


class Fluid(NamedTuple):
    """Drag on every link, as coefficients of velocity and of velocity times speed.

    Attributes:
        linear: of the velocity in both directions.
        along: of the velocity along the link, times its magnitude.
        across: of the velocity across the link, times its magnitude.
        turning: of the angular velocity.
        turning_fast: of the angular velocity times its magnitude.
    """

    linear: float
    along: float
    across: float
    turning: float
    turning_fast: float


class Model(NamedTuple):
    """A planar mechanism: a root that slides along 0 to 2 axes of the world, and limbs of equal length.

    The joints are numbered as in gymnasium: slides, the root's hinge, then limb by limb.

    Attributes:
        name: the name of the task.
        time_step: seconds per step of the integrator.
        substeps: steps of the integrator per step of the environment (`frame_skip`).
        implicit_damping: whether the integrator is Euler's with implicit damping instead of Runge and Kutta's.
        gravity: the acceleration of free fall.
        slides: the root's slides, along x and then along w.
        root: the root body.
        limbs: chains of links, the first of which hangs on the root.
        motors: the motors, in the order of the action.
        height: w of the root's pin if its slide is at 0.
        contact_margin: the distance from the floor at which a contact begins to act.
        contact_softness: how contacts give way.
        fluid: drag, or None.
        pairs: names of links of one limb, or of the root and a limb, whose capsules can touch each other; the inner
            link first.
    """

    name: str
    time_step: float
    substeps: int
    implicit_damping: bool
    gravity: Pair
    slides: tuple[Joint, ...]
    root: Link
    limbs: tuple[tuple[Link, ...], ...]
    motors: tuple[Motor, ...]
    height: float = 0.0
    contact_margin: float = 0.0
    contact_softness: Softness = STIFF
    fluid: Fluid | None = None
    pairs: tuple[tuple[str, ...], ...] = ()

    @property
    def duration(self) -> float:
        """Seconds per step of the environment."""
        return self.time_step * self.substeps

    def with_every_point(self) -> Model:
        """Return the same model, in which points that only fallen bodies can reach also touch the floor."""
        return self._replace(
            root=_with_every_point(self.root), limbs=tuple(tuple(map(_with_every_point, limb)) for limb in self.limbs)
        )


def _with_every_point(link: Link) -> Link:
    return link._replace(points=tuple(point._replace(reachable=True) for point in link.points))


class Joints(NamedTuple):
    """One value per joint.

    Attributes:
        slides: `[slides, L]`, or None.
        hinges: one array per level, `[1, L]` for the root (or None if it has no hinge) and `[n, L]` for the n limbs.
    """

    slides: Any
    hinges: tuple[Any, ...]


def split_joints(model: Model, values: jax.Array) -> Joints:
    """Return values `[joints, L]` in gymnasium's order as `Joints`."""
    slides, lanes = len(model.slides), values.shape[-1]
    first = slides + (model.root.hinge is not None)
    of_limbs = values[first:].reshape(len(model.limbs), len(model.limbs[0]), lanes)
    return Joints(
        values[:slides] if slides else None,
        (values[slides:first] if first > slides else None, *(of_limbs[:, i] for i in range(len(model.limbs[0])))),
    )


def join_joints(joints: Joints) -> jax.Array:
    """Inverse of `split_joints`."""
    root, *levels = joints.hinges
    of_limbs = jnp.stack(levels, axis=1).reshape(-1, levels[0].shape[-1])
    return jnp.concatenate([part for part in (joints.slides, root, of_limbs) if part is not None])


def constant(values: Any) -> Constant:
    """Return one number if all are equal, otherwise an array `[…, 1]` that is the same in all lanes."""
    array = np.asarray(values, float)
    return float(array.flat[0]) if (array == array.flat[0]).all() else array[..., None]


class Level(NamedTuple):
    """The constants of the n links at the same distance from the root.

    Attributes:
        size: n.
        offset: as in `Link`, x and w.
        centre: as in `Link`, x and w.
        mass: as in `Link`.
        inertia: the moment of inertia about the pin.
        sign: +1 or −1, the sense of the hinge.
        points: the number of contact points per link.
        point: x and w of their centres, `[points, n, 1]`.
        radius: their radii.
        friction: their coefficients of friction.
        mobility: that of their link.
    """

    size: int
    offset: tuple[Constant, Constant]
    centre: tuple[Constant, Constant]
    mass: Constant
    inertia: Constant
    sign: Constant
    points: int
    point: tuple[Constant, Constant]
    radius: Constant
    friction: Constant
    mobility: Constant


@functools.cache
def level_constants(model: Model) -> tuple[Level, ...]:
    """Return the constants of all levels, from the root outwards."""
    return tuple(_level(links) for links in ((model.root,), *zip(*model.limbs, strict=True)))


def _level(links: tuple[Link, ...]) -> Level:
    reachable = [[point for point in link.points if point.reachable] for link in links]

    def of_links(get: Callable[[Link], float]) -> Constant:
        return constant([get(link) for link in links])

    def of_points(get: Callable[[Link, Point], float]) -> Constant:
        values = [[get(link, point) for point in points] for link, points in zip(links, reachable, strict=True)]
        return constant(np.transpose(values)) if reachable[0] else 0.0

    return Level(
        size=len(links),
        offset=(of_links(lambda link: link.offset[0]), of_links(lambda link: link.offset[1])),
        centre=(of_links(lambda link: link.centre[0]), of_links(lambda link: link.centre[1])),
        mass=of_links(lambda link: link.mass),
        inertia=of_links(lambda link: link.inertia + link.mass * (link.centre[0] ** 2 + link.centre[1] ** 2)),
        sign=of_links(lambda link: link.hinge.sign if link.hinge else 1.0),
        points=len(reachable[0]),
        point=(of_points(lambda _, point: point.centre[0]), of_points(lambda _, point: point.centre[1])),
        radius=of_points(lambda _, point: point.radius),
        friction=of_points(lambda _, point: point.friction),
        mobility=of_points(lambda link, _: link.mobility),
    )


def of_joints(model: Model, get: Callable[[Joint], float]) -> Joints:
    """Return a constant of every joint; 0 for a hinge or slides that the model does not have."""
    levels = ((model.root,), *zip(*model.limbs, strict=True))
    slides = constant([get(joint) for joint in model.slides]) if model.slides else 0.0
    return Joints(slides, tuple(constant([get(link.hinge or Joint()) for link in links]) for links in levels))
