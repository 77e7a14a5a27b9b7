"""Attack the command line with random options, damaged run folders and kills; writes results/reliability.json.

    python benchmarks/robustness/reliability.py --commands 300 --folders 300 --kills 50

Every command must end with exit code 0, 2 or 3, without a traceback, in one line if it refuses, and in time. Damaged
folders are only read. After kills, the run is continued and its result compared with an undisturbed one, bit by bit.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "configuration")]

from jaxbyz.accelerate.fast_compilation import FAST_COMPILATION_FLAGS  # noqa: E402 (from this checkout)

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST_COMPILATION_FLAGS}"
RESULTS = ROOT / "benchmarks" / "results" / "reliability.json"
SECONDS = 600  # after which a command counts as hanging


Report = Callable[[int, dict[str, int]], None]  # receives how many attacks were made so far, and how they ended


def call(words: list[str]) -> tuple[int, str]:
    """Run `jaxbyz` with these arguments in this process; return the exit code and what it printed on standard error."""
    from jaxbyz.cli import main

    error = io.StringIO()
    signal.alarm(SECONDS)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        try:
            code = main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
    signal.alarm(0)
    return code, error.getvalue()


def call_process(words: list[str]) -> tuple[int, str]:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxbyz", *words], capture_output=True, text=True, timeout=SECONDS, env=environment()
    )
    return done.returncode, done.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def judge(words: list[str], code: int, error: str) -> str:
    """Return how a command ended; raise an AssertionError if that is not allowed."""
    lines = [line for line in error.splitlines() if line.startswith("jaxbyz: error: ")]
    assert code in (0, 2, 3), (words, code, error)
    assert "Traceback" not in error, (words, error)
    assert (code == 2) == (len(lines) == 1), (words, code, error)
    return {0: "done", 2: "refused", 3: "non-finite"}[code]


def random_options(count: int) -> list[dict[str, Any]]:
    """Return random configurations; in two of three, one more option has a strange value."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from run_folders import STRANGE_VALUES
    from test_fuzz import OPTIONAL, REQUIRED, configurations

    drawn: list[dict[str, Any]] = []
    chance = random.Random(1)

    @seed(1)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(configurations())
    def draw(options: dict[str, Any]) -> None:
        strange = [value for value in STRANGE_VALUES if not isinstance(value, (dict, list))]
        if chance.random() < 2 / 3:
            options = {**options, chance.choice(sorted({**REQUIRED, **OPTIONAL})): chance.choice(strange)}
        drawn.append(options)

    draw()
    return drawn[:count]


def as_words(options: dict[str, Any]) -> list[str]:
    """Return options as command-line arguments."""
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if name == "unsafe":
            words += [flag] if value is True else []
            continue
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words.append(f"{flag}={text}".encode("utf-8", "surrogateescape" if text.isascii() else "replace").decode())
    return words


def attack_commands(count: int, folder: Path, report: Report) -> None:
    """Train random configurations, every tenth in a process of its own."""
    outcomes: Counter[str] = Counter()
    for number, options in enumerate(random_options(count)):
        words = ["train", *as_words(options), "--out", str(folder / f"run-{number}"), "--quiet"]
        code, error = (call_process if number % 10 == 0 else call)(words)
        outcomes[judge(words, code, error)] += 1
        shutil.rmtree(folder / f"run-{number}", ignore_errors=True)
        report(number + 1, outcomes)


def reading_commands(run: Path, out: Path) -> list[list[str]]:
    return [
        ["plot", str(run), "--out", str(out / "curves.png")],
        ["plot", str(run), "--kind", "heatmap", "--out", str(out / "heatmap.svg")],
        ["plot", str(run), "--kind", "trust", "--out", str(out / "trust.png")],
        ["report", str(run), "--animations", "0", "--out", str(out / "page.html")],
        ["evaluate", str(run), "--episodes", "2"],
        ["render", str(run), "--out", str(out / "episode.gif"), "--width", "64"],
        ["resume", str(run), "--quiet"],
    ]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def attack_folders(count: int, folder: Path, report: Report) -> None:
    """Read damaged run folders with every command that reads one; no file of the folder may change."""
    from run_folders import copy_of, damage, make_run

    whole, out = make_run(folder / "whole"), folder / "out"
    outcomes: Counter[str] = Counter()
    for number in range(count):
        run = copy_of(whole, folder / f"damaged-{number}")
        what = damage(run, random.Random(number))
        if not os.path.lexists(run / "metrics.npz"):
            (run / "metrics.npz").touch()  # `resume` would train an unfinished run
        before = contents(run)
        for words in reading_commands(run, out):
            code, error = call(words)
            outcomes[judge([*words, what], code, error)] += 1
            assert contents(run) == before, (words, what)
        shutil.rmtree(run, ignore_errors=True)
        report(number + 1, outcomes)


