"""Draw an episode of a trained policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.configuration.building import cached_algorithm
from jaxbyz.configuration.config import Config
from jaxbyz.environments.rendering import draw_frames, draw_observations, drawable
from jaxbyz.sampling.playback import play
from jaxbyz.trained.evaluation import check_parameters

if TYPE_CHECKING:
    from PIL import Image


class RenderedEpisode(NamedTuple):
    """Frames of an episode, its undiscounted return, and its length in steps."""

    frames: list[Image.Image]
    total_return: float
    steps: int


def render_episode(
    config: Config, theta: np.ndarray, *, seed: int = 0, width: int = 480, max_frames: int | None = None
) -> RenderedEpisode:
    """Play one episode and draw it.

    Args:
        config: the configuration of the run.
        theta: `[D]`, the parameters of the policy.
        seed: the seed of the episode.
        width: the width of a frame in pixels.
        max_frames: if given, draw at most this many frames, evenly spaced.
    """
    algorithm = cached_algorithm(config)
    check_parameters(algorithm, theta)
    episode = play(algorithm.environment, algorithm.policy, jnp.asarray(theta), jax.random.key(seed), config.horizon)
    steps = len(episode.rewards)
    stride = 1 if max_frames is None else -(-steps // max_frames)
    if config.env in drawable():
        states = jax.tree.map(lambda leaf: leaf[::stride], episode.states)
        frames = draw_frames(config.env, algorithm.environment.params, states, width, episode.actions[::stride])
    else:
        frames = draw_observations(algorithm.environment.observation_shape, episode.observations[::stride], width)
    return RenderedEpisode(frames, float(episode.rewards.sum()), steps)
