"""What can be done with a run after training, as methods of `RunData` and `Experiment`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxbyz.policies import initial_carry
from jaxbyz.trained.acting import TrainedRun, action_of, next_action_of, select_parameters, task_of
from jaxbyz.trained.export import write_policy
from jaxbyz.trained.player import Player, as_gymnasium


class PolicyMethods:
    """Actions, a pure function, export and a table. The base of `RunData` and `Experiment`.

    Every method selects the policy of one agent with the same arguments:

    - `run_seed`: which seed of the run, counted from 0.
    - `agent`: which agent; with a server there is only agent 0.
    - `output`: `"last"`, `"sampled"` or `"best"`; by default the option `output` of the run.
    """

    def parameters(self: TrainedRun, *, run_seed: int = 0, agent: int = 0, output: str | None = None) -> np.ndarray:
        """Return the learnt parameters `[D]`.

        Raises:
            UsageError: if there is no such policy, or its seed became non-finite at once.
        """
        return select_parameters(self, run_seed, agent, output)

    def act(
        self: TrainedRun,
        observation: Any,
        key: PRNGKeyArray | None = None,
        *,
        run_seed: int = 0,
        agent: int = 0,
        output: str | None = None,
    ) -> Any:
        """Return the action for one observation, or the actions for many, as gymnasium expects them.

        A policy with a memory needs a `player`.

        Args:
            observation: in the environment's shape or flat, or many of them along leading axes.
            key: draws the action; without it, the action is the most likely one.
            run_seed: see the class.
            agent: see the class.
            output: see the class.

        Returns:
            An int for one observation with discrete actions, otherwise a NumPy array.
        """
        task = task_of(self.config)
        theta = select_parameters(self, run_seed, agent, output)
        return as_gymnasium(task, task.act(theta, np.asarray(observation, np.float32), key))

    def policy_function(
        self: TrainedRun, *, run_seed: int = 0, agent: int = 0, output: str | None = None
    ) -> Callable[..., Array]:
        """Return the learnt policy as a pure function `(observation, key=None) -> action`.

        It can be used inside `jit`, `vmap` and `scan`, with one observation or with many along leading axes. Without a
        key the action is the most likely one, with a key it is drawn. Continuous actions are clipped to their bounds.
        """
        task = task_of(self.config)
        theta = jnp.asarray(select_parameters(self, run_seed, agent, output))

        def act(observation: Any, key: PRNGKeyArray | None = None) -> Array:
            return action_of(task.environment, task.policy, theta, observation, key)

        return act

    def player(self: TrainedRun, *, run_seed: int = 0, agent: int = 0, output: str | None = None) -> Player:
        """Return the learnt policy as a `Player`, which remembers what it has seen if the policy has a memory."""
        return Player(task_of(self.config), select_parameters(self, run_seed, agent, output))

    def recurrent_function(
        self: TrainedRun, *, run_seed: int = 0, agent: int = 0, output: str | None = None
    ) -> tuple[Callable[[int], Any], Callable[..., tuple[Any, Array]]]:
        """Return the learnt policy as two pure functions, for policies with and without a memory.

        Returns:
            `start`, `(episodes) -> carry`: what the policy remembers at first, one row per episode.
            `act`, `(carry, observation, key=None) -> (carry, action)`: otherwise as `policy_function`.
        """
        task = task_of(self.config)
        theta = jnp.asarray(select_parameters(self, run_seed, agent, output))
        return partial(initial_carry, task.policy), partial(next_action_of, task.environment, task.policy, theta)

    def export(
        self: TrainedRun, path: str | Path, *, run_seed: int = 0, agent: int = 0, output: str | None = None
    ) -> Path:
        """Write the policy to one file for other programs, and return its path.

        The ending chooses the format, as described in `jaxbyz.trained.export`: `.npz`, `.safetensors`, `.onnx` or
        `.jax`.
        """
        return write_policy(Path(path), self.config, select_parameters(self, run_seed, agent, output))

    def frame(self: TrainedRun, per_agent: bool = False) -> Any:
        """Return the metrics as a tidy table: one row per seed and iteration.

        Args:
            per_agent: one row per seed, iteration and agent, with the columns `agent`, `share` and `byzantine`.

        Returns:
            A pandas DataFrame; if pandas is not installed, a dictionary of columns.
        """
        columns = tidy_columns(self, per_agent)
        try:
            import pandas
        except ModuleNotFoundError:
            return columns
        return pandas.DataFrame(columns)


def tidy_columns(run: TrainedRun, per_agent: bool) -> dict[str, np.ndarray]:
    """Return the columns of `PolicyMethods.frame`."""
    seeds, iterations = run.metrics["returns"].shape
    index = {
        "seed": np.broadcast_to(run.config.seed + np.arange(seeds)[:, None], (seeds, iterations)),
        "iteration": np.broadcast_to(np.arange(1, iterations + 1), (seeds, iterations)),
        "trajectories": run.metrics["trajectories"],
    }
    if per_agent:
        shares, byzantine = run.metrics["shares"], run.metrics["byzantine"].astype(bool)
        index = {name: np.broadcast_to(each[..., None], shares.shape) for name, each in index.items()}
        agents = np.broadcast_to(np.arange(shares.shape[2]), shares.shape)
        values = {"agent": agents, "share": shares, "byzantine": byzantine}
    else:
        values = {name: each for name, each in run.metrics.items() if each.ndim == 2 and name not in index}
    return {name: np.ravel(each) for name, each in {**index, **values}.items()}
