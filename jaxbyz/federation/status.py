"""What `status.json` of a node may contain, and how it is read from a folder that anybody may have written."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from jaxbyz.errors import UsageError
from jaxbyz.files import read_json
from jaxbyz.runs.folder_lock import is_locked

STATUS_FILE = "status.json"
ALIVE = ("meeting", "joining", "running")  # phases of a node whose process exists
SILENT_SECONDS = 5.0  # a node writes about once per second; after this long, it is looked whether its process exists

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]
Text = Annotated[str, msgspec.Meta(pattern="^[ -~−]*$", max_length=200)]


class Doubt(msgspec.Struct, omit_defaults=True):
    """What a node says about another one that it does not trust.

    Attributes:
        state: whether it is only not waited for, or not heard either.
        why: in words.
        since: in seconds since 1970.
        iteration, round: of the messages that prove it.
        proof: whether there is a proof that everybody can check, in the folder `proofs` of the node.
        shown_by: the node that showed the proof.
    """

    state: Literal["suspected", "excluded"]
    why: Text
    since: Annotated[float, msgspec.Meta(ge=0, le=2**40)]
    iteration: Count | None = None
    round: Count | None = None
    proof: bool = False
    shown_by: Number | None = None


class NodeStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A status as a node writes it. Whatever else is in the file is not shown.

    Attributes:
        time: when it was written, in seconds since 1970.
        node: the number of the node.
        phase: what it does.
        iteration, iterations: where it is, and how many there are.
        attack: what it plays.
        rejoined: how often it took the state of the others.
        latest_return: its latest mean return.
        suspected: the nodes that it does not wait for.
        doubts: why, and since when, by node.
        scores: how much its rule trusts every node, if the rule rates them.
        refused: how many frames it refused, by reason.
        refused_of: the same, by sender.
        deadlines: how long it waits for the last messages, in seconds, by kind of round.
        longest_wait, longest_overrun: of all rounds, in seconds.
        bytes_in, bytes_out, frames_in, frames_out, dropped, connections, outsiders, shut: as in `Traffic`.
    """

    time: float = 0.0
    node: Number
    phase: Literal["meeting", "joining", "running", "finished", "stopped", "killed", "not started", "unreadable status"]
    iteration: Count | msgspec.UnsetType = msgspec.UNSET
    iterations: Count | msgspec.UnsetType = msgspec.UNSET
    attack: Text | None = None
    rejoined: Count | msgspec.UnsetType = msgspec.UNSET
    latest_return: float | None = msgspec.field(default=None, name="return")
    suspected: tuple[Number, ...] = ()
    doubts: dict[Text, Doubt] = {}
    scores: dict[Text, float] = {}
    refused: dict[Text, Count] = {}
    refused_of: dict[Text, Count] = {}
    deadlines: dict[Text, float] = {}
    longest_wait: float = 0.0
    longest_overrun: float = 0.0
    bytes_in: Count | msgspec.UnsetType = msgspec.UNSET
    bytes_out: Count | msgspec.UnsetType = msgspec.UNSET
    frames_in: Count = 0
    frames_out: Count = 0
    dropped: Count = 0
    connections: Count = 0
    outsiders: Count = 0
    shut: Count = 0


def read_status(folder: Path, node: int) -> dict[str, Any]:
    """Return the status of a node from its folder, as JSON values.

    The phase is `not started` if there is none, `unreadable status` if it is not one that a node writes, and `killed`
    if the process that wrote it is gone.
    """
    path = folder / STATUS_FILE
    try:
        if not os.path.lexists(path):
            return {"node": node, "phase": "not started"}
        status = msgspec.convert(read_json(path), NodeStatus)
    except (UsageError, OSError, msgspec.ValidationError):
        return {"node": node, "phase": "unreadable status"}
    if status.node != node:
        return {"node": node, "phase": "unreadable status"}
    if status.phase in ALIVE and time.time() - status.time > SILENT_SECONDS and not is_locked(folder):
        status.phase = "killed"
    return dict(msgspec.to_builtins(status))


def trust_lines(statuses: Sequence[dict[str, Any]]) -> list[str]:
    """Return sentences about the nodes that others suspect or have excluded: why, by which proof, and since when.

    If their rules rate senders, so do further sentences.
    """
    found: dict[tuple[str, str, str, str], list[tuple[int, float]]] = {}
    for status in statuses:
        for node, doubt in status.get("doubts", {}).items():
            proof = f", iteration {doubt['iteration']}, round {doubt['round']}" if "iteration" in doubt else ""
            proof += f" (proof: proofs/{node}.bin in the folder of the node)" if doubt.get("proof") else ""
            by = found.setdefault((node, doubt["state"], doubt["why"], proof), [])
            by.append((status["node"], doubt["since"]))
    lines = []
    for (node, state, why, proof), by in sorted(found.items()):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(at for _, at in by)))
        who = ", ".join(str(number) for number, _ in by)
        lines.append(f"node {node} is {state} by {who}: {why}{proof}, since {since}")
    for status in statuses:
        if scores := status.get("scores"):
            rated = ", ".join(f"{node}: {score:.2f}" for node, score in scores.items())
            lines.append(f"the rule of node {status['node']} trusts nodes as follows: {rated}")
    return lines
