"""Strangers storm a federation of five processes while it learns: is anything of theirs accepted, does learning go on?

    python benchmarks/federation/outsiders.py [--seconds 30]

They connect without encryption, with a key that is not listed, with the public key of a node whose private key they do
not have, and leave connections half open or fill them with garbage. The result is
`benchmarks/results/federation-outsiders.json`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import zmq
from trial import Trial

from jaxbyz.accelerate.setup import prepare
from jaxbyz.configuration.resolving import resolve
from jaxbyz.federation.frames import Writer
from jaxbyz.federation.keys import FederationDescription, read_federation
from jaxbyz.federation.programs import build_programs, format_of

RESULT = Path(__file__).parents[1] / "results" / "federation-outsiders.json"
FRAMES, HALF_OPEN, KEPT_SECONDS = 20, 32, 2.0


class Storm:
    """Strangers who try to be heard by all nodes. `tried` counts what they did.

    Args:
        federation: the list, which is public.
        frame: a valid frame of node 1.
    """

    def __init__(self, federation: FederationDescription, frame: bytes):
        self.federation, self.frame, self.over = federation, frame, threading.Event()
        self.tried: collections.Counter[str] = collections.Counter()

    def run(self) -> None:
        """Try everything at every node, again and again, until it is over."""
        while not self.over.is_set():
            for member in self.federation.members:
                listed = self.federation.members[1].public_key.encode()
                self._speak("without_encryption", member, None)
                self._speak("unlisted_key", member, zmq.curve_keypair())
                self._speak("public_key_of_node_1", member, (listed, zmq.curve_keypair()[1]))
            self._leave_open()

    def _speak(self, kind: str, member, pair) -> None:
        context = zmq.Context()
        with contextlib.closing(context.socket(zmq.PUSH)) as push:
            push.linger, push.sndtimeo = 0, 50
            if pair is not None:
                push.curve_publickey, push.curve_secretkey = pair
                push.curve_serverkey = member.public_key.encode()
            push.connect(f"tcp://{member.address}")
            self.tried[kind] += 1
            with contextlib.suppress(zmq.Again):
                for _ in range(FRAMES):
                    push.send(self.frame)
                time.sleep(0.1)  # for the handshake
        context.term()

    def _leave_open(self) -> None:
        with contextlib.ExitStack() as stack:
            for member in self.federation.members:
                host, _, port = member.address.rpartition(":")
                for i in range(HALF_OPEN):
                    with contextlib.suppress(OSError):
                        connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
                        self.tried["half_open" if i % 2 else "garbage"] += 1
                        if i % 2 == 0:
                            connection.sendall(os.urandom(200))
            self.over.wait(KEPT_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    prepare()
    config = resolve("cartpole", agents=5, byzantine=1, trajectories=10**5, horizon=50)
    with tempfile.TemporaryDirectory(prefix="jaxbyz-federation-") as temporary:
        trial = Trial(Path(temporary) / "fed", config)
        federation = read_federation(trial.folder)
        form = format_of(federation, build_programs(config))
        nodes = range(5)

        def during(storm: Storm | None) -> dict:
            time.sleep(2)  # for the status
            before = [trial.status(i) for i in nodes]
            thread = threading.Thread(target=storm.run) if storm else None
            if thread:
                thread.start()
            time.sleep(seconds)
            after = [trial.status(i) for i in nodes]
            if storm and thread:
                storm.over.set()
                thread.join(60)
            gained = {
                name: sum(after[i][name] - before[i][name] for i in nodes) for name in ("connections", "outsiders")
            }
            return {
                "seconds": seconds, "iterations": after[0]["iteration"] - before[0]["iteration"],
                "accepted_connections": gained["connections"], "refused_connections": gained["outsiders"],
                "frames_refused": sum(sum(a["refused"].values()) - sum(b["refused"].values())
                                      for a, b in zip(after, before, strict=True)),
                "tried": dict(storm.tried) if storm else {},
            }  # fmt: skip

        try:
            trial.start_all()
            quiet = during(None)
            vector = np.full(form.parameters, 1e6, np.float32)
            storm = during(Storm(federation, Writer(form, 1, lambda data: bytes(64)).vector(0, 0, vector)))
            result = {"nodes": 5, "quiet": quiet, "storm": storm, "processes_alive": len(trial.alive())}
        finally:
            trial.end()
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
