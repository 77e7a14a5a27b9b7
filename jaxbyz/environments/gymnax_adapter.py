"""The adapter that makes gymnax environments pure functions on flat observations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.accelerate.lazy_imports import deferred_imports
from jaxbyz.accelerate.trigonometry import with_fast_trigonometry
from jaxbyz.environments.base import ActionSpace, Environment, OwnParams, Step
from jaxbyz.errors import UsageError

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

# Environments of gymnax that clip actions themselves and charge the action as it was given, as gymnasium's do. Those of
# this package have the attribute `charges_unclipped`.
_CHARGES_UNCLIPPED = ("ContinuousMountainCar-v0", "MountainCarContinuous-v0")

# Parameters of gymnax that follow from others: class of the parameters -> name -> (their names, formula).
DERIVED: dict[type, dict[str, tuple[tuple[str, ...], Callable[..., Any]]]] = {
    cartpole.EnvParams: {
        "total_mass": (("masscart", "masspole"), operator.add),
        "polemass_length": (("masspole", "length"), operator.mul),
    }
}


def make_by_name(name: str) -> Any:
    """Make the environment that gymnax has under this name."""
    return gymnax.make(name)[0]


def known_names() -> list[str]:
    """Return the names that gymnax knows."""
    return list(gymnax.registered_envs)


def register(name: str, make: Callable[[], Any]) -> None:
    """Let `gymnax.make` find an environment of this package, unless it has one of this name."""
    if name not in gymnax.registered_envs:
        gymnax.register(name, make)


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
    unclipped = raw.name in _CHARGES_UNCLIPPED or getattr(raw, "charges_unclipped", False)

    def reset(key: PRNGKeyArray, own: OwnParams | None = None) -> tuple[Array, Any]:
        observation, state = raw.reset_env(key, replace_params(params, own or {}))
        return flatten(observation), state

    def step(key: PRNGKeyArray, state: Any, action: Array, own: OwnParams | None = None) -> Step:
        settings = replace_params(params, own or {})
        if not actions.discrete:
            if action.size != actions.n:
                raise UsageError(f"action has shape {action.shape}: {raw.name} needs {actions.shape}")
            action = action.reshape(actions.shape)
            action = action if unclipped else jnp.clip(action, actions.low, actions.high)
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
