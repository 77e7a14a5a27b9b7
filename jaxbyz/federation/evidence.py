"""Who is excluded for good, and why: nodes that signed two different messages for one round, or signed wrongly.

A message that comes from its sender needs no signature to be believed, because the connection proves who that is. So
only a part of these signatures is checked, at random, and all of those that were passed on. Two vectors of one sender
in one round are a proof that everybody can check. It is shown to everybody, and kept in the folder of the node.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxbyz.errors import UsageError
from jaxbyz.federation.frames import ACCUSE, PROOF, Format, Frame, accused, contradict, decode, decode_proof
from jaxbyz.federation.signatures import Verify
from jaxbyz.files import open_regular, refuse_links, write_file

CHECKED = 1 / 32  # the part of the signatures that is checked of messages that come from their sender
FOLDER = "proofs"
EQUIVOCATION, BAD_SIGNATURE = "two different messages for one round", "a wrong signature"
UNREPRODUCED = "a message that others cannot reproduce"
FALSE_ACCUSATION = "an accusation of a node whose message can be reproduced"
NOT_AUDITABLE = "it does not let others reproduce its messages"


class Exclusion(NamedTuple):
    """Why a node is excluded.

    Attributes:
        reason: in words.
        iteration: the iteration of its messages.
        round: their round.
        since: when this node learnt of it, in seconds since 1970.
        proof: a frame that proves it to everybody; empty if there is none.
        shown_by: who showed the proof, which may be this node itself; None if it was read from the disk.
    """

    reason: str
    iteration: int
    round: int
    since: float
    proof: bytes
    shown_by: int | None


class Evidence:
    """The nodes that this node has excluded, and the proofs that it has.

    Args:
        form: what frames look like.
        index: the number of this node.
        verify: checks a signature.
        prove: makes a frame of the kind `PROOF` from its iteration, round and payload.
        folder: where proofs are kept; None keeps none.
        log: receives a line about every exclusion.
    """

    def __init__(
        self,
        form: Format,
        index: int,
        verify: Verify,
        prove: Callable[[int, int, bytes], bytes],
        folder: Path | None,
        log: Callable[[str], None],
    ):
        self.form, self.index, self.verify, self.prove, self.folder, self.log = form, index, verify, prove, folder, log
        self.excluded: dict[int, Exclusion] = {}
        self.to_show: list[bytes] = []  # proofs that the others have not been shown yet
        self.random = random.Random(secrets.randbits(128))  # a liar must not know which signatures are checked

    def is_signed(self, frame: Frame) -> bool:
        """Return whether the signature of a frame is right."""
        return self.verify(frame.sender, frame.signed, frame.signature)

    def check(self, frame: Frame) -> str | None:
        """Check the signature of a frame if it was passed on, or sometimes; return in one word why it is refused."""
        if frame.sender in self.excluded or frame.via in self.excluded:
            return "excluded"
        if frame.via != frame.sender:
            return None if self.is_signed(frame) else "signature"
        if self.random.random() < CHECKED and not self.is_signed(frame):
            self._exclude(frame.sender, Exclusion(BAD_SIGNATURE, *frame.position, time.time(), b"", self.index))
            return "signature"
        return None

    def compare(self, a: Frame, b: Frame) -> None:
        """Exclude the sender of two vectors if they contradict each other; either may come from the sender itself."""
        if contradict(a, b) and a.sender not in self.excluded and self.is_signed(a) and self.is_signed(b):
            self._convict_of_contradiction(a, a.data + b.data, self.index)

    def show(self, frame: Frame) -> str | None:
        """Take a proof of another node; return in one word why it is refused."""
        both = decode_proof(self.form, frame)
        if both is None or not all(self.is_signed(one) for one in both):
            return "proof"
        if both[0].sender not in self.excluded or not self.excluded[both[0].sender].proof:
            self._convict_of_contradiction(both[0], bytes(frame.payload), frame.via)
        return None

    def proofs(self) -> list[bytes]:
        """Return the proofs that this node has, for nodes that join."""
        return [exclusion.proof for exclusion in self.excluded.values() if exclusion.proof]

    def read(self) -> None:
        """Take the proofs that are kept in the folder; those that prove nothing are ignored."""
        if self.folder is None:
            return
        for path in sorted(refuse_links(self.folder, FOLDER).glob("*.bin"))[: self.form.agents]:
            with open_regular(path) as file:
                frame = decode(self.form, file.read(self.form.largest + 1), self.index)
            if isinstance(frame, Frame) and frame.kind == ACCUSE and self.is_signed(frame):
                self._exclude(accused(frame), Exclusion(UNREPRODUCED, *frame.position, time.time(), frame.data, None))
            both = decode_proof(self.form, frame) if isinstance(frame, Frame) and frame.kind == PROOF else None
            if both is not None and isinstance(frame, Frame) and all(self.is_signed(one) for one in both):
                self._exclude(both[0].sender, Exclusion(EQUIVOCATION, *both[0].position, time.time(), frame.data, None))

    def doubts(self) -> dict[str, dict[str, Any]]:
        """Return what the status of this node says about the nodes that it has excluded."""
        return {
            str(node): {
                "state": "excluded", "why": one.reason, "since": one.since, "iteration": one.iteration,
                "round": one.round, "proof": bool(one.proof), "shown_by": one.shown_by,
            }
            for node, one in sorted(self.excluded.items())
        }  # fmt: skip

    def _convict_of_contradiction(self, frame: Frame, payload: bytes, shown_by: int) -> None:
        proof = self.prove(*frame.position, payload)
        self.convict(frame.sender, Exclusion(EQUIVOCATION, *frame.position, time.time(), proof, shown_by))

    def convict(self, node: int, exclusion: Exclusion) -> None:
        """Exclude a node; keep the proof, if there is one, and show it to everybody."""
        self._exclude(node, exclusion)
        if not exclusion.proof:
            return
        self.to_show.append(exclusion.proof)
        if self.folder is not None:
            try:
                folder = refuse_links(self.folder, FOLDER)
                folder.mkdir(exist_ok=True)
                write_file(folder / f"{node}.bin", lambda file: file.write(exclusion.proof))
            except (UsageError, OSError) as error:
                self.log(f"the proof about node {node} is not kept ({error})")

    def _exclude(self, node: int, exclusion: Exclusion) -> None:
        self.excluded[node] = exclusion
        self.log(f"iteration {exclusion.iteration}: node {node} is excluded for good: {exclusion.reason}")
