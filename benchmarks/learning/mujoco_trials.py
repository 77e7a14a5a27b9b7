"""Short trials of settings on the MuJoCo tasks, side by side, each until its time is over.

    python benchmarks/learning/mujoco_trials.py --seconds 280 --out trials
    python benchmarks/learning/mujoco_trials.py --names half-cheetah-zoo hopper-zoo --alone --seconds 280 --out alone
    python benchmarks/learning/mujoco_trials.py --list

Every trial is a process. `--jobs` of them run at a time, and all trials have the same share of `--seconds`. Returns are
means over the honest agents and the iterations since the point before. Step sizes are constant where a trial or its
preset does not say otherwise, so that a trial that is cut off is the beginning of a longer run. On an NVIDIA GPU start
its Multi-Process Service before (`nvidia-cuda-mps-control -d`), or the trials take turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jaxbyz.runs.reporters import Progress

STARTED = time.monotonic()
ATTACKED = {"agents": 13, "byzantine": 3, "attack": "avg-zero"}
ALONE = {"algorithm": "page-pg"}
PRESETS = ("half-cheetah", "hopper", "walker2d", "swimmer", "reacher", "inverted-double-pendulum")
EPISODES = 5000  # per agent, to which runs are extrapolated
EVERY = 5  # iterations between two points of a curve
POINTS = 12  # of every printed curve

# 32 messages per batch of 4 episodes: 8 epochs of 4 parts of 1000 steps.
STEPS = {
    "env_param": "scale=true,clip=true", "initialiser": "small-outputs", "N": 4, "epochs": 8, "minibatches": 4,
    "minibatch_of": "steps", "eta": 5e-4, "eta_end": None, "initial_std": 0.4, "critic_parts": 4,
}  # fmt: skip
RUNNING = {**STEPS, "gamma": 0.98, "gae_lambda": 0.92}  # as RL Baselines3 Zoo has it for HalfCheetah
WIDE = {"hidden": (256, 256), "critic_hidden": (256, 256), "activation": "relu"}
# The presets of these two before actions were held.
LEGS = {"env_param": "scale=true,clip=true", "initial_std": 0.5, "eta": 5e-4}
WIDER = {**LEGS, "initial_std": 1.0}
TRIALS: dict[str, dict[str, Any]] = {
    "half-cheetah": {},  # a name without more is the preset
    "half-cheetah-running": RUNNING,
    "half-cheetah-zoo": {**RUNNING, "initial_std": 0.14, "ratio_clip": 0.1, "eta": 2e-4, "epochs": 10},
    "half-cheetah-brax": {**STEPS, "gamma": 0.95, "gae_lambda": 0.95, "initial_std": 1.0, "entropy": 1e-3,
                          "epochs": 4, "minibatches": 8},
    "half-cheetah-wide": {**RUNNING, **WIDE, "eta": 2e-4},
    "half-cheetah-one": {**RUNNING, "N": 1, "epochs": 5, "critic_steps": 16, "eta": 3e-4},
    "half-cheetah-eight": {**RUNNING, "N": 8, "epochs": 5, "minibatches": 8, "eta": 1e-3},
    "half-cheetah-followed": {**RUNNING, "policy": "followed"},
    "hopper": {},
    "hopper-base": LEGS,
    "hopper-entropy": {**LEGS, "entropy": 2e-3},
    "hopper-discount": {**LEGS, "gamma": 0.999, "gae_lambda": 0.98},
    "hopper-eight": {**LEGS, "N": 8},
    "hopper-decay": {**LEGS, "eta_end": 1e-5},
    "hopper-wide": {**LEGS, **WIDE, "eta": 2e-4},
    "hopper-deviation-1": WIDER,
    "hopper-deviation-1.5": {**LEGS, "initial_std": 1.5},
    "hopper-wider-discount": {**WIDER, "gamma": 0.99},
    "hopper-wider-entropy": {**WIDER, "entropy": 1e-3},
    "hopper-wider-fast": {**WIDER, "eta": 1e-3, "eta_end": 1e-4},
    "hopper-held": {"initial_std": 0.5, "eta": 5e-4},
    "hopper-faster": {"eta": 5e-4},
    "walker2d": {},
    "walker2d-deviation-1": WIDER,
    "walker2d-entropy": {**LEGS, "entropy": 1e-3},
    "walker2d-decay": {**LEGS, "eta_end": 1e-5},
    "swimmer": {},
    "swimmer-discount": {**LEGS, "gamma": 0.9999},
    "swimmer-unheld": {**WIDER, "gae_lambda": 0.95},
    "reacher": {},
    "reacher-larger": {"N": 32, "gamma": 0.9, "gae_lambda": 0.95, "eta": 5e-4},
    "inverted-double-pendulum": {},
    "inverted-double-pendulum-larger": {"N": 16, "gamma": 0.995, "eta": 1e-3, "eta_end": 1e-5},
}  # fmt: skip


def options_of(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a trial, without its preset; later ones replace earlier ones."""
    given = {option: value for option, _, value in (text.partition("=") for text in arguments.set)}
    whose = ALONE if arguments.alone else ATTACKED
    return {**whose, "seeds": arguments.seeds, "trajectories": EPISODES, **TRIALS[name], **given}


