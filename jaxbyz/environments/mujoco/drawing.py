"""Pictures of the MuJoCo tasks: every link is a bar."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxbyz.environments.canvas import INK, Canvas, Colour, Point, placed
from jaxbyz.environments.mujoco.bodies import Link, Model
from jaxbyz.environments.mujoco.models import MODELS

if TYPE_CHECKING:
    from PIL import Image

BODY, FAR_LIMB, PIN, TARGET, GROUND = (206, 142, 84), (168, 122, 84), (128, 126, 196), (190, 60, 60), (170, 170, 165)


class Framing(NamedTuple):
    """What a picture shows.

    Attributes:
        size: width and height of the picture in metres.
        centre: the middle of the picture, relative to the root if it follows it.
        follows: whether the picture moves with the root: "x", "xw" or nothing.
        thickness: the thickness of the bars.
        floor: whether there is a line at height 0.
    """

    size: Point
    centre: Point
    follows: str
    thickness: float
    floor: bool = True


VIEWS = {
    "InvertedPendulum-v5": Framing((2.6, 1.3), (0.0, 0.35), "", 0.08),
    "InvertedDoublePendulum-v5": Framing((3.2, 2.0), (0.0, 0.6), "", 0.08),
    "Swimmer-v5": Framing((6.0, 3.6), (0.0, 0.0), "xw", 0.2, floor=False),
    "Reacher-v5": Framing((0.66, 0.5), (0.0, 0.0), "", 0.02, floor=False),
    "Hopper-v5": Framing((3.2, 2.0), (0.0, 0.8), "x", 0.1),
    "Walker2d-v5": Framing((3.2, 2.0), (0.0, 0.8), "x", 0.1),
    "HalfCheetah-v5": Framing((3.2, 1.8), (0.1, 0.7), "x", 0.09),
}


def draw_mechanism(name: str, params: Any, state: Any, action: Any = None, width: int = 480) -> Image.Image:
    """Draw one frame of a MuJoCo task; marks on the floor show how far it has moved."""
    view, qpos = VIEWS[name], np.asarray(state.qpos, float)
    x = view.centre[0] + (qpos[0] if "x" in view.follows else 0.0)
    w = view.centre[1] + (qpos[1] if "w" in view.follows else 0.0)
    canvas = Canvas(width, view.size, (x, w))
    _draw_marks(canvas, view, (x, w))
    for segment, limb in segments(MODELS[name], qpos):
        colour: Colour = FAR_LIMB if limb == 1 else BODY
        canvas.line(segment, colour, view.thickness)
        for end in segment:
            canvas.disc(end, view.thickness / 2, colour)
        canvas.disc(segment[0], view.thickness / 5, PIN)
    if name == "Reacher-v5":
        canvas.disc((qpos[2], qpos[3]), 0.012, TARGET)
    return canvas.finished()


def _draw_marks(canvas: Canvas, view: Framing, middle: Point) -> None:
    """Draw the floor with a mark every half metre, or a grid of dots if the task is seen from above."""
    wide, high = view.size
    xs = np.arange(math.floor(2 * (middle[0] - wide / 2)), math.ceil(2 * (middle[0] + wide / 2)) + 1) / 2
    if view.floor:
        canvas.line([(middle[0] - wide, 0.0), (middle[0] + wide, 0.0)], INK, 0.015)
        for x in xs:
            canvas.line([(float(x), -0.06), (float(x), 0.0)], INK, 0.012)
    elif view.follows:
        ws = np.arange(math.floor(2 * (middle[1] - high / 2)), math.ceil(2 * (middle[1] + high / 2)) + 1) / 2
        for x in xs:
            for w in ws:
                canvas.disc((float(x), float(w)), 0.02, GROUND)


def segments(model: Model, qpos: np.ndarray) -> Iterator[tuple[list[Point], int | None]]:
    """Yield both ends of every bar, limb by limb, and the number of the limb; the second limb is behind the others."""
    joint = len(model.slides)
    pin = (float(qpos[0]) if joint else 0.0, float(qpos[1]) + model.height if joint > 1 else 0.0)
    angle = 0.0
    if model.root.hinge is not None:
        angle = model.root.hinge.sign * float(qpos[joint])
        joint += 1
    found: list[tuple[list[Point], int | None]] = []
    for number, limb in enumerate(model.limbs):
        at, turned = pin, angle
        for link in limb:
            at = placed([link.offset], *at, turned)[0]
            turned += link.hinge.sign * float(qpos[joint]) if link.hinge else 0.0
            joint += 1
            found += [(placed(bar, *at, turned), number) for bar in _bars(link)]
    yield from (each for each in found if each[1] == 1)
    yield from ((placed(bar, *pin, angle), None) for bar in _bars(model.root))
    yield from (each for each in found if each[1] != 1)


def _bars(link: Link) -> list[list[Point]]:
    """Return the bars of a link: its main one, and others between further pairs of contact points."""
    ends = [point.centre for point in link.points[2:]]
    return [list(link.bar), *(ends[i : i + 2] for i in range(0, len(ends), 2))]
