"""Where runs are kept, what they tell about themselves while and after they run, and to whom they report."""

from __future__ import annotations

import json
import re
import sys
import types
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.cli import main
from jaxbyz.runs.loggers import MLflow, WeightsAndBiases
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.partial_results import PROGRESS, PartialResults
from jaxbyz.runs.periodic_evaluation import EVALUATION_SEED, PeriodicEvaluation
from jaxbyz.runs.reporters import Progress
from jaxbyz.runs.run import resume, run
from jaxbyz.runs.run_folder import load_run
from jaxbyz.runs.run_record import RECORD, default_folder, read, write_start
from jaxbyz.trained.evaluation import evaluate
from tests.helpers import StopAt, assert_same_run

TINY = {"agents": 5, "byzantine": 1, "attack": "avg-zero", "N": 4, "B": 2, "p": 0.5, "kappa": "2", "horizon": 20,
        "hidden": (4,), "seeds": 3}  # fmt: skip
CONFIG, LONG = jb.resolve(trajectories=12, **TINY), jb.resolve(trajectories=80, **TINY)
WORDS = ["--agents", "5", "--byzantine", "1", "--attack", "avg-zero", "--N", "4", "--B", "2", "--p", "0.5", "--kappa",
         "2", "--horizon", "20", "--hidden", "4", "--seeds", "3", "--trajectories", "12"]  # fmt: skip


class Recorder:
    """A reporter that keeps every update."""

    def __init__(self):
        self.updates = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def update(self, progress):
        self.updates.append(progress)


def test_runs_are_kept_by_default_and_the_first_lines_say_what_and_where(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = datetime.now(UTC)
    assert main(["train", *WORDS, "--name", "my first", "--tag", "paper", "--tag", "v2"]) == 0
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-my-first", folder.name)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("jaxbyz: preset ") and second == f"jaxbyz: writing to {folder}"
    record = jb.load_run(folder).record
    assert record["name"] == "my first" and record["tags"] == ["paper", "v2"]
    started, finished = (datetime.fromisoformat(record[key]) for key in ("started", "finished"))
    assert (started - before.replace(microsecond=0)).total_seconds() >= 0 and started <= finished
    assert 0 < record["seconds"] < 600
    assert main(["train", *WORDS, "--no-save", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["out"] is None
    assert len(list(Path("runs").iterdir())) == 1


@pytest.mark.parametrize(
    "damage", [{"seconds": "long"}, {"seconds": 1e300}, {"tags": 3}, {"imported": [1]}, {"name": []}]
)
def test_a_record_that_no_run_writes_counts_as_missing(damage, tmp_path):
    write_start(tmp_path, "mine", ["a"])
    assert read(tmp_path)["tags"] == ["a"] and "imported" not in read(tmp_path)
    (tmp_path / RECORD).write_text(json.dumps({**read(tmp_path), **damage}))
    assert read(tmp_path) == {}


def test_names_of_default_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = default_folder("decbyzpg-CartPole-v1-alie:z=1", 0)
    assert re.fullmatch(r"(1970-01-01|1969-12-31)-\d{6}-decbyzpg-CartPole-v1-alie-z=1", first.name)
    first.mkdir(parents=True)
    assert default_folder("decbyzpg-CartPole-v1-alie:z=1", 0).name == first.name + "-2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--name", "a/b"], "name='a/b': must not contain a slash"),
        (["--name", ""], "name='': must be 1 to 100 printable characters"),
        (["--tag", "a\nb"], "tag='a\\nb': must be 1 to 100 printable characters"),
        (["--no-save", "--out", "x"], "out=x with no_save: give one of them"),
        (["--evaluate-every", "0"], "evaluate_every=0: must be a whole number of at least 1"),
    ],
)
def test_wrong_names_and_settings_are_refused(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_interrupted_run_can_be_drawn_and_counts_all_its_time(tmp_path, capsys):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(LONG, folder, StopAt(20))
    with pytest.warns(UserWarning, match="not finished: what follows is its state after iteration 20"):
        first = load_run(folder)
    assert not first.finished and first.metrics["returns"].shape == (3, 20) and "finished" not in first.record
    assert first.act(np.zeros(4)) in (0, 1)
    assert main(["plot", str(folder), "--out", str(tmp_path / "curves.png")]) == 0
    assert "run is not finished; its first 20 iterations are shown" in capsys.readouterr().err
    (folder / PROGRESS).rename(tmp_path / PROGRESS)  # the checkpoint holds the same
    for command in (["evaluate", "--episodes", "2"], ["export", "--out", str(tmp_path / "policy.npz")]):
        assert main([*command, str(folder)]) == 0
        assert "is not finished: what follows is its state after iteration 20" in capsys.readouterr().err
    assert_same_run(load_run(folder, log=lambda line: None), first)
    (tmp_path / PROGRESS).rename(folder / PROGRESS)
    with pytest.raises(jb.UsageError, match="the run is not finished"):
        jb.load_run(folder, unfinished=False)
    resume(folder)
    whole = jb.load_run(folder)
    assert whole.record["seconds"] > first.record["seconds"] > 0 and whole.finished
    np.testing.assert_array_equal(whole.metrics["returns"][:, :20], first.metrics["returns"])
    assert not (folder / PROGRESS).exists()


def test_results_so_far_are_written_every_so_often(tmp_path):
    history = types.SimpleNamespace(policy={"last": np.ones((1, 1, 2))}, metrics=lambda: {"returns": np.ones((1, 3))})
    PartialResults(tmp_path, every=3600).update(history)
    assert not (tmp_path / PROGRESS).exists()
    PartialResults(tmp_path, every=0).update(history)
    with np.load(tmp_path / PROGRESS) as file:
        assert set(file.files) == {"returns", "policy/last"}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / PROGRESS).unlink()
    with pytest.raises(jb.UsageError, match="has written no results yet"):
        load_run(tmp_path, unfinished=True)