def preset_of(name: str) -> str:
    """Return the preset of a trial, which its name begins with."""
    return next(preset for preset in PRESETS if name.startswith(preset))


class Points:
    """A reporter that appends a line to a file after every segment: seconds, trajectories per agent, and returns."""

    def __init__(self, file: Path):
        self.file = file

    def __enter__(self) -> Points:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, progress: Progress) -> None:
        """Append the mean return of every seed over the iterations of this segment."""
        returns = progress.metrics["returns"].mean(axis=1)
        row = [round(time.monotonic() - STARTED, 1), progress.trajectories, [round(float(x), 1) for x in returns]]
        with self.file.open("a") as file:
            print(json.dumps(row), file=file)


def train(name: str, arguments: argparse.Namespace) -> None:
    """Train one trial in this process."""
    from jaxbyz.configuration.resolving import resolve
    from jaxbyz.runs.run import run

    config = resolve(preset_of(name), **options_of(name, arguments))
    run(config, arguments.out / "runs" / name, Points(points_of(name, arguments)), checkpoint_every=EVERY)


def points_of(name: str, arguments: argparse.Namespace) -> Path:
    """Return the file with the points of a trial."""
    return arguments.out / f"{name}.jsonl"


class Running(NamedTuple):
    """A trial that runs, and when it is stopped."""

    name: str
    process: subprocess.Popen
    until: float


def start(name: str, arguments: argparse.Namespace, seconds: float) -> Running:
    """Start a trial in its own process."""
    command = [sys.executable, __file__, *sys.argv[1:], "--train", name]
    with (arguments.out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
    return Running(name, process, time.monotonic() + seconds)


def curve(name: str, arguments: argparse.Namespace) -> list[list[Any]]:
    """Return the points `[seconds, trajectories per agent, return of every seed]` of a trial."""
    file = points_of(name, arguments)
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("]]")]  # a last line may be unfinished


def described(name: str, points: list[list[Any]]) -> str:
    """Return a line with the speed of a trial, and lines with some of its points."""
    if len(points) < 2:
        return f"{name}: nothing was measured; see its log"
    (first, begun, _), (last, ended, _) = points[0], points[-1]
    pace = (ended - begun) / (last - first)  # without compilation
    parts = [points[i * len(points) // min(POINTS, len(points))] for i in range(min(POINTS, len(points)))][1:]
    shown = [
        f"{spent}@{seconds:.0f}s:" + "/".join(f"{x:.0f}" for x in returns)
        for seconds, spent, returns in [*parts, points[-1]]
    ]
    whole = f"{pace:.2f} episodes/s, first point after {first:.0f} s, {EPISODES} episodes in {EPISODES / pace:.0f} s"
    return f"{name}: {whole}\n  " + " ".join(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", choices=list(TRIALS), default=list(TRIALS), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the trials")
    parser.add_argument("--alone", action="store_true", help="train one agent without an attack")
    parser.add_argument("--jobs", type=int, help="trials that run at a time (default: all of them)")
    parser.add_argument("--seconds", type=float, default=280, help="for all trials together")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--set", nargs="+", default=[], metavar="OPTION=VALUE", help="options of all trials")
    parser.add_argument("--out", type=Path, default=Path("trials"), help="new folder for the table, points and logs")
    parser.add_argument("--train", choices=list(TRIALS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments)
        return
    if arguments.list:
        for name in arguments.names:
            print(name, json.dumps(options_of(name, arguments)))
        return
    arguments.out.mkdir(parents=True)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or the first process reserves most of a GPU
    jobs = arguments.jobs or len(arguments.names)
    share = arguments.seconds / math.ceil(len(arguments.names) / jobs)
    waiting, running = list(arguments.names), list[Running]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(start(waiting.pop(0), arguments, share))
        time.sleep(0.2)
        for trial in list(running):
            if trial.process.poll() is None and time.monotonic() < trial.until:
                continue
            trial.process.kill()  # its points are written
            trial.process.wait()
            running.remove(trial)
            print(described(trial.name, curve(trial.name, arguments)), flush=True)
    rows = {
        name: {"options": options_of(name, arguments), "points": curve(name, arguments)} for name in arguments.names
    }
    (arguments.out / "trials.json").write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
