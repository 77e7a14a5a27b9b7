"""The bytes that nodes exchange: a fixed header and a payload whose length is known in advance.

Everything about a frame is checked before its payload is used. Vectors are little-endian float32; nothing is pickled,
and no length in a frame decides how much memory is allocated.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from jaxbyz.errors import UsageError

MAGIC = b"JBZ1"  # changes with the format
NODE_LIMIT = 2**16 - 1
ITERATION_LIMIT = 2**32 - 1

# What a frame is. A vector is a gradient (round 0) or parameters (rounds 1 to κ); if an iteration sends several
# gradients, the rounds of each follow those of the one before.
VECTOR, HELLO, ASK, STATE = range(1, 5)
KINDS = {VECTOR: "vector", HELLO: "hello", ASK: "ask", STATE: "state"}
BYTES, FLOAT32 = range(2)  # what the payload consists of
DTYPES = {VECTOR: FLOAT32, HELLO: BYTES, ASK: BYTES, STATE: FLOAT32}

# magic, federation, kind, dtype, sender, iteration, round, length of the payload in bytes
_HEADER = struct.Struct("<4s16sBBHIHI")
HEADER_BYTES = _HEADER.size

_HELLO = struct.Struct("<8s8sBII24s")
VERSION_BYTES = 24
NO_NONCE = bytes(8)


class Frame(NamedTuple):
    """A frame that passed all checks.

    Attributes:
        kind: one of `KINDS`.
        sender: the number of the node that sent it, which its key proves.
        iteration: the iteration t that it belongs to.
        round: the round in the iteration, counted from 0.
        payload: the bytes behind the header.
    """

    kind: int
    sender: int
    iteration: int
    round: int
    payload: memoryview

    def vector(self) -> np.ndarray:
        """Return the payload as float32 numbers, which may be non-finite."""
        return np.frombuffer(self.payload, "<f4")


class Hello(NamedTuple):
    """What a node says about itself, periodically.

    Attributes:
        nonce: drawn when its process started; two processes with one identity differ in it.
        heard: the nonce that it last heard from the receiver, or `NO_NONCE`.
        running: whether it takes part in iterations already.
        newest: the latest iteration that it can offer.
        older: an earlier one, from its checkpoint before the newest.
        version: version of the library.
    """

    nonce: bytes
    heard: bytes
    running: bool
    newest: int
    older: int
    version: str

    def encode(self) -> bytes:
        """Return the payload of a hello frame."""
        version = self.version.encode()[:VERSION_BYTES]
        return _HELLO.pack(self.nonce, self.heard, self.running, self.newest, self.older, version)


def decode_hello(payload: memoryview | bytes) -> Hello:
    """Inverse of `Hello.encode`; the length of the payload was checked."""
    nonce, heard, running, newest, older, version = _HELLO.unpack(payload)
    text = version.rstrip(b"\0").decode("ascii", "replace")
    return Hello(nonce, heard, bool(running), newest, older, "".join(c if c.isprintable() else "?" for c in text))


class Format(NamedTuple):
    """Everything that a frame of one federation must satisfy, known before the first frame.

    Attributes:
        federation: 16 bytes that identify the federation: a digest of its configuration and public keys.
        agents: the number of nodes K.
        parameters: the number of parameters D.
        state: the number of floats of a whole state.
        rounds: the last round of an iteration: κ, or m(1 + κ) − 1 if m gradients are sent.
        iterations: the number of iterations T.
    """

    federation: bytes
    agents: int
    parameters: int
    state: int
    rounds: int
    iterations: int

    def payload_bytes(self, kind: int) -> int:
        """Return the only allowed length of the payload of this kind of frame."""
        return {VECTOR: 4 * self.parameters, HELLO: _HELLO.size, ASK: 0, STATE: 4 * self.state}[kind]

    @property
    def largest(self) -> int:
        """The size of the largest frame in bytes: the hard limit of the transport."""
        return HEADER_BYTES + max(self.payload_bytes(kind) for kind in KINDS)

    def check(self) -> None:
        """Refuse sizes that the header cannot express."""
        if self.agents > NODE_LIMIT:
            raise UsageError(f"agents={self.agents}: a federation has at most {NODE_LIMIT} nodes")
        if self.rounds > NODE_LIMIT or self.iterations >= ITERATION_LIMIT or self.largest >= 2**31:
            raise UsageError(f"{self.rounds} rounds, {self.iterations} iterations, {self.largest} bytes: too large")


def encode(form: Format, kind: int, sender: int, iteration: int, round: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    header = (MAGIC, form.federation, kind, DTYPES[kind], sender, iteration, round, len(payload))
    return _HEADER.pack(*header) + payload


def encode_vector(form: Format, kind: int, sender: int, iteration: int, round: int, vector: np.ndarray) -> bytes:
    """Return the bytes of a frame that carries float32 numbers."""
    return encode(form, kind, sender, iteration, round, np.asarray(vector, "<f4").tobytes())


def decode(form: Format, data: bytes | memoryview, sender: int) -> Frame | str:
    """Return the frame, or in one word why it is refused.

    Args:
        form: what frames of this federation look like.
        data: the received bytes.
        sender: the node that the connection's key belongs to. A frame in another node's name is refused.
    """
    if len(data) < HEADER_BYTES:
        return "short"
    magic, federation, kind, dtype, named, iteration, round, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return "format"
    if federation != form.federation:
        return "federation"
    if kind not in KINDS:
        return "kind"
    if named != sender:
        return "sender"
    if dtype != DTYPES[kind]:
        return "dtype"
    if length != form.payload_bytes(kind) or len(data) != HEADER_BYTES + length:
        return "length"
    if iteration > form.iterations or round > form.rounds or (kind == VECTOR and iteration == form.iterations):
        return "position"
    return Frame(kind, sender, iteration, round, memoryview(data)[HEADER_BYTES:])