TRAIN = [
    "--agents=3", "--byzantine=0", "--N=4", "--B=2", "--horizon=20", "--hidden=3", "--trajectories=600", "--p=0.5",
    "--quiet", "--seeds=2",
]  # fmt: skip
SWEEP = """
checkpoint_every = 10
[fixed]
agents = 3
N = 4
B = 2
horizon = 20
hidden = [3]
trajectories = 300
[grid]
seed = [0, 1, 2, 3]
"""


def killed(words: list[str], seconds: float, then: Callable[[], bool], chance: random.Random) -> bool:
    """Start a command and kill it after a random part of this time; return whether it was killed in its course."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxbyz", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
    )
    try:
        process.wait(chance.uniform(0, seconds))
    except subprocess.TimeoutExpired:
        process.kill()
    error = process.communicate()[1].decode()
    assert "Traceback" not in error and process.returncode in (0, -signal.SIGKILL), (words, process.returncode, error)
    return process.returncode == -signal.SIGKILL and not then()


def attack_with_kills(count: int, folder: Path, report: Report) -> None:
    """Kill `train`, `sweep` and `reproduce` in turn and continue them; the results equal those of undisturbed runs."""
    chance, kills, finished = random.Random(0), Counter[str](), Counter[str]()
    (folder / "sweep.toml").write_text(SWEEP)

    def commands(out: Path) -> dict[str, tuple[list[str], Callable[[], bool]]]:
        run = out / "train"
        begun = (run / "config.json").exists()
        resume = ["resume", str(run), "--quiet"]
        train = ["train", *TRAIN, "--out", str(run), "--checkpoint-every=10"]
        figure = ["reproduce", "speedup", "--only", "cartpole-page-pg", "--seeds=2", "--trajectories=200", "--no-draw"]
        members = [out / "sweep" / f"seed={seed}" / "metrics.npz" for seed in range(4)]
        return {
            "train": (resume if begun else train, (run / "metrics.npz").exists),
            "sweep": (
                ["sweep", str(folder / "sweep.toml"), "--out", str(out / "sweep"), "--quiet"],
                lambda: all(path.exists() for path in members),
            ),
            "reproduce": (
                [*figure, "--quiet", "--out", str(out / "figure")],
                lambda: any((out / "figure").rglob("*.json")),
            ),
        }

    whole, seconds = folder / "whole", {}
    for name, (words, _) in commands(whole).items():
        for _ in range(2):  # the second time with a warm cache, which is what is timed
            shutil.rmtree(whole / {"reproduce": "figure"}.get(name, name), ignore_errors=True)
            start = time.monotonic()
            subprocess.run([sys.executable, "-m", "jaxbyz", *words], check=True, env=environment(), capture_output=True)
            seconds[name] = time.monotonic() - start
    print(seconds, flush=True)
    attempt = 0
    while sum(kills.values()) < count:
        attempt += 1
        out = folder / f"attempt-{attempt}"
        for name in seconds:
            rounds = 0
            while not commands(out)[name][1]():
                words, done = commands(out)[name]
                if rounds < 6 and sum(kills.values()) < count:
                    kills[name] += killed(words, 1.1 * seconds[name], done, chance)
                    rounds += 1
                else:
                    code, error = call_process(words)
                    assert code == 0, (words, error)
            compare(whole, out, name)
            finished[name] += 1
            report(kills.total(), {**kills, "finished and compared": finished.total()})
        shutil.rmtree(out)


def compare(whole: Path, out: Path, name: str) -> None:
    """Compare results bit by bit, and check that nothing else was left."""
    folder = {"reproduce": "figure"}.get(name, name)
    for path in sorted((whole / folder).rglob("*")):
        other = out / path.relative_to(whole)
        if path.suffix == ".npz":
            with np.load(path) as a, np.load(other) as b:
                assert set(a.files) == set(b.files)
                for key in a.files:
                    np.testing.assert_array_equal(a[key], b[key], err_msg=f"{other}: {key}")
        elif path.suffix == ".json" and name == "reproduce":
            a, b = json.loads(path.read_text()), json.loads(other.read_text())
            assert a["return"] == b["return"] and a["trajectories"] == b["trajectories"]
    left = {str(p.relative_to(out)) for p in (out / folder).rglob("*")}
    expected = {str(p.relative_to(whole)) for p in (whole / folder).rglob("*")}
    assert left == expected, left ^ expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("commands", "folders", "kills"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name, attack in (("folders", attack_folders), ("kills", attack_with_kills), ("commands", attack_commands)):
        count = getattr(arguments, name)
        if not count:
            continue
        start = time.monotonic()

        def report(done: int, outcomes: dict[str, int], name: str = name, start: float = start) -> None:
            results[name] = {"attacks": done, "seconds": round(time.monotonic() - start), **outcomes}
            arguments.out.write_text(json.dumps(results, indent=2) + "\n")
            print(name, results[name], flush=True)

        with tempfile.TemporaryDirectory() as folder:
            attack(count, Path(folder), report)


if __name__ == "__main__":
    main()
