"""A node with an environment of its own: another machine, another simulator, or a robot."""

from __future__ import annotations

import runpy
from typing import Any

from jaxbyz.configuration.building import environment_of
from jaxbyz.configuration.config import Config
from jaxbyz.environments import Environment, gymnasium_environment, heterogeneous, make_environment
from jaxbyz.environments.observation_scaling import scale_with
from jaxbyz.errors import UsageError, first_line
from jaxbyz.registry import parse_assignments

FUNCTION = "environment"  # what the file defines


def own_environment(config: Config, file: str | None) -> Environment | None:
    """Return the environment that the file of a node makes, prepared as that of the federation is.

    Observations are scaled by the scales of the federation, and actions are clipped and held as there.

    Args:
        config: the configuration of the federation.
        file: a Python file with a function `environment()`, which returns a `gymnasium.Env` or an `Environment`; None
            if the node has none, and the result is None then.

    Raises:
        UsageError: if the file cannot be used, or observations or actions are not those of the federation.
    """
    if file is None:
        return None
    if config.audit:
        raise UsageError(
            f"env_file={file} with audit={config.audit}: only episodes of the common environment are replayed"
        )
    try:
        make: Any = runpy.run_path(file).get(FUNCTION)
        found = make() if callable(make) else None
    except Exception as error:  # whatever the file raises
        raise UsageError(f"env_file={file}: failed ({type(error).__name__}: {first_line(error)})") from error
    if found is None:
        raise UsageError(f"env_file={file}: must define a function {FUNCTION}(), which returns the environment")
    own = found if isinstance(found, Environment) else gymnasium_environment(make)
    common = environment_of(config)
    if _spaces(own) != _spaces(common):
        raise UsageError(
            f"env_file={file}: has {_in_words(own)}; those of the federation, {config.env}, are {_in_words(common)}"
        )
    params = parse_assignments(config.env_param)
    own = make_environment(own, **{name: params[name] for name in ("clip", "hold") if name in params})
    if common.scales is not None and own.scales is None:
        own = scale_with(own, common.scales)
    return heterogeneous(own, config.agents)


def _spaces(environment: Environment) -> tuple[object, ...]:
    actions = environment.actions
    return environment.observation_shape, actions.discrete, actions.n, actions.shape


def _in_words(environment: Environment) -> str:
    actions, shape = environment.actions, list(environment.observation_shape)
    return f"observations {shape} and {actions.n} {'discrete' if actions.discrete else 'continuous'} actions"
