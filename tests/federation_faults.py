"""What an insider or an accident does to a `Trial`, each as a context in which it happens."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import zmq
from federation_insiders import SLOW_DOWNS, Trial

from jaxbyz.errors import UsageError
from jaxbyz.federation.frames import ASK, HELLO, Hello
from jaxbyz.federation.state_vectors import to_vector

FROZEN_SECONDS = 30.0


def until_over(trial: Trial, act) -> contextlib.ExitStack:
    """Repeat an action in a thread until the context ends."""
    stack, over = contextlib.ExitStack(), threading.Event()

    def repeat() -> None:
        while not over.is_set():
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(over.set)
    return stack


def slow_down(mode: str):
    """Node 4 deviates in this way."""

    @contextlib.contextmanager
    def fault(trial: Trial):
        trial.insider.mode = mode
        yield
        trial.insider.mode = "none"

    return fault


def flood(frames):
    """Node 4 sends frames as fast as the others take them; `frames` makes them."""

    def fault(trial: Trial):
        others = trial.nodes[4].others

        def act() -> None:
            for frame in frames(others, trial):
                others.transport.broadcast(frame)
            time.sleep(0.001)

        return until_over(trial, act)

    return fault


def asks(others, trial):
    return [others.writer.frame(ASK)] * 20


def hellos(others, trial):
    hello = Hello(others.nonce, bytes(8), True, 10**9, 0, "9.9.9")
    return [others.writer.frame(HELLO, payload=hello.encode())] * 20


def far_future(others, trial):
    t = min(trial.nodes[0].t + 100, others.form.iterations - 1)
    return [others.writer.vector(t + i, 0, np.full(others.form.parameters, 7.0)) for i in range(20)]


def invented_states(others, trial):
    return [others.writer.state(trial.nodes[0].t + i, np.full(others.form.state, 7.0)) for i in range(-2, 3)]


def stale_states(others, trial):
    """The state of iteration 0, as if it were that of now, in the answer to every node that may ask."""
    initial = to_vector(trial.programs.start)
    return [others.writer.state(max(0, trial.nodes[0].t + i), initial) for i in range(-2, 3)]


@contextlib.contextmanager
def one_byte_per_second(trial: Trial):
    """200 connections to node 0 without a key."""
    host, _, port = trial.federation.members[0].address.rpartition(":")
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(200)]

        def act() -> None:
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.send(b"\xff")
            time.sleep(1.0)

        with until_over(trial, act):
            yield


def many_parts(trial: Trial):
    """Messages of up to 20,000 parts, with the keys of node 4."""
    identity, member = trial.nodes[4].others.transport.identity, trial.federation.members[0]

    def act() -> None:
        with zmq.Context() as context, context.socket(zmq.PUSH) as push:
            push.linger, push.sndtimeo = 0, 1000
            push.curve_publickey, push.curve_secretkey = identity.public_key.encode(), identity.secret_key.encode()
            push.curve_serverkey = member.public_key.encode()
            push.connect(f"tcp://{member.address}")
            with contextlib.suppress(zmq.Again):
                for _ in range(20_000):
                    push.send(bytes(trial.nodes[0].form.largest), zmq.SNDMORE)
                push.send(b"")
            time.sleep(1.0)

    return until_over(trial, act)


@contextlib.contextmanager
def full_disk(trial: Trial):
    """Node 3 can write neither checkpoints nor its status."""

    def no_space(*_, **__):
        raise UsageError("cannot be written (No space left on device)")

    node = trial.nodes[3]
    node.settings, folder = node.settings._replace(checkpoint_every=5), node.status_file.path
    node.checkpoints.save, node.status_file.path = no_space, folder / "missing" / "status.json"
    yield
    del node.checkpoints.save
    node.status_file.path = folder


@contextlib.contextmanager
def jumping_clock(trial: Trial):
    """The clock of the machine jumps by a day, back and forth."""
    real, jump = time.time, [0.0]
    time.time = lambda: real() + jump[0]
    try:
        with until_over(trial, lambda: (jump.__setitem__(0, 86400.0 - jump[0]), time.sleep(0.5))):
            yield
    finally:
        time.time = real


@contextlib.contextmanager
def freeze(trial: Trial):
    """Node 3 does nothing for 30 s: neither its main thread nor that of its sockets."""
    others, until = trial.nodes[3].others, time.monotonic() + FROZEN_SECONDS
    collect, tick = others.collect, others.transport.on_tick
    others.transport.on_tick = lambda: time.sleep(max(0.0, until - time.monotonic()))
    others.collect = lambda *a: (time.sleep(max(0.0, until - time.monotonic())), collect(*a))[1]
    yield
    time.sleep(max(0.0, until - time.monotonic()))
    others.collect, others.transport.on_tick = collect, tick


@contextlib.contextmanager
def two_restarts(trial: Trial):
    """Nodes 2 and 3 are stopped, lose their disks, and are started again at once."""
    for index in (2, 3):
        trial.stops[index].set()
    for index in (2, 3):
        trial.stop(index)
        trial.nodes[index].checkpoints.remove_all()
        trial.errors.pop(index, None)
    for index in (2, 3):
        trial.start(index)
    yield


FAULTS = {
    **{mode: slow_down(mode) for mode in SLOW_DOWNS}, "flood of ASK": flood(asks), "flood of HELLO": flood(hellos),
    "far-future rounds": flood(far_future), "invented states": flood(invented_states),
    "stale states": flood(stale_states),
    "one byte per second": one_byte_per_second, "messages of many parts": many_parts, "full disk": full_disk,
    "jumping clock": jumping_clock, "frozen for 30 s": freeze, "two restarts at once": two_restarts,
}  # fmt: skip
BY_NODE_4 = (*SLOW_DOWNS, "flood of ASK", "flood of HELLO", "far-future rounds", "invented states", "stale states",
             "messages of many parts")  # fmt: skip
