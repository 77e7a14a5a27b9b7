"""A listed node that breaks every rule of the protocol, to show that the others do not care.

`python federation_chaos.py FOLDER` plays the node of a folder.

It has a valid key, so its connections are accepted. It sends garbage, truncated frames, wrong lengths, frames larger
than the limit, replays, frames in other nodes' names, different vectors to different receivers, invented positions and
states; it is silent for seconds, floods, and opens connections that it never uses.
"""

from __future__ import annotations

import collections
import contextlib
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import zmq

import jaxbyz
from jaxbyz.federation.frames import (
    ASK,
    HEADER_BYTES,
    HELLO,
    VECTOR,
    Format,
    Frame,
    Hello,
    Writer,
    decode,
    decode_hello,
)
from jaxbyz.federation.keys import FederationDescription, Identity, read_federation, read_identity
from jaxbyz.federation.programs import build_programs, format_of
from jaxbyz.federation.signatures import signer
from jaxbyz.federation.status import STATUS_FILE
from jaxbyz.federation.transport import Transport
from jaxbyz.files import write_json

PAUSE_SECONDS = 0.02
LONGEST_SILENCE = 3.0
FLOOD_FRAMES = 2000
FLOOD_CONNECTIONS = 16
REPLAYS_KEPT = 200


class Chaos:
    """A node that plays `chaos`.

    Args:
        federation: the list of nodes.
        identity: its number and keys.
        form: what valid frames look like.
        stop: returns whether it should end.
        seed: of its random choices.
        seconds: the longest time that it runs.
    """

    def __init__(
        self,
        federation: FederationDescription,
        identity: Identity,
        form: Format,
        stop: Callable[[], bool],
        seed: int = 0,
        seconds: float = float("inf"),
    ):
        self.federation, self.form, self.index, self.stop = federation, form, identity.node, stop
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.until = time.monotonic() + seconds
        self.writer = Writer(form, identity.node, signer(identity.secret_key), int(1000 * time.time()))
        self.transport = Transport(federation, identity, form.largest, 1000, self._on_frame)
        self.position = (0, 0)
        self.finished: set[int] = set()
        self.sent: collections.deque[bytes] = collections.deque(maxlen=REPLAYS_KEPT)
        self.counts: collections.Counter[str] = collections.Counter()
        self.open: list[socket.socket] = []
        self.plays = [
            self.garbage, self.truncated, self.wrong_length, self.oversized, self.replay, self.other_name,
            self.equivocate, self.other_position, self.invented_state, self.false_hello, self.ask,
            self.several_parts, self.silence, self.flood, self.idle_connections, self.unlisted_key,
        ]  # fmt: skip

    def run(self) -> dict[str, int]:
        """Misbehave until the others have finished; return how often it did what."""
        with self.transport, contextlib.ExitStack() as stack:
            stack.callback(self._close_connections)
            while not self.stop() and time.monotonic() < self.until:
                if len(self.finished) >= self.form.agents - max(1, self.federation.config.byzantine):
                    break
                play = self.random.choice(self.plays)
                self.counts[play.__name__] += 1
                play()
                time.sleep(PAUSE_SECONDS)
        return dict(self.counts)

    def _on_frame(self, sender: int, data: bytes) -> None:
        frame = decode(self.form, data, sender)
        if not isinstance(frame, Frame):
            return
        if frame.kind == VECTOR:
            self.position = max(self.position, (frame.iteration, frame.round))
        if frame.kind == HELLO and decode_hello(frame.payload).newest >= self.form.iterations:
            self.finished.add(sender)

    def _send(self, peer: int, frame: bytes) -> None:
        if len(frame) <= 2 * self.form.largest:
            self.sent.append(frame)
        self.transport.send(peer, frame)

    def _peers(self) -> Iterator[int]:
        peers = list(self.transport.peers())
        return iter(self.random.sample(peers, self.random.randint(1, len(peers))))

    def _vector(self, iteration: int, round: int, sender: int | None = None) -> bytes:
        scale = 10.0 ** self.random.randint(-3, 30)
        vector = self.numbers.normal(0, scale, self.form.parameters)
        if self.random.random() < 0.3:
            vector[self.random.randrange(len(vector))] = self.random.choice([np.nan, np.inf, -np.inf])
        with np.errstate(over="ignore"):
            writer = self.writer if sender is None else self.writer._replace(sender=sender)
            return writer.vector(iteration, round, vector)

    # What it does.

    def garbage(self) -> None:
        """Random bytes of random length."""
        for peer in self._peers():
            self._send(peer, self.random.randbytes(self.random.randrange(self.form.largest)))

    def truncated(self) -> None:
        """The beginning of a valid frame."""
        frame = self._vector(*self.position)
        for peer in self._peers():
            self._send(peer, frame[: self.random.randrange(len(frame))])

    def wrong_length(self) -> None:
        """A header that announces up to 4 GB."""
        frame = bytearray(self._vector(*self.position))
        frame[30:34] = self.random.choice([2**32 - 1, 2**31, 0, 1, len(frame)]).to_bytes(4, "little")
        for peer in self._peers():
            self._send(peer, bytes(frame))

    def oversized(self) -> None:
        """A message above the limit; the receiver closes the connection."""
        for peer in list(self._peers())[:2]:
            self.transport.send(peer, bytes(self.form.largest + 1 + self.random.randrange(10**5)))

    def replay(self) -> None:
        """A frame that it sent before."""
        for peer in self._peers():
            if self.sent:
                self._send(peer, self.random.choice(self.sent))

    def other_name(self) -> None:
        """A valid frame in another node's name."""
        sender = self.random.randrange(self.form.agents)
        for peer in self._peers():
            self._send(peer, self._vector(*self.position, sender=sender))

    def equivocate(self) -> None:
        """Different valid vectors to different receivers, for the current round and the next ones."""
        iteration, round = self.position
        for peer in self.transport.peers():
            for later in range(round, self.form.rounds + 1):
                self._send(peer, self._vector(iteration, later))

    def other_position(self) -> None:
        """Valid vectors of old and future iterations and of rounds that do not exist."""
        for peer in self._peers():
            iteration = self.random.choice([0, max(0, self.position[0] - 1), self.position[0] + 1, 2**32 - 1])
            self._send(peer, self._vector(iteration, self.random.choice([0, 1, self.form.rounds, 2**16 - 1])))

    def invented_state(self) -> None:
        """A state that nobody asked for, of the current iteration or the next ones."""
        for peer in self._peers():
            iteration = min(self.position[0] + self.random.randint(0, 3), self.form.iterations)
            state = self.numbers.normal(0, 1e3, self.form.state)
            self._send(peer, self.writer.state(iteration, state))

    def false_hello(self) -> None:
        """A hello with invented numbers."""
        newest = self.random.choice([0, self.position[0], self.form.iterations, 2**32 - 1])
        version = self.random.choice([jaxbyz.__version__, "9.9.9", "\x00\x1b[31m"])
        for peer in self._peers():
            hello = Hello(
                self.random.randbytes(8), self.random.randbytes(8), self.random.random() < 0.5, newest, 0, version
            )
            self._send(peer, self.writer.frame(HELLO, payload=hello.encode()))

    def ask(self) -> None:
        """Ask everyone for states, many times."""
        for _ in range(20):
            self.transport.broadcast(self.writer.frame(ASK))

    def several_parts(self) -> None:
        """A frame cut into several parts of one message; a transport of its own sends it."""
        with self._stranger(self.transport.identity.secret_key, self.transport.identity.public_key) as push:
            with contextlib.suppress(zmq.Again):
                push.send_multipart([self._vector(*self.position)[:10]] * 5, zmq.NOBLOCK)
            time.sleep(PAUSE_SECONDS)

    def silence(self) -> None:
        """Nothing for a while."""
        until = time.monotonic() + self.random.uniform(0, LONGEST_SILENCE)
        while time.monotonic() < until and not self.stop():
            time.sleep(0.05)

    def flood(self) -> None:
        """Many small frames to one receiver."""
        peer = self.random.choice(list(self.transport.peers()))
        frame = self.writer.frame(ASK)[: self.random.choice([1, HEADER_BYTES])]
        for _ in range(FLOOD_FRAMES):
            self.transport.send(peer, frame)

    def idle_connections(self) -> None:
        """Connections that never begin a handshake, or begin it with garbage."""
        self._close_connections()
        address = self.federation.members[self.random.choice(list(self.transport.peers()))].address
        host, _, port = address.rpartition(":")
        for _ in range(FLOOD_CONNECTIONS):
            with contextlib.suppress(OSError):
                connection = socket.create_connection((host, int(port)), timeout=1)
                self.open.append(connection)
                if self.random.random() < 0.5:
                    connection.sendall(self.random.randbytes(64))

    def unlisted_key(self) -> None:
        """A connection with a key that is not in the list."""
        public, secret = zmq.curve_keypair()
        with self._stranger(secret.decode(), public.decode()) as push:
            with contextlib.suppress(zmq.Again):
                push.send(self._vector(*self.position), zmq.NOBLOCK)
            time.sleep(PAUSE_SECONDS)

    @contextlib.contextmanager
    def _stranger(self, secret: str, public: str) -> Iterator[zmq.Socket[bytes]]:
        """A connection of its own with these keys to one receiver."""
        member = self.federation.members[self.random.choice(list(self.transport.peers()))]
        with zmq.Context() as context, context.socket(zmq.PUSH) as push:
            push.linger = 200
            push.curve_publickey, push.curve_secretkey = public.encode(), secret.encode()
            push.curve_serverkey = member.public_key.encode()
            push.connect(f"tcp://{member.address}")
            yield push

    def _close_connections(self) -> None:
        for connection in self.open:
            connection.close()
        self.open.clear()


def main(folder: Path) -> None:
    """Play the node of a folder until the others have finished or SIGTERM comes; its status says what it did."""
    federation, stopped = read_federation(folder), []
    identity = read_identity(folder, federation)
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    form = format_of(federation, build_programs(federation.config))
    status = {"node": identity.node, "attack": "chaos", "phase": "chaos", "time": time.time()}
    write_json(folder / STATUS_FILE, status)
    counts = Chaos(federation, identity, form, lambda: bool(stopped), secrets.randbits(32)).run()
    write_json(folder / STATUS_FILE, {**status, "phase": "finished", "time": time.time(), "played": counts})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
