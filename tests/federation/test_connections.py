"""Who may connect to a node, and how much those who do can cost it."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import numpy as np
import pytest
from federation_helpers import small_config, unsigned

from jaxbyz.errors import UsageError
from jaxbyz.federation import frames, keys, launcher
from jaxbyz.federation.connections import MOST_PER_NODE, MOST_UNKNOWN
from jaxbyz.federation.frames import ASK, HELLO, Format, decode
from jaxbyz.federation.transport import CONNECTIONS_PER_MINUTE, Transport

zmq = pytest.importorskip("zmq")

FORM = Format(bytes(range(16)), agents=5, parameters=3, state=7, rounds=2, iterations=50)
VECTORS = np.arange(3, dtype=np.float32)


@pytest.fixture
def folder(tmp_path):
    keys.write_federation(tmp_path / "fed", small_config(agents=3), launcher._addresses(3, (), None), False)
    return tmp_path / "fed"


class Ear:
    """A transport that remembers what it hears."""

    def __init__(self, folder, node, queue=100):
        self.federation, self.heard = keys.read_federation(folder), []
        identity = keys.read_identity(folder / keys.node_name(node), self.federation)
        self.transport = Transport(
            self.federation, identity, FORM.largest, queue, lambda *frame: self.heard.append(frame)
        )

    def wait(self, count, seconds=60.0):
        until = time.monotonic() + seconds
        while len(self.heard) < count and time.monotonic() < until:
            time.sleep(0.01)
        return self.heard


def test_nodes_hear_each_other_and_know_who_speaks(folder):
    a, b = Ear(folder, 0), Ear(folder, 1)
    with a.transport, b.transport:
        b.transport.send(0, b"from one")
        a.transport.broadcast(b"from zero")
        assert a.wait(1) == [(1, b"from one")]
        assert b.wait(1) == [(0, b"from zero")]


@contextlib.contextmanager
def outsider(address, server_key, keypair=None):
    """A PUSH socket of someone who is not in the list; `keypair` None means without encryption."""
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.linger = push.sndtimeo = 0  # libzmq gives up a refused connection, and then nothing can be sent
    if keypair is not None:
        push.curve_publickey, push.curve_secretkey = keypair
        push.curve_serverkey = server_key.encode()
    push.connect(f"tcp://{address}")
    try:
        yield push
    finally:
        context.destroy(linger=0)


def test_outsiders_are_not_heard(folder):
    """Without a key, with an unknown key, with half-open connections and garbage: nothing arrives, and members do."""
    a, b = Ear(folder, 0), Ear(folder, 1)
    member = a.federation.members[0]
    host, port = member.address.split(":")
    good = unsigned(FORM, 1).vector(0, 0, VECTORS)
    other = a.federation.members[1].public_key.encode()
    with a.transport, contextlib.ExitStack() as stack:
        pairs = [
            None,
            zmq.curve_keypair(),
            (other, zmq.curve_keypair()[1]),  # another node's public key, without its private key
        ]
        strangers = [stack.enter_context(outsider(member.address, member.public_key, pair)) for pair in pairs]
        open_connections = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(100)
        ]
        for connection in open_connections[::2]:
            connection.sendall(os.urandom(200))
        for push in strangers:
            with contextlib.suppress(zmq.Again):
                for _ in range(20):
                    push.send(good)
        wait_until(lambda: a.transport.traffic.outsiders >= 1)
        time.sleep(1.0)  # for what should not arrive
        assert a.heard == [] and a.transport.traffic.connections == 0
        with b.transport:
            b.transport.send(0, good)
            assert a.wait(1) == [(1, good)]
            # Messages above the limit close the connection; the next messages arrive over a new one.
            b.transport.send(0, bytes(5000))
            wait_until(lambda: b.transport.send(0, good) or a.wait(2, 0.3)[1:])
            assert set(a.heard) == {(1, good)} and a.transport.traffic.connections == 2


def wait_until(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_flood_of_connections_with_a_listed_key_is_limited(folder):
    a = Ear(folder, 0)
    with a.transport:
        allowed = [a.transport._within_rate(1) for _ in range(CONNECTIONS_PER_MINUTE + 10)]
        assert sum(allowed) == CONNECTIONS_PER_MINUTE and a.transport._within_rate(2)


def test_an_address_in_use_is_one_line(folder):
    with Ear(folder, 0).transport, pytest.raises(UsageError, match="cannot listen on"), Ear(folder, 0).transport:
        pass


def test_frames_of_several_parts_are_not_accepted(folder):
    a = Ear(folder, 0)
    identity = keys.read_identity(folder / "node-01", a.federation)
    member = a.federation.members[0]
    pair = (identity.public_key.encode(), identity.secret_key.encode())
    with a.transport, outsider(member.address, member.public_key, pair) as push:
        push.send_multipart([unsigned(FORM, 1).frame(ASK), b"more"])
        assert a.wait(1) == [(1, b"")]
    assert decode(FORM, b"", 1) == "short" and HELLO in frames.KINDS


def test_half_open_connections_are_limited(folder):
    """A node has few handles. Connections beyond the limit are closed, and members are heard nevertheless."""
    a, b = Ear(folder, 0), Ear(folder, 1)
    host, port = a.federation.members[0].address.split(":")
    with a.transport, contextlib.ExitStack() as stack:
        for _ in range(4 * MOST_UNKNOWN):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
        wait_until(lambda: a.transport.guard.shut >= 3 * MOST_UNKNOWN)
        wait_until(lambda: len(a.transport.guard.connections) <= MOST_UNKNOWN)
        with b.transport:
            b.transport.send(0, b"hello")
            assert a.wait(1) == [(1, b"hello")]


@contextlib.contextmanager
def liar(folder, node=1, receiver=0):
    """A socket with the keys of a node, connected to another one."""
    federation = keys.read_federation(folder)
    identity = keys.read_identity(folder / keys.node_name(node), federation)
    member = federation.members[receiver]
    pair = (identity.public_key.encode(), identity.secret_key.encode())
    with outsider(member.address, member.public_key, pair) as push:
        push.sndtimeo = 5000
        yield push


def test_a_listed_node_cannot_keep_many_connections(folder):
    a = Ear(folder, 0)
    with a.transport, contextlib.ExitStack() as stack:
        for count in range(1, 9):
            stack.enter_context(liar(folder)).send(b"hello")
            a.wait(count)
        own = [one for one in a.transport.guard.connections.values() if one.sender == 1]
        assert len(own) == MOST_PER_NODE and a.transport.guard.shut >= 8 - MOST_PER_NODE


def test_connections_without_messages_are_closed(folder, monkeypatch):
    monkeypatch.setattr("jaxbyz.federation.connections.QUIET_TICKS", 2)
    a = Ear(folder, 0)
    with a.transport, liar(folder) as push:
        push.send(b"hello")
        assert a.wait(1)
        wait_until(lambda: a.transport.guard.shut >= 1)


def test_a_message_of_very_many_parts_is_cut_off(folder):
    """libzmq keeps all parts of a message until the last one arrives, however many there are."""
    a = Ear(folder, 0)
    part, limit = bytes(1000), a.transport.queue
    with a.transport, liar(folder) as push:
        for _ in range(60 * limit * 20):  # 120 MB
            push.send(part, zmq.SNDMORE)
        push.send(part)
        wait_until(lambda: a.transport.guard.shut >= 1)
        assert a.heard == []
