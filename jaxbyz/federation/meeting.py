"""Before the first iteration of a process: read the checkpoint, meet the others, and go where they are."""

from __future__ import annotations

import time

from jaxbyz.errors import UsageError
from jaxbyz.federation import records
from jaxbyz.federation.frames import NO_NONCE, Hello
from jaxbyz.federation.joining import join
from jaxbyz.federation.membership import Membership


def restore(node: Membership) -> None:
    """Start from the newest checkpoint that can be read."""
    good = []
    for iteration in reversed(records.checkpoint_iterations(node.folder)):
        if node.load(iteration) is None:
            node.log(f"the checkpoint of iteration {iteration} is damaged or of another federation; ignored")
        else:
            good.append(iteration)
    if good:
        newest = node.load(good[0])  # again, because the record is now that of the last one that was read
        assert newest is not None
        node.t, node.state = good[0], newest
        node.log(f"read the checkpoint of iteration {node.t}")
    node.offered = (node.t, good[1] if len(good) > 1 else 0)
    node.inbox.position(node.offered[1], 0)
    node.inbox.may_start_at = node.t


def meet(node: Membership) -> None:
    """Wait until enough nodes are there, and go to the iteration where they are."""
    ready, running, hellos = _wait_for_nodes(node)
    if len(running) > node.f:
        there = node.inbox.majority_iteration()
    else:
        offered = [node.offered, *((hellos[i].newest, hellos[i].older) for i in ready)]
        there = common_iteration(offered, node.K, node.f)
    node.log(f"{len(ready) + 1} of {node.K} nodes are there; starting at iteration {there}")
    if there != node.t:
        older = node.load(there)
        node.t = min(there, node.t)
        if older is not None:
            node.state = older
        elif there == 0:
            node.state = node.layout.like
        else:
            join(node)
    node.phase = "running"


def _wait_for_nodes(node: Membership) -> tuple[list[int], list[int], dict[int, Hello]]:
    """Wait until K − f nodes answer; return who does, who of them is running already, and what they said."""
    begun, enough_at = time.monotonic(), None
    confirmed: set[int] = set()
    while True:
        with node.inbox.changed:
            node.inbox.changed.wait(0.1)
            hellos = dict(node.inbox.hellos)
        _refuse_mismatch(node, hellos, confirmed)
        ready = [i for i, hello in hellos.items() if hello.heard == node.nonce]
        running = [i for i in ready if hellos[i].running]
        node.pause()
        now = time.monotonic()
        if len(ready) + 1 >= node.inbox.quorum:
            enough_at = enough_at or now
            if len(ready) + 1 == node.K or len(running) > node.f or now - enough_at > node.settings.start_wait:
                return ready, running, hellos
        elif now - begun > node.settings.patience:
            raise UsageError(f"only {len(ready) + 1} of {node.K} nodes answered within {node.settings.patience:.0f} s")


def _refuse_mismatch(node: Membership, hellos: dict[int, Hello], confirmed: set[int]) -> None:
    """Stop if more nodes than can be lying say that something about this one is wrong."""
    strangers = sorted(node.inbox.strangers)
    if len(strangers) > node.f:
        raise UsageError(f"nodes {_numbers(strangers)} have another configuration than {node.folder}/federation.json")
    others = sorted(i for i, hello in hellos.items() if hello.version != node.version)
    if len(others) > node.f:
        theirs = hellos[others[0]].version
        raise UsageError(f"nodes {_numbers(others)} run jaxbyz {theirs}, this node {node.version}: use one version")
    impostors = sorted(i for i in confirmed if i in hellos and hellos[i].heard not in (node.nonce, NO_NONCE))
    if len(impostors) > node.f:
        raise UsageError(
            f"another process speaks as node {node.index}: nodes {_numbers(impostors)} hear it; stop one of them"
        )
    confirmed.update(i for i, hello in hellos.items() if hello.heard == node.nonce)


def common_iteration(offered: list[tuple[int, int]], agents: int, faults: int) -> int:
    """Return the iteration to start at, given the two latest ones that each node has.

    It is the latest that K − f nodes have, or else the latest that 2f + 1 nodes have, from whom the others can take it.
    Everyone has iteration 0.
    """
    iterations = sorted({t for pair in offered for t in pair} - {0}, reverse=True)
    for needed in (agents - faults, 2 * faults + 1):
        for t in iterations:
            if sum(t in pair for pair in offered) >= needed:
                return t
    return 0


def _numbers(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes[:5])) + (" and others" if len(nodes) > 5 else "")
