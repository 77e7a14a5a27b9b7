"""Agents whose environments differ: every agent has its own values of some parameters of the environment.

A federation of robots has motors of different strength and floors of different friction. Here the parameters of the
environment that differ are arrays with one row per agent, so that all agents still run in one compiled program. The
other parameters stay constants of that program.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.environments.base import Environment, OwnParams, check_environment
from jaxbyz.errors import UsageError, unknown

OWN_PARAMS_STREAM = 2**31 - 2  # larger than any iteration, whose number is folded into the same key


def heterogeneous(
    environment: Environment,
    agents: int,
    *,
    spread: Mapping[str, float] | None = None,
    values: Any = None,
) -> Environment:
    """Return the environment with parameters that differ between agents.

    The environment itself stays the nominal one: `evaluate` runs it, and so does a server that samples alone.

    Args:
        environment: the nominal environment.
        agents: the number of agents K.
        spread: parameter -> s. Every agent draws its own value, uniform within the nominal value times 1 ± s, from the
            key of the run. Whole numbers are rounded. A spread of 0 leaves the parameter alone.
        values: parameter -> `[K, …]`, one value per agent; or the environment's parameters as an object whose fields
            have a leading agent axis where they differ.

    Raises:
        UsageError: if a parameter is unknown, cannot differ between agents, or a value is not allowed.
    """
    check_environment(environment)
    if environment.host is not None:
        for option in [name for name, given in (("env_spread", spread), ("env_agents", values)) if given]:
            raise UsageError(
                f"{option} with env={environment.name}: only environments in JAX can differ in parameters; the nodes "
                "of a federation can have environments of their own (jaxbyz node --env-file)"
            )
        return environment._replace(own_params=lambda key: {"agent": jnp.arange(agents)})  # for messages
    for name, s in (spread or {}).items():
        if not isinstance(s, numbers.Real):
            raise UsageError(f"env_spread={name}={s}: must be a number of at least 0")
    spread = {name: float(s) for name, s in (spread or {}).items() if s != 0}
    given = _as_rows(environment, values, agents)
    if both := sorted(spread.keys() & given.keys()):
        raise UsageError(f"env_spread and env_agents both give {both[0]!r}: give each parameter once")
    centres = {name: _nominal(environment, name, s) for name, s in spread.items()}
    if not centres and not given:
        return environment

    def own_params(key: PRNGKeyArray) -> OwnParams:
        drawn = {}
        for name in sorted(centres):
            key, own_key = jax.random.split(key)
            u = jax.random.uniform(own_key, (agents, *centres[name].shape), minval=-1.0, maxval=1.0)
            drawn[name] = _scaled(centres[name][None], spread[name] * u)
        return {**drawn, **given}

    result = environment._replace(own_params=own_params)
    _check(result, centres, spread, given)
    return result


def agent_params(environment: Environment, run_key: PRNGKeyArray, agents: int) -> OwnParams:
    """Return the parameters in which the agents of a run differ, `{name: [K, …]}`; empty if they are all alike.

    Args:
        environment: from `heterogeneous`, or any other.
        run_key: the key in the run's `State`.
        agents: the number of agents K.

    Raises:
        UsageError: if the environment was made for another number of agents.
    """
    own = environment.own_params(jax.random.fold_in(run_key, OWN_PARAMS_STREAM))
    for name, rows in own.items():
        if rows.shape[0] != agents:
            raise UsageError(f"env {environment.name}: {name} has {rows.shape[0]} values for agents={agents}")
    return own


def _scaled(centre: np.ndarray, deviation: Any) -> Array:
    """Return centre·(1 + deviation) in the centre's type."""
    value = jnp.asarray(centre, jnp.float32) * (1.0 + deviation)
    return value if centre.dtype.kind == "f" else jnp.round(value).astype(jnp.int32)


def _nominal(environment: Environment, name: str, spread: float) -> np.ndarray:
    """Return the nominal value of a parameter that is to be spread."""
    value = np.asarray(_field(environment, name))
    if not 0 < spread < 1:
        raise UsageError(f"env_spread={name}={spread}: must be at least 0 and less than 1, or signs would change")
    if value.dtype.kind not in "iuf":
        raise UsageError(f"env_spread={name}={spread}: {name} is {value}, which is not a number")
    if not np.any(value):
        raise UsageError(f"env_spread={name}={spread}: {name} is 0, and a spread is relative; set it with env_param")
    return value.astype(np.float32 if value.dtype.kind == "f" else np.int32)


def _field(environment: Environment, name: str) -> Any:
    """Return the nominal value of a parameter."""
    known = _names(environment)
    if name not in known:
        raise UsageError(f"env {environment.name}: {unknown('parameter', name, known)}")
    return getattr(environment.params, name)


def _names(environment: Environment) -> list[str]:
    """Return the names of the environment's parameters."""
    return [field.name for field in dataclasses.fields(environment.params)] if environment.params is not None else []


def _as_rows(environment: Environment, values: Any, agents: int) -> OwnParams:
    """Return given values as arrays `[K, …]` by name."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        if not isinstance(values, type(environment.params)):
            raise UsageError(f"env_agents: must be a table of parameters, not {type(values).__name__}")
        nominal = {name: np.shape(getattr(environment.params, name)) for name in _names(environment)}
        fields = {name: getattr(values, name) for name in nominal}
        values = {name: value for name, value in fields.items() if np.ndim(value) > len(nominal[name])}
    rows = {}
    for name, value in values.items():
        nominal_value = np.asarray(_field(environment, name))
        array = np.asarray(value)
        if array.shape != (agents, *nominal_value.shape) or array.dtype.kind not in "biuf":
            what = f"{len(value)} values" if array.ndim == 1 else f"values of shape {list(array.shape)}"
            raise UsageError(f"env_agents: {name} has {what}; it must have one number per agent, {agents}")
        rows[name] = jnp.asarray(array, nominal_value.dtype if nominal_value.dtype.kind != "f" else jnp.float32)
    return rows


def _check(
    environment: Environment, centres: Mapping[str, np.ndarray], spread: Mapping[str, float], given: OwnParams
) -> None:
    """Refuse values that the environment does not allow, and parameters that decide what program is compiled."""
    lowest = {name: np.asarray(_scaled(centre, -spread[name])) for name, centre in centres.items()}
    highest = {name: np.asarray(_scaled(centre, spread[name])) for name, centre in centres.items()}
    ends = [(name, value) for end in (lowest, highest) for name, value in end.items()]
    ends += [(name, row) for name, rows in given.items() for row in np.asarray(rows)]
    key = jax.random.key(0)
    for name, value in ends:
        try:  # with concrete values, which an environment can check
            jax.eval_shape(lambda key, own={name: value}: environment.reset(key, own), key)
        except (ValueError, AssertionError) as error:
            raise UsageError(f"env {environment.name}: {name}={value}: {error}") from error

    def first_step(own: OwnParams) -> Any:
        actions = environment.actions
        action = jnp.int32(0) if actions.discrete else jnp.zeros(actions.shape)
        _, state = environment.reset(key, own)
        return environment.step(key, state, action, own)

    try:
        with jax.numpy_rank_promotion("allow"):  # gymnax's own code
            jax.eval_shape(first_step, dict(ends))
    except (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError) as error:
        names = ", ".join([*centres, *given])
        raise UsageError(f"env {environment.name}: {names} cannot differ between agents") from error
