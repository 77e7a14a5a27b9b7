"""How a run is carried out: where its files go, when it is checkpointed, and which devices it uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import msgspec

from jaxbyz.errors import UsageError
from jaxbyz.files import read_json, refuse_links, write_json
from jaxbyz.runs.checkpoints import FOLDER, make_folder
from jaxbyz.runs.plan import Plan
from jaxbyz.training.devices import Shape, choose_shape, parse_shape

FILE = "options.json"


class StoredSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The settings that `resume` uses again, as `options.json` holds them.

    Attributes:
        checkpoint_every: as in `RunSettings`.
        mesh: the shape of the mesh as text, or None.
        automatic: as in `RunSettings`.
        stop_at: as in `RunSettings`.
    """

    checkpoint_every: int | None = None
    mesh: str | None = None
    automatic: bool = False
    stop_at: float | None = None


class RunSettings(NamedTuple):
    """Settings that change the numbers of a run by rounding errors at most.

    Attributes:
        folder: the run folder, or None to write no files.
        checkpoint_every: iterations between two checkpoints; None writes one only when the run is interrupted.
        shape: the number of devices along each axis of the mesh, or None to choose it automatically.
        automatic: whether `shape` was chosen automatically when the run started; False if the user requested it.
        stop_at: end the run once the mean over seeds of the last 100 returns reaches this; None for no early end.
    """

    folder: Path | None = None
    checkpoint_every: int | None = None
    shape: Shape | None = None
    automatic: bool = False
    stop_at: float | None = None

    def with_shape(self, plan: Plan) -> RunSettings:
        """Check a requested shape; otherwise choose one, and keep it in the settings so that `resume` can use it again.

        Raises:
            UsageError: if the requested shape does not fit.
        """
        shape = choose_shape(self.shape, len(plan.keys), plan.algorithm.agents)
        if self.shape is None and shape != Shape() and jax.process_count() == 1:
            return self._replace(shape=shape, automatic=True)
        return self

    def with_stored(self, stored: StoredSettings, log: Callable[[str], None]) -> RunSettings:
        """Return settings in which values that were not given are those that the run was started with.

        A mesh that was chosen automatically is used again only if it fits the devices.
        """
        every = self.checkpoint_every or stored.checkpoint_every
        stop_at = stored.stop_at if self.stop_at is None else self.stop_at
        settings = make_settings(self.folder, every, None, stop_at)._replace(shape=self.shape)
        if self.shape is not None or stored.mesh is None:
            return settings
        shape = parse_shape(stored.mesh)
        if stored.automatic and shape.seeds * shape.agents > len(jax.devices()):
            log(f"the run started on mesh {shape}, which does not fit here: numbers will agree up to rounding")
            return settings
        return settings._replace(shape=shape, automatic=stored.automatic)

    def store(self) -> None:
        """Write what `resume` needs to know."""
        assert self.folder is not None
        shape = None if self.shape is None else str(self.shape)
        stored = StoredSettings(self.checkpoint_every, shape, self.automatic, self.stop_at)
        if stored != StoredSettings():
            write_json(make_folder(self.folder) / FILE, msgspec.to_builtins(stored))


def stored_settings(folder: Path) -> StoredSettings:
    """Return what `RunSettings.store` has written."""
    path = refuse_links(folder, FOLDER) / FILE
    return read_json(path, StoredSettings) if path.exists() else StoredSettings()


def make_settings(
    out: str | Path | None, checkpoint_every: int | None, mesh: str | None, stop_at: float | None = None
) -> RunSettings:
    """Return checked settings.

    Raises:
        UsageError: if a value is not allowed.
    """
    if checkpoint_every is not None and (type(checkpoint_every) is not int or checkpoint_every < 1):
        raise UsageError(f"checkpoint_every={checkpoint_every}: must be a whole number of at least 1")
    if checkpoint_every is not None and out is None:
        raise UsageError(f"checkpoint_every={checkpoint_every}: needs the option out, the folder for checkpoints")
    folder = None if out is None else Path(out)
    if stop_at is not None and not math.isfinite(stop_at):
        raise UsageError(f"stop_at={stop_at}: must be a finite return")
    return RunSettings(folder, checkpoint_every, None if mesh is None else parse_shape(str(mesh)), stop_at=stop_at)
