"""Reporters and the progress display receive what the metrics files hold."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import rich.console
from tensorboardX.proto.event_pb2 import Event

import jaxbyz as jb
from jaxbyz.runs.loggers import TensorBoard
from jaxbyz.runs.progress import Bar, Lines
from jaxbyz.runs.reporters import Progress, ReporterGroup
from jaxbyz.runs.run import run, run_experiment

CONFIG = jb.resolve(
    agents=5, byzantine=1, attack="avg-zero", N=4, B=2, p=0.5, kappa="2", horizon=20, hidden=(4,), trajectories=12,
    seeds=3,
)  # fmt: skip


class Recorder:
    """A reporter that keeps every update and how it was left."""

    def __init__(self):
        self.updates, self.exit_details = [], None

    def __enter__(self):
        return self

    def __exit__(self, *details):
        self.exit_details = details

    def update(self, progress):
        self.updates.append(progress)


def test_reporters_receive_all_metrics(tmp_path):
    recorder = Recorder()
    config = replace(CONFIG, trajectories=80)  # two segments
    result = run(config, reporter=ReporterGroup(recorder, TensorBoard(tmp_path / "board", first_seed=7)))
    T = result.metrics["returns"].shape[1]
    assert len(recorder.updates) == 2
    last = recorder.updates[-1]
    assert (last.iteration, last.iterations) == (T, T) and recorder.exit_details == (None, None, None)
    for name, values in result.metrics.items():
        np.testing.assert_array_equal(np.concatenate([p.metrics[name] for p in recorder.updates], axis=1), values)
    assert last.trajectories == result.metrics["trajectories"][0, -1]
    written = scalars(tmp_path / "board")
    trajectories = result.metrics["trajectories"][0].tolist()
    steps, values = zip(*written["returns"], strict=True)
    assert list(steps) == trajectories
    np.testing.assert_allclose(values, result.metrics["returns"].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose([v for _, v in written["seed-8/diameter"]], result.metrics["diameter"][1], rtol=1e-6)


def scalars(folder):
    """Read tag -> [(step, value)] from an event file: records of length, checksum, protobuf, checksum."""
    (path,) = folder.glob("events.*")
    raw, found, at = path.read_bytes(), {}, 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 8], "little")
        event = Event.FromString(raw[at + 12 : at + 12 + size])
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
        at += 16 + size
    return found


def test_a_failing_reporter_does_not_keep_others_from_closing():
    class Broken(Recorder):
        def update(self, progress):
            raise RuntimeError("disk full")

    recorder, broken = Recorder(), Broken()
    with pytest.raises(RuntimeError, match="disk full"):
        run(CONFIG, reporter=ReporterGroup(recorder, broken))
    assert len(recorder.updates) == 1 and recorder.exit_details[0] is broken.exit_details[0] is RuntimeError


def test_progress_in_plain_lines(capsys):
    lines = Lines(total=100, every=0.0)
    with lines:
        lines.update(Progress(20, 60, 40, 17.25, 5e3, {}))
        lines.update(Progress(60, 60, 100, 20.0, 9e3, {}))
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith("compiling")
    # The first line has no pace, because its time includes compilation.
    assert printed[1] == "40 of 100 trajectories per agent, return 17.2, 0 s so far"
    assert printed[2].startswith("100 of 100 trajectories per agent, return 20.0, ")
    assert "steps/s" in printed[2] and printed[2].endswith(" 0 s left")
    assert max(map(len, printed)) <= 80


def test_progress_bar(monkeypatch):
    screen, console = io.StringIO(), rich.console.Console
    monkeypatch.setattr(
        "rich.console.Console", lambda stderr: console(file=screen, force_terminal=True, width=80, height=20)
    )
    bar = Bar(total=100)
    with bar:
        bar.update(Progress(20, 60, 40, 17.25, 5e3, {}))
        bar.update(Progress(60, 60, 100, 20.0, 9e6, {}))
    last = screen.getvalue()
    for part in ("compiling", "100/100", "return", "M steps/s", "0:00:00 left"):
        assert part in last, part


def test_progress_is_shown_where_someone_watches(monkeypatch, capsys):
    monkeypatch.setattr("jaxbyz.runs.run.someone_watches", lambda: True)
    monkeypatch.setattr("jaxbyz.runs.run.run", lambda config, out, reporter: reporter)
    with run_experiment(trajectories=10) as reporter:
        assert isinstance(reporter, Lines)
    assert "compiling" in capsys.readouterr().err
    monkeypatch.setattr("jaxbyz.runs.run.someone_watches", lambda: False)
    assert run_experiment(trajectories=10) is None
