"""A federation of processes computes what the simulation computes, and survives nodes that lie, stall and die.

Here nodes are threads, so that they share compiled programs. `test_federation_processes.py` runs real processes.
"""

from __future__ import annotations

import json
import shutil
import threading
import time

import numpy as np
import pytest

pytest.importorskip("zmq")

from federation_chaos import Chaos
from federation_helpers import PATIENT, Threads, simulated, small_config

import jaxbyz as jb
from jaxbyz.components import make_attack
from jaxbyz.errors import UsageError
from jaxbyz.federation import inbox, keys, launcher, process
from jaxbyz.federation.inbox import Stopped
from jaxbyz.federation.membership import common_iteration
from jaxbyz.federation.programs import build_programs
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.report.runs import load_runs
from jaxbyz.runs.plan import make_plan

SEVEN = {"agents": 7, "byzantine": 1, "aggregator": "krum", "agreement": "gda"}
FIVE = {"agents": 5, "byzantine": 1, "aggregator": "krum", "agreement": "mda", "p": 1.0, "trajectories": 40}
CRITICS = {"p": 1.0, "trajectories": 40, "baseline": "critic", "critic_hidden": (4,), "critic_steps": 2, "epochs": 2}


@pytest.fixture(scope="module")
def seven():
    """The programs of seven nodes, of which one may be Byzantine."""
    return build_programs(small_config(**SEVEN))


@pytest.fixture(scope="module")
def five():
    """The programs of five nodes that compile quickly: always large batches, and nothing for messages that are late."""
    programs = build_programs(small_config(**FIVE))
    return programs._replace(sizes=frozenset({5}))


def with_length(programs, config):
    return programs._replace(plan=make_plan(config))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "faults", "aggregator", "agreement"),
    [
        *((4, 0, aggregator, agreement) for aggregator in ("rfa", "krum") for agreement in ("mda", "gda")),
        *((7, 1, aggregator, agreement) for aggregator in ("rfa", "krum") for agreement in ("mda", "gda")),
        (7, 1, "bucketing+rfa", "gda"),
    ],
)
def test_nodes_compute_what_the_simulation_computes(tmp_path, agents, faults, aggregator, agreement):
    config = small_config(agents=agents, byzantine=faults, aggregator=aggregator, agreement=agreement)
    assert_equal_to_simulation(Threads(tmp_path, config).join(), config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        CRITICS,
        {**CRITICS, "minibatches": 2, "advantages": "normalised", "entropy": 0.01, "agreement": "none"},
        {"p": 0.5, "baseline": "critic", "critic_hidden": (4,), "critic_steps": 2},
        {
            "agents": 7,
            "byzantine": 1,
            "assumed_byzantine": 2,
            "aggregator": "rfa",
            "agreement": "trimmed-mean",
            "momentum": 0.9,
        },
        {"env_agents": '{"gravity": [9.0, 9.4, 9.8, 10.2]}', "start": "shared", "previous": "own"},
        {**CRITICS, "agents": 5, "byzantine": 1, "aggregator": "memory+rfa", "agreement": "trimmed-mean"},
    ],
    ids=[
        "critics, two epochs",
        "minibatches",
        "critics, small batches",
        "momentum and a misjudged f",
        "values per agent",
        "memory of senders",
    ],
)
def test_nodes_compute_what_the_simulation_computes_with_options(tmp_path, options):
    config = small_config(**{"agents": 4, **options})
    assert_equal_to_simulation(Threads(tmp_path, config).join(), config)


def assert_equal_to_simulation(federation, config, nodes=None):
    assert federation.errors == {}, federation.lines
    assert federation.nodes[0].form.iterations >= 20
    nodes = range(config.agents) if nodes is None else nodes
    np.testing.assert_allclose(federation.parameters(nodes), simulated(config)[list(nodes)], rtol=0, atol=1e-5)


def assert_nothing_was_missed(federation):
    """Every message was used, and only copies were refused: a node that waits for a second repeats its messages."""
    for node in federation.nodes.values():
        assert node.record.rows["missing"].sum() == 0
        assert node.others.inbox.refused.keys() <= {"repeated", "late", "old"}, node.others.inbox.refused


