"""The lowest and the highest return that an episode can have, where the rules of the task say it."""

from __future__ import annotations

import math

from jaxbyz.environments.tabular import REWARD

# Per step.
REWARDS: dict[str, tuple[float, float]] = {
    "CartPole-v1": (0.0, 1.0),
    "Acrobot-v1": (-1.0, 0.0),
    "MountainCar-v0": (-1.0, 0.0),
    "Pendulum-v1": (-(math.pi**2 + 0.1 * 8**2 + 0.001 * 2**2), 0.0),
    "InvertedPendulum-v5": (0.0, 1.0),
    "Breakout-MinAtar": (0.0, 1.0),
    "Asterix-MinAtar": (0.0, 1.0),
    "SpaceInvaders-MinAtar": (0.0, 1.0),
    "TabularMDP": (float(REWARD.min()), float(REWARD.max())),
}
# Per episode. The landers' potential is at most about 350 below that of rest, and coming to rest is worth 100.
RETURNS: dict[str, tuple[float, float]] = {
    "Catch-bsuite": (-1.0, 1.0),
    "MountainCarContinuous-v0": (-math.inf, 100.0),  # actions are charged as they are given
    "LunarLander-v3": (-math.inf, 500.0),
    "LunarLanderContinuous-v3": (-math.inf, 500.0),
}


def return_bounds(name: str, steps: int | None) -> tuple[float, float]:
    """Return the lowest and the highest undiscounted return of an episode; infinite if they are not known.

    Args:
        name: the registered name of the environment.
        steps: the number of steps after which an episode ends at the latest, or None.
    """
    if name in RETURNS:
        return RETURNS[name]
    low, high = REWARDS.get(name, (-math.inf, math.inf))
    longest = math.inf if steps is None else steps
    return (longest * low if low < 0 else 0.0), (longest * high if high > 0 else 0.0)
