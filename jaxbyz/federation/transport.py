"""Authenticated, encrypted channels between nodes: ZeroMQ sockets with CURVE.

Every node binds one PULL socket, on which it hears all others, and connects one PUSH socket to each of them. Sockets of
these types have no identities that a peer could choose. A connection is accepted only with a key of the list, and
every frame is attributed to the node whose key the connection has proved. One thread owns all sockets.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import zmq
from zmq.utils import z85

from jaxbyz.errors import UsageError
from jaxbyz.federation.connections import ConnectionGuard
from jaxbyz.federation.keys import FederationDescription, Identity

ZAP_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks whether a connection is allowed (RFC 27)
DOMAIN = b"jaxbyz"
HANDSHAKE_MS = 3000  # a connection that has not proved its key by then is closed
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10000  # find connections that died without a word
RECONNECT_MS, RECONNECT_MAX_MS = 50, 2000
HANDSHAKE_BYTES = 1024  # libzmq applies the limit on messages to the handshake as well
ENCRYPTION_BYTES = 33  # what CURVE adds to a message
BACKLOG = 256
PENDING_MESSAGES = 2  # times the queue: what may be on its way through one connection
CONNECTIONS_PER_MINUTE = 60  # with one key; an honest node needs one, and another whenever it was cut off
FRAMES_AT_ONCE = 64  # between two looks at the other sockets
LINGER_MS = 2000  # how long the last frames may take to leave


class Traffic:
    """Counts of what crossed the sockets of one node.

    Attributes:
        bytes_in: bytes of all frames from listed nodes.
        bytes_out: bytes of all frames handed to the sockets.
        frames_in: number of frames from listed nodes.
        frames_out: number of frames sent.
        dropped: frames that were not sent, because the queue to their receiver was full.
        connections: connections with a listed key.
        outsiders: connections with an unknown key, or too many with one key.
        shut: connections that were closed because there were too many, or because they delivered no whole message.
    """

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.frames_in = self.frames_out = 0
        self.dropped = self.connections = self.outsiders = self.shut = 0


class Transport:
    """The sockets of one node and the thread that serves them.

    Args:
        federation: the list of public keys and addresses.
        identity: the keys of this node.
        largest: the size of the largest frame in bytes. Connections that announce more are closed by libzmq before
            anything is allocated.
        queue: the number of frames per peer that wait in either direction; more are dropped.
        on_frame: `(sender, bytes) -> None`, called in the thread of the sockets for every frame.
        on_tick: called in that thread about every `tick` seconds.
        tick: see `on_tick`.
        bind: the address to listen on, `host:port`; by default the one of the list.
    """

    def __init__(
        self,
        federation: FederationDescription,
        identity: Identity,
        largest: int,
        queue: int,
        on_frame: Callable[[int, bytes], None],
        on_tick: Callable[[], None] = lambda: None,
        tick: float = 0.25,
        bind: str | None = None,
    ):
        self.federation, self.identity, self.largest, self.queue = federation, identity, largest, queue
        self.on_frame, self.on_tick, self.tick = on_frame, on_tick, tick
        self.bind = bind or federation.members[identity.node].address
        self.traffic = Traffic()
        self.number_of = {member.public_key.encode(): i for i, member in enumerate(federation.members)}
        self.connections: dict[int, collections.deque[float]] = collections.defaultdict(collections.deque)
        self.outbox: collections.deque[tuple[int, bytes]] = collections.deque()
        self.closing = threading.Event()
        self.failure: BaseException | None = None
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 8 + 2 * len(federation.members))
        self.thread = threading.Thread(target=self._serve, name=f"node-{identity.node}-network", daemon=True)

    def __enter__(self) -> Transport:
        try:
            self._open()
        except zmq.ZMQError as error:
            self.context.destroy(linger=0)
            raise UsageError(
                f"node {self.identity.node} cannot listen on {self.bind} ({error.strerror}): is another process using "
                "its address or its identity?"
            ) from error
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._wake()
        self.thread.join()
        self.waker.close(linger=0)
        self.context.term()

    def send(self, peer: int, frame: bytes) -> None:
        """Queue a frame for one node. Any thread may call this; it never waits."""
        self.outbox.append((peer, frame))
        self._wake()

    def broadcast(self, frame: bytes) -> None:
        """Queue a frame for all other nodes."""
        self.outbox.extend((peer, frame) for peer in self.peers())
        self._wake()

    def peers(self) -> Iterator[int]:
        """Yield the numbers of the other nodes."""
        return (i for i in range(len(self.federation.members)) if i != self.identity.node)

    def _open(self) -> None:
        """Create all sockets. They are used by the thread only, except the waker, which has a lock."""
        self.zap = self._socket(zmq.REP)
        self.zap.bind(ZAP_ADDRESS)
        self.pull = self._socket(zmq.PULL)
        self.pull.curve_server = True
        self.pull.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        self._use_keys(self.pull)
        self.pull.maxmsgsize = max(self.largest, HANDSHAKE_BYTES) + ENCRYPTION_BYTES
        self.pull.rcvhwm = self.queue
        self.pull.backlog = BACKLOG
        self.guard = ConnectionGuard(self.pull, PENDING_MESSAGES * (self.queue + 1) * self.pull.maxmsgsize)
        self.pull.bind(f"tcp://{self.bind}")
        self.push: dict[int, zmq.Socket[bytes]] = {}
        for peer in self.peers():
            socket = self._socket(zmq.PUSH)
            self._use_keys(socket)
            socket.curve_serverkey = self.federation.members[peer].public_key.encode()
            socket.sndhwm = self.queue
            socket.reconnect_ivl, socket.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
            socket.connect(f"tcp://{self.federation.members[peer].address}")
            self.push[peer] = socket
        self.alarm, self.waker = self._socket(zmq.PULL), self._socket(zmq.PUSH)
        self.waker_lock = threading.Lock()
        self.alarm.bind("inproc://alarm")
        self.waker.connect("inproc://alarm")

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.linger = 0
        return socket

    def _use_keys(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_publickey = self.identity.public_key.encode()
        socket.curve_secretkey = self.identity.secret_key.encode()
        socket.handshake_ivl = HANDSHAKE_MS
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS

    def _wake(self) -> None:
        """Interrupt the thread's wait; a full queue means that it is being woken already."""
        with self.waker_lock, contextlib.suppress(zmq.Again):
            self.waker.send(b"", zmq.NOBLOCK)

    def _serve(self) -> None:
        """Serve the sockets until `closing` is set; then send what is left and close them."""
        try:
            poller = zmq.Poller()
            for socket in (self.zap, self.pull, self.alarm, self.guard.monitor):
                poller.register(socket, zmq.POLLIN)
            next_tick = time.monotonic()
            while not self.closing.is_set():
                ready = dict(poller.poll(max(0, int(1000 * (next_tick - time.monotonic())))))
                if self.alarm in ready:
                    self._drain_alarm()
                self._send_all()
                if self.guard.monitor in ready:
                    self.guard.note_events()
                if self.zap in ready:
                    self._authenticate()
                if self.pull in ready:
                    self._receive_some()
                if time.monotonic() >= next_tick:
                    self.guard.tick()
                    self.traffic.shut = self.guard.shut
                    self.on_tick()
                    next_tick = time.monotonic() + self.tick
            self._send_all()
        except BaseException as error:  # shown by the main thread, which would otherwise wait for ever
            self.failure = error
        finally:
            self.guard.close()
            for socket in (self.zap, self.pull, self.alarm):
                socket.close(linger=0)
            for socket in self.push.values():
                socket.close(linger=LINGER_MS if self.failure is None else 0)

    def _drain_alarm(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                self.alarm.recv(zmq.NOBLOCK)

    def _send_all(self) -> None:
        while self.outbox:
            peer, frame = self.outbox.popleft()
            try:
                self.push[peer].send(frame, zmq.NOBLOCK)
            except zmq.Again:
                self.traffic.dropped += 1
                continue
            self.traffic.frames_out += 1
            self.traffic.bytes_out += len(frame)

    def _receive_some(self) -> None:
        """Hand on the frames that are here, a bounded number, so that a flood does not starve the other sockets."""
        for _ in range(FRAMES_AT_ONCE):
            try:
                parts = self.pull.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            sender = int(parts[0].get("User-Id"))
            self.guard.heard(parts[0].get(zmq.SRCFD), sender)
            self.traffic.frames_in += 1
            self.traffic.bytes_in += sum(len(part.buffer) for part in parts)
            # A frame is one part; a message of several parts is handed on as an empty frame, which nobody accepts.
            self.on_frame(sender, parts[0].bytes if len(parts) == 1 else b"")

    def _authenticate(self) -> None:
        """Answer libzmq's question whether a connection is allowed, and name the node that it belongs to."""
        version, request, domain, _, _, mechanism, *credentials = self.zap.recv_multipart()
        number = None
        if domain == DOMAIN and mechanism == b"CURVE" and len(credentials) == 1:
            number = self.number_of.get(z85.encode(credentials[0]))
        allowed = number is not None and self._within_rate(number)
        if allowed:
            self.traffic.connections += 1
        else:
            self.traffic.outsiders += 1
        answer = (b"200", b"OK", b"%d" % number) if number is not None and allowed else (b"400", b"refused", b"")
        self.zap.send_multipart([version, request, *answer, b""])

    def _within_rate(self, number: int) -> bool:
        """Whether a node may connect once more: a bounded number of times per minute."""
        times, now = self.connections[number], time.monotonic()
        while times and now - times[0] > 60:
            times.popleft()
        if len(times) >= CONNECTIONS_PER_MINUTE:
            return False
        times.append(now)
        return True
