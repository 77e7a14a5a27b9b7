"""Links, foreign files, pipes, read-only folders, full disks, long names and sizes that cannot fit: one line each."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers import held_to_permissions
from run_folders import change_arrays, change_json, copy_of, damage, make_run

import jaxbyz as jb
from jaxbyz.cli import main
from jaxbyz.configuration.memory import check_memory
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.files import write_output, write_text
from jaxbyz.runs import checkpoints
from jaxbyz.runs.folder_lock import lock_folder
from jaxbyz.runs.loggers import TensorBoard
from jaxbyz.runs.reporters import Progress
from jaxbyz.runs.run import run as run_config
from jaxbyz.runs.settings import make_settings, stored_settings


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(finished, tmp_path):
    return copy_of(finished, tmp_path / "run")


def refused(capsys, *words) -> str:
    """A command ends with exit code 2 and one line, which is returned."""
    assert main([str(word) for word in words]) == 2, words
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and error.startswith("jaxbyz: error: "), error
    return error


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def reading_commands(run: Path, out: Path) -> list[list[str]]:
    return [
        ["plot", str(run), "--out", str(out / "a.png")],
        ["plot", str(run), "--kind", "heatmap", "--out", str(out / "b.svg")],
        ["report", str(run), "--animations", "0", "--out", str(out / "c.html")],
        ["evaluate", str(run)],
        ["render", str(run), "--out", str(out / "d.gif")],
        ["resume", str(run)],
    ]


# ---- links and foreign files ---------------------------------------------------------------------------------------


def test_a_link_in_place_of_the_checkpoints_is_not_followed(run, tmp_path, capsys):
    """`resume` would delete numbered files wherever the link points to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "40.npz").write_text("precious")
    (outside / ".50.npz.abcdefgh.tmp").write_text("half")
    (run / "metrics.npz").unlink()
    (run / "checkpoints").symlink_to(outside)
    before = everything(outside)
    assert "checkpoints: is a link" in refused(capsys, "resume", run)
    config = resolve()
    for step in (
        make_settings(run, 3, None).store,
        lambda: stored_settings(run),
        lambda: checkpoints.discard_after(run, 0),
        lambda: checkpoints.remove_all(run),
        lambda: checkpoints.write(run, config, 40, {}, {}, {}),
    ):
        with pytest.raises(UsageError, match="is a link"):
            step()
    assert everything(outside) == before


def test_a_link_in_place_of_a_file_is_replaced(tmp_path):
    (tmp_path / "precious").write_text("data")
    (tmp_path / "error.txt").symlink_to(tmp_path / "precious")
    write_text(tmp_path / "error.txt", "traceback")
    assert (tmp_path / "precious").read_text() == "data" and not (tmp_path / "error.txt").is_symlink()


FILES_OF_A_RUN = ("metrics.npz", "policy.npz", "environment.json", "checkpoints/40.npz", "checkpoints/options.json")


