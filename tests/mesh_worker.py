"""Program that the mesh tests run in separate processes: `python mesh_worker.py FOLDER JOB`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np

# Large batches only and simple rules, because every process compiles the program again.
CONFIG = dict(agents=9, byzantine=2, N=3, B=2, p=1.0, horizon=8, hidden=(3,), trajectories=60, kappa="2", seeds=2,
              attack="avg-zero", aggregator="median", agreement="trimmed-mean")  # fmt: skip


def store(folder: Path, name: str, done) -> None:
    np.savez(folder / f"{name}.npz", **{f"policy {key}": value for key, value in done.policy.items()}, **done.metrics)


def local(folder: Path, options: dict, meshes: list[str]) -> None:
    """Train on each mesh of up to eight host devices."""
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    from jaxbyz.configuration.resolving import resolve
    from jaxbyz.runs.run import run

    for mesh in meshes:
        store(folder, mesh, run(resolve(**{**CONFIG, **options}), mesh=mesh))


def process(folder: Path, devices: int) -> None:
    """In one of several processes: train until a signal to the last process, resume, and train without interruption."""
    jax.config.update("jax_num_cpu_devices", devices)
    from jaxbyz.cli.joining import join_processes

    join_processes()
    from helpers import StopAt

    from jaxbyz.configuration.resolving import resolve
    from jaxbyz.errors import UsageError
    from jaxbyz.runs.loop import Interrupted
    from jaxbyz.runs.run import resume, run

    config, last = resolve(**CONFIG), jax.process_index() == jax.process_count() - 1
    reporter, said = StopAt(8) if last else None, []
    try:
        run(config, folder / "run", reporter, checkpoint_every=8, mesh="seeds=1,agents=2")
    except Interrupted as stop:
        said.append(str(stop))
    try:
        run(config, folder / "run")
    except UsageError as error:
        said.append(str(error))
    done = resume(folder / "run", log=said.append)
    store(folder, f"resumed-{jax.process_index()}", done)
    store(folder, f"whole-{jax.process_index()}", run(config, mesh="seeds=1,agents=2"))
    (folder / f"said-{jax.process_index()}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    folder, job = Path(sys.argv[1]), json.loads(sys.argv[2])
    local(folder, *job) if isinstance(job, list) else process(folder, job)
