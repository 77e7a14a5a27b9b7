"""Draw episodes without a display: frames, animated GIFs and strips of frames.

Pillow is imported only when a picture is drawn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from jaxbyz.environments.canvas import INK, PAPER, Canvas, placed
from jaxbyz.environments.lunar_lander.bodies import HULL, LEG
from jaxbyz.environments.lunar_lander.collision import GROUND_SEGMENT_WIDTH, GROUND_SEGMENTS
from jaxbyz.environments.lunar_lander.engines import thrust
from jaxbyz.environments.lunar_lander.environment import HEIGHT, WIDTH
from jaxbyz.environments.mujoco.drawing import VIEWS, draw_mechanism
from jaxbyz.environments.simple_drawing import DRAWN, draw_observation
from jaxbyz.errors import UsageError
from jaxbyz.files import write_output

if TYPE_CHECKING:
    from PIL import Image

SPACE_ABOVE = 1.0  # metres shown above the world, where episodes begin

SKY_TOP, SKY_LOW = (8, 10, 28), (38, 34, 74)
MOON, MOON_EDGE = (150, 150, 158), (205, 205, 212)
HULL_COLOUR, HULL_EDGE, WINDOW = (226, 226, 236), (120, 104, 190), (94, 154, 214)
LEG_COLOUR, FLAG, POLE = (176, 164, 214), (250, 200, 48), (240, 240, 240)
FLAME, FLAME_CORE = (255, 138, 36), (255, 226, 140)
CART, ROD, AXLE = (52, 92, 142), (206, 142, 84), (128, 126, 196)


def draw_lander(params: Any, state: Any, action: Any = None, width: int = 480) -> Image.Image:
    """Draw one frame of LunarLander; with the action that led to the state, also the flames of its engines."""
    top = HEIGHT + SPACE_ABOVE
    canvas = Canvas(width, (WIDTH, top), (WIDTH / 2, top / 2))
    _draw_sky(canvas, top)
    _draw_moon(canvas, np.asarray(state.world.terrain))
    pose = np.asarray(state.world.pose, float)
    _draw_flames(canvas, pose[0], action, flicker=1 + 0.25 * math.sin(9.7 * float(state.time)))
    _draw_bodies(canvas, pose)
    return canvas.finished()


def _draw_sky(canvas: Canvas, top: float) -> None:
    """Draw a colour gradient in bands, and stars."""
    bands = 24
    for band in range(bands):
        blend = band / (bands - 1)
        red, green, blue = (round(a + blend * (b - a)) for a, b in zip(SKY_TOP, SKY_LOW, strict=True))
        high, low = top * (1 - band / bands), top * (1 - (band + 1.1) / bands)
        canvas.polygon([(0, high), (WIDTH, high), (WIDTH, low), (0, low)], (red, green, blue))
    stars = np.random.default_rng(7).uniform((0, 4, 0.012, 110), (WIDTH, top, 0.035, 240), (60, 4))
    for x, y, radius, light in stars:
        canvas.disc((x, y), radius, (int(light), int(light), int(light)))


def _draw_moon(canvas: Canvas, heights: np.ndarray) -> None:
    """Draw the terrain and the landing pad between two flags."""
    surface = [(GROUND_SEGMENT_WIDTH * i, float(h)) for i, h in enumerate(heights)]
    canvas.polygon([(0, -1), *surface, (WIDTH, -1)], MOON)
    canvas.line(surface, MOON_EDGE, 0.06)
    pad = float(heights[GROUND_SEGMENTS // 2])
    for x in (WIDTH * 0.4, WIDTH * 0.6):
        canvas.line([(x, pad), (x, pad + 1.5)], POLE, 0.05)
        canvas.polygon([(x, pad + 1.5), (x, pad + 1.1), (x + 0.8, pad + 1.3)], FLAG)
    canvas.line([(WIDTH * 0.4, pad), (WIDTH * 0.6, pad)], FLAG, 0.09)


def _draw_flames(canvas: Canvas, hull: np.ndarray, action: Any, flicker: float) -> None:
    main, power, direction = (float(x) for x in thrust(0 if action is None else action))
    side = power * direction
    if main:
        end = -0.45 - 1.1 * main * flicker
        for size, colour in ((1.0, FLAME), (0.55, FLAME_CORE)):
            tip = -0.4 + (end + 0.4) * size
            canvas.polygon(placed([(-0.2 * size, -0.4), (0, tip), (0.2 * size, -0.4)], *hull), colour)
    if side:
        start, length = -math.copysign(0.5, side), -math.copysign(0.75 * abs(side) * flicker, side)
        for size, colour in ((1.0, FLAME), (0.55, FLAME_CORE)):
            flame = [(start, 0.36 + 0.09 * size), (start + length * size, 0.36), (start, 0.36 - 0.09 * size)]
            canvas.polygon(placed(flame, *hull), colour)


def _draw_bodies(canvas: Canvas, pose: np.ndarray) -> None:
    """Draw the legs with their struts, and the hull with its window."""
    x, y, angle = pose[0]
    for leg_x, leg_y, leg_angle in pose[1:]:
        knee = placed([(0, 0.2)], leg_x, leg_y, leg_angle)[0]
        side = math.copysign(0.4, math.cos(angle) * (leg_x - x) + math.sin(angle) * (leg_y - y))
        hip = placed([(side, -0.2)], x, y, angle)[0]
        canvas.line([hip, knee], LEG_COLOUR, 0.08)
        canvas.polygon(placed(LEG, leg_x, leg_y, leg_angle), LEG_COLOUR)
    canvas.polygon(placed(HULL, x, y, angle), HULL_COLOUR, HULL_EDGE, 0.05)
    window = placed([(0, 0.17)], x, y, angle)[0]
    canvas.disc(window, 0.17, HULL_EDGE)
    canvas.disc(window, 0.13, WINDOW)


def draw_cartpole(params: Any, state: Any, action: Any = None, width: int = 480) -> Image.Image:
    """Draw one frame of CartPole; with the action that led to the state, also an arrow for its push."""
    limit = float(params.x_threshold)
    canvas = Canvas(width, (2 * limit, limit), (0, 0.36 * limit))
    x, angle, rod = float(state.x), float(state.theta), 2 * float(params.length)
    canvas.line([(-limit, 0), (limit, 0)], INK, 0.02)
    for tick in np.linspace(-limit, limit, 9)[1:-1]:
        canvas.line([(float(tick), -0.05), (float(tick), 0)], INK, 0.012)
    low, high = 0.1, 0.36
    canvas.polygon([(x - 0.3, low), (x + 0.3, low), (x + 0.3, high), (x - 0.3, high)], CART)
    for wheel in (-0.19, 0.19):
        canvas.disc((x + wheel, 0.085), 0.085, INK)
        canvas.disc((x + wheel, 0.085), 0.035, PAPER)
    if action is not None:
        sign = 1 if int(np.asarray(action)) else -1
        tip, tail, level = x + sign * 0.62, x + sign * 0.36, (low + high) / 2
        canvas.line([(tail, level), (tip - sign * 0.08, level)], ROD, 0.03)
        canvas.polygon([(tip, level), (tip - sign * 0.12, level + 0.07), (tip - sign * 0.12, level - 0.07)], ROD)
    top = (x + rod * math.sin(angle), high - 0.05 + rod * math.cos(angle))
    canvas.line([(x, high - 0.05), top], ROD, 0.09)
    canvas.disc(top, 0.045, ROD)
    canvas.disc((x, high - 0.05), 0.06, AXLE)
    return canvas.finished()


_DRAW: dict[str, Callable[..., Any]] = {
    "CartPole-v1": draw_cartpole,
    "LunarLander-v3": draw_lander,
    "LunarLanderContinuous-v3": draw_lander,
    **{name: functools.partial(draw_mechanism, name) for name in VIEWS},
    **DRAWN,
    "CartPoleNoVelocity-v1": draw_cartpole,
    "PendulumNoVelocity-v1": DRAWN["Pendulum-v1"],
}


def drawable() -> list[str]:
    """Return the names of the environments that have a picture of their own; of others, observations are drawn."""
    return sorted(_DRAW)


def check_width(width: int) -> None:
    """Raise a UsageError if frames of this width are too small."""
    if width < 16:
        raise UsageError(f"width={width}: must be at least 16 pixels")


def draw_observations(
    shape: tuple[int, ...], observations: Float[np.ndarray, "T O"], width: int = 480
) -> list[Image.Image]:
    """Draw what the agent sees in every step of an episode.

    Args:
        shape: the shape of an observation.
        observations: `[T, O]`, flat.
        width: the width of a frame in pixels.
    """
    check_width(width)
    largest = float(np.abs(observations).max())
    return [draw_observation(shape, observation, largest, width) for observation in observations]


def draw_frames(env_name: str, params: Any, states: Any, width: int = 480, actions: Any = None) -> list[Image.Image]:
    """Draw every state of an episode.

    Args:
        env_name: a name that `drawable` returns.
        params: the environment's parameters.
        states: the environment's states, with leaves `[T, …]`.
        width: the width of a frame in pixels.
        actions: `[T]` or `[T, 2]`, the actions that led to the states, or None.

    Raises:
        UsageError: if the environment cannot be drawn, or an argument is out of range.
    """
    import jax

    check_width(width)
    if env_name not in _DRAW:
        raise UsageError(f"env={env_name!r} has no picture of its own; possible: {', '.join(drawable())}")
    states = jax.tree.map(np.asarray, states)
    steps = len(jax.tree.leaves(states)[0])
    if actions is not None and len(actions) != steps:
        raise UsageError(f"actions has {len(actions)} entries for {steps} states: there must be one per state")
    taken = [None] * steps if actions is None else np.asarray(actions)
    draw = _DRAW[env_name]
    return [draw(params, jax.tree.map(lambda leaf, t=t: leaf[t], states), taken[t], width) for t in range(steps)]


def save_gif(frames: Sequence[Image.Image], path: str | Path, fps: float = 25) -> Path:
    """Write an animated GIF that repeats forever, with one palette for all frames, and return its path."""
    if not frames:
        raise UsageError("frames is empty: an animation needs at least one")
    if not fps > 0:
        raise UsageError(f"fps={fps}: must be positive")
    from PIL import Image

    probe = [frames[round(i * (len(frames) - 1) / 7)] for i in range(8)]
    sheet = Image.new("RGB", (probe[0].width, probe[0].height * len(probe)))
    for i, frame in enumerate(probe):
        sheet.paste(frame, (0, i * frame.height))
    palette = sheet.quantize(128, dither=Image.Dither.NONE)
    pictures = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    options: dict[str, Any] = {"duration": max(20, round(1000 / fps)), "loop": 0, "optimize": True}
    write_output(
        Path(path),
        lambda file: pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], **options),
    )
    return Path(path)


def save_strip(frames: Sequence[Image.Image], path: str | Path, columns: int = 6, gap: int = 4) -> Path:
    """Write a PNG of up to `columns` frames side by side, evenly spaced in time, and return its path."""
    if not frames:
        raise UsageError("frames is empty: a strip needs at least one")
    if columns < 1:
        raise UsageError(f"columns={columns}: must be at least 1")
    from PIL import Image

    count = min(columns, len(frames))
    chosen = [frames[round(i * (len(frames) - 1) / max(1, count - 1))] for i in range(count)]
    wide, high = chosen[0].size
    sheet = Image.new("RGB", (count * (wide + gap) - gap, high), (255, 255, 255))
    for i, frame in enumerate(chosen):
        sheet.paste(frame, (i * (wide + gap), 0))
    write_output(Path(path), lambda file: sheet.save(file, "PNG"))
    return Path(path)
