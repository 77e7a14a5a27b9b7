"""Nodes that replay each other's iterations, and the liars that they find out."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("zmq")

from federation_helpers import Threads, small_config

from jaxbyz.components import make_attack
from jaxbyz.errors import UsageError
from jaxbyz.federation import auditor, keys
from jaxbyz.federation.evidence import FALSE_ACCUSATION, NOT_AUDITABLE, UNREPRODUCED
from jaxbyz.federation.frames import AUDIT
from jaxbyz.federation.inbox import Collected
from jaxbyz.federation.launcher import create
from jaxbyz.federation.lines import Lines
from jaxbyz.federation.node import Node
from jaxbyz.federation.programs import build_programs
from jaxbyz.federation.replay import Finding, Verdict, salt_of
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.federation.state_vectors import from_whole_state, whole_state
from jaxbyz.federation.status import trust_lines

AUDITED = {"agents": 5, "byzantine": 1, "aggregator": "krum", "agreement": "mda", "audit": 0.5}
HONEST, LIAR = [0, 1, 2, 3], 4


@pytest.fixture(scope="module")
def config():
    return small_config(**AUDITED, trajectories=100_000)


@pytest.fixture(scope="module")
def five(config):
    return build_programs(config)


class Trial:
    """A federation whose last node is prepared before it runs, until a condition holds."""

    def __init__(self, folder, config, programs, prepare=lambda node: None, **options):
        K = config.agents
        settings = {i: NodeSettings(start_wait=5.0, floor=2.0) for i in range(K)} | options.pop("settings", {})
        self.federation = Threads(folder, config, settings, programs, only=range(K - 1), **options)
        self.federation.start(K - 1, prepare=prepare)
        self.nodes = self.federation.nodes

    def until(self, condition, seconds=120):
        limit = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < limit, (self.federation.errors, self.federation.lines[-20:])
            time.sleep(0.01)

    def end(self):
        for stop in self.federation.stops.values():
            stop.set()
        self.federation.join(60)

    def excluded(self, by):
        return {node: one.reason for node, one in self.nodes[by].others.evidence.excluded.items()}


def counting(node, found):
    """Count the verdicts of a node."""
    judge = node.auditor._judge

    def counted(*arguments):
        finding = judge(*arguments)
        found.append(finding.verdict)
        return finding

    node.auditor._judge = counted


def test_honest_nodes_are_audited_and_nobody_is_accused(tmp_path, config, five):
    found = []
    trial = Trial(tmp_path, config, five, lambda node: counting(node, found))
    trial.until(lambda: found.count(Verdict.HONEST) >= 5)
    trial.end()
    assert set(found) <= {Verdict.HONEST, Verdict.UNKNOWN} and found.count(Verdict.UNKNOWN) <= len(found) / 2
    for node in trial.nodes.values():
        assert not node.others.evidence.excluded and not any(node.auditor.refusals.values())
    assert isinstance(trial.nodes[0], auditor.AuditedNode)


@pytest.mark.parametrize("attack", ["alie", pytest.param("ipm:on=parameters", marks=pytest.mark.slow)])
def test_forged_messages_are_found_out_and_everybody_excludes_the_liar(tmp_path, config, five, attack):
    lying = five._replace(attack=make_attack(attack, 5, 1))
    settings = {LIAR: NodeSettings(attack, floor=2.0)}
    trial = Trial(tmp_path, config, five, settings=settings, own_programs={LIAR: lying})
    trial.until(lambda: all(trial.excluded(i) == {LIAR: UNREPRODUCED} for i in HONEST))
    goal = trial.nodes[0].t + 5
    trial.until(lambda: trial.nodes[0].t > goal)
    trial.end()
    (line,) = trust_lines([node.status() for node in trial.nodes.values() if node.index != LIAR])
    assert line.startswith(f"node {LIAR} is excluded by 0, 1, 2, 3: {UNREPRODUCED}, iteration ")
    assert f"proof: proofs/{LIAR}.bin" in line
    # The exclusion outlives the process.
    again = trial.nodes[0].others.evidence
    again.excluded.clear()
    again.read()
    assert trial.excluded(0) == {LIAR: UNREPRODUCED}


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["random-action", "reward-flip:scale=1.5"])
def test_attacks_in_the_environment_are_lies(tmp_path, config, five, attack):
    """The liar computes its message as prescribed, from trajectories that its random keys do not lead to."""
    settings = {LIAR: NodeSettings(attack, floor=2.0)}
    trial = Trial(tmp_path, config, five, settings=settings, own_programs={LIAR: build_programs(config, attack)})
    trial.until(lambda: all(trial.excluded(i) == {LIAR: UNREPRODUCED} for i in HONEST))
    trial.end()


def test_a_node_that_changes_its_state_between_iterations_is_found_out(tmp_path, config, five):
    def tamper(node):
        commit = node.auditor.commit

        def commit_to_another_state(t, state, known):
            node.state = state._replace(estimate=2.0 * state.estimate)
            commit(t, node.state, known)

        node.auditor.commit = commit_to_another_state
        node.auditor.work = lambda t: None

    trial = Trial(tmp_path, config, five, tamper)
    trial.until(lambda: all(trial.excluded(i) == {LIAR: UNREPRODUCED} for i in HONEST))
    trial.end()


def test_who_accuses_an_honest_node_is_excluded_itself(tmp_path, config, five):
    def slanders(node):
        node.auditor._judge = lambda transcript, known: Finding(Verdict.LIED, 1)

    trial = Trial(tmp_path, config, five, slanders)
    trial.until(lambda: all(trial.excluded(i) == {LIAR: FALSE_ACCUSATION} for i in HONEST))
    trial.end()


def test_who_does_not_let_itself_be_audited_is_excluded(tmp_path, config, five, monkeypatch):
    monkeypatch.setattr(auditor, "ANSWER_SECONDS", 0.5)

    def silent(node):
        answer = node.auditor.on_frame
        node.others.on_audit = lambda frame: None if frame.kind == AUDIT else answer(frame)

    trial = Trial(tmp_path, config, five, silent)
    trial.until(lambda: all(trial.excluded(i) == {LIAR: NOT_AUDITABLE} for i in HONEST))
    trial.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"baseline": "critic", "critic_hidden": (4,), "critic_steps": 2, "epochs": 2, "p": 1.0},
        {"momentum": 0.5, "aggregator": "bucketing+rfa", "previous": "own"},
    ],
    ids=["critics, two epochs", "momentum, a random rule"],
)
def test_whatever_nodes_support_can_be_audited(tmp_path, options):
    config = small_config(**{**AUDITED, "trajectories": 100_000, **options})
    found = []
    trial = Trial(tmp_path, config, build_programs(config), lambda node: counting(node, found))
    trial.until(lambda: found.count(Verdict.HONEST) >= 10)
    trial.end()
    assert Verdict.LIED not in found
    assert all(not node.others.evidence.excluded for node in trial.nodes.values())


def test_excluded_nodes_count_among_the_f_that_rules_defend_against(five):
    """A missing message is left out, one of an excluded node is a row of NaN, and so are all if the rules need K."""

    class Silent(Lines):
        def send_and_collect(self, *_):
            raise NotImplementedError

    def present(excluded, sizes):
        rows = np.where(np.arange(5)[:, None] < 3, np.ones((5, 2), np.float32), np.nan)
        collected = Collected(rows, np.arange(5) < 3, np.isin(np.arange(5), excluded), 0.0)
        return Silent(five._replace(sizes=frozenset(sizes)), 2, 5)._present(collected, True)

    rows, row, who = present([4], {4, 5})
    assert who.tolist() == [0, 1, 2, 4] and row == 2 and np.isnan(rows).all(axis=1).tolist() == [False] * 3 + [True]
    assert present([], {3, 5})[2].tolist() == [0, 1, 2]
    assert present([4], {5})[2].tolist() == [0, 1, 2, 3, 4]


def test_states_are_revealed_to_the_bit_and_keys_follow_from_what_others_sent(five):
    state = five.start._replace(parameters=five.start.parameters + np.float32(1 / 3))
    data = whole_state(state)
    again = from_whole_state(five.start, data)
    assert whole_state(again) == data
    np.testing.assert_array_equal(again.parameters, state.parameters)
    tags = bytes(range(40))
    other, own = bytes([255, *tags[1:]]), tags[:24] + bytes(8) + tags[32:]
    assert salt_of(tags, 5, 3) == salt_of(own, 5, 3) != salt_of(other, 5, 3)
    assert salt_of(tags, 5, 3) != salt_of(tags, 6, 3) != salt_of(tags, 6, 2)


def test_without_audits_there_is_nothing_of_them(tmp_path):
    config = small_config(**{**AUDITED, "audit": 0.0})
    federation = keys.write_federation(tmp_path, config, [f"127.0.0.1:{5000 + i}" for i in range(5)], False)
    programs = build_programs(config)
    form = Node(
        tmp_path / "node-00", federation, keys.read_identity(tmp_path / "node-00", federation), NodeSettings(),
        lambda line: None, programs=programs,
    ).form  # fmt: skip
    assert AUDIT not in form.kinds and form.commitment_bytes == 0


def test_audits_need_random_numbers_that_others_know(tmp_path, config):
    with pytest.raises(UsageError, match=r"audit=0.5 with --private-randomness: audits replay the random numbers"):
        create(tmp_path / "fed", config, private_randomness=True)
