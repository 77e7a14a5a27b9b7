"""Federations under attack learn in the real packages what they learn in our JAX versions of them.

The same federation is trained in both, from the same seeds; the environments draw other numbers. What is compared is
the mean honest return over the second half of the iterations, with the standard error over seeds. The training is cut
early, so that two cores can afford it.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import jaxbyz as jb

FEDERATION = {"agents": 5, "byzantine": 1, "aggregator": "caf", "agreement": "mda"}
TASKS = {
    "CartPole-v1": {"attack": "avg-zero", "aggregator": "rfa", "trajectories": 8 * 25, "seeds": 6},
    "LunarLander-v3": {"attack": "random-action", "trajectories": 16 * 10, "seeds": 4},
    "HalfCheetah-v5": {"attack": "reward-flip", "trajectories": 8 * 8, "seeds": 3},
}
NEEDS = {"LunarLander-v3": "Box2D", "HalfCheetah-v5": "mujoco"}


def half(values):
    """The mean over the second half of the iterations, and over the first quarter, `[seeds]` each."""
    T = values.shape[1]
    return values[:, T // 2 :].mean(axis=1), values[:, : T // 4].mean(axis=1)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param("CartPole-v1", marks=pytest.mark.slow),
        pytest.param("LunarLander-v3", marks=pytest.mark.live),
        pytest.param("HalfCheetah-v5", marks=pytest.mark.live),
    ],
)
def test_federations_learn_the_same_in_the_real_package(task):
    pytest.importorskip(NEEDS.get(task, "gymnasium"))
    options = {**FEDERATION, **TASKS[task], "env": task}
    found = {
        env: half(jb.run_experiment(**{**options, "env": env}).metrics["returns"])
        for env in (task, f"gymnasium:{task}")
    }
    (here, _), (there, early) = found.values()
    error = np.sqrt(sum(each.var(ddof=1) / len(each) for each in (here, there)))
    difference = abs(here.mean() - there.mean())
    print(
        f"{task}: {here.mean():.1f} in JAX, {there.mean():.1f} in gymnasium {gymnasium.__version__}, after "
        f"{early.mean():.1f}; {difference / error:.2f} standard errors, {len(here)} seeds"
    )
    assert there.mean() > early.mean() + 2 * error, "it learns"
    assert difference < 2 * error
