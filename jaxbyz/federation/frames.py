"""The bytes that nodes exchange: a fixed header and a payload whose length is known in advance.

Everything about a frame is checked before its payload is used. Vectors are little-endian float32; nothing is pickled,
and no length in a frame decides how much memory is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxbyz.errors import UsageError
from jaxbyz.federation.signatures import SIGNATURE_BYTES, Sign

MAGIC = b"JBZ2"  # changes with the format
NODE_LIMIT = 2**16 - 1
ITERATION_LIMIT = 2**32 - 1

# What a frame is. A vector is a gradient (round 0) or parameters (rounds 1 to κ); if an iteration sends several
# gradients, the rounds of each follow those of the one before.
VECTOR, HELLO, ASK, STATE, WANT, PROOF = range(1, 7)
AUDIT, REVEAL, ACCUSE = range(7, 10)  # only in a federation with audits
KINDS = {VECTOR: "vector", HELLO: "hello", ASK: "ask", STATE: "state", WANT: "want", PROOF: "proof"}
AUDIT_KINDS = {AUDIT: "audit", REVEAL: "reveal", ACCUSE: "accuse"}
BYTES, FLOAT32 = range(2)  # what the payload consists of
DTYPES = {VECTOR: FLOAT32, STATE: FLOAT32}  # of all others: BYTES

# magic, federation, kind, dtype, sender, iteration, round, length of the payload in bytes, life of the sender
_HEADER = struct.Struct("<4s16sBBHIHIQ")
HEADER_BYTES = _HEADER.size
DIGEST_BYTES = 32  # of SHA-256
TAG_BYTES = 8  # the beginning of a signature; a vector names those of the round before, of every sender

_HELLO = struct.Struct("<8s8sBII24s")
VERSION_BYTES = 24
NO_NONCE = bytes(8)


class Frame(NamedTuple):
    """A frame that passed all checks, except that of its signature.

    Attributes:
        kind: one of `KINDS`.
        sender: the number of the node that made it.
        iteration: the iteration t that it belongs to.
        round: the round in the iteration, counted from 0.
        life: how often its sender was started; a later life has a larger number.
        payload: the bytes behind the header.
        data: the whole frame.
        via: the number of the node that sent it, which its key proves: the sender, or a node that passed it on.
        floats: how many numbers the payload begins with.
        commitment_bytes: how many bytes at the end of a vector commit its sender to its state.
    """

    kind: int
    sender: int
    iteration: int
    round: int
    life: int
    payload: memoryview
    data: bytes
    via: int
    floats: int
    commitment_bytes: int = 0

    @property
    def position(self) -> tuple[int, int]:
        """The iteration and the round."""
        return self.iteration, self.round

    @property
    def signed(self) -> memoryview:
        """What the signature covers."""
        return memoryview(self.data)[:-SIGNATURE_BYTES]

    @property
    def signature(self) -> bytes:
        """The signature of the sender."""
        return self.data[-SIGNATURE_BYTES:]

    @property
    def tag(self) -> bytes:
        """What other nodes say about this frame, to find out whether they have got the same one."""
        return self.data[-SIGNATURE_BYTES:][:TAG_BYTES]

    @property
    def tags(self) -> bytes:
        """Of a vector: the tags of all messages that its sender has got in the round before; zeros for none."""
        return bytes(self.payload[4 * self.floats : len(self.payload) - self.commitment_bytes])

    @property
    def commitment(self) -> bytes:
        """Of a vector: what commits its sender to its state, if there are audits."""
        return bytes(self.payload[len(self.payload) - self.commitment_bytes :])

    def vector(self) -> np.ndarray:
        """Return the payload as float32 numbers, which may be non-finite."""
        return np.frombuffer(self.payload, "<f4", self.floats)


class Hello(NamedTuple):
    """What a node says about itself, periodically.

    Attributes:
        nonce: the number of its life; two processes with one identity differ in it.
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
        audited: with audits, the number of bytes of everything that an iteration of a node starts from; 0 without.
    """

    federation: bytes
    agents: int
    parameters: int
    state: int
    rounds: int
    iterations: int
    audited: int = 0

    @lru_cache(maxsize=64)  # noqa: B019 (a format is a tuple of small values)
    def payload_bytes(self, kind: int) -> int:
        """Return the only allowed length of the payload of this kind of frame."""
        vector = 4 * self.parameters + TAG_BYTES * self.agents + self.commitment_bytes
        whole, rounds = HEADER_BYTES + vector + SIGNATURE_BYTES, 1 + self.rounds
        reveal = 2 * self.audited + rounds * self.agents * DIGEST_BYTES
        return {
            VECTOR: vector, HELLO: _HELLO.size, ASK: 0, STATE: 4 * self.state, WANT: -(-self.agents // 8),
            PROOF: 2 * whole, AUDIT: 0, REVEAL: reveal,
            ACCUSE: HEADER_BYTES + reveal + SIGNATURE_BYTES + (rounds + 1) * whole,
        }[kind]  # fmt: skip

    def floats(self, kind: int) -> int:
        """Return how many numbers the payload of this kind of frame begins with."""
        return {VECTOR: self.parameters, STATE: self.state}.get(kind, 0)

    @property
    def kinds(self) -> dict[int, str]:
        """The kinds of frames that there are."""
        return KINDS | AUDIT_KINDS if self.audited else KINDS

    @property
    def commitment_bytes(self) -> int:
        """How many bytes of a vector commit its sender to its state."""
        return DIGEST_BYTES if self.audited else 0

    @property
    def largest(self) -> int:
        """The size of the largest frame in bytes: the hard limit of the transport."""
        return HEADER_BYTES + max(map(self.payload_bytes, self.kinds)) + SIGNATURE_BYTES

    def check(self) -> None:
        """Refuse sizes that the header cannot express."""
        if self.agents > NODE_LIMIT:
            raise UsageError(f"agents={self.agents}: a federation has at most {NODE_LIMIT} nodes")
        if self.rounds > NODE_LIMIT or self.iterations >= ITERATION_LIMIT or self.largest >= 2**31:
            raise UsageError(f"{self.rounds} rounds, {self.iterations} iterations, {self.largest} bytes: too large")


class Writer(NamedTuple):
    """Makes the frames of one node.

    Attributes:
        form: what they look like.
        sender: the number of the node.
        sign: `bytes -> signature`.
        life: the number of its life.
        commitment: what its vectors commit it to, if there are audits.
    """

    form: Format
    sender: int
    sign: Sign
    life: int = 0
    commitment: bytes = b""

    def frame(self, kind: int, iteration: int = 0, round: int = 0, payload: bytes = b"") -> bytes:
        """Return the bytes of a frame."""
        header = (
            MAGIC, self.form.federation, kind, DTYPES.get(kind, BYTES), self.sender, iteration, round, len(payload),
            self.life,
        )  # fmt: skip
        data = _HEADER.pack(*header) + payload
        return data + self.sign(data)

    def state(self, iteration: int, vector: np.ndarray) -> bytes:
        """Return the bytes of a frame with a state."""
        return self.frame(STATE, iteration, 0, np.asarray(vector, "<f4").tobytes())

    def vector(self, iteration: int, round: int, vector: np.ndarray, tags: bytes | None = None) -> bytes:
        """Return the bytes of a frame with a vector, and with the tags of the messages of the round before."""
        rest = bytes(TAG_BYTES * self.form.agents) if tags is None else tags
        return self.frame(VECTOR, iteration, round, np.asarray(vector, "<f4").tobytes() + rest + self._commitment())

    def _commitment(self) -> bytes:
        return self.commitment or bytes(self.form.commitment_bytes)

    def want(self, iteration: int, round: int, senders: Iterable[int]) -> bytes:
        """Return the bytes of a frame that asks for the messages of these senders in a round."""
        mask = sum(1 << sender for sender in set(senders))
        return self.frame(WANT, iteration, round, mask.to_bytes(self.form.payload_bytes(WANT), "little"))


def wanted(frame: Frame) -> list[int]:
    """Return the senders that a frame of `Writer.want` asks for."""
    mask = int.from_bytes(frame.payload, "little")
    return [sender for sender in range(8 * len(frame.payload)) if mask >> sender & 1]


def decode(form: Format, data: bytes, via: int) -> Frame | str:
    """Return the frame, or in one word why it is refused.

    Args:
        form: what frames of this federation look like.
        data: the received bytes.
        via: the node that the connection's key belongs to. Only vectors may be passed on for others.
    """
    if len(data) < HEADER_BYTES:
        return "short"
    magic, federation, kind, dtype, sender, iteration, round, length, life = _HEADER.unpack_from(data)
    if magic != MAGIC:
        return "format"
    if federation != form.federation:
        return "federation"
    if kind not in form.kinds:
        return "kind"
    if sender != via and (kind != VECTOR or sender >= form.agents):
        return "sender"
    if dtype != DTYPES.get(kind, BYTES):
        return "dtype"
    if length != form.payload_bytes(kind) or len(data) != HEADER_BYTES + length + SIGNATURE_BYTES:
        return "length"
    if iteration > form.iterations or round > form.rounds or (kind == VECTOR and iteration == form.iterations):
        return "position"
    payload = memoryview(data)[HEADER_BYTES:-SIGNATURE_BYTES]
    commitment = form.commitment_bytes if kind == VECTOR else 0
    return Frame(kind, sender, iteration, round, life, payload, data, via, form.floats(kind), commitment)


def decode_own(form: Format, data: bytes) -> Frame | str:
    """Return a frame that somebody else shows, as if it came from its sender; or in one word why it is refused."""
    return decode(form, data, int.from_bytes(data[22:24], "little"))


def accused(frame: Frame) -> int:
    """Return the sender of the first frame in an accusation."""
    return int.from_bytes(frame.payload[22:24], "little")


def decode_proof(form: Format, frame: Frame) -> tuple[Frame, Frame] | None:
    """Return the two vectors in a proof if they contradict each other; None if they do not."""
    half = len(frame.payload) // 2
    both = [bytes(frame.payload[:half]), bytes(frame.payload[half:])]
    a, b = (decode_own(form, data) for data in both)
    return (a, b) if isinstance(a, Frame) and isinstance(b, Frame) and contradict(a, b) else None


def contradict(a: Frame, b: Frame) -> bool:
    """Whether two vectors of one sender, in one round of one life, differ."""
    same = (a.kind, a.sender, a.position, a.life) == (b.kind, b.sender, b.position, b.life)
    return same and a.kind == VECTOR and a.signed != b.signed
