"""An episode of a learnt policy as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.environments.rendering import draw_frames
from jaxbyz.experiments.config import Config, build
from jaxbyz.sampling.playback import play

if TYPE_CHECKING:
    from PIL import Image


class Film(NamedTuple):
    """frames of an episode; its undiscounted return; its length in steps."""

    frames: list[Image.Image]
    total: float
    steps: int


def film(config: Config, theta: np.ndarray, *, seed: int = 0, width: int = 480, most: int | None = None) -> Film:
    """Play one episode with parameters θ [D] and draw it, in at most `most` evenly spaced frames of `width` pixels."""
    algorithm = build(config, 1)
    episode = play(algorithm.environment, algorithm.policy, jnp.asarray(theta), jax.random.key(seed), config.horizon)
    steps = len(episode.rewards)
    every = 1 if most is None else -(-steps // most)
    states = jax.tree.map(lambda leaf: leaf[::every], episode.states)
    frames = draw_frames(config.env, algorithm.environment.params, states, width, episode.actions[::every])
    return Film(frames, float(episode.rewards.sum()), steps)