@pytest.mark.parametrize("name", FILES_OF_A_RUN)
def test_a_folder_with_a_file_of_a_run_is_not_fresh(name, tmp_path, capsys):
    """Training used to start there, and `resume` took a foreign metrics.npz for the result."""
    foreign = tmp_path / "run" / name
    foreign.parent.mkdir(parents=True)
    foreign.write_text('{"mine": 1}')
    (tmp_path / "sweep.toml").write_text("")
    before = everything(tmp_path)
    refused(capsys, "train", "--quiet", "--out", tmp_path / "run")
    assert main(["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["members"][0]["status"] == "failed"
    after = everything(tmp_path)
    assert {path: after[path] for path in before} == before


def test_the_remains_of_a_killed_start_do_not_prevent_the_next_one(tmp_path, monkeypatch):
    """A kill after options.json and before config.json."""
    run = tmp_path / "run"
    run.mkdir()
    make_settings(run, 3, "seeds=1").store()
    (run / ".config.json.abcdefgh.tmp").write_text("half")
    monkeypatch.setattr("jaxbyz.runs.run.train", lambda *_: ["trained"])
    assert run_config(resolve(agents=3), run) == "trained"
    assert {path.name for path in run.iterdir()} >= {"config.json", "environment.json"}
    assert not list(run.glob("*.tmp")) and not list(run.glob(".*.tmp"))


# ---- temporary files and finished checkpoints ----------------------------------------------------------------------


def test_the_next_owner_of_a_folder_removes_what_a_kill_left(run, capsys):
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "40.npz").write_text("old")
    (run / ".metrics.npz.abcdefgh.tmp").write_text("half")
    (run / ".notes").write_text("of the user")
    assert main(["resume", str(run), "--quiet"]) == 0
    left = {path.name for path in run.iterdir()}
    assert left == {"config.json", "environment.json", "metrics.npz", "policy.npz", ".notes"}


def test_temporary_files_of_living_processes_stay(tmp_path):
    def write(file):
        with lock_folder(tmp_path):
            pass
        write_output(tmp_path / "page.html", lambda other: other.write(b"second"))
        file.write(b"first")

    write_output(tmp_path / "page.html", write)
    assert (tmp_path / "page.html").read_text() == "first" and not list(tmp_path.glob(".page*"))


# ---- files of other shapes and types -------------------------------------------------------------------------------

DAMAGE = {
    "metrics.npz: ess is missing": lambda run: change_arrays(run / "metrics.npz", ess=None),
    "metrics.npz: shares is": lambda run: change_arrays(run / "metrics.npz", shares=np.zeros((2, 6))),
    "metrics.npz: diameter is": lambda run: change_arrays(run / "metrics.npz", diameter=np.zeros((2, 6, 3))),
    "metrics.npz: finite has values": lambda run: change_arrays(run / "metrics.npz", finite=np.full((2, 6), np.nan)),
    "metrics.npz: batch has values": lambda run: change_arrays(run / "metrics.npz", batch=np.zeros((2, 6))),
    "trajectories are not the sums": lambda run: change_arrays(run / "metrics.npz", trajectories=np.full((2, 6), 1e18)),
    "policy.npz: sampled is": lambda run: change_arrays(run / "policy.npz", sampled=np.zeros((2, 3, 5), np.float32)),
    "config.json: hidden=": lambda run: change_json(run / "config.json", hidden="16"),
    "config.json: attack=": lambda run: change_json(run / "config.json", attack="\x1b[2J"),
    "config.json: not readable as JSON": lambda run: change_json(run / "config.json", attack="\ud800"),
    "environment.json: not readable": lambda run: change_json(run / "environment.json", cores=float("nan")),
    "config.json: is not a regular file": lambda run: [(run / "config.json").unlink(), os.mkfifo(run / "config.json")],
    "metrics.npz: is not a regular file": lambda run: [(run / "metrics.npz").unlink(), os.mkfifo(run / "metrics.npz")],
    "policy.npz: cannot be read": lambda run: [(run / "policy.npz").unlink(), (run / "policy.npz").symlink_to("no")],
}


@pytest.mark.parametrize("message", DAMAGE)
def test_files_of_a_stranger_are_refused_by_every_command(message, run, tmp_path, capsys):
    DAMAGE[message](run)
    for words in reading_commands(run, tmp_path):
        assert message in refused(capsys, *words), words


def test_a_policy_of_another_size_or_that_is_not_finite_is_refused(run, capsys):
    wrong = np.zeros((2, 3, 7), np.float32)
    change_arrays(run / "policy.npz", **dict.fromkeys(("last", "sampled", "best"), wrong))
    for command in ("evaluate", "render"):
        assert "parameters of size 7 do not fit a policy of size 23" in refused(capsys, command, run)
    wrong = np.full((2, 3, 23), np.nan, np.float32)
    change_arrays(run / "policy.npz", **dict.fromkeys(("last", "sampled", "best"), wrong))
    assert "2 of 2 policies are not finite" in refused(capsys, "evaluate", run)
    assert "has no finite policy" in refused(capsys, "render", run)


def test_formulas_in_names_are_shown_as_they_are(run, tmp_path, capsys):
    change_json(run / "config.json", attack="$\\frac{1$", byzantine=1, agreement="none")
    for words in reading_commands(run, tmp_path)[:3]:
        assert main(words) == 0, capsys.readouterr().err
    assert "picture cannot be drawn" in refused(
        capsys, "plot", run, "--title", "$\\frac{$", "--out", tmp_path / "e.png"
    )


def test_stored_options_of_other_types_are_refused(run, capsys):
    (run / "metrics.npz").unlink()
    (run / "checkpoints").mkdir()
    for options in ({"mesh": 3}, {"automatic": []}, {"checkpoint_every": "2"}, {"other": 1}):
        (run / "checkpoints" / "options.json").write_text(json.dumps(options))
        assert "options.json: " in refused(capsys, "resume", run)


def test_a_few_damaged_folders_are_read_or_refused(finished, tmp_path, capsys):
    """`benchmarks/robustness/reliability.py` does this with hundreds of folders and every command."""
    for number in range(12):
        folder = copy_of(finished, tmp_path / str(number))
        what = damage(folder, random.Random(number))
        code = main(["report", str(folder), "--animations", "0", "--out", str(tmp_path / "page.html")])
        error = capsys.readouterr().err
        assert code in (0, 2) and (code == 0 or len(error.splitlines()) == 1), (what, error)


# ---- folders that cannot be used, full disks -----------------------------------------------------------------------


def test_folders_that_cannot_be_entered_or_written(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sealed, read_only = tmp_path / "sealed", tmp_path / "read-only"
    copy_of(run, sealed / "run")
    read_only.mkdir()
    sealed.chmod(0o000)
    read_only.chmod(0o555)
    try:
        with held_to_permissions():
            for words in reading_commands(sealed / "run", tmp_path):
                assert "Permission denied" in refused(capsys, *words)
            assert "Permission denied" in refused(capsys, "train", "--quiet", "--out", read_only / "run")
            assert "Permission denied" in refused(capsys, "train", "--quiet", "--out", sealed / "run")
            for words in reading_commands(run, read_only)[:3]:
                assert "Permission denied" in refused(capsys, *words)
    finally:
        sealed.chmod(0o755)


def test_a_finished_sweep_can_be_repeated_in_a_read_only_folder(finished, tmp_path, capsys, monkeypatch):
    out = tmp_path / "sweep"
    copy_of(finished, out / "run")
    config = jb.load_run(finished).config
    monkeypatch.setattr("jaxbyz.runs.sweep.resolve", lambda **_: config)
    (tmp_path / "sweep.toml").write_text("")
    for folder in (out / "run", out):
        folder.chmod(0o555)
    with held_to_permissions():
        assert main(["sweep", str(tmp_path / "sweep.toml"), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["members"][0]["status"] == "finished"


def test_names_that_are_too_long(run, tmp_path, capsys):
    long = tmp_path / ("x" * 300)
    refused(capsys, "train", "--quiet", "--out", long)
    refused(capsys, "sweep", long)
    for words in reading_commands(long, tmp_path):
        refused(capsys, *words)
    refused(capsys, "plot", run, "--out", f"{long}.png")
    refused(capsys, "report", run, "--animations", "0", "--out", f"{long}.html")


@contextmanager
def full_disk():
    """Let no file grow, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_old_outputs_as_they_were(run, tmp_path, capsys):
    for words in reading_commands(run, tmp_path)[:3]:
        out = Path(words[-1])
        out.write_text("old")
        with full_disk():
            assert "nothing was overwritten" in refused(capsys, *words)
        assert out.read_text() == "old" and not list(tmp_path.glob(f".{out.name}*"))


def test_a_full_disk_ends_tensorboard_but_not_the_run(tmp_path):
    lines: list[str] = []
    metrics = {"trajectories": np.array([[2]]), "returns": np.array([[1.0]])}
    with TensorBoard(tmp_path / "board", 0, lines.append) as board, full_disk():
        board.update(Progress(1, 9, 2, 1.0, 5.0, metrics))
        board.update(Progress(2, 9, 4, 1.0, 5.0, metrics))
    assert len(lines) == 1 and "the run goes on without it" in lines[0]


# ---- sweep files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[fixed]\nseeds = " + "9" * 100_000, "not readable as TOML"),
        ("[grid]\nseeds = [0x" + "f" * 100_000 + "]", "not usable as a sweep"),
        ("[fixed]\nseeds = 0x" + "f" * 300, "seeds: the number is too large"),
        ("[grid]\nagents = [" + "-1, " * 30_000 + "]", "exceed the limit of 10000"),
        ("[grid]\neta = [" + ", ".join(f"-{i + 1}.0" for i in range(9000)) + "]", "9000 other members"),
    ],
)
def test_hostile_sweep_files_are_refused_quickly(text, message, tmp_path, capsys):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    started = time.process_time()
    error = refused(capsys, "sweep", path, "--out", tmp_path / "out")
    assert message.replace("9000", "8999") in error and time.process_time() - started < 5


# ---- sizes that cannot fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 10**9},
        {"hidden": (10**9, 10**9)},
        {"seeds": 4 * 10**9},
        {"trajectories": 10**12},
        {"agents": 100_000, "N": 1_000_000},
        {"horizon": 10**12},
        {"N": 10**15},
    ],
)
def test_sizes_that_cannot_fit_are_refused_before_anything_is_allocated(options, run, capsys):
    started = time.process_time()
    words = [f"--{name}={str(value).strip('()').replace(' ', '')}" for name, value in options.items()]
    error = refused(capsys, "train", "--quiet", *words)
    assert "needs at least" in error and "GB of memory, there are" in error and next(iter(options)) in error
    hidden = options.get("hidden", (3,))
    change_json(run / "config.json", **{**options, "hidden": list(hidden) if isinstance(hidden, tuple) else [hidden]})
    (run / "metrics.npz").unlink()
    assert "needs at least" in refused(capsys, "resume", run)
    assert time.process_time() - started < 10


def test_an_evaluation_that_cannot_fit_is_refused(run, capsys):
    error = refused(capsys, "evaluate", run, "--episodes", 10**13)
    assert "episodes=10000000000000: the evaluation needs at least 240,000.0 GB of memory" in error


def test_usual_sizes_fit():
    for preset in ("cartpole", "lunarlander-best"):
        check_memory(resolve(preset, seeds=10, agents=13, byzantine=3))
