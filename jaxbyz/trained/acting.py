"""The policy that a run has learnt, as functions of plain arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.components import make_policy
from jaxbyz.configuration.config import OUTPUTS, Config
from jaxbyz.environments import Environment, make_environment
from jaxbyz.environments.observation_scaling import scale_by
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.policies import Policy, most_likely, respond, voting
from jaxbyz.registry import Registry, parse_assignments


class TrainedRun(Protocol):
    """A run with its learnt parameters and its metrics: `RunData` and `Experiment`."""

    @property
    def config(self) -> Config: ...
    @property
    def metrics(self) -> dict[str, np.ndarray]: ...
    @property
    def policy(self) -> dict[str, np.ndarray]: ...


class TrainedTask(NamedTuple):
    """What a learnt policy consists of besides its parameters.

    Attributes:
        environment: the environment of the configuration.
        policy: its policy.
        act: `(theta, observation, key=None) -> action`, as `action_of`, compiled.
        act_with_memory: `(theta, carry, observation, key=None) -> (carry, action)`, as `next_action_of`, compiled.
    """

    environment: Environment
    policy: Policy
    act: Callable[..., Array]
    act_with_memory: Callable[..., tuple[Any, Array]]


def task_of(config: Config) -> TrainedTask:
    """Return environment and policy of a configuration, the same objects for the same options."""
    options = tuple(config.network_options.items())
    groups = config.groups if config.traits.in_groups else None
    return _task_of(config.env, config.env_param, config.policy, options, groups, Registry.revision)


@lru_cache(maxsize=16)
def _task_of(
    env: str,
    env_param: str,
    policy: str | None,
    options: tuple[tuple[str, Any], ...],
    groups: int | None,
    revision: int,
) -> TrainedTask:
    """Build a task; `revision` makes the cache notice components that are registered again."""
    environment = make_environment(env, **parse_assignments(env_param))
    built = make_policy(policy, environment, dict(options))
    if groups is not None:
        built = voting(built, environment.actions, groups)
    functions = (jax.jit(partial(function, environment, built)) for function in (action_of, next_action_of))
    return TrainedTask(environment, built, *functions)


def select_parameters(run: TrainedRun, run_seed: int, agent: int, output: str | None) -> np.ndarray:
    """Return the parameters `[D]` of one agent; see `PolicyMethods.parameters`."""
    output = output or run.config.output
    check_choice("output", output, OUTPUTS)
    if not run.policy:
        raise UsageError("no policy was saved, because no seed stayed finite")
    stored = run.policy[output]
    for name, index, size in (("run_seed", run_seed, stored.shape[0]), ("agent", agent, stored.shape[1])):
        if not 0 <= index < size:
            raise UsageError(f"{name}={index}: must be from 0 to {size - 1}")
    theta = stored[run_seed, agent]
    if not np.isfinite(theta).all():
        raise UsageError(f"run_seed={run_seed}: has no finite policy")
    size = task_of(run.config).policy.size
    if theta.size != size:
        raise UsageError(f"parameters of size {theta.size} do not fit a policy of size {size}")
    return theta


def action_of(
    environment: Environment,
    policy: Policy,
    theta: Float[Array, " D"],
    observation: Any,
    key: PRNGKeyArray | None = None,
) -> Array:
    """Return actions `[*batch, *action]` for observations `[*batch, *observation]`, before they are scaled.

    Args:
        environment: the task.
        policy: the policy.
        theta: the parameters.
        observation: one or many, each in the environment's shape or flat.
        key: draws the actions; without it, they are the most likely ones.

    Raises:
        UsageError: if the policy has a memory, which this function does not keep.
    """
    if policy.recurrence is not None:
        raise UsageError(
            "the policy remembers what it has seen in an episode: act with run.player(), or in JAX with "
            "run.recurrent_function()"
        )
    return next_action_of(environment, policy, theta, (), observation, key)[1]


def next_action_of(
    environment: Environment,
    policy: Policy,
    theta: Float[Array, " D"],
    carry: Any,
    observation: Any,
    key: PRNGKeyArray | None = None,
) -> tuple[Any, Array]:
    """Return what the policy remembers afterwards, and the actions of `action_of`.

    Args:
        environment: the task.
        policy: the policy.
        theta: the parameters.
        carry: what the policy remembers, with one row per observation; `initial_carry` at the start of episodes.
        observation: one or many, each in the environment's shape or flat.
        key: draws the actions; without it, they are the most likely ones.
    """
    columns, batch = observation_columns(environment, jnp.asarray(observation, jnp.float32))
    carry, distribution = respond(policy, policy.unravel(theta), carry, columns)
    actions = environment.actions
    if key is not None:
        action = policy.sample(distribution, policy.noise(key, 1, columns.shape[1])[0])
    else:
        action = most_likely(policy, distribution, actions)
    if actions.discrete:
        return carry, action.reshape(batch)
    shaped = action.T.reshape(*batch, *actions.shape)
    low, high = (jnp.broadcast_to(bound, shaped.shape) for bound in (actions.low, actions.high))
    return carry, jnp.clip(shaped, low, high)


def observation_columns(environment: Environment, observation: Array) -> tuple[Float[Array, "O L"], tuple[int, ...]]:
    """Return observations as columns, and the shape of the batch."""
    shape, given = environment.observation_shape, observation.shape
    for one in (shape, (environment.observation_size,)):
        batch = given[: len(given) - len(one)]
        if (*batch, *one) == given:
            rows = observation.reshape(math.prod(batch), environment.observation_size)
            return (rows if environment.scales is None else scale_by(environment.scales, rows)).T, batch
    sizes = ", ".join(map(str, shape))
    raise UsageError(
        f"observation of shape {list(given)}: {environment.name} has observations [{sizes}]; give one of them, or many "
        f"as […, {sizes}]"
    )
