"""What nodes write into their folders, and strange things that others may have put there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("zmq")

from federation_helpers import small_config

from jaxbyz.cli import main
from jaxbyz.errors import UsageError
from jaxbyz.federation import keys, launcher
from jaxbyz.federation.records import Checkpoints, NodeRecord, StatusFile
from jaxbyz.federation.results import load_federation
from jaxbyz.report.findings import findings
from jaxbyz.runs import run_folder
from jaxbyz.runs.folder_lock import lock_folder
from jaxbyz.runs.plan import make_plan
from jaxbyz.runs.state_file import write_state

GOOD = {"time": time.time(), "node": 0, "phase": "running", "iteration": 3, "iterations": 9, "attack": "none"}
STRANGE = [
    "[]", "{", '{"phase": 3}', '{"node": 0}', "[" * 5000, "9" * 5000,
    json.dumps({**GOOD, "phase": "\x1b[31mred"}), json.dumps({**GOOD, "iteration": "\x1b[2J"}),
    json.dumps({**GOOD, "attack": "\x1b]0;title\x07"}), json.dumps({**GOOD, "suspected": "none"}),
    json.dumps({**GOOD, "refused": [1]}), json.dumps({**GOOD, "return": "1e3"}),
    json.dumps({**GOOD, "bytes_in": None}), json.dumps({**GOOD, "time": "now"}), json.dumps({**GOOD, "node": 7}),
    json.dumps({**GOOD, "deadlines": {"\r\n": 1}}), json.dumps({**GOOD, "refused": {"x": -(10**400)}}),
]  # fmt: skip


@pytest.fixture(scope="module")
def config():
    return small_config(agents=3)


@pytest.fixture
def folder(tmp_path, config):
    keys.write_federation(tmp_path / "fed", config, launcher._addresses(3, (), None), False)
    return tmp_path / "fed"


@pytest.mark.parametrize("text", STRANGE, ids=range(len(STRANGE)))
def test_a_strange_status_is_unreadable(folder, capsys, text):
    (folder / "node-00" / "status.json").write_text(text)
    assert main(["federation", "status", str(folder)]) == 0
    output = capsys.readouterr().out
    assert "unreadable status" in output and output.count("not started") == 2
    assert all(c.isprintable() or c == "\n" for c in output)
    assert main(["report", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "no honest node has finished" in error and error.count("\n") == 1


def test_the_status_says_who_is_not_trusted_why_and_since_when(folder, capsys):
    suspected = {"state": "suspected", "why": "is silent", "since": 1e9}
    excluded = {"state": "excluded", "why": "two different messages for one round", "since": 1e9, "iteration": 12,
                "round": 1, "proof": True, "shown_by": 0}  # fmt: skip
    for node, doubts in ((0, {"2": excluded}), (1, {"2": excluded, "0": suspected})):
        status = {**GOOD, "node": node, "doubts": doubts, "scores": {"0": 1.0, "2": 0.125} if node else {}}
        (folder / f"node-{node:02d}" / "status.json").write_text(json.dumps(status))
    assert main(["federation", "status", str(folder)]) == 0
    output = capsys.readouterr().out
    assert "node 0 is suspected by 1: is silent, since 2001-09-" in output
    why = "two different messages for one round, iteration 12, round 1"
    proof = "(proof: proofs/2.bin in the folder of the node), since 2001-09-"
    assert f"node 2 is excluded by 0, 1: {why} {proof}" in output
    assert (
        "the rule of node 1 trusts nodes as follows: 0: 1.00, 2: 0.12" in output and "the rule of node 0" not in output
    )
    (folder / "node-00" / "status.json").write_text(json.dumps({**GOOD, "doubts": {"2": {**excluded, "why": "\x1b["}}}))
    assert launcher.statuses(folder)[0]["phase"] == "unreadable status"


def test_a_status_that_is_no_file_is_unreadable(folder):
    os.mkfifo(folder / "node-00" / "status.json")
    (folder / "node-01" / "status.json").mkdir()
    (folder / "node-02" / "status.json").symlink_to("status.json")
    phases = [status["phase"] for status in launcher.statuses(folder)]
    assert phases == ["unreadable status", "unreadable status", "unreadable status"]


def test_a_node_whose_process_is_gone_was_killed(folder):
    own = folder / "node-00"
    (own / "status.json").write_text(json.dumps({**GOOD, "time": time.time() - 13}))
    assert launcher.statuses(folder)[0]["phase"] == "killed"
    with lock_folder(own):
        assert launcher.statuses(folder)[0]["phase"] == "running"
    (own / "status.json").write_text(json.dumps({**GOOD, "time": time.time()}))
    assert launcher.statuses(folder)[0]["phase"] == "running"


def test_a_status_that_cannot_be_written_is_one_line_and_no_end(tmp_path):
    lines: list[str] = []
    status = StatusFile(tmp_path / "missing", lines.append)
    for _ in range(3):
        status.write(lambda: GOOD, now=True)
    assert len(lines) == 1 and "going on without it" in lines[0]


def test_a_node_follows_no_links_in_its_folder(folder, tmp_path):
    own, target = folder / "node-00", tmp_path / "target"
    target.mkdir()
    (target / "5.npz").write_text("precious")
    (own / "checkpoints").symlink_to(target)
    checkpoints = Checkpoints(own, "mine")
    with pytest.raises(UsageError, match="is a link"):
        checkpoints.remove_all()
    with pytest.raises(UsageError, match="is a link"):
        checkpoints.save(1, {}, None)
    (target / "log").write_text("precious\n")
    (own / "log.txt").symlink_to(target / "log")
    with pytest.raises(UsageError, match=r"log\.txt: cannot be written"):
        launcher.start_node(folder, 0)
    assert launcher.last_line(own) == "no log"
    assert (target / "5.npz").read_text() == "precious" and (target / "log").read_text() == "precious\n"


def test_the_last_line_of_a_log_has_no_control_characters(tmp_path):
    (tmp_path / "log.txt").write_bytes(b"x" * 10_000 + b"\n\x1b[31mred \xff\n")
    assert launcher.last_line(tmp_path) == "?[31mred \N{REPLACEMENT CHARACTER}"


def test_nodes_import_nothing_from_the_current_folder(folder, tmp_path, monkeypatch):
    (tmp_path / "jaxbyz.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    process = launcher.start_node(folder, 0, ["--nonsense"])
    assert process.wait(60) == 2
    assert "nonsense" in launcher.last_line(folder / "node-00")


def test_a_run_whose_nodes_end_without_results_has_failed(folder, monkeypatch):
    monkeypatch.setattr(launcher, "start_node", lambda *_: subprocess.Popen([sys.executable, "-c", ""]))
    lines: list[str] = []
    assert launcher.run_all(folder, {}, None, lambda: 0, lines.append) == 1
    assert sum("ended with code 0" in line for line in lines) == 3


# Damaged checkpoints and results


def test_damaged_checkpoints_are_one_line(tmp_path, config):
    plan = make_plan(config)
    record, checkpoints = NodeRecord(plan, 3, 4), Checkpoints(tmp_path, "mine")
    state = {"parameters": np.arange(4.0, dtype=np.float32)}
    checkpoints.save(3, state, record)
    path, good = tmp_path / "checkpoints" / "3.npz", (tmp_path / "checkpoints" / "3.npz").read_bytes()

    def texts():
        np.savez(path, description=np.array('{"format":2,"owner":"mine","digest":"0"}'), x=np.array(["text"]))

    def objects():
        np.savez(path, description=np.array([{}], dtype=object))

    def other_kind():
        write_state(path, {"state/parameters": np.zeros((2, 2))}, "mine")

    for spoil in (
        lambda: path.write_bytes(good[:100]), lambda: path.write_bytes(b""), lambda: path.write_bytes(b"\0" * 99),
        lambda: path.write_bytes(good[:-30] + bytes(30)), lambda: path.unlink(), texts, objects, other_kind,
        lambda: np.savez(path, description=np.array("[1]")), lambda: np.savez(path, description=np.zeros(3)),
    ):  # fmt: skip
        spoil()
        with pytest.raises(UsageError) as error:
            checkpoints.load(3, state, record)
        assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def finished(config):
    """The metrics and policies of a node that has finished."""
    plan = make_plan(config)
    record = NodeRecord(plan, 3, plan.algorithm.policy.size)
    for name in ("returns", "length", "ess", "gradient_norm", "shares", "max_weight", "bytes_out"):
        record.rows[name][:] = 1.0
    policy = {name: np.ones((1, 1, plan.algorithm.policy.size), np.float32) for name in ("last", "sampled", "best")}
    return record.metrics(2, 100.0), policy


def write_nodes(finished, folder, config):
    metrics, policy = finished
    T, D = metrics["returns"].shape[1], policy["last"].shape[2]
    for i in range(3):
        own = folder / f"node-{i:02d}"
        run_folder.write_start(own, config)
        run_folder.write_results(own, metrics, policy)
        np.savez(own / "parameters.npz", parameters=np.zeros((T, D), np.float32))
        doubts = {"2": {"state": "suspected", "why": "is silent", "since": 1e9}} if i == 1 else {}
        (own / "status.json").write_text(json.dumps({**GOOD, "node": i, "phase": "finished", "doubts": doubts}))


def test_strange_results_of_a_node_are_one_line(finished, folder, config):
    metrics, one = finished
    write_nodes(finished, folder, config)
    run = load_federation(folder)
    assert run.metrics["returns"].shape == metrics["returns"].shape
    (line,) = run.record["trust"]
    assert "node 2 is suspected by 1: is silent" in line and findings([run])[-1] == f"{line}."
    own = folder / "node-01"

    def huge():
        run_folder.write_results(own, {**metrics, "returns": np.full_like(metrics["returns"], 1e30)}, one)

    def shorter():
        run_folder.write_results(own, {name: values[:, :-1] for name, values in metrics.items()}, one)

    cases = [
        lambda: np.savez(own / "parameters.npz", other=np.zeros(3)),
        lambda: np.savez(own / "parameters.npz", parameters=np.zeros(3)),
        lambda: np.savez(own / "parameters.npz", parameters=np.array([["a"]])),
        lambda: np.savez(own / "parameters.npz", parameters=np.zeros((1, 1))),
        lambda: (own / "parameters.npz").unlink(),
        lambda: run_folder.write_results(own, metrics, {name: values[:, :, 1:] for name, values in one.items()}),
        lambda: (own / "policy.npz").unlink(),
        lambda: run_folder.write_config(own, replace(config, env="Acrobot-v1")),
        lambda: run_folder.write_config(own, replace(config, gamma=0.5)),
        huge, shorter,
    ]  # fmt: skip
    for spoil in cases:
        write_nodes(finished, folder, config)
        spoil()
        with pytest.raises(UsageError) as error:
            load_federation(folder)
        assert "\n" not in str(error.value)
