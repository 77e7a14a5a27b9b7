"""Environments as pure functions on flat observations. This is the only module that uses gymnax's interface."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import operator
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.accelerate.lazy_imports import deferred_imports
from jaxbyz.accelerate.trigonometry import with_fast_trigonometry
from jaxbyz.errors import UsageError, first_line, unknown
from jaxbyz.registry import Registry

# What gymnax and flax import for pictures and tables.
DRAWING = (
    "seaborn",
    "matplotlib",
    "matplotlib.pyplot",
    "matplotlib.colors",
    "rich",
    "rich.console",
    "rich.table",
    "rich.text",
)
with deferred_imports(*DRAWING):
    import gymnax
    from gymnax.environments import spaces
    from gymnax.environments.classic_control import cartpole


OwnParams = dict[str, Any]  # parameters by name: of one agent, or with a leading agent axis


class ActionSpace(NamedTuple):
    """Discrete actions 0 to n − 1, or continuous ones in a box.

    Attributes:
        discrete: whether actions are discrete.
        n: the number of discrete actions, or of continuous dimensions.
        shape: the shape of a continuous action.
        low: lower bounds of a continuous action.
        high: upper bounds of a continuous action.
    """

    discrete: bool
    n: int
    shape: tuple[int, ...] = ()
    low: Any = None
    high: Any = None

    @property
    def draws(self) -> int:
        """The number of uniform random numbers that `uniform_action` needs."""
        return 1 if self.discrete else self.n

    def uniform_action(self, u: Float[Array, "... n"], action: Array) -> Array:
        """Return a uniformly random action with the shape and type of `action`, from uniform numbers u in [0, 1)."""
        if self.discrete:
            return jnp.minimum((u[..., 0] * self.n).astype(action.dtype), self.n - 1)
        low, high = (jnp.ravel(jnp.asarray(x)).reshape((1,) * (u.ndim - 1) + (-1,)) for x in (self.low, self.high))
        return (low + u * (high - low)).astype(action.dtype).reshape(action.shape)


class Step(NamedTuple):
    """The result of one step.

    Attributes:
        observation: `[O]`.
        state: the next state.
        reward: `[]`.
        terminated: `[]`, whether the episode reached a natural end.
        truncated: `[]`, whether it reached the time limit.
    """

    observation: Float[Array, " O"]
    state: Any
    reward: Float[Array, ""]
    terminated: Array
    truncated: Array


class Environment(NamedTuple):
    """An environment for one episode at a time; map its functions with `vmap` for many.

    Attributes:
        name: the registered name.
        observation_size: the number of entries O of an observation.
        actions: the action space.
        reset: `key -> (observation [O], state)`.
        step: `(key, state, action) -> Step`.
        limit: the environment's own time limit in steps, or None.
        raw: the gymnax environment, for rendering.
        params: its parameters.
        shape: the shape of an observation before it is flattened, for networks that see images; by default `(O,)`.
        own_params: `key of the run -> {name: [K, …]}`, the parameters in which the agents' environments differ, one row
            per agent; empty if all agents have the same environment. `reset` and `step` take one agent's row as an
            additional last argument. See `jaxbyz.environments.heterogeneity`.
        scales: mean and deviation `[O]` by which observations are scaled, or None; a policy that is used elsewhere must
            scale the observations there in the same way.
    """

    name: str
    observation_size: int
    actions: ActionSpace
    reset: Callable[..., tuple[Array, Any]]
    step: Callable[..., Step]
    limit: int | None = None
    raw: Any = None
    params: Any = None
    shape: tuple[int, ...] = ()
    own_params: Callable[[PRNGKeyArray], OwnParams] = lambda key: {}
    scales: tuple[Any, Any] | None = None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of an observation before it is flattened."""
        return self.shape or (self.observation_size,)


def _gymnasium_hint(name: str) -> str:
    """Return what to do about a name of gymnasium, or an empty text."""
    try:
        import gymnasium
    except ImportError:
        return ""
    return f"; gymnasium has it, but {NEEDS_JAX}" if name in gymnasium.registry else ""


NEEDS_JAX = (
    "episodes run inside compiled programs, so an environment must be written in JAX with gymnax's interface "
    "(reset_env, step_env, action_space; docs/extend.md has one). A trained policy can be used in gymnasium: run.act"
)
environments = Registry("env", _gymnasium_hint)
DOWNLOADS = ("MNISTBandit-bsuite",)  # environments of gymnax that download data when they are made
DOWNLOAD_SECONDS = 20.0  # how long a server may keep an environment's download waiting


def _summary(name: str) -> str:
    family = name.rpartition("-")[2]
    return {"MinAtar": "MinAtar game", "bsuite": "behaviour suite task", "misc": "small task"}.get(
        family, "classic control"
    ) + " (gymnax)"


def _make_own(name: str) -> Any:
    """Make an environment of this package. Its module is imported only now, because that takes time."""
    module, class_name, _ = _OWN[name]
    return getattr(importlib.import_module(f"jaxbyz.environments.{module}"), class_name)()


