"""What an environment is: pure functions on flat observations, for one episode at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.environments.host_episodes import HostEpisodes
from jaxbyz.errors import UsageError

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
        host: what runs the episodes, if they run outside of compiled programs; see `end_episodes`.
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
    host: HostEpisodes | None = None

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of an observation before it is flattened."""
        return self.shape or (self.observation_size,)


def end_episodes(environment: Environment, states: Any) -> None:
    """Tell those episodes that run outside of compiled programs that they are cut here.

    Args:
        environment: the environment.
        states: the states of its episodes, leaves `[A, …, M]`.
    """
    if environment.host is not None:
        environment.host.release(jnp.moveaxis(states, -1, 1))


def check_episodes(environment: Environment) -> None:
    """Raise what went wrong in episodes outside of compiled programs. Call it when a program has ended.

    Raises:
        EnvironmentFailure: one line with the agent, the episode and the reason.
    """
    if environment.host is not None:
        environment.host.check()


def check_gymnax(raw: Any) -> None:
    """Refuse an object that is not a gymnax environment, such as one of gymnasium."""
    if not hasattr(raw, "step_env"):
        raise UsageError(
            f"env={type(raw).__name__} is not a gymnax environment, which has reset_env, step_env and action_space "
            "(docs/extend.md has one); for one of gymnasium, use jb.gymnasium_environment with its name or a function "
            "that makes it"
        )


def check_environment(environment: Any) -> None:
    """Refuse anything but an `Environment`.

    Raises:
        UsageError: which says how to make one.
    """
    if isinstance(environment, Environment):
        return
    if not isinstance(environment, str):
        check_gymnax(environment)
    shown = repr(environment) if isinstance(environment, str) else type(environment).__name__
    raise UsageError(f"environment={shown}: must be an Environment, which jaxbyz.make_environment makes of it")
