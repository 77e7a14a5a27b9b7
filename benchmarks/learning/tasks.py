"""All tasks under attack: the table of docs/tasks.md, and the trials of docs/measurements/tuning.md.

    python benchmarks/learning/tasks.py --list
    python benchmarks/learning/tasks.py pendulum acrobot --seeds 10 --out tasks.jsonl.gz
    python benchmarks/learning/tasks.py pendulum --rows min-max --set eta=1e-3 --label eta --out tuning.jsonl.gz
    python benchmarks/learning/tasks.py --merge part1.jsonl.gz part2.jsonl.gz --out tasks.jsonl.gz
    python benchmarks/learning/tasks.py --together --jobs 6 --seed 1000 --out tasks.jsonl.gz
    python benchmarks/learning/tasks.py --table --out tasks.jsonl.gz
    python benchmarks/learning/tasks.py cartpole acrobot --markdown --plot curves.png

One row of a task is one vectorised program over all seeds, or with `--together` one over its attacks and seeds, which
fills a GPU better. The table has one row each, with command, options, versions, seeds and curves, and pandas reads it:
`pandas.read_json("tasks.jsonl.gz", lines=True)`. A row is written as soon as it is trained, and rows that exist are
skipped, so an interrupted call can be repeated. With `--jobs`, rows are trained side by side; on an NVIDIA GPU start
its Multi-Process Service before, or they take turns. The seeds of an expensive row can be divided among processes with
their own tables, and merged afterwards. Seeds for tuning start at 0, those of the published table at 1000.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxbyz import Config

ATTACKED = {"agents": 13, "byzantine": 3}


class Task(NamedTuple):
    """A row of the table: the preset, and what is expected of it.

    Attributes:
        preset: the name of the preset.
        target: the return that the mean of all seeds should reach.
        within: trajectories per agent within which it should.
        budget: trajectories per agent of the run.
    """

    preset: str
    target: float
    within: int
    budget: int


TASKS = {
    "cartpole": Task("cartpole", 475, 300, 1000),
    "acrobot": Task("acrobot", -95, 500, 500),
    "pendulum": Task("pendulum", -200, 1000, 1000),
    "mountaincar": Task("mountaincar", -120, 5000, 5000),
    "mountaincar-continuous": Task("mountaincar-continuous", 90, 500, 500),
    "lunarlander": Task("lunarlander", 200, 1000, 1500),
    "lunarlander-continuous": Task("lunarlander-continuous", 200, 2000, 2000),
    "catch": Task("catch", 0.95, 1000, 1000),
    "breakout": Task("breakout", 10, 3000, 1000),
    "asterix": Task("asterix", 3, 3000, 1500),
    "spaceinvaders": Task("spaceinvaders", 30, 3000, 1500),
    "inverted-pendulum": Task("inverted-pendulum", 1000, 800, 800),
    "inverted-double-pendulum": Task("inverted-double-pendulum", 9000, 1600, 1600),
    "swimmer": Task("swimmer", 100, 800, 800),
    "reacher": Task("reacher", -5, 4800, 4800),
    "hopper": Task("hopper", 3000, 3000, 2600),
    "walker2d": Task("walker2d", 3500, 5000, 2000),
    "half-cheetah": Task("half-cheetah", 6000, 5000, 1600),
}
OTHER_ATTACKS = (
    "none", "alie", "ipm", "coupled-alie", "drift", "turning-drift", "min-sum", "sign-flip", "mimic", "mimic-warmup",
    "reward-flip", "reward-shuffle", "reward-poison", "constant-action", "downhill", "scattered", "budget", "discredit",
    "sleeper", "learned", "normalized", "opt-ipm", "opt-alie", "gaussian", "zero", "fedpg-br", "fedpg-br-noise",
    "large-noise", "equivocating-alie", "equivocating-min-max",
)  # fmt: skip
# "pooled" is one learner with the samples of all agents.
ROWS: dict[str, dict[str, Any]] = {
    "avg-zero": {**ATTACKED, "attack": "avg-zero"},
    "random-action": {**ATTACKED, "attack": "random-action"},
    "min-max": {**ATTACKED, "attack": "min-max"},
    "alone": {"algorithm": "page-pg"},
    "honest": {"agents": 13},
    "naive": {**ATTACKED, "attack": "avg-zero", "algorithm": "dec-page-pg"},
    "pooled": {"algorithm": "page-pg"},
    # Honest agents hold equal parameters, which MDA keeps: forging parameters as well would change nothing.
    "gradient-found": {**ATTACKED, "attack": "gradient-found:on=gradients"},
    "gradient-found-inner": {**ATTACKED, "attack": "gradient-found:on=gradients,objective=inner"},
    "gradient-found-angle": {**ATTACKED, "attack": "gradient-found:on=gradients,objective=angle"},
    **{name: {**ATTACKED, "attack": name} for name in OTHER_ATTACKS},
}
POOLED = ATTACKED["agents"]
WORST = "worst attack"  # the one of all that were trained which ends lowest
TABLE_ROWS = ["avg-zero", "random-action", "min-max", WORST, "alone", "honest", "pooled", "naive"]
DEFAULT_ROWS = [row for row in TABLE_ROWS if row in ROWS] + ["gradient-found"]
TARGET = "target of the task"
POINTS = 50  # of every curve
COLUMNS = 4  # of the picture
WITH_SPREAD = ("avg-zero", "alone")  # rows whose standard deviation is drawn; more would cover each other


def options_of(settings: list[str]) -> dict[str, Any]:
    """Return `eta=1e-3` and the like as options, whose values `resolve` reads as the command line does."""
    return {name: value for name, _, value in (text.partition("=") for text in settings)}


def batches(task_name: str, rows: list[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the missing rows of a task, row -> configuration, as batches that are trained at once."""
    from jaxbyz.files import read_rows
    from jaxbyz.reproduction.training_results import batches_of_trainings

    task = TASKS[task_name]
    options = {"trajectories": arguments.trajectories or task.budget, "seeds": arguments.seeds, "seed": arguments.seed}
    finished = {record["name"] for record in read_rows(arguments.out)}
    configs = {
        row: configuration(arguments.preset or task.preset, row, {**options, **options_of(arguments.set)})
        for row in rows
        if name_of(task_name, row, arguments) not in finished
    }
    return batches_of_trainings(configs, arguments.together)


