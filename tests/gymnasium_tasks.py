"""Small environments of gymnasium, registered as `Walk-v0` and `Look-v0`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """Walk along a line; the episode ends at 0.5. Rewards are positions.

    Args:
        step_size: of a step.
        trouble: what happens in a step: `"raise"`, `"kill"` or `"hang"`; empty for nothing.
        once: a file without which nothing happens, and which is removed when it does.
    """

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, step_size: float = 0.1, trouble: str = "", once: str = ""):
        self.step_size, self.trouble, self.once, self.x = step_size, trouble, Path(once), 0.0

    def _observation(self):
        return np.array([self.x, self.step_size], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.uniform(-0.1, 0.1)
        return self._observation(), {}

    def step(self, action):
        assert action in (0, 1)
        if self.trouble:
            self._make_trouble()
        self.x += self.step_size * (2 * action - 1) + self.np_random.normal(0, 0.01)
        return self._observation(), self.x, bool(self.x > 0.5), False, {}

    def _make_trouble(self):
        try:
            self.once.unlink()
        except FileNotFoundError:
            return
        if self.trouble == "raise":
            raise ValueError("the floor is missing\nand more")
        if self.trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)


class Look(gymnasium.Env):
    """One step; spaces are given. The observation is drawn, and the reward is the sum of the action."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(np.sum(action)), False, True, {}


gymnasium.register("Walk-v0", Walk, max_episode_steps=20)
gymnasium.register("Look-v0", Look)
