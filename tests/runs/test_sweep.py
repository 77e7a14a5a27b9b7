"""Sweeps skip finished members, resume unfinished ones, report failures, and can run several times at once."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.cli import main
from jaxbyz.configuration.resolving import resolve
from jaxbyz.errors import UsageError
from jaxbyz.runs import checkpoints
from jaxbyz.runs.folder_lock import lock_folder
from jaxbyz.runs.loop import Interrupted, train
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.run import ensure, run
from jaxbyz.runs.sweep import load_sweep, member_name, run_sweep

FILE = """
checkpoint_every = 2
[fixed]
preset = "cartpole-steady"
agents = 5
byzantine = 1
N = 4
B = 2
horizon = 8
hidden = [3]
trajectories = 20
p = 0.5
seeds = 2
attack = "avg-zero"
[grid]
seed = [0, 7]
kappa = [2, 0]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(FILE)
    return path


def test_members_are_the_grid(file):
    sweep = load_sweep(file)
    assert list(sweep.members) == [
        "seed=0,kappa=2", "seed=0,kappa=0", "seed=7,kappa=2", "seed=7,kappa=0",
    ]  # fmt: skip
    assert sweep.members["seed=7,kappa=2"]["hidden"] == [3] and sweep.checkpoint_every == 2
    assert resolve(**sweep.members["seed=7,kappa=2"]).kappa == "2"
    file.write_text(FILE.replace("attack =", "clip-norm = 1.0\nattack ="))  # as on the command line
    assert load_sweep(file).members["seed=7,kappa=2"]["clip_norm"] == 1.0


def test_names_are_readable_and_safe():
    assert (
        member_name({"attack": "large-noise:scale=10", "hidden": [16, 8]}) == "attack=large-noise:scale=10,hidden=16x8"
    )
    assert member_name({}) == "run"
    nasty = member_name({"attack": "../../etc"})
    assert "/" not in nasty and nasty != member_name({"attack": ".._.._etc"})
    assert len(member_name({"attack": "x" * 500})) < 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\nattak = ['none']", "did you mean 'attack'?"),
        ("[fixed]\nattack = 'none'\n[grid]\nattack = ['none']", "attack is in [fixed] and in [grid]"),
        ("[grid]\nattack = 'none'", "Expected `array`, got `str` - at `$.grid[...]`"),
        ("[grid]\nattack = []", "must be a list"),
        ("[grid]\nattack = ['none', 'none']", "lists a value twice"),
        ("grid = 3", "Expected `object`, got `int` - at `$.grid`"),
        ("checkpoint_every = true", "Expected `int | null`, got `bool` - at `$.checkpoint_every`"),
        ("checkpoint_every = 0", "checkpoint_every=0: must be a whole number of at least 1"),
        ("more = 3", "Object contains unknown field `more`"),
        ("preset = 'cartpole'", "preset is an option of the runs: write it below [fixed]"),
        ("[grid", "not readable as TOML"),
        ("a = " + "[" * 5000, "not readable as TOML"),
        ("# " + "x" * 2**20, "larger than"),
        ("[grid]\nseed = [" + "1," * 200 + "]\neta = [" + "1," * 200 + "]", "40000 members exceed the limit"),
    ],
)
def test_bad_files_are_refused_in_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    assert main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_sweep_needs_a_folder_and_a_file(file, tmp_path, capsys):
    assert main(["sweep", str(file)]) == 2 and "give --out DIR" in capsys.readouterr().err
    assert main(["sweep", str(tmp_path / "no.toml"), "--out", "x"]) == 2
    assert "cannot be read (No such file" in capsys.readouterr().err


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep whose third member was interrupted, and which was then run again."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "grid.toml").write_text(FILE)
    sweep, out = load_sweep(folder / "grid.toml"), folder / "out"

    def stop(folder, config, checkpoint):
        if config.seed == 7:
            raise Interrupted(folder, checkpoint.done, 15)

    save = checkpoints.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "save", lambda *a: (save(*a), stop(*a)))
        with pytest.raises(Interrupted):
            run_sweep(sweep, out, checkpoint_every=2)
    before = {name: (out / name / "metrics.npz").exists() for name in sweep.members}
    lines = []
    return sweep, out, before, run_sweep(sweep, out, checkpoint_every=2, log=lines.append), lines