# The environments of this package: name -> (module in `jaxbyz.environments`, class, summary). They are registered with
# gymnax too, so that `gymnax.make` finds them.
_OWN = {
    "LunarLander-v3": ("lunar_lander", "LunarLander", "Box2D's LunarLander in JAX, discrete engines"),
    "LunarLanderContinuous-v3": (
        "lunar_lander",
        "LunarLanderContinuous",
        "Box2D's LunarLander in JAX, continuous engines",
    ),
    "InvertedPendulum-v5": ("mujoco.inverted_pendulum", "InvertedPendulum", "MuJoCo in JAX: balance a pole on a cart"),
    "InvertedDoublePendulum-v5": (
        "mujoco.inverted_double_pendulum",
        "InvertedDoublePendulum",
        "MuJoCo in JAX: balance two poles on a cart",
    ),
    "Swimmer-v5": ("mujoco.swimmer", "Swimmer", "MuJoCo in JAX: three links swim in a viscous fluid"),
    "Reacher-v5": ("mujoco.reacher", "Reacher", "MuJoCo in JAX: an arm reaches for a target"),
    "Hopper-v5": ("mujoco.hopper", "Hopper", "MuJoCo in JAX: one leg hops"),
    "Walker2d-v5": ("mujoco.walker2d", "Walker2d", "MuJoCo in JAX: two legs walk"),
    "HalfCheetah-v5": ("mujoco.half_cheetah", "HalfCheetah", "MuJoCo in JAX: two legs and a torso run"),
}
for _name, (_, _, _line) in _OWN.items():
    environments.add(_name, functools.partial(_make_own, _name), _line)
    if _name not in gymnax.registered_envs:
        gymnax.register(_name, functools.partial(_make_own, _name))
for _name in gymnax.registered_envs:
    if _name not in environments:
        environments.add(_name, lambda _name=_name: gymnax.make(_name)[0], _summary(_name))


def make_environment(name: str | Environment | Any, **params: Any) -> Environment:
    """Make an environment.

    Args:
        name: a registered name, a gymnax environment object, or an `Environment`, which is returned unchanged.
        **params: values that replace fields of the environment's parameters, for example `gravity=9.0`. Parameters
            that gymnax derives from others, such as CartPole's `total_mass`, follow. Every environment also has
            `hold`, the number of steps for which an action is held, and `scale=True`, which scales observations by
            those of a common sample.

    Raises:
        UsageError: if the name or a parameter is unknown, or the spaces are not supported.
    """
    if isinstance(name, Environment):
        return name
    if wrapped := {key: params.pop(key) for key in WRAPPERS if key in params}:
        environment = make_environment(name, **params)
        for key, value in wrapped.items():
            environment = WRAPPERS[key](environment, value)
        return environment
    raw = _make_raw(name) if isinstance(name, str) else name
    if isinstance(raw, Environment):
        if params:
            raise UsageError(f"env {raw.name}: unknown parameter {next(iter(params))!r}")
        return raw
    _check_gymnax(raw)
    settings = raw.default_params
    known = [field.name for field in dataclasses.fields(settings)] if params else []
    for field in params:
        if field not in known:
            raise UsageError(f"env {raw.name}: {unknown('parameter', field, known)}")
    return adapt(raw, replace_params(settings, params))


def _check_gymnax(raw: Any) -> None:
    """Refuse an object that is not a gymnax environment, such as one of gymnasium."""
    if not hasattr(raw, "step_env"):
        raise UsageError(f"env={type(raw).__name__} is not a gymnax environment: {NEEDS_JAX}")


def check_environment(environment: Any) -> None:
    """Refuse anything but an `Environment`.

    Raises:
        UsageError: which says how to make one.
    """
    if isinstance(environment, Environment):
        return
    if not isinstance(environment, str):
        _check_gymnax(environment)
    shown = repr(environment) if isinstance(environment, str) else type(environment).__name__
    raise UsageError(f"environment={shown}: must be an Environment, which jaxbyz.make_environment makes of it")


