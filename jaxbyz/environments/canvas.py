"""A picture in world units, which Pillow draws without a display."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

OVERSAMPLE = 3  # frames are drawn larger by this factor and then reduced, which smooths edges
Point = tuple[float, float]
Colour = tuple[int, int, int]
PAPER, INK = (250, 249, 246), (60, 64, 72)


class Canvas:
    """A picture in world units with y upwards."""

    def __init__(self, width: int, world: Point, centre: Point):
        from PIL import Image, ImageDraw

        self.scale = width * OVERSAMPLE / world[0]
        self.size = width, round(width * world[1] / world[0])
        self.origin = centre[0] - world[0] / 2, centre[1] + world[1] / 2
        self.image: Image.Image = Image.new("RGB", (self.size[0] * OVERSAMPLE, self.size[1] * OVERSAMPLE), PAPER)
        self.pen: ImageDraw.ImageDraw = ImageDraw.Draw(self.image)

    def to_pixels(self, points: Sequence[Point]) -> list[Point]:
        return [((x - self.origin[0]) * self.scale, (self.origin[1] - y) * self.scale) for x, y in points]

    def polygon(self, points: Sequence[Point], fill: Colour, edge: Colour | None = None, width: float = 0.0) -> None:
        self.pen.polygon(self.to_pixels(points), fill=fill)
        if edge is not None:
            self.line([*points, points[0]], edge, width)

    def line(self, points: Sequence[Point], fill: Colour, width: float) -> None:
        self.pen.line(self.to_pixels(points), fill=fill, width=max(1, round(width * self.scale)), joint="curve")

    def disc(self, centre: Point, radius: float, fill: Colour) -> None:
        ((x, y),) = self.to_pixels([centre])
        r = radius * self.scale
        self.pen.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def finished(self) -> Image.Image:
        from PIL import Image

        return self.image.resize(self.size, Image.Resampling.LANCZOS)


def placed(shape: Sequence[Point], x: float, y: float, angle: float) -> list[Point]:
    """Rotate points by an angle and move them by (x, y)."""
    cos, sin = math.cos(angle), math.sin(angle)
    return [(x + cos * px - sin * py, y + sin * px + cos * py) for px, py in shape]
