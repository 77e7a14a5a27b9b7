"""The commands `federation` and `node`, with real processes where it says slow."""

from __future__ import annotations

import json
import signal
import time

import pytest
from helpers import finish, flags, spawn

pytest.importorskip("zmq")

from federation_helpers import QUICK

from jaxbyz.cli import main
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
        (["federation", "run", "{fed}", "--attack", "9=chaos"], "node 9 must be from 0 to 3"),
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
    assert launcher.node_options(federation, {1: "chaos"}, None)[1] == ["--attack", "chaos"]


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
    try:
        wait_until(lambda: iteration(folder, 3) > 10)
        process = next(p for p in processes_of(victim))
        signal_process(process, signal.SIGKILL)
        before = iteration(folder, 0)
        again = spawn("-m", "jaxbyz", "node", str(victim), "--checkpoint-every", "5")
        wait_until(lambda: iteration(folder, 0) > before + 20)
        finish(again)
        output, _ = running.communicate(timeout=600)
    finally:
        running.terminate()
    assert "node 3 ended with code -9" in output
    (run,) = load_runs([folder])
    assert run.metrics["byzantine"][0, -1].nonzero()[0].tolist() == [8]
    assert run.metrics["diameter"][0, -1] < 1e-3 and run.metrics["took_part"].min() < 8
    assert run.metrics["byzantine_weight"][0].max() < 0.01


def iteration(folder, node):
    return launcher.statuses(folder)[node].get("iteration", -1)


def wait_until(condition, seconds=400):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def processes_of(folder):
    """The numbers of the processes that run this node, found by their whole command line."""
    from pathlib import Path

    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(folder).encode() in words:
                yield int(entry.name)


def signal_process(number, what):
    import os

    os.kill(number, what)