def test_a_sweep_goes_on_and_survives_a_failing_member(swept):
    sweep, out, before, outcomes, lines = swept
    assert [outcome.status for outcome in outcomes] == ["finished", "failed", "finished", "failed"]
    assert "kappa='0': must be a number of rounds" in outcomes[1].note and not (out / outcomes[1].name).exists()
    assert before == {name: name == "seed=0,kappa=2" for name in sweep.members}
    assert sum("nothing to resume" in line for line in lines) == 1
    assert sum("at iteration 2 of" in line for line in lines) == 1
    alone = run(resolve(**sweep.members["seed=7,kappa=2"]))
    stored = jb.load_run(out / "seed=7,kappa=2")
    np.testing.assert_array_equal(stored.policy["last"], alone.policy["last"])
    np.testing.assert_array_equal(stored.metrics["returns"], alone.metrics["returns"])


def test_the_table_says_how_members_ended(swept, capsys):
    _, out, *_ = swept
    assert main(["sweep", str(out.parent / "grid.toml"), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert printed.endswith("2 finished, 2 failed\n")
    assert "seed=0,kappa=0: kappa='0': must be a number of rounds from 1 to 1000000, or 'theorem'\n" in printed
    assert main(["sweep", str(out.parent / "grid.toml"), "--out", str(out), "--quiet", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["members"]
    assert [len(row["return"] or []) for row in rows] == [2, 0, 2, 0]
    capsys.readouterr()
    assert main(["sweep", str(out.parent / "grid.toml"), "--out", str(out), "--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and all("kappa=0" in line for line in captured.err.splitlines()), "warnings and errors"
    assert "seed=0,kappa=0: failed (kappa='0': must be" in captured.err


def test_a_command_for_one_run_names_those_of_a_sweep(swept, capsys):
    _, out, *_ = swept
    names = f"{out / 'seed=0,kappa=2'}, {out / 'seed=7,kappa=2'}"
    for command in ("evaluate", "render", "resume"):
        assert main([command, str(out)]) == 2
        assert capsys.readouterr().err == f"jaxbyz: error: {out}: is a folder of runs; name one of them: {names}\n"


def test_a_run_of_another_configuration_is_kept(swept, file):
    _, out, *_ = swept
    file.write_text(FILE.replace("horizon = 8", "horizon = 9").replace("kappa = [2, 0]", "kappa = [2]"))
    kept = (out / "seed=0,kappa=2" / "metrics.npz").read_bytes()
    outcomes = run_sweep(load_sweep(file), out)
    assert all("another configuration" in outcome.note for outcome in outcomes)
    assert (out / "seed=0,kappa=2" / "metrics.npz").read_bytes() == kept


def test_members_share_a_program_only_if_it_is_the_same():
    """Seeds and lengths do not change the program; an initial policy that depends on the seed does, and so does a rule
    that is registered again."""

    def algorithm(**options):
        return make_plan(
            resolve(**{"horizon": 8, "hidden": (3,), "trajectories": 9, "eta_end": None, **options})
        ).algorithm

    assert algorithm() is algorithm(seed=7) is algorithm(seeds=2, trajectories=60, coin="own", output="best")
    assert algorithm(start="shared") is not algorithm(start="shared", seed=7)
    assert algorithm() is not algorithm(eta=0.5)

    def family(**options):
        options = {"preset": "cartpole-steady", "horizon": 8, "hidden": (3,), "trajectories": 9, **options}
        return make_plan(resolve(**options)).family

    assert family() is family(eta=0.5) is family(p=0.7) and family(eta_end=1e-4) is family(eta_end=1e-5, decay_over=3)
    assert family() is not family(p=1.0) and family() is not family(eta_end=1e-4) and family() is not family(N=10)
    before = algorithm(byzantine=1, aggregator="rfa")
    entry = jb.rules.aggregators["rfa"]
    jb.rules.aggregators.add("rfa", entry.factory, entry.summary, entry.limit)
    assert algorithm(byzantine=1, aggregator="rfa") is not before


SIDE_BY_SIDE = """
[fixed]
preset = "cartpole"
agents = 5
byzantine = 1
N = 2
horizon = 8
hidden = [3]
trajectories = 60
seeds = 2
[grid]
eta = [0.01, 0.03]
attack = ["avg-zero", "coupled-alie", "large-noise"]
"""


def test_members_side_by_side_have_the_results_of_members_alone(tmp_path, monkeypatch):
    """Six members that differ in step size and attack, one of which remembers, stopped in between and continued."""
    (tmp_path / "grid.toml").write_text(SIDE_BY_SIDE)
    sweep, batches, save = load_sweep(tmp_path / "grid.toml"), [], checkpoints.save
    monkeypatch.setattr("jaxbyz.runs.sweep.train", lambda batch, *rest: (batches.append(batch), train(batch, *rest))[1])

    def stop_after_all(*arguments):
        save(*arguments)
        if len(list((tmp_path / "out").glob("*/checkpoints/20.npz"))) == 6:
            raise Interrupted(arguments[0], 20, 15)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", stop_after_all)
        with pytest.raises(Interrupted):
            run_sweep(sweep, tmp_path / "out", checkpoint_every=20)
    outcomes = run_sweep(sweep, tmp_path / "out")
    assert [len(batch.members) for batch in batches] == [6, 6] and batches[1].members[0].done == 20
    assert len({batch.first.family.template for batch in batches}) == 1, "one program"
    assert [outcome.status for outcome in outcomes] == ["finished"] * 6
    configs = [resolve(**options) for options in sweep.members.values()]
    assert configs[3].eta_end == pytest.approx(configs[0].eta_end * 3), "a step size keeps its ratio to eta_end"
    for outcome, config in zip(outcomes, configs, strict=True):
        assert jb.load_run(tmp_path / "out" / outcome.name).config == config
        if config.attack == "coupled-alie" or config.eta == 0.03:
            alone = run(config)
            for name in ("returns", "gradient_norm"):
                found = outcome.experiment.metrics[name]
                np.testing.assert_allclose(found, alone.metrics[name], rtol=1e-3, atol=1e-4, err_msg=outcome.name)
            np.testing.assert_allclose(outcome.experiment.policy["last"], alone.policy["last"], rtol=1e-3, atol=1e-4)


def test_an_unexpected_error_is_kept_and_the_rest_runs(swept, tmp_path, monkeypatch):
    sweep, *_ = swept

    def broken(config, folder, *rest, **options):
        if config.seed == 0:
            folder.mkdir(parents=True)
            raise RuntimeError("out of memory\nmore")
        return ensure(config, folder, *rest, **options)

    monkeypatch.setattr("jaxbyz.runs.sweep.ensure", broken)
    outcomes = run_sweep(sweep, tmp_path / "out")
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "finished", "failed"]
    assert outcomes[0].note.startswith("RuntimeError: out of memory (see ")
    assert "Traceback" in (tmp_path / "out" / outcomes[0].name / "error.txt").read_text()


def test_two_sweeps_at_once_share_the_work(swept, tmp_path):
    """Each member is trained by one of them, and both succeed."""
    sweep, *_ = swept
    members = {name: options for name, options in sweep.members.items() if options["kappa"] == 2}
    sweep, out, ended = sweep._replace(members=members), tmp_path / "out", {}  # threads stand for processes here

    def work(name):
        ended[name] = run_sweep(sweep, out)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in members:
        jb.load_run(out / name)
    assert {outcome.status for outcomes in ended.values() for outcome in outcomes} <= {"finished", "elsewhere"}
    for a, b in zip(*ended.values(), strict=True):
        assert "finished" in (a.status, b.status)


def test_a_member_that_another_process_works_on_is_skipped(swept):
    sweep, out, *_ = swept
    with lock_folder(out / "seed=0,kappa=2"):
        outcomes = run_sweep(sweep, out)
    assert [outcome.status for outcome in outcomes] == ["elsewhere", "failed", "finished", "failed"]
    with pytest.raises(UsageError):
        run_sweep(sweep, out / "seed=0,kappa=2" / "metrics.npz")
