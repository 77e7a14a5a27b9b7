"""Environments of gymnasium, which run in processes of their own while the policy acts in compiled programs."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.accelerate.setup import available_cores
from jaxbyz.environments.base import ActionSpace, Environment, OwnParams, Step
from jaxbyz.environments.host_episodes import NOBODY, HostEpisodes, Setup
from jaxbyz.errors import UsageError, check_value, did_you_mean, first_line

PREFIX = "gymnasium:"  # begins the names of these environments
TIMEOUT_SECONDS = 60.0
BRIGHTEST = 255  # of images

# Environments of gymnasium that clip actions themselves and charge the action as it was given.
_CHARGE_UNCLIPPED = ("gymnasium.envs.mujoco", "gymnasium.envs.classic_control.continuous_mountain_car")


def gymnasium_environment(
    environment: str | Callable[[], Any],
    *,
    workers: int | None = None,
    timeout: float = TIMEOUT_SECONDS,
    **options: Any,
) -> Environment:
    """Make an environment of gymnasium one that agents can be trained in.

    Every process steps its share of the running episodes, one copy of the environment for each. An episode begins with
    `reset(seed=…)`; the number of processes does not change it. Observations become flat float32 vectors, those of
    images between 0 and 1. Continuous actions are clipped to their bounds, unless the environment does that itself and
    its reward depends on the action as it was given.

    Args:
        environment: a name that is registered with gymnasium, also as `"module:Name-v0"`; or a function that returns a
            new environment.
        workers: the number of processes; by default one per core or a single one, whichever plays a batch faster.
        timeout: how many seconds a call of the environment may take.
        **options: passed to `gymnasium.make`, or to the function.

    Raises:
        UsageError: if the environment is unknown, cannot be made, or has spaces that are not supported.
    """
    name = environment if isinstance(environment, str) else getattr(environment, "__name__", "environment")
    check_value(
        "workers", workers, workers is None or (type(workers) is int and workers >= 1), "a whole number of at least 1"
    )
    check_value("timeout", timeout, not isinstance(timeout, str | bool) and timeout > 0, "a positive number of seconds")
    make = partial(_maker(environment), **options)
    probe = _probe(name, make)
    actions = _action_space(name, probe.action_space)
    shape, kind, to_vector, scales = _observation_space(name, probe.observation_space)
    sent = 1 if kind == "int32" else max(1, math.prod(shape))
    setup = Setup(make, kind, sent, actions.discrete, actions.shape, str(probe.action_space.dtype))
    host = HostEpisodes(PREFIX + name, setup, (workers,) if workers else (available_cores(), 1), float(timeout))
    unclipped = type(probe.unwrapped).__module__.startswith(_CHARGE_UNCLIPPED)
    limit = getattr(probe.spec, "max_episode_steps", None)
    probe.close()

    def reset(key: PRNGKeyArray, own: OwnParams | None = None) -> tuple[Array, Any]:
        observation, ticket = host.reset(jax.random.bits(key), (own or {}).get("agent", NOBODY))
        return to_vector(observation), ticket

    def step(key: PRNGKeyArray, state: Any, action: Array, own: OwnParams | None = None) -> Step:
        if not actions.discrete:
            action = action.reshape(actions.shape)
            action = action if unclipped else jnp.clip(action, actions.low, actions.high)
        result, ticket = host.step(state, action)
        return Step(to_vector(result.observation), ticket, *result[1:])

    size = max(1, math.prod(shape))
    return Environment(PREFIX + name, size, actions, reset, step, limit, shape=shape or (1,), scales=scales, host=host)


def names() -> list[str]:
    """Return the names that gymnasium knows now."""
    import gymnasium

    return list(gymnasium.registry)


def check_name(name: str) -> None:
    """Refuse a name that gymnasium does not know.

    Raises:
        UsageError: with the names that may have been meant.
    """
    _maker(name)


def _maker(environment: str | Callable[[], Any]) -> Callable[..., Any]:
    """Return the function that makes the environment, which can be sent to another process."""
    import gymnasium

    if not isinstance(environment, str):
        if not callable(environment) or isinstance(environment, gymnasium.Env):
            raise UsageError(
                f"environment={type(environment).__name__}: must be a name that is registered with gymnasium, or a "
                "function that returns a new environment"
            )
        return environment
    try:
        module, _, name = environment.rpartition(":")
        if module:
            importlib.import_module(module)
        spec = gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        near = [PREFIX + each for each in difflib.get_close_matches(name, names(), n=3)]
        raise UsageError(
            f"env={PREFIX}{environment}: {first_line(error).rstrip('.')}{did_you_mean(near)}; register it in a file "
            "for --import, or install the package that has it"
        ) from error
    return partial(gymnasium.make, spec, disable_env_checker=True)


def _probe(name: str, make: Callable[[], Any]) -> Any:
    """Make one environment, to look at its spaces."""
    import gymnasium

    try:
        probe = make()
    except Exception as error:  # whatever the environment raises
        raise UsageError(f"env={PREFIX}{name}: cannot be made ({type(error).__name__}: {first_line(error)})") from error
    if not isinstance(probe, gymnasium.Env):
        raise UsageError(f"env={PREFIX}{name}: is a {type(probe).__name__}, and must be a gymnasium.Env")
    for each in ("observation_space", "action_space"):
        if not hasattr(probe, each):
            raise UsageError(f"env={PREFIX}{name}: has no {each}, which a gymnasium.Env must define")
    return probe


def _action_space(name: str, space: Any) -> ActionSpace:
    """Return the actions."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        if space.start != 0:
            raise UsageError(
                f"env={PREFIX}{name} has actions that are numbered from {space.start}: wrap the environment with "
                "gymnasium.wrappers.TransformAction, so that they are numbered from 0"
            )
        return ActionSpace(True, int(space.n))
    if isinstance(space, spaces.Box):
        shape = tuple(space.shape)
        low, high = jnp.asarray(space.low, jnp.float32), jnp.asarray(space.high, jnp.float32)
        return ActionSpace(False, max(1, math.prod(shape)), shape, low, high)
    raise UsageError(
        f"env={PREFIX}{name} has actions {type(space).__name__}: policies support Discrete and Box; wrap the "
        "environment with gymnasium.wrappers.TransformAction"
    )


def _observation_space(name: str, space: Any) -> tuple[tuple[int, ...], str, Callable[[Array], Array], Any]:
    """Return the shape of observations, the type they are sent as, how they become vectors, and their scales."""
    from gymnasium import spaces

    def to_float(observation: Array) -> Array:
        return observation.astype(jnp.float32)

    if isinstance(space, spaces.Discrete):
        return (int(space.n),), "int32", lambda x: jax.nn.one_hot(x[0] - int(space.start), int(space.n)), None
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise UsageError(
            f"env={PREFIX}{name} has observations {type(space).__name__}: policies support Box, MultiBinary and "
            "Discrete; wrap the environment with gymnasium.wrappers.FlattenObservation"
        )
    shape = tuple(space.shape)
    if space.dtype == np.uint8 and isinstance(space, spaces.Box) and (space.high == BRIGHTEST).all():
        size = max(1, math.prod(shape))
        scales = np.zeros(size, np.float32), np.full(size, BRIGHTEST, np.float32)
        return shape, "uint8", lambda x: to_float(x) / BRIGHTEST, scales
    return shape, "float32", to_float, None