def test_five_nodes_compute_what_the_simulation_computes_and_are_read_as_one_run(tmp_path, five, monkeypatch):
    monkeypatch.setattr("jaxbyz.federation.node.PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("jaxbyz.federation.records.LOG_BURST", 10**6)
    config = small_config(**FIVE)
    federation = Threads(tmp_path / "fed", config, programs=five).join()
    assert_equal_to_simulation(federation, config)
    assert_nothing_was_missed(federation)
    assert any("node 0: running, iteration 3 of 20; the latest return is " in line for line in federation.lines)
    (run,) = load_runs([tmp_path])
    T, D = federation.nodes[0].form.iterations, federation.nodes[0].form.parameters
    assert run.config == config and run.policy["last"].shape == (1, 5, D)
    np.testing.assert_array_equal(run.policy["last"][0], federation.parameters())
    assert run.metrics["returns"].shape == (1, T) and np.isfinite(run.metrics["returns"]).all()
    assert run.metrics["diameter"].max() < 1e-3 and run.metrics["byzantine"].sum() == 0
    np.testing.assert_allclose(run.metrics["shares"].sum(axis=2), 1, rtol=1e-5)
    # Every node sends four vectors per round; the paper counts the one to itself as well.
    assert (run.metrics["rounds"] == 2).all() and (run.metrics["bytes_sent"] == 3 * 5 * 5 * 4 * D).all()
    assert run.metrics["bytes_moved"].sum() >= run.metrics["bytes_sent"].sum() * 4 / 5
    assert (tmp_path / "fed" / "node-03" / "metrics.npz").exists()


@pytest.mark.slow
def test_copies_of_messages_change_nothing(tmp_path, five, monkeypatch):
    monkeypatch.setattr(inbox, "REPEAT_SECONDS", 0.001)
    monkeypatch.setattr(inbox, "LOOK_SECONDS", 0.001)
    config = small_config(**FIVE)
    federation = Threads(tmp_path, config, programs=five).join()
    assert_equal_to_simulation(federation, config)
    assert_nothing_was_missed(federation)
    assert all(node.others.inbox.refused["late"] > 0 for node in federation.nodes.values())


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["avg-zero", "alie"])
def test_a_rushing_liar_does_what_the_simulation_does(tmp_path, seven, attack):
    """One liar knows all that the simulated adversary knows, so the honest nodes end where the simulation ends."""
    config = small_config(**SEVEN, attack=attack)
    settings = {6: NodeSettings(attack=attack, floor=PATIENT)}
    programs = {6: seven._replace(attack=make_attack(attack, 7, 1))}
    federation = Threads(tmp_path, config, settings, seven, own_programs=programs).join()
    assert_equal_to_simulation(federation, config, range(6))


@pytest.mark.slow
def test_a_node_that_lost_everything_joins_again(tmp_path, seven):
    config = small_config(**SEVEN, trajectories=80)
    settings = {i: NodeSettings(slow=0.01, floor=1.0) for i in range(7)}
    federation = Threads(tmp_path, config, settings, with_length(seven, config))
    wait_until(lambda: federation.nodes[3].t >= 4)
    federation.stop(3)
    left = federation.nodes[3].t
    assert isinstance(federation.errors.pop(3), Stopped)
    shutil.rmtree(tmp_path / "node-03" / "checkpoints")
    wait_until(lambda: federation.nodes[0].t >= left + 5)
    federation.start(3)
    federation.join()
    assert federation.errors == {}, federation.lines
    assert federation.nodes[3].rejoined >= 1
    parameters = federation.parameters()
    assert np.abs(parameters - parameters[0]).max() < 1e-3
    (run,) = load_runs([tmp_path])
    assert run.metrics["took_part"].min() <= 6 and run.metrics["diameter"][0, -1] < 1e-3


@pytest.mark.slow
def test_a_stopped_federation_continues_from_its_checkpoints(tmp_path):
    """Nodes that stopped at different iterations go back to one that all of them have, with the critics they had."""
    config = small_config(**{**FIVE, **CRITICS, "trajectories": 60})
    programs = build_programs(config)
    settings = {i: NodeSettings(slow=0.005, checkpoint_every=5, floor=PATIENT) for i in range(5)}
    federation = Threads(tmp_path, config, settings, programs)
    wait_until(lambda: federation.nodes[0].t >= 12)
    for index in range(5):
        federation.stops[index].set()
    federation.join()
    assert all(isinstance(error, Stopped) for error in federation.errors.values()) and len(federation.errors) == 5
    again = Threads(tmp_path, config, settings, programs).join()
    assert_equal_to_simulation(again, config)
    assert not any("starting at iteration 0" in line for line in again.lines)


def test_iteration_to_start_at():
    assert common_iteration([(40, 20), (40, 20), (40, 20), (60, 40)], 4, 0) == 40
    assert common_iteration([(12, 0), (12, 0), (12, 0), (13, 0), (13, 0)], 5, 1) == 12
    assert common_iteration([(12, 0), (13, 0), (14, 0), (15, 0), (10**6, 10**6)], 5, 1) == 0
    assert common_iteration([(0, 0)] * 4, 4, 1) == 0


