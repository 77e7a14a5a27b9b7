"""The one place that talks to gymnax: any of its environments as three pure functions on flat observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.accelerate.lazy_imports import deferred_imports
from jaxbyz.accelerate.trigonometry import with_fast_trigonometry
from jaxbyz.errors import UsageError
from jaxbyz.registry import Registry

with deferred_imports("seaborn", "matplotlib.pyplot"):
    import gymnax
    from gymnax.environments import spaces


class ActionSpace(NamedTuple):
    """Discrete actions 0..n−1, or continuous ones in the box [low, high]^shape."""

    discrete: bool
    n: int  # number of discrete actions, or of continuous dimensions
    shape: tuple[int, ...] = ()
    low: Any = None
    high: Any = None

    @property
    def draws(self) -> int:
        """Uniform numbers needed to draw one action."""
        return 1 if self.discrete else self.n

    def uniform_action(self, u: Float[Array, "... n"], action: Array) -> Array:
        """A uniformly random action from u in [0, 1), whatever `action` was."""
        if self.discrete:
            return jnp.minimum((u[..., 0] * self.n).astype(action.dtype), self.n - 1)
        low, high = (jnp.ravel(jnp.asarray(x)).reshape((1,) * (u.ndim - 1) + (-1,)) for x in (self.low, self.high))
        return (low + u * (high - low)).astype(action.dtype).reshape(action.shape)


class Step(NamedTuple):
    """observation [O], the next state, reward [], terminated [] (natural end), truncated [] (time limit)."""

    observation: Float[Array, " O"]
    state: Any
    reward: Float[Array, ""]
    terminated: Array
    truncated: Array


class Environment(NamedTuple):
    """An environment for one lane; vmap it for many.

    reset: key -> (observation [O], state)
    step:  (key, state, action) -> Step
    limit: its own time limit in steps, or None
    costly: whether a step of many lanes costs far more than gathering some of them
    raw, params: the gymnax objects behind it, for rendering
    """

    name: str
    observation_size: int
    actions: ActionSpace
    reset: Callable[[PRNGKeyArray], tuple[Array, Any]]
    step: Callable[[PRNGKeyArray, Any, Array], Step]
    limit: int | None = None
    costly: bool = False
    raw: Any = None
    params: Any = None


environments = Registry("env")


def _summary(name: str) -> str:
    family = name.rpartition("-")[2]
    return {"MinAtar": "MinAtar game", "bsuite": "behaviour suite task", "misc": "small task"}.get(
        family, "classic control"
    ) + " (gymnax)"


def _lunar_lander(name: str) -> Any:
    from jaxbyz.environments.lunar_lander import (
        environment as lunar_lander,  # compiled code is made only for those who ask for it
    )

    return getattr(lunar_lander, name)()


# Ours are registered with gymnax too, so that `gymnax.make` finds them once jaxbyz is imported.
OURS = {
    "LunarLander-v3": ("LunarLander", "Box2D's LunarLander in JAX, discrete engines"),
    "LunarLanderContinuous-v3": ("LunarLanderContinuous", "Box2D's LunarLander in JAX, continuous engines"),
}
for _name, (_class, _line) in OURS.items():
    environments.add(_name, lambda _class=_class: _lunar_lander(_class), _line)
    if _name not in gymnax.registered_envs:
        gymnax.register(_name, lambda _class=_class: _lunar_lander(_class))
for _name in gymnax.registered_envs:
    if _name not in environments:
        environments.add(_name, lambda _name=_name: gymnax.make(_name)[0], _summary(_name))


def make_environment(name: str | Environment | Any, **params: Any) -> Environment:
    """An environment from a registered name, a gymnax environment object, or an `Environment` (returned as it is).

    Keyword arguments replace fields of the environment's parameters, for example `gravity=9.0`.
    """
    if isinstance(name, Environment):
        return name
    raw = environments[name].factory() if isinstance(name, str) else name
    settings = raw.default_params
    for field in params:
        if not hasattr(settings, field):
            raise UsageError(f"env {raw.name}: unknown parameter {field!r}")
    settings = settings.replace(**params) if params else settings
    return adapt(raw, settings)


def adapt(raw: Any, params: Any) -> Environment:
    """Wrap a gymnax environment: observations become flat float32 vectors, continuous actions are clipped."""
    actions = _action_space(raw, params)
    flatten, size = _observation(raw, params)

    def reset(key: PRNGKeyArray) -> tuple[Array, Any]:
        observation, state = raw.reset_env(key, params)
        return flatten(observation), state

    def step(key: PRNGKeyArray, state: Any, action: Array) -> Step:
        if not actions.discrete:
            action = jnp.clip(action.reshape(actions.shape), actions.low, actions.high)
        observation, state, reward, terminated, _ = raw.step_env(key, state, action, params)
        truncated = raw.is_truncated(state, params)
        return Step(flatten(observation), state, jnp.asarray(reward, jnp.float32), terminated, truncated)

    limit = getattr(params, "max_steps_in_episode", None)
    return Environment(
        raw.name, size, actions, reset, with_fast_trigonometry(step), limit, getattr(raw, "costly", False), raw, params
    )


def _action_space(raw: Any, params: Any) -> ActionSpace:
    space = raw.action_space(params)
    if isinstance(space, spaces.Discrete):
        return ActionSpace(True, int(space.n))
    if isinstance(space, spaces.Box):
        shape = tuple(space.shape)
        low, high = jnp.broadcast_to(space.low, shape), jnp.broadcast_to(space.high, shape)
        return ActionSpace(False, max(1, low.size), shape, low, high)
    raise UsageError(f"env={raw.name!r} has actions {type(space).__name__}: policies serve Discrete and Box")


def _observation(raw: Any, params: Any) -> tuple[Callable[[Any], Array], int]:
    try:
        space = raw.observation_space(params)
    except NotImplementedError:
        space = None
    if isinstance(space, spaces.Discrete):
        return lambda observation: jax.nn.one_hot(observation, int(space.n)), int(space.n)
    shape = jax.eval_shape(lambda key: raw.reset_env(key, params)[0], jax.random.key(0))
    if not hasattr(shape, "shape"):
        kind = type(space).__name__ if space is not None else type(shape).__name__
        raise UsageError(f"env={raw.name!r} has observations {kind}: policies serve one array or a Discrete number")
    return lambda observation: jnp.ravel(observation).astype(jnp.float32), max(1, shape.size)
