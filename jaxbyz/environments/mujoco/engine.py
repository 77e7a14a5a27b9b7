"""Motion of a planar mechanism, as MuJoCo computes it: derived for readers who do not know MuJoCo.

**Bodies.** A root body slides along axes of the world, or is fixed, and may turn. Limbs hang on it: chains of links,
each turning about a pin in the link before. Positions q and velocities v of the joints describe everything (`bodies`,
`kinematics`).

**Forces.** Motors, gravity, springs, damping and drag act, and the rotation of the bodies. If M is the mass matrix, the
accelerations without constraints obey M a = force.

**Constraints.** Limits of joints and contacts with the floor are springs that push and never pull, stiff enough to stop
a body within millimetres. Their forces depend on the acceleration itself, so that one has to find out which of them
push (`constraints`, `solver`).

**Time.** There are two integrators with time step h.

- Runge and Kutta's classical method of order 4 evaluates the accelerations four times: at (q, v), twice half a step
  ahead, and once a whole step ahead, each time with the velocities and accelerations of the evaluation before. The
  weighted means of velocities and accelerations, with weights 1, 2, 2, 1, are the rates of change of q and v.
- Euler's method with implicit damping C: v' = v + h (M + hC)⁻¹(force + constraint forces) and q' = q + h v'. As the
  accelerations a obey M a = force + constraint forces, this is v' = v + h (a − y) with (M + hC) y = hC a. That is one
  more sweep of the solver without constraints, in which the armature is larger by hC.

**Scales.** If all masses are multiplied by s, the accelerations are those of the original masses with the armature and
all forces except gravity divided by s. The mobilities in `constraints` remain those of the original masses, as they do
if one changes `MjModel.body_mass`.

MuJoCo reports some quantities as they were at the last evaluation and not after the step; `Moved.last` has what they
depend on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxbyz.accelerate.no_inline import one_compiled_function, stored
from jaxbyz.environments.mujoco.bodies import Joints, Model, join_joints, level_constants, of_joints, split_joints
from jaxbyz.environments.mujoco.constraints import contact, limit_rows
from jaxbyz.environments.mujoco.kinematics import Scales, Wrench, drag, inertial_wrench, joint_forces, poses
from jaxbyz.environments.mujoco.self_contacts import self_contacts
from jaxbyz.environments.mujoco.solver import Problem, solve, sweep


class Moved(NamedTuple):
    """The result of a step of the environment.

    Attributes:
        q: positions of the joints, `[joints, L]`.
        v: their velocities.
        distance: how far the first joint has moved, `[L]`, without the rounding error of a difference of positions.
        last: positions, velocities and accelerations of the last evaluation as `Joints`; None if not asked for.
    """

    q: jax.Array
    v: jax.Array
    distance: jax.Array
    last: Any


def move(model: Model, scales: Scales, q: jax.Array, v: jax.Array, action: jax.Array, keep_last: bool = False) -> Moved:
    """Advance a mechanism by one step of the environment, which is several steps of the integrator.

    Args:
        model: the mechanism.
        scales: factors of its physical constants.
        q: positions of the joints, `[joints, L]`.
        v: their velocities.
        action: `[motors, L]`.
        keep_last: whether to return the last evaluation.
    """
    arrays = [factor for factor in scales if isinstance(factor, jax.Array)]

    @one_compiled_function
    def moved(arrays: list[jax.Array], q: jax.Array, v: jax.Array, action: jax.Array) -> Moved:
        given = iter(arrays)  # factors that are plain numbers remain constants
        factors = Scales(*(next(given) if isinstance(factor, jax.Array) else factor for factor in scales))
        return _move(model, factors, q, v, action, keep_last)

    return moved(arrays, q, v, action)


def _move(model: Model, scales: Scales, q: jax.Array, v: jax.Array, action: jax.Array, keep_last: bool) -> Moved:
    motors = split_joints(model, motor_forces(model, v, action))
    start, rates = split_joints(model, q), split_joints(model, v)
    still = jax.tree.map(jnp.zeros_like, rates)
    integrate = _euler if model.implicit_damping else _runge_kutta

    def substep(_: jax.Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        q, v, distance, a, _ = carry
        dq, dv, a, last_q, last_v = integrate(model, scales, q, v, motors, a)
        last = (last_q, last_v) if keep_last else None
        return _plus(q, 1.0, dq), _plus(v, 1.0, dv), distance + join_joints(dq)[0], a, last

    begin = (start, rates, jnp.zeros_like(action[0]), still, (start, rates) if keep_last else None)
    after, speed, distance, a, last = lax.fori_loop(0, model.substeps, substep, begin)
    return Moved(join_joints(after), join_joints(speed), distance, (*last, a) if keep_last else None)


def motor_forces(model: Model, v: jax.Array, action: jax.Array) -> jax.Array:
    """Return the forces of the motors, `[joints, L]`."""
    forces = [jnp.zeros_like(v[0])] * v.shape[0]
    for motor, signal in zip(model.motors, action, strict=True):
        forces[motor.joint] = motor.gear * jnp.clip(signal, -motor.limit, motor.limit)
    return jnp.stack(forces)


def state_problem(model: Model, scales: Scales, q: Joints, v: Joints, motors: Joints) -> Problem:
    """Return everything that determines the accelerations in a state."""
    levels, placed = level_constants(model), poses(model, scales, q, v)
    lightness = 1 / scales.mass
    wrenches = [inertial_wrench(level, pose) for level, pose in zip(levels, placed, strict=True)]
    if model.fluid is not None:
        drags = [drag(model.fluid, pose) for pose in placed]
        wrenches = jax.tree.map(lambda a, b: a + lightness * b, wrenches, drags)
    force = jax.tree.map(lambda a: lightness * a, joint_forces(model, scales, q, v, motors))
    contacts = [contact(model, scales, level, pose) for level, pose in zip(levels, placed, strict=True)]
    pairs = self_contacts(model, scales, placed, v)
    wrenches, force, limits, contacts, pairs = stored(
        (wrenches, force, limit_rows(model, scales, q, v), contacts, pairs)
    )
    armature = jax.tree.map(lambda a: lightness * a, of_joints(model, lambda joint: joint.armature))
    return Problem(placed, wrenches, force, armature, limits, contacts, pairs)


def _plus(values: Joints, factor: Any, changes: Joints) -> Joints:
    return jax.tree.map(lambda value, change: value + factor * change, values, changes)


def _runge_kutta(
    model: Model, scales: Scales, q: Joints, v: Joints, motors: Joints, start: Joints
) -> tuple[Joints, ...]:
    """Return the changes of q and v, the last acceleration, and where it was evaluated."""
    h, dtype = model.time_step, jax.tree.leaves(q)[0].dtype
    still = jax.tree.map(jnp.zeros_like, v)

    def stage(number: jax.Array, carry: tuple[Joints, ...]) -> tuple[Joints, ...]:
        _, v_before, a_before, dq, dv = carry
        ahead = jnp.where(number == 0, 0.0, jnp.where(number == 3, h, h / 2)).astype(dtype)
        share = jnp.where((number == 0) | (number == 3), h / 6, h / 3).astype(dtype)
        q_now, v_now = stored((_plus(q, ahead, v_before), _plus(v, ahead, a_before)))
        a_now = solve(model, state_problem(model, scales, q_now, v_now, motors), a_before)
        return q_now, v_now, a_now, _plus(dq, share, v_now), _plus(dv, share, a_now)

    last_q, last_v, a, dq, dv = lax.fori_loop(0, 4, stage, (q, still, start, still, still))
    return dq, dv, a, last_q, last_v


def _euler(model: Model, scales: Scales, q: Joints, v: Joints, motors: Joints, start: Joints) -> tuple[Joints, ...]:
    """Return the changes of q and v, the acceleration, and where it was evaluated."""
    h = model.time_step
    problem = state_problem(model, scales, q, v, motors)
    a = solve(model, problem, start)
    damping = of_joints(model, lambda joint: h * joint.damping)
    damping = jax.tree.map(lambda c: c * scales.damping / scales.mass, damping)
    implicit = problem._replace(
        wrenches=[Wrench(0.0, 0.0, 0.0) for _ in problem.poses],
        force=jax.tree.map(lambda value, c: c * value, a, damping),
        armature=jax.tree.map(lambda own, c: own + c, problem.armature, damping),
    )
    lost = sweep(model, implicit, None)[0]
    dv = jax.tree.map(lambda all, part: h * (all - part), a, lost)
    return _plus(jax.tree.map(lambda rate: h * rate, v), h, dv), dv, a, q, v
