"""Where the bodies of a planar mechanism are, how they move, and which forces act on them without constraints.

Links at the same distance from the root form a level and are computed together, as arrays `[n, L]` for n limbs and L
lanes; the root is a level with n = 1. Everything about a body is measured from its pin, so that float32 suffices even
when the mechanism has travelled far.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxbyz.accelerate.no_inline import stored
from jaxbyz.accelerate.trigonometry import cos_sin
from jaxbyz.environments.mujoco.bodies import Constant, Fluid, Joints, Level, Model, level_constants, of_joints

Vector = tuple[Any, Any]  # (x, w) in the axes of the world


class Scales(NamedTuple):
    """Factors of a model's physical constants; numbers or arrays `[1, L]`.

    Attributes:
        gravity: of gravity.
        mass: of all masses and moments of inertia, but not of the motors' armature.
        friction: of the coefficients of friction.
        damping: of the joints' damping.
    """

    gravity: Any = 1.0
    mass: Any = 1.0
    friction: Any = 1.0
    damping: Any = 1.0


class Pose(NamedTuple):
    """The bodies of one level, `[n, L]` each.

    Attributes:
        cos: cosine of the body's angle.
        sin: sine of the body's angle.
        spin: angular velocity ω.
        offset: from the parent's pin to this body's pin.
        centre: from the pin to the centre of mass.
        height: w of the pin.
        velocity: of the pin.
        bias: the acceleration of the pin if no joint accelerates, minus gravity.
    """

    cos: Any
    sin: Any
    spin: Any
    offset: Vector
    centre: Vector
    height: Any
    velocity: Vector
    bias: Vector


class Wrench(NamedTuple):
    """A torque about the pin and a force at the pin, `[n, L]` each."""

    torque: Any
    x: Any
    w: Any


def rotated(cos: Any, sin: Any, vector: tuple[Constant, Constant]) -> Vector:
    """Rotate a constant vector; terms that are zero for all bodies are left out."""
    x, w = vector
    if _is_zero(w):
        return cos * x, sin * x
    if _is_zero(x):
        return -sin * w, cos * w
    return cos * x - sin * w, sin * x + cos * w


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0.0


def poses(model: Model, scales: Scales, q: Joints, v: Joints) -> list[Pose]:
    """Return the poses of all levels from the root outwards.

    With the parent's angular velocity ω' and the vector r from the parent's pin A' to the pin A, the velocity is
    v(A) = v(A') + ω' × r, and the acceleration without that of joints a(A) = a(A') − ω'² r. Gravity enters as the
    opposite acceleration of the root. The root's x does not matter and is left out.
    """
    root, *levels = level_constants(model)
    vx = v.slides[:1] if model.slides else 0.0
    vw, height = (v.slides[1:], q.slides[1:] + model.height) if len(model.slides) > 1 else (0.0, 0.0)
    turned = directions(model, q)
    cos, sin = turned[0]
    spin = 0.0 if model.root.hinge is None else root.sign * v.hinges[0]
    bias = -scales.gravity * model.gravity[0], -scales.gravity * model.gravity[1]
    pose = stored(Pose(cos, sin, spin, (0.0, 0.0), rotated(cos, sin, root.centre), height, (vx, vw), bias))
    result = [pose]
    for level, (cos, sin), turning in zip(levels, turned[1:], v.hinges[1:], strict=True):
        rx, rw = rotated(pose.cos, pose.sin, level.offset)
        velocity = pose.velocity[0] - pose.spin * rw, pose.velocity[1] + pose.spin * rx
        square = pose.spin * pose.spin
        bias = pose.bias[0] - square * rx, pose.bias[1] - square * rw
        spin, centre = pose.spin + level.sign * turning, rotated(cos, sin, level.centre)
        pose = stored(Pose(cos, sin, spin, (rx, rw), centre, pose.height + rw, velocity, bias))
        result.append(pose)
    return result


def directions(model: Model, q: Joints) -> list[tuple[Any, Any]]:
    """Return the cosine and the sine of the angle of every level; (1, 0) for a root without hinge."""
    angles, angle = [], 0.0
    for level, turn in zip(level_constants(model), q.hinges, strict=True):
        if turn is not None:
            angle = angle + level.sign * turn
            angles.append(angle)
    cos, sin = cos_sin(jnp.concatenate(angles))
    result: list[tuple[Any, Any]] = [(1.0, 0.0)] if q.hinges[0] is None else []
    first = 0
    for angle in angles:
        part = slice(first, first + angle.shape[0])
        result.append((cos[part], sin[part]))
        first = part.stop
    return result


def inertial_wrench(level: Level, pose: Pose) -> Wrench:
    """Return what gravity and rotation do: the wrench of −m a with a = bias − ω² c at the centre of mass c."""
    square, (cx, cw) = pose.spin * pose.spin, pose.centre
    x, w = -level.mass * (pose.bias[0] - square * cx), -level.mass * (pose.bias[1] - square * cw)
    return Wrench(cx * w - cw * x, x, w)


def drag(fluid: Fluid, pose: Pose) -> Wrench:
    """Return the drag of a fluid on the bodies of a level, which are bars along their own x axis.

    The force acts at the centre of mass; along the bar it is −(linear + along |v|) v, across −(linear + across |v|) v.
    """
    vx, vw = pose.velocity[0] - pose.spin * pose.centre[1], pose.velocity[1] + pose.spin * pose.centre[0]
    ahead, aside = vx * pose.cos + vw * pose.sin, vw * pose.cos - vx * pose.sin
    along = -ahead * (fluid.linear + fluid.along * jnp.abs(ahead))
    across = -aside * (fluid.linear + fluid.across * jnp.abs(aside))
    along, across = stored((along, across))
    x, w = along * pose.cos - across * pose.sin, along * pose.sin + across * pose.cos
    turning = -pose.spin * (fluid.turning + fluid.turning_fast * jnp.abs(pose.spin))
    return Wrench(turning + pose.centre[0] * w - pose.centre[1] * x, x, w)


def joint_forces(model: Model, scales: Scales, q: Joints, v: Joints, motors: Joints) -> Joints:
    """Return the forces of motors, damping and springs on the joints."""
    damping, stiffness = of_joints(model, lambda j: j.damping), of_joints(model, lambda j: j.stiffness)

    def total(damping: Constant, stiffness: Constant, q: Any, v: Any, motor: Any) -> Any:
        if q is None:
            return None
        force = motor
        if not _is_zero(damping):
            force = force - scales.damping * damping * v
        return force if _is_zero(stiffness) else force - stiffness * q

    return Joints(
        total(damping.slides, stiffness.slides, q.slides, v.slides, motors.slides),
        tuple(map(total, damping.hinges, stiffness.hinges, q.hinges, v.hinges, motors.hinges)),
    )