@pytest.mark.slow
def test_a_node_that_breaks_the_protocol_changes_nothing(tmp_path, seven):
    config = small_config(**SEVEN, trajectories=40)
    programs = with_length(seven, config)
    settings = {i: NodeSettings(start_wait=0.0, floor=1.0, slow=0.02) for i in range(6)}
    federation = Threads(tmp_path, config, settings, programs, only=range(6))
    identity = keys.read_identity(tmp_path / "node-06", federation.federation)
    done = threading.Event()
    chaos = Chaos(federation.federation, identity, federation.nodes[0].form, done.is_set, seconds=60)
    counts: dict[str, int] = {}
    thread = threading.Thread(target=lambda: counts.update(chaos.run()), daemon=True)
    thread.start()
    federation.join()
    done.set()
    thread.join(30)
    assert federation.errors == {}, federation.lines
    assert sum(counts.values()) > 10
    parameters = federation.parameters()
    assert np.isfinite(parameters).all() and np.abs(parameters - parameters[0]).max() < 1e-2
    refused = sum((node.others.inbox.refused for node in federation.nodes.values()), start=type(chaos.counts)())
    assert sum(refused.values()) > 10 and refused.keys() - {"late", "old", "early", "repeated"}
    # Honest nodes are never blamed for what the other one sends in their names.
    for node in federation.nodes.values():
        heard, usual = node.others.inbox, ("late", "old", "early", "repeated")
        assert heard.refused_of[6] >= sum(n for reason, n in heard.refused.items() if reason not in usual)


def wait_until(condition, seconds=500):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


# Mistakes that are found before anything is trained


def meeting(tmp_path, seven, nodes, **settings):
    settings = {i: NodeSettings(start_wait=600, **settings) for i in range(7)}
    return Threads(tmp_path, small_config(**SEVEN), settings, seven, only=nodes)


def first_error(federation, index):
    federation.threads[index].join(60)
    error = federation.errors[index]
    assert isinstance(error, UsageError) and "\n" not in str(error)
    assert federation.nodes[index].t == 0
    return str(error)


@pytest.mark.slow
def test_another_configuration_is_refused(tmp_path, seven):
    others = meeting(tmp_path, seven, [1, 2, 3])
    path = tmp_path / "node-00" / "federation.json"
    values = json.loads(path.read_text())
    values["config"]["gamma"] /= 2
    path.write_text(json.dumps(values))
    changed = keys.read_federation(tmp_path / "node-00")
    assert changed != others.federation
    others.federation = changed
    others.start(0)
    assert "have another configuration than" in first_error(others, 0)
    for index in (1, 2, 3):
        assert list(others.nodes[index].others.inbox.strangers) == [0]  # one node can lie, so they do not stop
        others.stop(index)


@pytest.mark.slow
def test_another_version_is_refused(tmp_path, seven):
    federation = meeting(tmp_path, seven, [1, 2])
    for node in federation.nodes.values():
        node.others.version = "9.9.9"
    federation.start(0)
    assert f"nodes 1, 2 run jaxbyz 9.9.9, this node {jb.__version__}" in first_error(federation, 0)
    federation.stop(1)
    federation.stop(2)


@pytest.mark.slow
def test_two_processes_with_one_identity_are_refused(tmp_path, seven):
    federation = meeting(tmp_path, seven, [0, 1, 2, 3])
    wait_until(lambda: all(len(federation.nodes[i].others.inbox.hellos) == 3 for i in range(4)))
    (port,) = launcher._free_ports(1)
    copied = Threads(tmp_path, small_config(**SEVEN), {0: NodeSettings(bind=f"127.0.0.1:{port}")}, seven, only=[0])
    wait_until(lambda: federation.errors or copied.errors)
    errors = [*federation.errors.values(), *copied.errors.values()]
    assert "another process speaks as node 0" in str(errors[0])
    for threads in (federation, copied):
        for index in threads.threads:
            threads.stop(index)


def test_a_node_runs_once_per_folder(tmp_path, five):
    federation = Threads(tmp_path, small_config(**FIVE), programs=five, only=[])
    from jaxbyz.runs.folder_lock import lock_folder

    own = tmp_path / "node-02"
    with lock_folder(own), pytest.raises(UsageError, match="another process is running this node"):
        process.run_node(own, NodeSettings(), print)
    with pytest.raises(UsageError, match="accomplices: node 9"):
        process.run_node(own, NodeSettings(accomplices=(9,)), print)
    assert federation.nodes == {}
