"""The commands `federation` and `node`, with real processes where it says slow."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from helpers import ROOT, finish, flags, spawn

pytest.importorskip("zmq")

sys.path.insert(0, str(ROOT / "benchmarks" / "federation"))

from federation_helpers import QUICK
from trial import Trial

from jaxbyz.cli import main
from jaxbyz.configuration.resolving import resolve
from jaxbyz.federation import keys, launcher
from jaxbyz.report.runs import load_runs


@pytest.fixture(scope="module")
def created(tmp_path_factory):
    folder = tmp_path_factory.mktemp("created") / "fed"
    assert main(["federation", "create", str(folder), *flags({**QUICK, "agents": 4})]) == 0
    return folder


def test_status_of_a_federation_that_has_not_started(created, capsys):
    assert main(["federation", "status", str(created)]) == 0
    assert capsys.readouterr().out.count("not started") == 4
    assert main(["federation", "status", str(created), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["nodes"]) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["federation", "create", "{fed}", "--agents", "4"], "holds a federation already"),
        (["federation", "create", "{fed}-2", "--agents", "2", "--hosts", "a"], "hosts: 1 given for agents=2"),
        (["federation", "create", "{fed}-2", "--algorithm", "byzpg"], "algorithm=byzpg"),
        (["federation", "run", "{fed}", "--attack", "noise"], "must be NODE=NAME"),
        (["federation", "run", "{fed}", "--attack", "9=large-noise"], "node 9 must be from 0 to 3"),
        (["federation", "status", "{fed}/node-00/nothing"], "no federation here"),
        (["node", "{fed}"], "not the folder of a node"),
        (["node", "{fed}/node-00", "--accomplices", "x"], "accomplices='x'"),
        (["node", "{fed}/node-00", "--attack", "nonsense"], "nonsense"),
        (["report", "{fed}"], "no honest node has finished"),
    ],
)
def test_mistakes_are_one_line(created, capsys, words, message):
    assert main([word.replace("{fed}", str(created)) for word in words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_byzantine_nodes_of_the_configuration_are_the_last_ones(created):
    federation = keys.read_federation(created)
    config = federation.config.__class__(agents=4, byzantine=2, attack="alie")
    options = launcher.node_options(federation._replace(config=config), {}, 10)
    assert options[0] == ["--checkpoint-every", "10"]
    assert options[3] == ["--attack", "alie", "--accomplices", "2"]
    assert launcher.node_options(federation, {1: "alie"}, None)[1] == ["--attack", "alie"]


@pytest.mark.slow
def test_a_federation_of_processes_with_a_liar_and_a_killed_node(tmp_path):
    """Nine processes for f = 2: one sends large noise, one is killed and started again; the others never stop."""
    folder = tmp_path / "fed"
    options = {**QUICK, "agents": 9, "byzantine": 2, "trajectories": 3000}
    finish(spawn("-m", "jaxbyz", "federation", "create", str(folder), *flags(options)))
    running = spawn(
        "-m", "jaxbyz", "federation", "run", str(folder), "--attack", "8=large-noise", "--checkpoint-every", "5"
    )
    victim = folder / "node-03"
    wait_until(lambda: iteration(folder, 3) > 10)
    os.kill(next(processes_of(victim)), signal.SIGKILL)
    before = iteration(folder, 0)
    again = spawn("-m", "jaxbyz", "node", str(victim), "--checkpoint-every", "5")
    wait_until(lambda: iteration(folder, 0) > before + 20)
    finish(again)
    output = finish(running, code=1)  # one of the processes that it started was killed
    assert "node 3 ended with code -9" in output
    (run,) = load_runs([folder])
    assert run.metrics["byzantine"][0, -1].nonzero()[0].tolist() == [8]
    assert run.metrics["diameter"][0, -1] < 1e-3 and run.metrics["took_part"].min() < 8
    assert run.metrics["byzantine_weight"][0].max() < 0.01


@pytest.fixture
def trial(tmp_path):
    """Five running processes for f = 1, with critics and links that can be cut."""
    options = {**QUICK, "p": 1.0, "baseline": "critic", "critic_hidden": (4,), "critic_steps": 2, "epochs": 2}
    trial = Trial(
        tmp_path / "fed", resolve(**{**options, "agents": 5, "byzantine": 1, "trajectories": 40_000}),
        cuttable=True, checkpoint_every=5,
    )  # fmt: skip
    try:
        trial.start_all()
        yield trial
    finally:
        trial.end()


@pytest.mark.slow
def test_each_fault_of_a_node_is_survived(trial):
    """Node 3 is killed, loses its disk, is frozen, cut off and slow in turn: the others go on, and it comes back."""

    def others_go_on(iterations=10):
        before = [trial.iteration(i) for i in range(3)]
        assert trial.wait_for(lambda: all(trial.iteration(i) > before[i] + iterations for i in range(3)), 300)

    others_go_on()
    for start_again in (lambda: None, lambda: trial.lose_disk(3)):
        trial.kill(3)
        others_go_on()
        start_again()
        trial.start(3)
        assert trial.back(3)
    trial.freeze(3)
    others_go_on()
    trial.thaw(3)
    assert trial.back(3)
    trial.network.split([3])
    others_go_on()
    alone = trial.iteration(3)
    others_go_on()
    assert trial.iteration(3) <= alone + 1, "a node that hears nobody goes on"
    trial.network.heal()
    assert trial.back(3)
    # Without K − f nodes on either side nobody goes on, and nothing is lost.
    trial.network.split([3, 4])
    time.sleep(5)
    before = [trial.iteration(i) for i in range(5)]
    time.sleep(5)
    assert [trial.iteration(i) for i in range(5)] == before
    trial.network.heal()
    others_go_on()
    assert trial.back(3)
    trial.kill(3)
    trial.options[3] += ["--slow", "0.7"]  # longer than the deadlines
    trial.start(3)
    assert trial.wait_for(lambda: trial.phase(3) == "running", 200)
    others_go_on()
    assert trial.alive() == [0, 1, 2, 3, 4]
    trial.processes[3].kill()
    t, diameter = trial.diameter([0, 1, 2])
    assert t > 50 and diameter < 1e-3
    for node in range(3):
        status = trial.status(node)
        assert not {"format", "length", "sender", "dtype", "position"} & status["refused"].keys()
        assert status["longest_overrun"] < 5, "it waited longer than its deadline"


def iteration(folder, node):
    return launcher.statuses(folder)[node].get("iteration", -1)


def wait_until(condition, seconds=1200):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def processes_of(folder):
    """The numbers of the processes that run this node, found by their whole command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(folder).encode() in words:
                yield int(entry.name)
