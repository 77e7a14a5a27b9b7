"""Extended runs equal runs that were long from the start; runs start from learnt ones; evaluation."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz import training
from jaxbyz.cli import main
from jaxbyz.files import write_arrays
from jaxbyz.runs import checkpoints, run_folder
from jaxbyz.runs.extension import extend, write_end
from jaxbyz.runs.loop import Interrupted
from jaxbyz.runs.partial_results import PROGRESS
from jaxbyz.runs.run import resume, run
from jaxbyz.runs.state_file import read_state
from jaxbyz.trained.start_from import start_parameters
from tests.helpers import StopAt, assert_same_run

TINY = {"agents": 5, "byzantine": 1, "attack": "avg-zero", "N": 4, "B": 2, "p": 0.5, "kappa": "2", "horizon": 20,
        "hidden": (4,), "seeds": 3, "eta_end": None}  # fmt: skip
CONFIG, LONG = jb.resolve(trajectories=12, **TINY), jb.resolve(trajectories=80, **TINY)


@pytest.fixture(scope="module")
def long_run():
    return run(LONG)


@pytest.fixture
def short(tmp_path):
    """A finished run of 12 trajectories."""
    run(CONFIG, tmp_path / "run")
    return tmp_path / "run"


def test_the_sampled_iteration_is_uniform_and_fit_for_extension():
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = {T: np.asarray(jax.jit(jax.vmap(lambda k, T=T: training.sampled_iteration(k, T)))(keys)) for T in (3, 8)}
    counts = np.bincount(draw[8], minlength=8)
    assert counts.size == 8 and np.sum((counts - 500) ** 2 / 500) < 24.3, counts  # χ² with 7 degrees, 0.1 %
    early = draw[8] < 3
    np.testing.assert_array_equal(draw[8][early], draw[3][early])


def test_a_full_disk_leaves_a_finished_run(short, monkeypatch):
    """It used to be renamed to an unfinished one before the message said that nothing was overwritten."""
    before = contents(short)

    def full(folder, config):
        raise jb.UsageError("config.json: cannot be written (No space left on device); nothing was overwritten")

    monkeypatch.setattr(run_folder, "write_config", full)
    with pytest.raises(jb.UsageError, match="nothing was overwritten"):
        extend(short, 80)
    assert contents(short).keys() >= before.keys() and run_folder.is_finished(short)
    assert {name: contents(short)[name] for name in before} == before and not (short / PROGRESS).exists()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_extended_run_is_the_long_run(short, long_run, capsys):
    before = jb.load_run(short).metrics["returns"].shape[1]
    assert main(["resume", str(short), "--trajectories", "80"]) == 0
    assert f"at iteration {before} of" in capsys.readouterr().err, "the run started again"
    loaded = jb.load_run(short)
    assert_same_run(loaded, long_run)
    assert loaded.config == LONG and not (short / PROGRESS).exists()
    assert_same_run(extend(short, 80), long_run)  # nothing left to do
    with pytest.raises(jb.UsageError, match="the run has 80 already; give at least as many"):
        extend(short, 79)


@pytest.mark.slow
def test_an_interrupted_extension_continues(short, long_run):
    with pytest.raises(Interrupted):
        extend(short, 80, StopAt(20))
    assert not (short / "metrics.npz").exists()
    assert_same_run(resume(short), long_run)


@pytest.mark.slow
def test_an_extension_that_is_killed_early_leaves_a_run(short, long_run, monkeypatch):
    """Between its two steps the folder holds the end of the short run, which `resume` finishes again."""
    finished = jb.load_run(short)
    runs = read_state(short / run_folder.STATE, checkpoints.owner(CONFIG))
    write_end(short, CONFIG, finished, runs)
    assert_same_run(resume(short), finished)
    assert not (short / "checkpoints").exists(), "killed before the run became unfinished: it is finished"
    write_end(short, CONFIG, finished, runs)
    (short / "metrics.npz").rename(short / PROGRESS)
    assert_same_run(resume(short), finished)
    assert_same_run(extend(short, 80), long_run)


@pytest.mark.slow
def test_an_unfinished_run_can_be_extended(tmp_path, long_run):
    with pytest.raises(Interrupted):
        run(replace(LONG, trajectories=76), tmp_path / "part", StopAt(20))
    assert_same_run(extend(tmp_path / "part", 80), long_run)


@pytest.mark.parametrize("damage", ["missing", "damaged", "other"])
@pytest.mark.slow
def test_without_its_final_state_a_run_is_trained_again(short, long_run, damage):
    path = short / run_folder.STATE
    if damage == "missing":
        path.unlink()
    elif damage == "damaged":
        path.write_bytes(path.read_bytes()[:100])
    else:
        arrays = dict(np.load(path))
        np.savez(path, **{name: values + 1 if name.endswith("step") else values for name, values in arrays.items()})
    lines = []
    assert_same_run(extend(short, 80, log=lines.append), long_run)
    assert any("at iteration 0 of" in line for line in lines)


@pytest.fixture(scope="module")
def decaying():
    """A run whose step size decays over 40 of 80 trajectories."""
    return run(replace(LONG, eta=1e-2, eta_end=1e-4, decay_over=40))


def test_a_run_whose_step_size_decays_is_extended_at_its_last_step_size(tmp_path, decaying):
    run(replace(LONG, eta=1e-2, eta_end=1e-4, trajectories=40), tmp_path / "run")
    extended = extend(tmp_path / "run", 80)
    assert_same_run(extended, decaying)
    assert extended.config == decaying.config == run_folder.load_config(tmp_path / "run")


def test_a_run_can_end_earlier_than_planned(tmp_path, decaying):
    """At a checkpoint or after it, and with the results of a run that was asked for as many trajectories."""
    with pytest.raises(Interrupted):
        run(replace(decaying.config, trajectories=80), tmp_path / "run", StopAt(20))
    sampled = int(jb.load_run(tmp_path / "run", log=print).metrics["trajectories"][0, -1])
    with pytest.raises(jb.UsageError, match=f"the run has {sampled} already"):
        extend(tmp_path / "run", sampled - 1)
    ended = extend(tmp_path / "run", sampled)
    assert ended.metrics["returns"].shape[1] == 20
    assert_same_run(ended, run(ended.config))


def test_a_run_ends_when_its_return_reaches_a_number(tmp_path, capsys):
    words = "--agents 3 --N 50 --B 50 --p 1 --horizon 20 --hidden 4 --trajectories 2000 --baseline none --epochs 1"
    assert main(["train", *words.split(), "--stop-at", "5", "--out", str(tmp_path / "run")]) == 0
    assert "--stop-at ended the run after 1000 of 2000 trajectories per agent" in capsys.readouterr().err
    stopped = jb.load_run(tmp_path / "run")
    assert stopped.finished and stopped.metrics["trajectories"][0, -1] == stopped.config.trajectories == 1000
    assert_same_run(stopped, run(stopped.config))


@pytest.mark.slow
def test_a_run_starts_from_a_learnt_policy(short, tmp_path):
    learnt = jb.load_run(short)
    args = [
        "--byzantine",
        "1",
        "--agents",
        "5",
        "--N",
        "4",
        "--B",
        "2",
        "--horizon",
        "20",
        "--p",
        "0.5",
        "--kappa",
        "2",
    ]
    args += ["--attack", "avg-zero", "--seeds", "3", "--trajectories", "12", "--quiet"]
    assert main(["train", "--from", str(short), *args, "--out", str(tmp_path / "next")]) == 0
    config = jb.load_run(tmp_path / "next").config
    assert config.hidden == (4,) and config.start.startswith(f"from:{short}#")
    theta = jax.jit(jb.build(config, read_start=start_parameters).policy.init)(jax.random.key(5))
    np.testing.assert_array_equal(theta, learnt.parameters())
    exported = learnt.export(tmp_path / "policy.npz", run_seed=1, agent=2)
    other = jb.run_experiment(start=f"from:{exported}", **{**TINY, "hidden": (4,)}, trajectories=4)
    theta = jax.jit(jb.build(other.config, read_start=start_parameters).policy.init)(jax.random.key(5))
    np.testing.assert_array_equal(theta, learnt.parameters(run_seed=1, agent=2))


def test_policies_that_a_run_cannot_start_from_are_refused(short, tmp_path, capsys):
    nan = tmp_path / "nan"
    shutil.copytree(short, nan)
    write_arrays(nan / "policy.npz", {name: values * np.nan for name, values in jb.load_run(short).policy.items()})
    for options, message in (
        ({"start": f"from:{short}", "hidden": (5,)}, "has 30 parameters, but the policy of this run has 37"),
        ({"start": f"from:{tmp_path / 'none'}"}, "none: "),
        ({"start": f"from:{short / 'policy.npz'}"}, "is neither a run folder nor a policy that"),
        ({"start": "from:"}, "start='from:': must be own, shared, or from:PATH"),
        ({"start": f"from:{nan}", "hidden": (4,)}, "has parameters that are not finite"),
        ({"start": f"from:{short}#0123"}, "the policy has changed since the run was started"),
    ):
        with pytest.raises(jb.UsageError, match=message):
            jb.run_experiment(**{"trajectories": 4, **options})


def test_evaluation_in_a_changed_environment_with_an_interval(short, capsys):
    def evaluate(*arguments):
        assert main(["evaluate", str(short), "--episodes", "8", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    usual, again, heavy = evaluate(), evaluate(), evaluate("--env-param", "force_mag=100", "--greedy", "--seed", "3")
    assert usual == again and heavy["env_param"] == "force_mag=100" and heavy["greedy"] and heavy["seed"] == 3
    assert heavy["return"]["mean"] < usual["return"]["mean"], "ten times the force topples the pole earlier"
    assert usual["return"]["interval"] is None, "three seeds are too few"
    assert main(["evaluate", str(short), "--episodes", "8", "--env-param", "gravitas=1"]) == 2
    assert "parameter='gravitas' is unknown" in capsys.readouterr().err
    assert main(["evaluate", str(short), "--episodes", "8", "--env-param", "gravity=12"]) == 0
    printed = capsys.readouterr().out
    assert "CartPole-v1 with gravity=12" in printed and "no interval, which needs at least 5 seeds" in printed
    assert "last parameters of agent 0, drawn actions" in printed