def configuration(preset: str, row: str, options: dict[str, Any]) -> Config:
    """Return the configuration of a row; the options have precedence over its own."""
    from jaxbyz.configuration.resolving import resolve

    config = resolve(preset, **{**ROWS[row], **options})
    many = {name: POOLED * getattr(config, name) for name in ("trajectories", "N", "B")}
    return replace(config, **many) if row == "pooled" else config


def name_of(task_name: str, row: str, arguments: argparse.Namespace) -> str:
    """Return the name of a row."""
    return f"{task_name}-{row}" + (f"-{arguments.label}" if arguments.label else "")


def train(task_name: str, rows: list[str], arguments: argparse.Namespace) -> None:
    """Train the missing rows of a task."""
    from jaxbyz.reproduction.training_results import train_and_record

    for batch in batches(task_name, rows, arguments):
        for row, (metrics, record) in train_and_record(batch).items():
            write_row(task_name, row, metrics, record, arguments)


def train_side_by_side(task_names: list[str], rows: list[str], arguments: argparse.Namespace) -> None:
    """Train every batch in a process of its own; searching attacks come first, because they take longest.

    Raises:
        SystemExit: if some of them failed, after the others have ended.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or the first process reserves most of a GPU
    from jaxbyz.reproduction.subprocesses import run_in_processes

    jobs = [(name, list(batch)) for name in task_names for batch in batches(name, rows, arguments)]
    jobs.sort(key=lambda job: not job[1][0].startswith("gradient-found"))
    options = ["--seeds", str(arguments.seeds), "--seed", str(arguments.seed), "--out", str(arguments.out)]
    options += [word for setting in arguments.set for word in ("--set", setting)]
    for option in ("trajectories", "preset", "label"):
        if value := getattr(arguments, option):
            options += [f"--{option}", str(value)]
    if arguments.together:
        options.append("--together")
    commands = {f"{name} {','.join(batch)}": [name, "--rows", ",".join(batch), *options] for name, batch in jobs}
    started = time.monotonic()
    failed = run_in_processes(commands, arguments.jobs, partial(print, flush=True), program=sys.argv[:1])
    print(f"{sum(len(batch) for _, batch in jobs)} rows in {time.monotonic() - started:.0f} s")
    if failed:
        for name, reason in failed.items():
            print(f"{name}: {reason}", file=sys.stderr)
        sys.exit(f"failed: {'; '.join(name for name in commands if name in failed)}")


def recorded_command() -> str:
    """Return the command of this process without `--out FILE`, which does not matter for the numbers."""
    words = list(sys.argv)
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return shlex.join(["python", *words])


def write_row(
    task_name: str, row: str, metrics: dict[str, np.ndarray], record: dict[str, Any], arguments: argparse.Namespace
) -> None:
    """Add one row of a task to the table: its record, with curves of these metrics."""
    from jaxbyz.files import add_row
    from jaxbyz.report.statistics import window_averages

    task = TASKS[task_name]
    if row == "pooled":
        metrics = metrics | {"trajectories": metrics["trajectories"] / POOLED}
    end = np.linspace(0, metrics["trajectories"][:, -1].min(), POINTS + 1)[1:]
    curves = window_averages(metrics, np.maximum(end - max(100, end[0]), 0), end)
    record |= {
        "name": name_of(task_name, row, arguments),
        "task": task_name,
        "row": row,
        "label": arguments.label,
        "command": recorded_command(),
        "seeds": list(range(arguments.seed, arguments.seed + arguments.seeds)),
        "target": task.target,
        "within": task.within,
        "reached": reached_at(end, curves, task.target),
        "final": [round(float(value), 3) for value in curves[:, -1]],
        "byzantine_weight": round(float(np.nan_to_num(metrics["byzantine_weight"]).mean()), 4),
        "trajectories": [round(float(x), 1) for x in end],
        "return": [[round(float(value), 3) for value in curve] for curve in curves],
    }
    add_row(arguments.out, record)
    print(described(record), flush=True)


def reached_at(trajectories: np.ndarray, curves: np.ndarray, target: float) -> float | None:
    """Return after how many trajectories the mean of curves `[seeds, T]` first reaches the target; None if never."""
    from jaxbyz.report.statistics import first_reached

    found = first_reached(trajectories, curves.mean(axis=0), target)
    return None if np.isnan(found) else float(found)


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one record of a row from records of the same row with other seeds.

    Raises:
        SystemExit: if the parts differ in more than their seeds, or these are not consecutive.
    """
    from jaxbyz.configuration.resolving import from_dict

    parts = sorted(parts, key=lambda part: part["seeds"][0])
    first, seeds = parts[0], [seed for part in parts for seed in part["seeds"]]
    whole = {**first["config"], "seeds": len(seeds), "seed": seeds[0]}
    for part in parts:
        # Compared as configurations, in which an option that is newer than a file has its default value.
        if from_dict({**part["config"], "seeds": len(seeds), "seed": seeds[0]}) != from_dict(whole):
            sys.exit(f"{part['name']}: the parts differ in more than their seeds")
        if part["trajectories"] != first["trajectories"]:
            sys.exit(f"{part['name']}: the curves of the parts end after different numbers of trajectories")
    if seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        sys.exit(f"{first['name']}: the seeds {seeds} of the parts are not consecutive")
    curves = [curve for part in parts for curve in part["return"]]
    return first | {
        "config": whole,
        "seconds": round(sum(part["seconds"] for part in parts), 1),
        "finite": all(part["finite"] for part in parts),
        "command": " && ".join(part["command"] for part in parts),
        "seeds": seeds,
        "reached": reached_at(np.array(first["trajectories"]), np.array(curves), first["target"]),
        "final": [value for part in parts for value in part["final"]],
        "return": curves,
    }


