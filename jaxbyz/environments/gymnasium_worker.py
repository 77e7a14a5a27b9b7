"""A process that steps environments of gymnasium. It is run as a script and imports neither JAX nor this package.

    python -P gymnasium_worker.py PIPE PROGRESS

Both arguments are file descriptors. The first message on the pipe is `(sys.path, a pickled Setup as a tuple)`. Each
further one is a request `(command, numbers of environments [n], values [n, …])`. The answer is a tuple of arrays
`[n, …]`, or `(position, text)` if the environment at that position of the request raised an error. PROGRESS is a file
with two numbers: how many calls were begun so far, and the position of the last one in its request.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

PROGRESS_BYTES = 16


def progress_array(descriptor: int) -> np.ndarray:
    """Return the two numbers in the file of the progress, which both processes see."""
    return np.frombuffer(mmap.mmap(descriptor, PROGRESS_BYTES), np.int64)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard what is printed, also by libraries in C: MuJoCo repeats its warnings for every copy of a model."""
    kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
    with open(os.devnull, "w") as nowhere:
        for descriptor, _ in kept:
            os.dup2(nowhere.fileno(), descriptor)
    try:
        yield
    finally:
        for descriptor, copy in kept:
            os.dup2(copy, descriptor)
            os.close(copy)


class Environments:
    """The environments of this process, made when they are first needed.

    Args:
        progress: where to note what is done.
        make: returns a new environment.
        observation_type: the type that observations are sent as.
        observation_size: the number of entries of an observation.
        discrete: whether actions are whole numbers.
        action_shape: the shape of a continuous action.
        action_type: its type.
    """

    def __init__(
        self, progress: np.ndarray, make: Any, observation_type: str, observation_size: int, discrete: bool,
        action_shape: tuple[int, ...], action_type: str,
    ):  # fmt: skip
        self.make, self.progress, self.all = make, progress, []  # type: ignore[var-annotated]
        self.observation = (observation_size, observation_type)
        self.discrete, self.action_shape, self.action_type = discrete, action_shape, action_type

    def begin(self, position: int) -> None:
        self.progress[1] = position
        self.progress[0] += 1

    def reset(self, numbers: np.ndarray, seeds: np.ndarray) -> tuple[np.ndarray, ...]:
        """Begin an episode in every environment."""
        size, kind = self.observation
        observations = np.empty((len(numbers), size), kind)
        for i, number in enumerate(numbers.tolist()):
            self.begin(i)
            while len(self.all) <= number:
                with silence() if self.all else contextlib.nullcontext():
                    self.all.append(self.make())
            observations[i] = np.reshape(self.all[number].reset(seed=int(seeds[i]))[0], size)
        self.check_finite("observation", observations)
        return (observations,)

    def step(self, numbers: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Take a step in every environment."""
        n, (size, kind) = len(numbers), self.observation
        observations, rewards = np.empty((n, size), kind), np.empty(n, np.float32)
        terminated, truncated = np.empty(n, bool), np.empty(n, bool)
        if self.discrete:
            each = actions.tolist()
        else:
            each = list(actions.reshape(n, *self.action_shape).astype(self.action_type))
        for i, number in enumerate(numbers.tolist()):
            self.begin(i)
            observation, rewards[i], terminated[i], truncated[i], _ = self.all[number].step(each[i])
            observations[i] = np.reshape(observation, size)
        self.check_finite("observation", observations)
        self.check_finite("reward", rewards)
        return observations, rewards, terminated, truncated

    def check_finite(self, name: str, values: np.ndarray) -> None:
        """Refuse NaN and infinite numbers, of which nothing can be learnt."""
        finite = np.isfinite(values)
        if not finite.all():
            self.begin(int(np.argwhere(~finite)[0, 0]))
            raise ValueError(f"its {name} is {values[~finite][0]}")

    def close(self) -> None:
        """Close all environments."""
        for environment in self.all:
            environment.close()


def serve(connection: Connection, progress: np.ndarray) -> None:
    """Answer requests until the pipe is closed, then close the environments."""
    path, setup = connection.recv()
    sys.path[:] = path
    environments = None
    try:
        while True:
            command, numbers, values = connection.recv()
            try:
                if environments is None:
                    import cloudpickle

                    environments = Environments(progress, *cloudpickle.loads(setup))
                answer: Any = getattr(environments, command)(numbers, values)
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                answer = int(progress[1]), f"{type(error).__name__}: {lines[0]}"
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        if environments is not None:
            environments.close()


if __name__ == "__main__":
    # What a terminal or a scheduler sends to all processes is for the one that trains; when it ends, the pipe closes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])), progress_array(int(sys.argv[2])))
