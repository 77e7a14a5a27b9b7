"""Pictures show the state: where the rod, the car and the pixels are."""

from __future__ import annotations

from types import SimpleNamespace as Record

import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.environments import environments
from jaxbyz.environments.rendering import draw_frames, draw_observations, drawable
from jaxbyz.environments.simple_drawing import BACKGROUND, CAR, CHANNELS, ROD, draw_acrobot, draw_mountain_car
from jaxbyz.environments.simple_drawing import draw_pendulum as pendulum
from jaxbyz.report.episodes import render_episode


def where(picture, colour) -> tuple[float, float]:
    """The mean position of the pixels of a colour, from −1 (left, bottom) to 1 (right, top)."""
    pixels = np.asarray(picture).astype(int)
    rows, columns = np.nonzero(np.abs(pixels - np.array(colour)).sum(axis=2) < 30)
    height, width = pixels.shape[:2]
    return 2 * columns.mean() / (width - 1) - 1, 1 - 2 * rows.mean() / (height - 1)


def test_the_rod_of_a_pendulum_points_where_its_angle_says():
    for angle, (x, y) in ((0.0, (0, 1)), (np.pi, (0, -1)), (np.pi / 2, (-1, 0)), (-np.pi / 2, (1, 0))):
        found = where(pendulum(None, Record(theta=angle), None, 100), ROD)
        np.testing.assert_allclose(found, (0.42 * x, 0.42 * y), atol=0.06)


def test_the_links_of_an_acrobot_hang_and_stand():
    params = Record(link_length_1=1.0, link_length_2=1.0)
    hanging, standing, folded = (
        where(draw_acrobot(params, Record(joint_angle1=one, joint_angle2=two), None, 100), ROD)
        for one, two in ((0.0, 0.0), (np.pi, 0.0), (np.pi / 2, 0.0))
    )
    assert hanging[1] < -0.3 and standing[1] > 0.3 and folded[0] > 0.3 and abs(folded[1]) < 0.05


def test_the_car_is_on_its_road():
    params = Record(min_position=-1.2, max_position=0.6, goal_position=0.5)
    left, valley, right = (
        where(draw_mountain_car(params, Record(position=x), None, 160), CAR) for x in (-1.0, -np.pi / 6, 0.3)
    )
    assert left[0] < valley[0] < right[0] and valley[1] < min(left[1], right[1])


def test_images_are_drawn_pixel_by_pixel_and_vectors_as_bars():
    image = np.zeros((2, 3, 2))
    image[0, 0, 0] = image[1, 2, 1] = 1
    (frame,) = draw_observations((2, 3, 2), image.reshape(1, -1), 48)
    assert frame.size == (48, 32)
    colours = [frame.getpixel((8, 8)), frame.getpixel((40, 24)), frame.getpixel((24, 8))]
    assert colours == [CHANNELS[0], CHANNELS[1], BACKGROUND]
    up, down = draw_observations((3,), np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), 96)
    (x, high), (same, low) = where(up, CHANNELS[4]), where(down, CHANNELS[4])
    assert high > 0.2 > -0.2 > low and x == pytest.approx(same) and x < -0.2


def test_every_environment_of_the_package_has_a_picture_of_its_own():
    own = [
        entry.name for entry in environments if "(gymnax)" not in entry.summary and "tabular" not in entry.name.lower()
    ]
    assert set(own) <= set(drawable()) and "Acrobot-v1" in drawable()
    with pytest.raises(jb.UsageError, match="has no picture of its own"):
        draw_frames("Catch-bsuite", None, {"x": np.zeros(1)})


def test_an_episode_of_any_environment_is_drawn():
    config = jb.resolve("default", env="Catch-bsuite", hidden=(2,), horizon=4)
    theta = np.zeros(jb.build(config).policy.size, np.float32)
    episode = render_episode(config, theta, width=50)
    assert len(episode.frames) == episode.steps == 4 and episode.frames[0].size == (50, 100)
    assert len({frame.tobytes() for frame in episode.frames}) > 1