def test_the_policy_is_evaluated_every_so_often(tmp_path):
    recorder = Recorder()
    plain = run(LONG)
    folder = tmp_path / "run"
    evaluator = PeriodicEvaluation(LONG, every=7, episodes=4, folder=folder, reporter=recorder)
    assert_same_run(run(LONG, folder, evaluator), plain)
    T = plain.metrics["returns"].shape[1]
    assert evaluator.iterations == [20, T] and recorder.updates[0].evaluation.shape == (3,)
    expected = evaluate(LONG, plain.policy["last"][:, 0], 4, EVALUATION_SEED)["returns"].mean(axis=1)
    np.testing.assert_array_equal(evaluator.returns[-1], expected)
    stored = jb.load_run(folder).evaluations
    np.testing.assert_array_equal(stored["iteration"], [20, T])
    np.testing.assert_array_equal(stored["returns"], np.stack(evaluator.returns))
    again = PeriodicEvaluation(LONG, every=7, episodes=4, folder=folder)
    with again:
        again.update(Progress(20, T, 40, 1.0, 1.0, {}, {"last": plain.policy["last"]}))
    assert again.iterations == [20], "an evaluation that lies after the checkpoint is forgotten, and none is repeated"


def fake_module(name: str, calls: list) -> types.ModuleType:
    """A module that keeps the calls of its functions, and returns itself for the methods of a run."""
    module = types.ModuleType(name)

    def recorder(function):
        def call(*arguments, **options):
            calls.append((function, arguments, options))
            return module

        return call

    for function in ("init", "log", "finish", "set_experiment", "start_run", "log_params", "log_batch", "end_run"):
        setattr(module, function, recorder(function))
    module.info, module.MlflowClient = types.SimpleNamespace(run_id="id"), lambda: module
    return module


