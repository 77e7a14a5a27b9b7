"""Messages that are passed on, liars that are caught with a proof, and nodes that are started again."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("zmq")

from federation_helpers import Threads, small_config
from federation_insiders import Trial

from jaxbyz.components import make_attack
from jaxbyz.federation import keys
from jaxbyz.federation.deadlines import Deadlines
from jaxbyz.federation.evidence import BAD_SIGNATURE, EQUIVOCATION, Evidence
from jaxbyz.federation.frames import HELLO, PROOF, Format, Frame, Hello, Writer, decode, wanted
from jaxbyz.federation.inbox import Inbox
from jaxbyz.federation.membership import FRAMES_PER_TICK, next_life
from jaxbyz.federation.node import Node
from jaxbyz.federation.programs import build_programs
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.federation.signatures import public_key, signer, verifier

FORM = Format(bytes(range(16)), agents=5, parameters=3, state=7, rounds=2, iterations=50)
SECRETS = [f"secret {i}" for i in range(5)]
WRITERS = [Writer(FORM, i, signer(secret), 1) for i, secret in enumerate(SECRETS)]
VERIFY = verifier([public_key(secret) for secret in SECRETS])
FIVE = {"agents": 5, "byzantine": 1, "aggregator": "krum", "agreement": "mda", "p": 1.0, "trajectories": 100_000}


def evidence(index, folder=None, lines=None):
    prove = lambda iteration, round, payload: WRITERS[index].frame(PROOF, iteration, round, payload)  # noqa: E731
    return Evidence(FORM, index, VERIFY, prove, folder, (lines if lines is not None else []).append)


def make_inbox(index=0, **options):
    return Inbox(FORM, index, 1, Deadlines(0.05), lambda line: None, evidence=evidence(index, **options))


def vector(sender, value, iteration=0, round=0, life=1):
    return WRITERS[sender]._replace(life=life).vector(iteration, round, np.full(3, value, np.float32))


def proof(a: bytes, b: bytes, by=0):
    return WRITERS[by].frame(PROOF, 0, 0, a + b)


def test_two_messages_for_one_round_are_a_proof_that_convinces_others():
    a, b = make_inbox(0), make_inbox(1)
    assert a.put(4, vector(4, 1.0)) and a.put(4, vector(4, 2.0)) is None
    assert a.evidence.excluded[4].reason == EQUIVOCATION and a.vectors[0, 0] == {}
    (shown,) = a.evidence.to_show
    assert b.put(0, shown) and b.evidence.excluded[4][:3] == (EQUIVOCATION, 0, 0)
    assert b.evidence.excluded[4].shown_by == 0 and b.trust.patience(4, 1.0, 1.0) == 0
    assert b.put(4, vector(4, 1.0, round=1)) is None and b.refused == {"excluded": 1}
    assert len(b.evidence.to_show) == 1, "it shows the proof to others in turn"


def test_nobody_is_excluded_without_a_proof():
    one, two = vector(4, 1.0), vector(4, 2.0)
    forged = WRITERS[0]._replace(sender=4).vector(0, 0, np.full(3, 2.0))
    cases = [
        (one, one), (one, vector(4, 2.0, life=2)), (one, vector(4, 2.0, round=1)), (one, vector(3, 2.0)),
        (one, forged), (forged, two), (one, two[:-1] + bytes([two[-1] ^ 1])), (bytes(len(one)), two),
    ]  # fmt: skip
    inbox = make_inbox(1)
    for a, b in cases:
        assert inbox.put(0, proof(a, b)) is None
    assert inbox.refused == {"proof": len(cases)} and not inbox.evidence.excluded
    assert inbox.put(0, proof(one, two)) and set(inbox.evidence.excluded) == {4}


def test_messages_can_be_passed_on_but_not_changed():
    inbox = make_inbox(1)
    good = vector(4, 1.0)
    changed = bytearray(good)
    changed[-70] ^= 1
    assert inbox.put(0, bytes(changed)) is None and inbox.refused == {"signature": 1}
    assert inbox.put(0, good) and inbox.vectors[0, 0][4].data == good
    assert not inbox.evidence.excluded, "the one who passed a changed message on may have got it like that"


def test_a_node_that_signs_wrongly_is_soon_excluded():
    inbox, liar = make_inbox(1), Writer(FORM, 4, lambda data: bytes(64), 1)
    for i in range(1000):
        inbox.position(0, 0)
        inbox.vectors.clear()
        inbox.put(4, liar.vector(i % 3, 0, np.zeros(3)))
    assert inbox.evidence.excluded[4].reason == BAD_SIGNATURE and not inbox.evidence.to_show


def test_proofs_outlive_the_process(tmp_path):
    first = evidence(0, tmp_path)
    a, b = (decode(FORM, vector(4, value), 4) for value in (1.0, 2.0))
    first.compare(a, b)
    (tmp_path / "proofs" / "0.bin").write_bytes(b"nonsense")
    (tmp_path / "proofs" / "1.bin").write_bytes(proof(a.data, a.data))
    again = evidence(0, tmp_path)
    again.read()
    assert set(again.excluded) == {4} and again.proofs() == first.proofs()


def test_a_node_that_was_started_again_does_not_contradict_itself():
    inbox = make_inbox(1)
    assert inbox.put(4, vector(4, 1.0))
    assert inbox.put(4, vector(4, 2.0, life=2)) is None and inbox.refused == {"repeated": 1}
    assert inbox.put(4, vector(4, 3.0, round=1)) is None, "its earlier life is over"
    assert inbox.put(4, vector(4, 3.0, round=1, life=3)) is None, "it is not heard if it starts again at once"
    assert not inbox.evidence.excluded and inbox.refused["life"] == 2


def test_lives_grow_even_if_the_clock_is_set_back(tmp_path, monkeypatch):
    first = next_life(tmp_path)
    monkeypatch.setattr(time, "time", lambda: 1e6)
    assert first < next_life(tmp_path) < next_life(tmp_path)


def test_different_tags_are_disputes():
    """Nodes tell each other which messages they have got, so that two of them notice a lie that each heard once."""
    inbox = make_inbox(0)
    for sender in (1, 2, 3, 4):
        inbox.put(sender, vector(sender, 1.0))
    inbox.collect(0, 0, np.zeros(3, np.float32), "kind", time.monotonic())
    tags = bytearray(inbox.tags((0, 1)))
    same = bytes(tags)
    tags[-8:] = vector(4, 2.0)[-64:-56]
    for sender in (1, 2, 3, 4):
        inbox.put(sender, WRITERS[sender].vector(0, 1, np.zeros(3), bytes(tags) if sender == 2 else same))
    inbox.collect(0, 1, np.zeros(3, np.float32), "kind", time.monotonic())
    assert inbox.disputes == [(2, (0, 0), 4)]
    inbox.put(2, vector(4, 2.0))
    assert set(inbox.evidence.excluded) == {4}


def test_wanted_messages_are_named():
    frame = decode(FORM, WRITERS[0].want(3, 1, [1, 4]), 0)
    assert isinstance(frame, Frame) and wanted(frame) == [1, 4] and frame.position == (3, 1)
    hello = Hello(b"12345678", b"abcdefgh", True, 7, 3, "0.1.0")
    assert decode(FORM, WRITERS[0].frame(HELLO, payload=hello.encode()), 1) == "sender"


# With real nodes


@pytest.fixture(scope="module")
def config():
    return small_config(**FIVE)


@pytest.fixture(scope="module")
def five(config):
    return build_programs(config)


def test_withholding_from_some_no_longer_works(tmp_path, config, five):
    """Node 4 never sends anything to node 0, which gets its messages from the others."""
    trial = Trial(tmp_path, config, five, floor=5.0)
    trial.iterate(5)
    deliver = trial.insider.transport.send
    trial.insider.transport.send = lambda peer, frame: None if peer == 0 else deliver(peer, frame)
    trial.iterate(12)
    trial.end()
    # Later a busy machine may make node 0 miss two messages in a row, after which it waits for node 4 no longer.
    missing = trial.nodes[0].record.rows["missing"][8:16, 4].sum() / (8 * 3)
    assert missing < 0.5, f"{missing:.0%} of the messages of node 4 never came"


def test_a_liar_that_tells_everyone_something_else_is_caught(tmp_path, config, five):
    """All honest nodes exclude it with a proof, and one that starts again still does."""
    settings = {i: NodeSettings(floor=1.0, attack="large-noise" if i == 4 else "none") for i in range(5)}
    programs = {4: five._replace(attack=make_attack("large-noise", 5, 1))}
    federation = Threads(tmp_path, config, settings, five, own_programs=programs)
    until = time.monotonic() + 60
    while not all(4 in federation.nodes[i].others.evidence.excluded for i in range(4)):
        assert time.monotonic() < until, federation.lines[-5:]
        time.sleep(0.05)
    federation.stop(0)
    del federation.errors[0]
    federation.start(0)
    assert set(federation.nodes[0].others.evidence.excluded) == {4}
    goal = federation.nodes[1].t + 20
    while not all(federation.nodes[i].t > goal for i in range(4)):
        assert time.monotonic() < until, federation.lines[-5:]
        time.sleep(0.05)
    for stop in federation.stops.values():
        stop.set()
    federation.join(60)
    for i in range(4):
        assert set(federation.nodes[i].others.evidence.excluded) == {4}
    at = min(federation.nodes[i].t for i in range(4)) - 1
    rows = np.stack([federation.nodes[i].record.rows["parameters"][at] for i in range(4)])
    assert np.abs(rows - rows[0]).max() < 1e-3


def test_asking_for_messages_is_answered_at_a_bounded_rate(tmp_path, config, five):
    """A flood of requests is not multiplied: between two ticks a node gets at most a few messages per agent."""
    federation = Threads(tmp_path, config, programs=five, only=[])
    identity = keys.read_identity(tmp_path / "node-00", federation.federation)
    node = Node(tmp_path / "node-00", federation.federation, identity, NodeSettings(), print, programs=five)
    others, sent = node.others, []
    others.transport.send = lambda peer, frame: sent.append(peer)
    own = others.writer.vector(0, 0, np.zeros(others.form.parameters))
    others.sent[0, 0] = {4: own}
    liar = others.writer._replace(sender=4)
    for _ in range(1000):
        others._pass_on(decode(others.form, liar.want(0, 0, range(5)), 4))
    assert sent == [4] * (FRAMES_PER_TICK * 5)
