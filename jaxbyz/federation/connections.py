"""Limits on the connections that others open to a node, none of which libzmq has itself.

libzmq accepts as many connections as there are handles, and collects all parts of a message before it shows the first.
So the thread of the sockets watches both: it sees every connection through the monitor of its listening socket, and
asks the operating system how many bytes have come through it. A connection that is too much is shut down, which libzmq
treats as if the other side had closed it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

import zmq
from zmq.utils.monitor import parse_monitor_message

MOST_UNKNOWN = 64  # connections that have not delivered a message yet: among them those without a key
MOST_PER_NODE = 2  # a node that connects anew may have an old connection that is not closed yet
QUIET_TICKS = 40  # honest nodes say hello about once per second
BYTES_RECEIVED = 128  # offset of `tcpi_bytes_received` in the structure `tcp_info` of Linux


class Connection:
    """One connection to this node.

    Attributes:
        sender: the node whose messages came through it; None before the first.
        quiet: ticks since its last message.
        at_message: the bytes that had come through it when its last message was seen.
    """

    def __init__(self) -> None:
        self.sender: int | None = None
        self.quiet = self.at_message = 0


class ConnectionGuard:
    """Shuts down connections beyond the limits. Only the thread of the sockets uses it.

    Args:
        listener: the socket that listens.
        most_pending: bytes that a connection may deliver without completing a message.
    """

    def __init__(self, listener: zmq.Socket[bytes], most_pending: int):
        self.most_pending, self.shut = most_pending, 0
        self.connections: dict[int, Connection] = {}  # by the handle of the operating system, the oldest first
        self.listener = listener
        self.monitor: zmq.Socket[bytes] = listener.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)

    def close(self) -> None:
        """Stop watching."""
        self.listener.disable_monitor()
        self.monitor.close(linger=0)

    def note_events(self) -> None:
        """Learn which connections were opened and closed."""
        with contextlib.suppress(zmq.Again):
            while True:
                event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
                self.connections.pop(int(event["value"]), None)
                if event["event"] == zmq.EVENT_ACCEPTED:
                    self.connections[int(event["value"])] = Connection()
        self._limit([handle for handle, one in self.connections.items() if one.sender is None], MOST_UNKNOWN)

    def heard(self, handle: int, sender: int) -> None:
        """Note a complete message of a node."""
        connection = self.connections.setdefault(handle, Connection())
        connection.quiet = 0
        if connection.sender != sender:
            connection.sender = sender
            same = [handle for handle, one in self.connections.items() if one.sender == sender]
            self._limit(same, MOST_PER_NODE)

    def tick(self) -> None:
        """Shut down connections that are silent, or in the middle of a message without an end."""
        for handle, connection in list(self.connections.items()):
            received = _bytes_received(handle)
            if connection.quiet == 0:
                connection.at_message = received
            elif connection.quiet > QUIET_TICKS or received - connection.at_message > self.most_pending:
                self._shut_down(handle)
            connection.quiet += 1

    def _limit(self, handles: list[int], most: int) -> None:
        """Shut down the oldest of these connections until there are few enough."""
        for handle in handles[: max(0, len(handles) - most)]:
            self._shut_down(handle)

    def _shut_down(self, handle: int) -> None:
        """End a connection; libzmq notices it and frees what belongs to it."""
        self.connections.pop(handle, None)
        self.shut += 1
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(handle)) as connection:
            connection.shutdown(socket.SHUT_RDWR)


def _bytes_received(handle: int) -> int:
    """Return how many bytes have come through a connection; 0 where the operating system does not say."""
    try:
        with socket.socket(fileno=os.dup(handle)) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_RECEIVED + 8)
        return int(struct.unpack_from("<Q", info, BYTES_RECEIVED)[0])
    except (OSError, AttributeError, struct.error):
        return 0
