"""Episodes of environments that run outside of compiled programs, in processes of their own.

A compiled program knows an episode by its ticket, two whole numbers: which environment plays it, and how many episodes
that environment has ended before. Nothing else of the environment is a part of the program's state, and a step with the
ticket of an episode that has ended changes nothing.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import Pipe
from signal import Signals
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxbyz.accelerate.host_calls import call_on_host
from jaxbyz.environments import gymnasium_worker
from jaxbyz.environments.gymnasium_worker import PROGRESS_BYTES, progress_array
from jaxbyz.errors import UsageError

TICKET = jax.ShapeDtypeStruct((2,), jnp.int32)
STARTING_SECONDS, CLOSING_SECONDS = 120.0, 5.0  # of a process
TRIAL_SECONDS = 0.05  # how long a step of all episodes may take when fewer processes are tried
NOBODY = -1  # the agent of an episode that belongs to none, such as that of an evaluation


class EnvironmentFailure(UsageError):  # noqa: N818 (it is an error of the user's environment)
    """An environment outside of the compiled program raised an error, ended its process or did not answer."""


class Setup(NamedTuple):
    """What a process needs to know: the arguments of `gymnasium_worker.Environments`."""

    make: Callable[[], Any]
    observation_type: str
    observation_size: int
    discrete: bool
    action_shape: tuple[int, ...]
    action_type: str


class Stepped(NamedTuple):
    """The results of a step of n episodes, with the type and size of observations as in `Setup`."""

    observation: Any
    reward: Any
    terminated: Any
    truncated: Any


class _LostRequestError(Exception):
    """A process has not answered: why, and at which position of the request."""

    def __init__(self, position: int, why: str):
        self.position, self.why = position, why


class HostEpisodes:
    """Runs episodes for compiled programs. Programs on several devices may use it at the same time.

    After a failure every episode ends with values that are NaN, until `check` raises what happened. An error inside of
    a program would leave the programs of other devices waiting for it.

    Args:
        name: of the environment, for messages.
        setup: what the processes need to know.
        workers: the numbers of processes to choose from, the largest first. The one that steps a batch fastest is kept.
        timeout: how many seconds an environment may take to answer.
    """

    def __init__(self, name: str, setup: Setup, workers: tuple[int, ...], timeout: float):
        import cloudpickle

        self.name, self.timeout, self.setup = name, timeout, setup
        self._pickled = cloudpickle.dumps(tuple(setup))
        self._processes: list[_Process] = []
        self._count, self._choices = workers[0], workers
        self._measured: dict[tuple[int, int], float] = {}  # by episodes and processes: seconds per step of one episode
        self._batch, self._spent = (0, 0), np.zeros(2)  # what is played: episodes and processes; seconds and steps
        self._lock = threading.Lock()
        self._failure: EnvironmentFailure | None = None
        self._free: list[int] = []  # a heap of environments that play no episode
        self._ended = np.zeros(0, np.int32)  # per environment: the episodes that it has ended
        self._whose = np.zeros((0, 2), np.int32)  # per environment: the agent and the number of its episode
        weakref.finalize(self, _end, self._processes, CLOSING_SECONDS)

    # What compiled programs call, for one episode each.

    def reset(self, seed: Array, agent: Array | int) -> tuple[Array, Int[Array, " 2"]]:
        """Begin an episode; return its first observation and its ticket."""
        shapes = (self._observation, TICKET)
        return call_on_host(self._reset, shapes, jnp.uint32(seed), jnp.int32(agent))

    def step(self, ticket: Int[Array, " 2"], action: Array) -> tuple[Stepped, Int[Array, " 2"]]:
        """Take a step; return its results and the ticket."""
        flag = jax.ShapeDtypeStruct((), bool)
        shapes = (self._observation, jax.ShapeDtypeStruct((), jnp.float32), flag, flag, TICKET)
        *results, ticket = call_on_host(self._step, shapes, ticket, action)
        return Stepped(*results), ticket

    def release(self, tickets: Int[Array, "*batch 2"]) -> None:
        """End the episodes that are cut here."""
        call_on_host(self._release, (), tickets)

    def check(self) -> None:
        """Raise what has failed since the last call.

        Raises:
            EnvironmentFailure: one line with the agent, the episode and the reason.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # What they do, for all episodes at once.

    @property
    def _observation(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.setup.observation_size,), self.setup.observation_type)

    def _reset(self, seeds: np.ndarray, agents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        batch, n = seeds.shape, seeds.size
        episodes = np.arange(n) % (batch[-1] if batch else 1)
        with self._lock:
            if len(self._free) == len(self._ended):
                self._choose_processes(n)
            self._make_room(n)
            chosen = np.array([heapq.heappop(self._free) for _ in range(n)])
            self._whose[chosen] = np.stack([agents.ravel(), episodes], axis=1)
            tickets = np.stack([chosen, self._ended[chosen]], axis=1).astype(np.int32)
            answer = self._ask("reset", chosen, seeds.ravel())
        observations = self._missing(n)[0] if answer is None else answer[0]
        return observations.reshape((*batch, -1)), tickets.reshape((*batch, 2))

    def _step(self, tickets: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        batch = tickets.shape[:-1]
        chosen, ended_before = tickets.reshape(-1, 2).T
        with self._lock:
            running = np.flatnonzero(self._ended[chosen] == ended_before)
            own_actions = actions.reshape(len(chosen), *actions.shape[len(batch) :])[running]
            begun = time.perf_counter()
            answer = self._ask("step", chosen[running], own_actions) if len(running) else None
            self._spent += time.perf_counter() - begun, len(running)
            if answer is not None:
                over = answer[2] | answer[3]
                self._end_episodes(chosen[running][over])
        results = self._missing(len(chosen))
        for result, part in zip(results, answer or (), strict=False):
            result[running] = part
        return (*(x.reshape((*batch, *x.shape[1:])) for x in results), tickets)

    def _release(self, tickets: np.ndarray) -> tuple[()]:
        chosen, ended_before = tickets.reshape(-1, 2).T
        with self._lock:
            self._end_episodes(chosen[self._ended[chosen] == ended_before])
        return ()

    def _choose_processes(self, n: int) -> None:
        """Choose how many processes step the next n episodes: a number that was not tried yet, or the fastest.

        Each step waits for the slowest process, so that one process is faster than one per core if a step is short and
        other programs use the cores. Where fewer processes could take long, they are not tried.
        """
        if self._spent.all():
            seconds, steps = self._spent.tolist()
            self._measured[self._batch] = seconds / steps
        most = self._choices[0]
        long = self._measured.get((n, most), 0.0) * n * most > TRIAL_SECONDS
        self._count = min(self._choices, key=lambda count: self._measured.get((n, count), math.inf if long else 0.0))
        self._batch, self._spent = (n, self._count), np.zeros(2)

    def _make_room(self, n: int) -> None:
        """Let n environments be free. Processes make an environment when it plays its first episode."""
        count, missing = len(self._ended), n - len(self._free)
        if missing <= 0:
            return
        self._free += range(count, count + missing)  # larger than all others, so that the heap stays one
        self._ended = np.pad(self._ended, (0, missing))
        self._whose = np.pad(self._whose, ((0, missing), (0, 0)))

    def _end_episodes(self, environments: np.ndarray) -> None:
        self._ended[environments] += 1
        for environment in environments.tolist():
            heapq.heappush(self._free, environment)

    def _missing(self, n: int) -> Stepped:
        """Return what episodes that have ended observe: nothing; NaN after a failure."""
        nothing = 0.0 if self._failure is None else np.nan
        kind = np.dtype(self.setup.observation_type)
        observations = np.full((n, self.setup.observation_size), nothing if kind.kind == "f" else 0, kind)
        return Stepped(observations, np.full(n, nothing, np.float32), np.ones(n, bool), np.zeros(n, bool))

    def _ask(self, command: str, chosen: np.ndarray, values: np.ndarray) -> list[np.ndarray] | None:
        """Send a request to all processes and put their answers together; None after a failure."""
        if self._failure is not None:
            return None
        self._start_processes()
        owner = chosen % self._count
        parts = [np.flatnonzero(owner == number) for number in range(self._count)]
        asked = [(process, part) for process, part in zip(self._processes, parts, strict=False) if len(part)]
        part = parts[0]
        try:
            for process, part in asked:
                process.send((command, chosen[part] // self._count, values[part]))
            results: list[np.ndarray] = []
            for process, part in asked:
                answer = process.answer(self.timeout)
                results = results or [np.empty((len(chosen), *rows.shape[1:]), rows.dtype) for rows in answer]
                for result, rows in zip(results, answer, strict=True):
                    result[part] = rows
            return results
        except _LostRequestError as lost:
            self._fail(self._whose[chosen[part[lost.position]]], command, lost.why)
            return None

    def _start_processes(self) -> None:
        while len(self._processes) < self._count:
            self._processes.append(_Process((sys.path, self._pickled)))

    def _fail(self, place: np.ndarray, command: str, why: str) -> None:
        """Note a failure, end all processes and all episodes, and start new processes for those after `check`."""
        agent, episode = place.tolist()
        whose = "an evaluation" if agent == NOBODY else f"agent {agent}"
        self._failure = EnvironmentFailure(
            f"env={self.name}: the environment of {whose} failed in {command} of episode {episode}: {why}"
        )
        _end(self._processes, 0.0)
        self._start_processes()
        self._ended += 1
        self._free = list(range(len(self._ended)))


class _Process:
    """A process that steps environments; the arguments are its first message."""

    def __init__(self, first_message: Any):
        self.connection, theirs = Pipe()
        with tempfile.TemporaryFile() as file, theirs:
            file.truncate(PROGRESS_BYTES)
            self.progress = progress_array(file.fileno())
            descriptors = (theirs.fileno(), file.fileno())
            program = [sys.executable, "-P", gymnasium_worker.__file__, *map(str, descriptors)]
            self.process = subprocess.Popen(program, pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=2)
        self.send(first_message)

    def send(self, request: Any) -> None:
        """Send a request; `answer` notices if the process has ended."""
        with contextlib.suppress(OSError):
            self.connection.send(request)

    def answer(self, timeout: float) -> tuple[np.ndarray, ...]:
        """Wait for the answer as long as the process makes progress."""
        waited, begun = 0.0, -1
        try:
            while not self.connection.poll(timeout):
                waited, before, begun = waited + timeout, begun, int(self.progress[0])
                if before == begun and (begun > 0 or waited > STARTING_SECONDS):
                    raise _LostRequestError(int(self.progress[1]), f"no answer for timeout={timeout:g} seconds")
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise _LostRequestError(int(self.progress[1]), f"its process {self._end_in_words()}") from None
        if isinstance(answer[0], int):
            raise _LostRequestError(*answer)
        return answer

    def _end_in_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.returncode
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        return f"was ended by {Signals(-code).name}"


def _end(processes: list[_Process], seconds: float) -> None:
    """End processes, which may take so long to close their environments, and forget them."""
    for process in processes:
        process.connection.close()
    for process in processes:
        try:
            process.process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.process.kill()
            process.process.wait()
    processes.clear()