def test_weights_and_biases_receive_every_iteration(monkeypatch):
    calls: list = []
    monkeypatch.setitem(sys.modules, "wandb", fake_module("wandb", calls))
    evaluator = PeriodicEvaluation(CONFIG, 5, 2, reporter=WeightsAndBiases(CONFIG, "byzantine", "one", ["a"]))
    result = run(CONFIG, reporter=evaluator)
    (first, _, options), *rows, (last, _, ending) = calls
    assert first == "init" and options["project"] == "byzantine" and options["tags"] == ["a"]
    assert options["config"]["attack"] == "avg-zero" and (last, ending) == ("finish", {"exit_code": 0})
    assert [row[2]["step"] for row in rows] == result.metrics["trajectories"][0].tolist()
    logged = [row[1][0]["returns"] for row in rows]
    np.testing.assert_allclose(logged, result.metrics["returns"].mean(axis=0), rtol=1e-6)
    assert rows[-1][1][0]["evaluation/returns"] == pytest.approx(evaluator.returns[-1].mean())


def test_mlflow_receives_every_iteration_and_failures(monkeypatch):
    calls: list = []
    module, entities = fake_module("mlflow", calls), types.ModuleType("mlflow.entities")
    module.entities, entities.Metric = entities, lambda *values: values
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr("jaxbyz.runs.loggers.LARGEST_BATCH", 50)
    result = run(CONFIG, reporter=MLflow(CONFIG, "byzantine", "one", ["a"]))
    names = [call[0] for call in calls]
    batches = [call for call in calls if call[0] == "log_batch"]
    assert names == ["set_experiment", "start_run", "log_params", *["log_batch"] * len(batches), "end_run"]
    assert calls[1][2] == {"run_name": "one", "tags": {"a": "true"}} and calls[-1][1] == ("FINISHED",)
    assert all(call[1] == ("id",) and len(call[2]["metrics"]) <= 50 for call in batches)
    logged = [metric for call in batches for metric in call[2]["metrics"] if metric[0] == "returns"]
    np.testing.assert_allclose([value for _, value, *_ in logged], result.metrics["returns"].mean(axis=0), rtol=1e-6)
    assert [step for *_, step in logged] == result.metrics["trajectories"][0].tolist()
    with pytest.raises(RuntimeError), MLflow(CONFIG, "byzantine"):
        raise RuntimeError
    assert calls[-1][1] == ("FAILED",)


def test_a_service_that_fails_does_not_end_the_run(monkeypatch):
    lines: list[str] = []

    class Full:
        log = finish = property(lambda self: self.fail)

        def fail(self, *_, **__):
            raise OSError("no space\nleft")

    module = types.ModuleType("wandb")
    monkeypatch.setitem(sys.modules, "wandb", module)
    module.init = lambda **_: Full()
    result = run(CONFIG, reporter=WeightsAndBiases(CONFIG, "byzantine", log=lines.append))
    assert result.finite and lines[0] == "wandb=byzantine: failed (no space); the run goes on without it"
    assert lines[1:] == ["wandb=byzantine: failed (no space)"]
    module.init = Full().fail
    with pytest.raises(jb.UsageError, match=r"wandb=byzantine: cannot be opened \(no space\)$"):
        run(CONFIG, reporter=WeightsAndBiases(CONFIG, "byzantine"))


@pytest.mark.parametrize(("option", "extra"), [("--wandb", "wandb"), ("--mlflow", "mlflow")])
def test_missing_loggers_are_named(option, extra, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, extra, None)
    assert main(["train", option, "x"]) == 2
    assert f"[{extra}]'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_mlflow_accepts_everything(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    result = run(CONFIG, reporter=MLflow(CONFIG, "byzantine", "one", ["a"]))
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("byzantine").experiment_id])
    assert found.data.params["attack"] == "avg-zero" and found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "returns")
    np.testing.assert_allclose([m.value for m in history], result.metrics["returns"].mean(axis=0), rtol=1e-6)
