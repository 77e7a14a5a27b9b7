"""Pictures of an episode, drawn without a display: frames of CartPole and LunarLander, an animated GIF, a strip.

Pillow does the drawing and is imported only when a picture is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxbyz.environments.lunar_lander.bodies import HULL, LEG
from jaxbyz.environments.lunar_lander.collision import GROUND_SEGMENT_WIDTH
from jaxbyz.environments.lunar_lander.environment import HEIGHT, WIDTH

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

HEADROOM = 1.0  # metres shown above the world, where an episode begins
OVERSAMPLE = 3  # drawn this much larger, then shrunk: smooth edges
Point = tuple[float, float]
Colour = tuple[int, int, int]

SKY_TOP, SKY_LOW = (8, 10, 28), (38, 34, 74)
MOON, MOON_EDGE = (150, 150, 158), (205, 205, 212)
HULL_COLOUR, HULL_EDGE, WINDOW = (226, 226, 236), (120, 104, 190), (94, 154, 214)
LEG_COLOUR, FLAG, POLE = (176, 164, 214), (250, 200, 48), (240, 240, 240)
FLAME, FLAME_CORE = (255, 138, 36), (255, 226, 140)
PAPER, INK, CART, ROD, AXLE = (250, 249, 246), (60, 64, 72), (52, 92, 142), (206, 142, 84), (128, 126, 196)


class _Canvas:
    """A picture in world units, y upwards; everything is drawn enlarged and shrunk at the end."""

    def __init__(self, width: int, world: Point, centre: Point):
        from PIL import Image, ImageDraw

        self.scale = width * OVERSAMPLE / world[0]
        self.size = width, round(width * world[1] / world[0])
        self.origin = centre[0] - world[0] / 2, centre[1] + world[1] / 2
        self.image: Image.Image = Image.new("RGB", (self.size[0] * OVERSAMPLE, self.size[1] * OVERSAMPLE), PAPER)
        self.pen: ImageDraw.ImageDraw = ImageDraw.Draw(self.image)

    def at(self, points: Sequence[Point]) -> list[Point]:
        return [((x - self.origin[0]) * self.scale, (self.origin[1] - y) * self.scale) for x, y in points]

    def polygon(self, points: Sequence[Point], fill: Colour, edge: Colour | None = None, width: float = 0.0) -> None:
        self.pen.polygon(self.at(points), fill=fill)
        if edge is not None:
            self.line([*points, points[0]], edge, width)

    def line(self, points: Sequence[Point], fill: Colour, width: float) -> None:
        self.pen.line(self.at(points), fill=fill, width=max(1, round(width * self.scale)), joint="curve")

    def disc(self, centre: Point, radius: float, fill: Colour) -> None:
        ((x, y),) = self.at([centre])
        r = radius * self.scale
        self.pen.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def finished(self) -> Image.Image:
        from PIL import Image

        return self.image.resize(self.size, Image.Resampling.LANCZOS)


def _placed(shape: Sequence[Point], x: float, y: float, angle: float) -> list[Point]:
    cos, sin = math.cos(angle), math.sin(angle)
    return [(x + cos * px - sin * py, y + sin * px + cos * py) for px, py in shape]


def _engines(action: Any) -> tuple[float, float]:
    """Main power in [0, 1] and signed side power of a discrete or continuous action, or of none."""
    value = np.asarray(0 if action is None else action)
    if value.ndim == 0:
        return float(value == 2), {1: -1.0, 3: 1.0}.get(int(value), 0.0)
    main, side = np.nan_to_num(np.clip(value, -1, 1))
    return float((main + 1) / 2 if main > 0 else 0), float(side if abs(side) > 0.5 else 0)


def draw_lander(params: Any, state: Any, action: Any = None, width: int = 480) -> Image.Image:
    """One frame of LunarLander; with the action that led to it, its engines burn."""
    top = HEIGHT + HEADROOM
    canvas = _Canvas(width, (WIDTH, top), (WIDTH / 2, top / 2))
    rows = 24
    for row in range(rows):
        blend = row / (rows - 1)
        colour = tuple(round(a + blend * (b - a)) for a, b in zip(SKY_TOP, SKY_LOW, strict=True))
        high, low = top * (1 - row / rows), top * (1 - (row + 1.1) / rows)
        canvas.polygon([(0, high), (WIDTH, high), (WIDTH, low), (0, low)], (colour[0], colour[1], colour[2]))
    stars = np.random.default_rng(7).uniform((0, 4, 0.012, 110), (WIDTH, top, 0.035, 240), (60, 4))
    for x, y, radius, light in stars:
        canvas.disc((x, y), radius, (int(light), int(light), int(light)))

    heights = np.asarray(state.world.terrain)
    surface = [(GROUND_SEGMENT_WIDTH * i, float(h)) for i, h in enumerate(heights)]
    canvas.polygon([(0, -1), *surface, (WIDTH, -1)], MOON)
    canvas.line(surface, MOON_EDGE, 0.06)
    pad = float(heights[5])
    for x in (WIDTH * 0.4, WIDTH * 0.6):
        canvas.line([(x, pad), (x, pad + 1.5)], POLE, 0.05)
        canvas.polygon([(x, pad + 1.5), (x, pad + 1.1), (x + 0.8, pad + 1.3)], FLAG)
    canvas.line([(WIDTH * 0.4, pad), (WIDTH * 0.6, pad)], FLAG, 0.09)

    pose = np.asarray(state.world.pose, float)
    x, y, angle = pose[0]
    main, side = _engines(action)
    flicker = 1 + 0.25 * math.sin(9.7 * float(state.time))
    if main:
        reach = -0.45 - 1.1 * main * flicker
        for share, colour in ((1.0, FLAME), (0.55, FLAME_CORE)):
            tail = -0.4 + (reach + 0.4) * share
            canvas.polygon(_placed([(-0.2 * share, -0.4), (0, tail), (0.2 * share, -0.4)], x, y, angle), colour)
    if side:
        start, push = -math.copysign(0.5, side), -math.copysign(0.75 * abs(side) * flicker, side)
        for share, colour in ((1.0, FLAME), (0.55, FLAME_CORE)):
            flame = [(start, 0.36 + 0.09 * share), (start + push * share, 0.36), (start, 0.36 - 0.09 * share)]
            canvas.polygon(_placed(flame, x, y, angle), colour)
    for lx, ly, la in pose[1:]:
        knee = _placed([(0, 0.2)], lx, ly, la)[0]
        hip = _placed(
            [(math.copysign(0.4, math.cos(angle) * (lx - x) + math.sin(angle) * (ly - y)), -0.2)], x, y, angle
        )
        canvas.line([hip[0], knee], LEG_COLOUR, 0.08)
        canvas.polygon(_placed(LEG, lx, ly, la), LEG_COLOUR)
    canvas.polygon(_placed(HULL, x, y, angle), HULL_COLOUR, HULL_EDGE, 0.05)
    canvas.disc(_placed([(0, 0.17)], x, y, angle)[0], 0.17, HULL_EDGE)
    canvas.disc(_placed([(0, 0.17)], x, y, angle)[0], 0.13, WINDOW)
    return canvas.finished()


def draw_cartpole(params: Any, state: Any, action: Any = None, width: int = 480) -> Image.Image:
    """One frame of CartPole, an arrow showing the push of the action that led to it."""
    limit = float(params.x_threshold)
    canvas = _Canvas(width, (2 * limit, limit), (0, 0.36 * limit))
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
        way = 1 if int(np.asarray(action)) else -1
        tip, tail, level = x + way * 0.62, x + way * 0.36, (low + high) / 2
        canvas.line([(tail, level), (tip - way * 0.08, level)], ROD, 0.03)
        canvas.polygon([(tip, level), (tip - way * 0.12, level + 0.07), (tip - way * 0.12, level - 0.07)], ROD)
    top = (x + rod * math.sin(angle), high - 0.05 + rod * math.cos(angle))
    canvas.line([(x, high - 0.05), top], ROD, 0.09)
    canvas.disc(top, 0.045, ROD)
    canvas.disc((x, high - 0.05), 0.06, AXLE)
    return canvas.finished()


_ARTISTS: dict[str, Callable[..., Any]] = {
    "CartPole-v1": draw_cartpole,
    "LunarLander-v3": draw_lander,
    "LunarLanderContinuous-v3": draw_lander,
}


def drawable() -> list[str]:
    """Names of the environments that can be drawn."""
    return sorted(_ARTISTS)


def draw_frames(env_name: str, params: Any, states: Any, width: int = 480, actions: Any = None) -> list[Image.Image]:
    """A picture of every state of an episode.

    `states` is the environment's state with a leading time axis on every leaf; `actions` [T] or [T, 2], if given, are
    the actions that led to them. Width is in pixels.
    """
    import jax

    if env_name not in _ARTISTS:
        raise ValueError(f"env_name={env_name!r} cannot be drawn: one of {', '.join(drawable())}")
    if width < 16:
        raise ValueError(f"width={width} is too small: at least 16 pixels")
    states = jax.tree.map(np.asarray, states)
    steps = len(jax.tree.leaves(states)[0])
    if actions is not None and len(actions) != steps:
        raise ValueError(f"actions has {len(actions)} entries for {steps} states: one for each")
    taken = [None] * steps if actions is None else np.asarray(actions)
    artist = _ARTISTS[env_name]
    return [artist(params, jax.tree.map(lambda leaf, t=t: leaf[t], states), taken[t], width) for t in range(steps)]


def save_gif(frames: Sequence[Image.Image], path: str | Path, fps: float = 25) -> Path:
    """Write an animated GIF that repeats forever; one palette, taken from the busiest frames, serves all of them."""
    if not frames:
        raise ValueError("frames is empty: an animation needs at least one")
    if fps <= 0:
        raise ValueError(f"fps={fps} must be positive")
    from PIL import Image

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    probe = [frames[round(i * (len(frames) - 1) / 7)] for i in range(8)]
    sheet = Image.new("RGB", (probe[0].width, probe[0].height * len(probe)))
    for i, frame in enumerate(probe):
        sheet.paste(frame, (0, i * frame.height))
    palette = sheet.quantize(128, dither=Image.Dither.NONE)
    pictures = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=max(20, round(1000 / fps)), loop=0, optimize=True
    )
    return path


def save_strip(frames: Sequence[Image.Image], path: str | Path, columns: int = 6, rows: int = 1, gap: int = 4) -> Path:
    """Write a PNG of `columns × rows` frames, evenly spaced over the episode with the first and the last included."""
    if not frames:
        raise ValueError("frames is empty: a strip needs at least one")
    if columns < 1 or rows < 1:
        raise ValueError(f"columns={columns} and rows={rows} must be at least 1")
    from PIL import Image

    count = min(columns * rows, len(frames))
    columns = min(columns, count)
    rows = -(-count // columns)
    chosen = [frames[round(i * (len(frames) - 1) / max(1, count - 1))] for i in range(count)]
    wide, high = chosen[0].size
    sheet = Image.new("RGB", (columns * (wide + gap) - gap, rows * (high + gap) - gap), (255, 255, 255))
    for i, frame in enumerate(chosen):
        sheet.paste(frame, (i % columns * (wide + gap), i // columns * (high + gap)))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return path
