"""Pictures of classic control tasks, and of what the agent sees for every other environment.

An observation that is an image, as MinAtar's, is drawn as a grid with one colour per channel; any other observation is
drawn as bars, one per entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxbyz.environments.canvas import INK, Canvas, Colour

if TYPE_CHECKING:
    from PIL import Image

ROD, JOINT, CAR, HILL, GOAL = (206, 142, 84), (128, 126, 196), (52, 92, 142), (176, 190, 160), (214, 92, 70)
# Colours of channels that are told apart by people who see fewer colours: Okabe and Ito's, then greys.
CHANNELS: tuple[Colour, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167),
    (200, 200, 200), (150, 150, 150), (100, 100, 100),
)  # fmt: skip
BACKGROUND = (28, 30, 38)


def draw_pendulum(params: Any, state: Any, action: Any = None, width: int = 480) -> Image.Image:
    """Draw one frame of Pendulum; the angle is measured from the upright position."""
    canvas, angle = Canvas(width, (2.6, 2.6), (0.0, 0.0)), float(state.theta)
    tip = (-math.sin(angle), math.cos(angle))
    canvas.line([(0.0, 0.0), tip], ROD, 0.16)
    canvas.disc(tip, 0.08, ROD)
    canvas.disc((0.0, 0.0), 0.06, JOINT)
    return canvas.finished()


def draw_acrobot(params: Any, state: Any, action: Any = None, width: int = 480) -> Image.Image:
    """Draw one frame of Acrobot with the height that its tip has to reach."""
    first, second = float(params.link_length_1), float(params.link_length_2)
    reach = 1.15 * (first + second)
    canvas = Canvas(width, (2 * reach, 2 * reach), (0.0, 0.0))
    canvas.line([(-reach, first), (reach, first)], GOAL, 0.02 * reach)
    one = float(state.joint_angle1)
    both = one + float(state.joint_angle2)
    elbow = (first * math.sin(one), -first * math.cos(one))
    tip = (elbow[0] + second * math.sin(both), elbow[1] - second * math.cos(both))
    canvas.line([(0.0, 0.0), elbow, tip], ROD, 0.07 * reach)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(joint, 0.045 * reach, JOINT)
    return canvas.finished()


def draw_mountain_car(params: Any, state: Any, action: Any = None, width: int = 480) -> Image.Image:
    """Draw one frame of MountainCar; the road has the height sin(3x)."""
    low, high = float(params.min_position), float(params.max_position)
    canvas = Canvas(width, (high - low, 0.66 * (high - low)), ((low + high) / 2, 0.45))

    def height(x: float) -> float:
        return 0.45 * math.sin(3 * x) + 0.45

    road = [(float(x), height(float(x))) for x in np.linspace(low, high, 80)]
    canvas.polygon([(low, -1.0), *road, (high, -1.0)], HILL)
    canvas.line(road, INK, 0.01)
    goal = float(params.goal_position)
    canvas.line([(goal, height(goal)), (goal, height(goal) + 0.2)], INK, 0.01)
    canvas.polygon([(goal, height(goal) + 0.2), (goal + 0.1, height(goal) + 0.16), (goal, height(goal) + 0.12)], GOAL)
    x = float(state.position)
    canvas.disc((x, height(x) + 0.045), 0.045, CAR)
    return canvas.finished()


def draw_observation(shape: tuple[int, ...], observation: np.ndarray, largest: float, width: int) -> Image.Image:
    """Draw what the agent sees.

    Args:
        shape: the shape of an observation; `[height, width, channels]` or `[height, width]` is an image.
        observation: `[O]`, flat.
        largest: the largest absolute value in the episode, which bars are scaled by.
        width: the width of the frame in pixels.
    """
    if len(shape) in (2, 3) and shape[0] > 1 and shape[1] > 1:
        return _grid(observation.reshape(shape[0], shape[1], -1), width)
    values = observation / max(largest, 1e-9)
    canvas = Canvas(width, (len(values) + 1.0, 0.5 * (len(values) + 1.0)), (len(values) / 2 - 0.5, 0.0))
    tallest = 0.22 * (len(values) + 1.0)
    for i, value in enumerate(values):
        top = tallest * float(np.clip(value, -1, 1))
        canvas.polygon([(i - 0.4, 0.0), (i + 0.4, 0.0), (i + 0.4, top), (i - 0.4, top)], CHANNELS[4])
    canvas.line([(-1.0, 0.0), (float(len(values)), 0.0)], INK, 0.03)
    return canvas.finished()


def _grid(image: np.ndarray, width: int) -> Image.Image:
    """Draw a small image, one square per pixel; where several channels are set, the last one is seen."""
    from PIL import Image

    pixels = np.full((*image.shape[:2], 3), BACKGROUND, float)
    for channel in range(image.shape[2]):
        level = np.clip(image[:, :, channel : channel + 1], 0, 1)
        pixels = (1 - level) * pixels + level * np.array(CHANNELS[channel % len(CHANNELS)])
    size = (width, round(width * image.shape[0] / image.shape[1]))
    return Image.fromarray(pixels.astype(np.uint8)).resize(size, Image.Resampling.NEAREST)


DRAWN: dict[str, Callable[..., Any]] = {
    "Pendulum-v1": draw_pendulum,
    "Acrobot-v1": draw_acrobot,
    "MountainCar-v0": draw_mountain_car,
    "MountainCarContinuous-v0": draw_mountain_car,
}
