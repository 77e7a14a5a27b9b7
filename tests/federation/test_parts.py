"""The parts of a federation on their own: frames, keys, the inbox, states, who may connect."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from federation_helpers import unsigned
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxbyz as jb
from jaxbyz.errors import UsageError
from jaxbyz.federation import frames, keys, launcher
from jaxbyz.federation.deadlines import Deadlines
from jaxbyz.federation.evidence import Evidence
from jaxbyz.federation.frames import STATE, VECTOR, Format, Frame, Hello, decode
from jaxbyz.federation.inbox import Behind, Inbox
from jaxbyz.federation.mailbox import ITERATIONS_AHEAD
from jaxbyz.federation.options import check_supported
from jaxbyz.federation.records import Checkpoints, NodeRecord
from jaxbyz.federation.state_vectors import StateLayout, combine
from jaxbyz.runs.plan import make_plan

zmq = pytest.importorskip("zmq")

FORM = Format(bytes(range(16)), agents=5, parameters=3, state=7, rounds=2, iterations=50)
VECTORS = np.arange(3, dtype=np.float32)


# Frames


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    assert isinstance(decode(FORM, data, 0), str)


@given(st.integers(0, len(unsigned(FORM, 1).vector(4, 2, VECTORS)) - 1), st.integers(1, 255))
def test_one_changed_byte_is_refused_or_changes_numbers_only(position, change):
    """No change of a byte makes a frame that claims another sender, federation, type or size."""
    frame = bytearray(unsigned(FORM, 1).vector(4, 2, VECTORS))
    frame[position] ^= change
    got = decode(FORM, bytes(frame), 1)
    if isinstance(got, Frame):
        assert (got.sender == 1 or got.via == 1) and got.kind == VECTOR and got.vector().shape == (3,)
        assert got.iteration < FORM.iterations and got.round <= FORM.rounds


@given(st.data())
def test_frames_survive_the_journey(data):
    kind = data.draw(st.sampled_from([VECTOR, STATE]))
    size = FORM.floats(kind)
    numbers = np.array(data.draw(st.lists(st.floats(width=32), min_size=size, max_size=size)), np.float32)
    writer, tags = unsigned(FORM, 3), data.draw(st.binary(min_size=8 * 5, max_size=8 * 5))
    got = decode(FORM, writer.vector(7, 1, numbers, tags) if kind == VECTOR else writer.state(7, numbers), 3)
    assert isinstance(got, Frame) and got[:4] == (kind, 3, 7, 1 if kind == VECTOR else 0)
    assert got.tags == (tags if kind == VECTOR else b"")
    np.testing.assert_array_equal(got.vector(), numbers)


def test_each_wrong_field_has_its_reason():
    good = unsigned(FORM, 1).vector(4, 2, VECTORS)
    other = FORM._replace(federation=bytes(16))

    def altered(offset, layout, value):
        frame = bytearray(good)
        struct.pack_into(layout, frame, offset, value)
        return bytes(frame)

    cases = {
        "short": good[: frames.HEADER_BYTES - 1],
        "format": altered(0, "<4s", b"JBZ0"),
        "federation": unsigned(other, 1).vector(4, 2, VECTORS),
        "kind": altered(20, "<B", 9),
        "dtype": altered(21, "<B", 0),
        "length": altered(30, "<I", 2**32 - 1),
        "position": altered(24, "<I", 50),
    }
    assert {reason: decode(FORM, data, 1) for reason, data in cases.items()} == {reason: reason for reason in cases}
    assert decode(FORM, good, 2).via == 2 and decode(FORM, altered(22, "<H", 5), 2) == "sender"
    assert decode(FORM, unsigned(FORM, 1).state(4, np.zeros(7)), 2) == "sender", "only vectors are passed on"
    assert decode(FORM, good + b"x", 1) == "length"
    assert decode(FORM, good[:-4], 1) == "length"
    assert isinstance(decode(FORM, good, 1), Frame)


def test_hello_survives_the_journey_and_cannot_draw_on_the_terminal():
    hello = Hello(b"12345678", b"abcdefgh", True, 7, 3, "0.1.0")
    assert frames.decode_hello(hello.encode()) == hello
    evil = frames.decode_hello(hello._replace(version="\x1b[31mred").encode())
    assert evil.version == "?[31mred"


# Inbox


def make_inbox(faults=1, floor=0.05, **options):
    lines: list[str] = []
    evidence = Evidence(FORM, 0, lambda *_: True, lambda *_: b"", None, lines.append)
    return Inbox(FORM, 0, faults, Deadlines(floor), lines.append, **options, evidence=evidence), lines


def vector_frame(sender, iteration=0, round=0, value=1.0):
    return unsigned(FORM, sender).vector(iteration, round, np.full(3, value))


def collect(inbox, iteration=0, round=0):
    return inbox.collect(iteration, round, VECTORS, "kind", time.monotonic())


def test_a_missing_message_is_a_row_of_nan_after_one_deadline():
    inbox, lines = make_inbox()
    for sender in (1, 2, 3):
        inbox.put(sender, vector_frame(sender, value=sender))
    got = collect(inbox)
    assert list(got.arrived) == [True, True, True, True, False]
    np.testing.assert_array_equal(got.rows[0], VECTORS)
    np.testing.assert_array_equal(got.rows[3], 3.0)
    assert np.isnan(got.rows[4]).all()
    assert 0.05 <= got.waited < 20
    for sender in (1, 2, 3):
        inbox.put(sender, vector_frame(sender, 0, 1))
    collect(inbox, 0, 1)
    assert lines == ["iteration 0: node 4 is silent; no longer waiting for it"]
    for sender in (1, 2, 3):
        inbox.put(sender, vector_frame(sender, 0, 2))
    inbox.deadlines.floor = 1000.0
    assert collect(inbox, 0, 2).waited < 5, "it waits for a node that it suspects"


def test_repeated_old_and_far_messages_do_not_count():
    inbox, _ = make_inbox()
    for sender in (1, 2, 3, 4):
        assert inbox.put(sender, vector_frame(sender, value=1.0))
    assert inbox.put(1, vector_frame(1, value=1.0)) is None
    assert inbox.put(1, vector_frame(1, iteration=ITERATIONS_AHEAD + 1)) is None
    np.testing.assert_array_equal(collect(inbox).rows[1], 1.0)
    inbox.position(3, 0)
    assert inbox.put(1, vector_frame(1, iteration=2)) is None
    assert inbox.refused == {"repeated": 1, "early": 1, "old": 1}
    assert inbox.put(2, unsigned(FORM, 2).state(3, np.zeros(7))) is None  # nobody asked


def test_a_node_that_was_left_behind_notices():
    inbox, _ = make_inbox()
    inbox.put(1, vector_frame(1, 2))
    inbox.put(2, vector_frame(2, 2))
    with pytest.raises(Behind):
        collect(inbox)


def test_a_message_of_the_same_iteration_is_asked_for_again_before_giving_up():
    repeats: list[float] = []
    inbox, _ = make_inbox(want=lambda *_: repeats.append(time.monotonic()))
    for sender in (1, 2):
        inbox.put(sender, vector_frame(sender, 0, 1))
    with pytest.raises(Behind):
        collect(inbox)
    assert len(repeats) >= 1


def test_f_liars_cannot_make_a_node_believe_that_it_is_behind():
    inbox, _ = make_inbox(patience=0.3)
    inbox.put(1, vector_frame(1, 2))
    inbox.put(4, b"nonsense")
    with pytest.raises(UsageError, match="fewer than 4 of 5 nodes"):
        collect(inbox)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 49), st.integers(0, 2)), max_size=300))
def test_memory_of_the_inbox_is_bounded(arrivals):
    inbox, _ = make_inbox()
    inbox.joining = True
    for sender, iteration, round in arrivals:
        inbox.put(sender, vector_frame(sender, iteration, round))
        inbox.put(sender, unsigned(FORM, sender).state(iteration, np.zeros(7)))
    assert sum(map(len, inbox.vectors.values())) <= 4 * (FORM.rounds + 1) * (ITERATIONS_AHEAD + 4)
    assert sum(map(len, inbox.states.values())) <= 4 * 7


# States of nodes that join


@pytest.mark.parametrize("rule", [jb.mda(3), None], ids=["agreement rule", "median"])
def test_liars_cannot_choose_the_state_of_a_node_that_joins(rule):
    rng = np.random.default_rng(0)
    layout = StateLayout(None, (4, 4, 1))  # type: ignore[arg-type]
    true = np.array([1, 2, 3, 4, 1e-6, 2e-6, 3e-6, 4e-6, 41])
    offers = {k: (true * (1 + 1e-4 * rng.normal(size=9))).astype(np.float32) for k in range(10)}
    for k in range(10):
        offers[k][8] = 41
    for liar in (7, 8, 9):
        offers[liar] = (1e3 * rng.normal(size=9)).astype(np.float32)
    offers[9][:4] = true[:4]  # a lie about small numbers only
    got = combine(layout, np.stack(list(offers.values())), rule)
    np.testing.assert_allclose(got, true, rtol=1e-3)


def test_a_checkpoint_of_a_node_comes_back_or_changes_nothing(tmp_path, config):
    plan = make_plan(config)
    record, checkpoints = NodeRecord(plan, 3, 4), Checkpoints(tmp_path, "mine")
    record.rows["returns"][:], record.sampled = 1.0, np.arange(4, dtype=np.float32)
    state = {"parameters": jnp.arange(4.0), "count": jnp.int32(2**30 + 1)}
    for iteration in (0, 1, 2):
        checkpoints.save(iteration, {**state, "count": state["count"] + iteration}, record)
    assert checkpoints.iterations() == [1, 2]
    other = NodeRecord(plan, 3, 4)
    read = checkpoints.load(1, state, other)
    assert int(read["count"]) == 2**30 + 2 and np.isnan(other.rows["shares"]).all()
    assert other.rows["returns"][0] == 1.0 and np.isnan(other.rows["returns"][1:]).all()
    np.testing.assert_array_equal(other.sampled, record.sampled)
    path = tmp_path / "checkpoints" / "2.npz"
    path.write_bytes(path.read_bytes()[:-100])
    for of, iteration, like in (
        (checkpoints, 2, state),
        (Checkpoints(tmp_path, "another"), 1, state),
        (checkpoints, 1, {**state, "parameters": jnp.zeros(5)}),
    ):
        with pytest.raises(UsageError):
            of.load(iteration, like, other)
        np.testing.assert_array_equal(other.sampled, record.sampled)
    checkpoints.remove_all()
    assert checkpoints.iterations() == []


# Keys and bad input


@pytest.fixture(scope="module")
def config():
    return jb.configuration.resolving.resolve(agents=3, trajectories=2, N=1, B=1, hidden=(2,))


@pytest.fixture
def folder(tmp_path, config):
    keys.write_federation(tmp_path / "fed", config, launcher._addresses(3, (), None), False)
    return tmp_path / "fed"


def test_keys_are_private_and_belong_to_the_list(folder):
    federation = keys.read_federation(folder / "node-01")
    identity = keys.read_identity(folder / "node-01", federation)
    assert identity.node == 1 and federation == keys.read_federation(folder)
    assert (folder / "node-01" / "secret.key").stat().st_mode & 0o777 == 0o600
    assert identity.secret_key not in (folder / "federation.json").read_text()


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def spoil_mode(own):
    os.chmod(own / "secret.key", 0o640)


def spoil_missing(own):
    (own / "secret.key").unlink()


def spoil_garbage(own):
    (own / "secret.key").write_text("x" * 39)


def spoil_other(own):
    (own / "secret.key").write_text((own.parent / "node-02" / "secret.key").read_text())


def spoil_link(own):
    (own / "secret.key").unlink()
    (own / "secret.key").symlink_to(own.parent / "node-02" / "secret.key")


def spoil_node(own):
    (own / "node.json").write_text('{"node": 7}')


def spoil_list(own):
    text = (own / "federation.json").read_text()
    (own / "federation.json").write_text(text.replace('"nodes"', '"knots"'))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_mode, "other users can read the private key"),
        (spoil_missing, "cannot be read (No such file"),
        (spoil_garbage, "not a private key"),
        (spoil_other, "belongs to another public key"),
        (spoil_link, "cannot be read"),
        (spoil_node, "must name one of 0 to 2"),
        (spoil_list, "damaged"),
    ],
)
def test_bad_keys_are_refused_in_one_line(folder, spoil, words):
    own = folder / "node-01"
    spoil(own)
    with pytest.raises(UsageError) as error:
        keys.read_identity(own, keys.read_federation(own))
    assert words in one_line(error)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "byzpg"}, "algorithm=byzpg"),
        ({"participation": 0.5}, "participation=0.5"),
        ({"local_steps": 2}, "local_steps=2"),
        ({"seeds": 2}, "seeds=2"),
        ({"schedule": "random"}, "schedule=random"),
        ({"tolerance": 0.1}, "tolerance=0.1"),
        ({"agents": 1}, "agents=1"),
    ],
)
def test_what_needs_a_server_or_an_overview_is_refused(options, words):
    with pytest.raises(UsageError) as error:
        check_supported(jb.configuration.resolving.resolve(**options))
    assert words in one_line(error)


def test_addresses_are_checked():
    assert launcher._addresses(2, (), 4000) == ["127.0.0.1:4000", "127.0.0.1:4001"]
    assert launcher._addresses(2, ("a", "b:7"), 9) == ["a:9", "b:7"]
    for hosts, port in (("a",), 1), (("a", "a"), 1), (("a", "b"), None), (("a", "b:99999"), 1):
        with pytest.raises(UsageError):
            launcher._addresses(2, hosts, port)


def test_a_changed_configuration_is_another_federation(folder):
    federation = keys.read_federation(folder)
    changed = federation._replace(config=replace(federation.config, eta=0.5))
    assert changed.identifier() != federation.identifier()
    with pytest.raises(UsageError, match="holds a federation already"):
        keys.write_federation(folder, federation.config, ["a:1"] * 3, False)