def hold_actions(environment: Environment, steps: int) -> Environment:
    """Return the environment in which every action is taken `steps` times, or until the episode ends.

    The reward of a held action is the sum of the rewards, so that returns stay the same; a policy with independent
    noise in every step explores further. The time limit counts actions: ⌈limit/steps⌉.

    Args:
        environment: the task.
        steps: for how many steps every action is held.

    Raises:
        UsageError: if `steps` is not a whole number of at least 1.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UsageError(f"env {environment.name}: hold={steps}: must be a whole number of at least 1")
    if steps == 1:
        return environment

    def step(key: PRNGKeyArray, state: Any, action: Array, *own: Any) -> Step:
        def once_more(i: Array, now: Step) -> Step:
            after = environment.step(jax.random.fold_in(key, i), now.state, action, *own)
            over = now.terminated | now.truncated
            after = after._replace(reward=now.reward + after.reward)
            return jax.tree.map(lambda old, new: jnp.where(over, old, new), now, after)

        return jax.lax.fori_loop(1, steps, once_more, environment.step(key, state, action, *own))

    limit = None if environment.limit is None else -(-environment.limit // steps)
    return environment._replace(step=step, limit=limit)


def _make_raw(name: str) -> Any:
    """Make a registered environment. Some of gymnax download data when they are made, for example MNISTBandit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_SECONDS)
    try:
        return environments[name].factory()
    except (OSError, EOFError, struct.error) as error:  # no network, or half a file
        raise UsageError(
            f"env={name!r}: needs data that cannot be downloaded or read ({first_line(error)[:200]})"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def default_parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a registered environment and their defaults, without those of `WRAPPERS`.

    The table is empty for environments without parameters, and for those that would have to download data.
    """
    raw = None if name in DOWNLOADS else _make_raw(name)
    settings = getattr(raw, "default_params", None)
    if not dataclasses.is_dataclass(settings):
        return {}
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: value.tolist() if isinstance(value, jax.Array) else value for name, value in values.items()}


# Parameters that every environment has: name -> what wraps the environment, given the value. They are applied in this
# order.
WRAPPERS: dict[str, Callable[[Environment, Any], Environment]] = {"hold": hold_actions}

# Environments that clip actions themselves and charge the action as it was given, as gymnasium's do.
_CHARGES_UNCLIPPED = ("ContinuousMountainCar-v0", "MountainCarContinuous-v0")

# Parameters of gymnax that follow from others: class of the parameters -> name -> (their names, formula).
DERIVED: dict[type, dict[str, tuple[tuple[str, ...], Callable[..., Any]]]] = {
    cartpole.EnvParams: {
        "total_mass": (("masscart", "masspole"), operator.add),
        "polemass_length": (("masspole", "length"), operator.mul),
    }
}


def replace_params(settings: Any, values: OwnParams) -> Any:
    """Return parameters with other values, and with those that follow from them computed anew.

    A derived parameter that is itself among the values keeps the given value.
    """
    if not values:
        return settings
    settings = settings.replace(**values)
    derived = {
        name: formula(*(getattr(settings, source) for source in sources))
        for name, (sources, formula) in DERIVED.get(type(settings), {}).items()
        if name not in values and not values.keys().isdisjoint(sources)
    }
    return settings.replace(**derived) if derived else settings


def adapt(raw: Any, params: Any) -> Environment:
    """Wrap a gymnax environment.

    Observations become flat float32 vectors, and continuous actions are clipped to their bounds, unless the environment
    does that itself and the reward depends on the action as it was given.

    Args:
        raw: the gymnax environment.
        params: its parameters.

    Raises:
        UsageError: if its action or observation space is not supported.
    """
    actions = _action_space(raw, params)
    flatten, shape = _flat_observation(raw, params)

    def reset(key: PRNGKeyArray, own: OwnParams | None = None) -> tuple[Array, Any]:
        observation, state = raw.reset_env(key, replace_params(params, own or {}))
        return flatten(observation), state

    def step(key: PRNGKeyArray, state: Any, action: Array, own: OwnParams | None = None) -> Step:
        settings = replace_params(params, own or {})
        if not actions.discrete:
            if action.size != actions.n:
                raise UsageError(f"action has shape {action.shape}: {raw.name} needs {actions.shape}")
            action = action.reshape(actions.shape)
            action = action if raw.name in _CHARGES_UNCLIPPED else jnp.clip(action, actions.low, actions.high)
        observation, state, reward, terminated, _ = raw.step_env(key, state, action, settings)
        truncated = raw.is_truncated(state, settings)
        return Step(flatten(observation), state, jnp.asarray(reward, jnp.float32), terminated, truncated)

    limit = getattr(params, "max_steps_in_episode", None)
    size = max(1, math.prod(shape))
    return Environment(raw.name, size, actions, reset, with_fast_trigonometry(step), limit, raw, params, shape)


def _action_space(raw: Any, params: Any) -> ActionSpace:
    space = raw.action_space(params)
    if isinstance(space, spaces.Discrete):
        return ActionSpace(True, int(space.n))
    if isinstance(space, spaces.Box):
        shape = tuple(space.shape)
        low, high = jnp.broadcast_to(space.low, shape), jnp.broadcast_to(space.high, shape)
        return ActionSpace(False, max(1, low.size), shape, low, high)
    raise UsageError(f"env={raw.name!r} has actions {type(space).__name__}: policies support Discrete and Box")


def _flat_observation(raw: Any, params: Any) -> tuple[Callable[[Any], Array], tuple[int, ...]]:
    """Return the function that flattens an observation, and the shape that it has before."""
    try:
        space = raw.observation_space(params)
    except NotImplementedError:
        space = None
    if isinstance(space, spaces.Discrete):
        return lambda observation: jax.nn.one_hot(observation, int(space.n)), (int(space.n),)
    shape = jax.eval_shape(lambda: raw.reset_env(jax.random.key(0), params)[0])
    if not hasattr(shape, "shape"):
        kind = type(space).__name__ if space is not None else type(shape).__name__
        raise UsageError(f"env={raw.name!r} has observations {kind}: policies support one array or a Discrete number")
    return lambda observation: jnp.ravel(observation).astype(jnp.float32), tuple(shape.shape)