def merge(tables: list[Path], out: Path) -> None:
    """Merge the rows of the same name in several tables."""
    from jaxbyz.files import add_row, read_rows

    rows = [row for table in tables for row in read_rows(table)]
    for name in sorted({row["name"] for row in rows}):
        record = merged([row for row in rows if row["name"] == name])
        add_row(out, record)
        print(described(record))


def described(record: dict[str, Any]) -> str:
    """Format a row: mean at a quarter, half and the end, the worst seed, when the target was reached, and the time."""
    curves = np.array(record["return"])
    mean, last = curves.mean(axis=0), curves[:, -1]
    at = [len(mean) // 4, len(mean) // 2, len(mean) - 1]
    shown = " ".join(f"{mean[i]:9.2f}" for i in at)
    reached = "–" if record["reached"] is None else f"{record['reached']:.0f}"
    return f"{record['name']:<48} {shown} | worst {last.min():9.2f} | target {reached:>5} | {record['seconds']:7.1f} s"


def read(table: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the records of a table by task and row, and the worst attack of each task."""
    from jaxbyz.files import read_rows

    found = {(record["task"], record["row"]): record for record in read_rows(table) if not record["label"]}
    attacks = [row for row, options in ROWS.items() if "attack" in options and row not in ("naive", "none")]
    for task in {task for task, _ in found}:
        rows = [found[task, row] for row in attacks if (task, row) in found]
        if rows:
            found[task, WORST] = min(rows, key=lambda record: np.mean(record["final"]))
    return found


def markdown(records: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Return the table of the documentation: mean of the last window (worst seed), and when the target was reached."""

    def cell(task: str, row: str) -> str:
        record = records.get((task, row))
        if record is None:
            return "–"
        digits = 2 if abs(TASKS[task].target) <= 5 else 0
        reached = "" if record["reached"] is None else f", {record['reached']:.0f}"
        text = f"{np.mean(record['final']):.{digits}f} ({min(record['final']):.{digits}f}){reached}".replace("-", "−")
        return f"{record['row']}: {text}" if row == WORST else text

    shown = [row for row in TABLE_ROWS if any(key[1] == row for key in records)]
    lines = [f"| task | target | {' | '.join(shown)} |", "| --- " * (len(shown) + 2) + "|"]
    for name, task in TASKS.items():
        if any(key[0] == name for key in records):
            target = f"{task.target:g} within {task.within}".replace("-", "−")
            lines.append(f"| {name} | {target} | {' | '.join(cell(name, row) for row in shown)} |")
    return "\n".join(lines)


def draw(records: dict[tuple[str, str], dict[str, Any]], path: Path) -> None:
    """Draw one panel per task with the mean of all rows, the spread of two, and the target as a dotted line."""
    from jaxbyz.report.plots import COLOURS, draw_curve, figure, legend_below, save, seeds_text

    names = [name for name in TASKS if any(key[0] == name for key in records)]
    columns = 3 if len(names) in (5, 6, 9) else min(COLUMNS, len(names))  # no row is nearly empty
    rows = -(-len(names) // columns)
    drawing, grid = figure(columns, rows, width=2.9 * columns, height=2.6 * rows + 0.5, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.remove()
    for axes, name in zip(grid.flat, names, strict=False):
        shown = {row: records[name, row] for row in TABLE_ROWS if (name, row) in records}
        for row, record in shown.items():
            colour = COLOURS[TABLE_ROWS.index(row)]
            curves = np.array(record["return"])
            shown_curves = curves if row in WITH_SPREAD else curves.mean(axis=0, keepdims=True)
            draw_curve(axes, np.array(record["trajectories"]), shown_curves, row, color=colour)
        axes.axhline(TASKS[name].target, color="black", linewidth=0.8, linestyle=":", label=TARGET)
        robust = np.array([value for row, record in shown.items() if row != "naive" for value in record["return"]])
        low, high = robust.min(), max(robust.max(), TASKS[name].target)  # the naive federation may leave the picture
        axes.set_ylim(low - 0.05 * (high - low), high + 0.08 * (high - low))
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
    for axes in grid.flat[len(names) - columns : len(names)]:  # the lowest panel of every column
        axes.set_xlabel("trajectories per agent", fontsize=9)
    drawing.supylabel("honest return", fontsize=9)
    legend_below(drawing, COLUMNS, order=[*TABLE_ROWS, TARGET])
    counted = seeds_text([len(record["seeds"]) for record in records.values()])
    drawing.suptitle(
        f"13 agents, 3 of them Byzantine; mean over {counted}, standard deviation of {' and '.join(WITH_SPREAD)}",
        fontsize=10,
    )
    save(drawing, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="tasks (default: all)")
    parser.add_argument("--rows", default=",".join(DEFAULT_ROWS), help="rows of the table, separated by commas")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--trajectories", type=int, help="per agent (default: the budget of the task)")
    parser.add_argument("--preset", help="another preset than the task's")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="replace an option")
    parser.add_argument("--label", default="", help="added to the names of the rows")
    parser.add_argument("--together", action="store_true", help="train the attacks that can share a program in one")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/tasks.jsonl.gz"), help="the table")
    parser.add_argument("--list", action="store_true", help="list tasks and rows")
    parser.add_argument(
        "--merge", nargs="+", type=Path, metavar="TABLE", help="merge rows of these tables by their seeds"
    )
    parser.add_argument("--table", action="store_true", help="print one line per row")
    parser.add_argument("--markdown", action="store_true", help="print the table of the documentation")
    parser.add_argument("--plot", type=Path, help="draw the curves of the table")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.tasks if name not in TASKS]:
        parser.error(f"unknown task {unknown[0]!r}; known: {', '.join(TASKS)}")
    rows = arguments.rows.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        parser.error(f"unknown row {unknown[0]!r}; known: {', '.join(ROWS)}")
    if arguments.list:
        print("tasks:", *TASKS, "\nrows:", *ROWS)
    elif arguments.merge:
        merge(arguments.merge, arguments.out)
    elif arguments.table:
        from jaxbyz.files import read_rows

        for record in read_rows(arguments.out):
            print(described(record))
    elif arguments.markdown or arguments.plot:
        chosen = arguments.tasks or TASKS
        records = {key: record for key, record in read(arguments.out).items() if key[0] in chosen}
        print(markdown(records))
        if arguments.plot:
            draw(records, arguments.plot)
    elif arguments.jobs > 1:
        train_side_by_side(arguments.tasks or list(TASKS), rows, arguments)
    else:
        from jaxbyz.accelerate.setup import prepare

        prepare()
        for task in arguments.tasks or TASKS:
            train(task, rows, arguments)


if __name__ == "__main__":
    main()
