"""How a run is carried out: where its files go, when it is checkpointed, and which devices it uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxbyz.errors import UsageError
from jaxbyz.runs.plan import Plan
from jaxbyz.training.devices import Shape, choose_shape, parse_shape


class RunSettings(NamedTuple):
    """Settings that change the numbers of a run by rounding errors at most.

    Attributes:
        folder: the run folder, or None to write no files.
        checkpoint_every: iterations between two checkpoints; None writes one only when the run is interrupted.
        shape: the number of devices along each axis of the mesh, or None to choose it automatically.
        automatic: whether `shape` was chosen automatically when the run started; False if the user requested it.
    """

    folder: Path | None = None
    checkpoint_every: int | None = None
    shape: Shape | None = None
    automatic: bool = False

    def options(self) -> dict[str, Any]:
        """Return what `resume` needs to know, as JSON values."""
        mesh = None if self.shape is None else str(self.shape)
        options = {"checkpoint_every": self.checkpoint_every, "chosen_mesh" if self.automatic else "mesh": mesh}
        return {name: value for name, value in options.items() if value is not None}

    def with_shape(self, plan: Plan) -> RunSettings:
        """Check a requested shape; otherwise choose one, and keep it in the settings so that `resume` can use it again.

        Raises:
            UsageError: if the requested shape does not fit.
        """
        shape = choose_shape(self.shape, len(plan.keys), plan.algorithm.agents)
        if self.shape is None and shape != Shape() and jax.process_count() == 1:
            return self._replace(shape=shape, automatic=True)
        return self

    def with_earlier_shape(self, stored: dict[str, Any], log: Callable[[str], None]) -> RunSettings:
        """Return settings with the shape that was chosen when the run started, if it fits the devices."""
        if self.shape is not None or "chosen_mesh" not in stored:
            return self
        shape = parse_shape(stored["chosen_mesh"])
        if shape.seeds * shape.agents > len(jax.devices()):
            log(f"the run started on mesh {shape}, which does not fit here: numbers will agree up to rounding")
            return self
        return self._replace(shape=shape, automatic=True)


def make_settings(out: str | Path | None, checkpoint_every: int | None, mesh: str | None) -> RunSettings:
    """Return checked settings.

    Raises:
        UsageError: if a value is not allowed.
    """
    if checkpoint_every is not None and (type(checkpoint_every) is not int or checkpoint_every < 1):
        raise UsageError(f"checkpoint_every={checkpoint_every}: must be a whole number of at least 1")
    if checkpoint_every is not None and out is None:
        raise UsageError(f"checkpoint_every={checkpoint_every}: needs the option out, the folder for checkpoints")
    folder = None if out is None else Path(out)
    return RunSettings(folder, checkpoint_every, None if mesh is None else parse_shape(str(mesh)))
