"""A federation of processes on this machine whose nodes can be killed, frozen and cut off, for trials and tests.

Only processes that a `Trial` started are ended, by their numbers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

import jaxbyz
from jaxbyz.errors import UsageError
from jaxbyz.federation import launcher
from jaxbyz.federation.keys import node_name
from jaxbyz.federation.records import CHECKPOINTS, checkpoint_iterations
from jaxbyz.federation.status import STATUS_FILE
from jaxbyz.files import read_arrays

CHAOS = Path(jaxbyz.__file__).parents[1] / "tests" / "federation_chaos.py"  # plays a node that breaks the protocol
HELD_SECONDS = 0.02  # between two looks whether a cut link is whole again


class Network:
    """Relays between the nodes, through which links can be cut: bytes are then held back, as by a cut cable.

    Every node listens on a port of its own (`bind`), and the list of the federation contains the relays (`addresses`).
    A relay cannot read what it carries; it knows the sender of a connection from the process that owns its other end.

    Args:
        agents: the number of nodes.
        pid_of: `node -> number of its process`, or None if it is not running.
    """

    def __init__(self, agents: int, pid_of: Callable[[int], int | None]):
        self.pid_of, self.agents = pid_of, agents
        self.group = [0] * agents  # nodes of different groups do not reach each other
        self.targets = launcher._free_ports(agents)
        self.listeners = [socket.create_server(("127.0.0.1", 0), backlog=256) for _ in range(agents)]
        self.addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in self.listeners]
        for node in range(agents):
            threading.Thread(target=self._accept, args=(node,), daemon=True).start()

    def bind(self, node: int) -> str:
        """Return the address that a node must listen on."""
        return f"127.0.0.1:{self.targets[node]}"

    def split(self, *groups: Iterable[int]) -> None:
        """Cut all links between these groups and the nodes that are in none of them."""
        self.group = [0] * self.agents
        for number, group in enumerate(groups, 1):
            for node in group:
                self.group[node] = number

    def heal(self) -> None:
        """Let everyone reach everyone again."""
        self.split()

    def close(self) -> None:
        """Stop listening; links end with the processes at their ends."""
        for listener in self.listeners:
            listener.close()

    def _accept(self, node: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, (_, port) = self.listeners[node].accept()
                threading.Thread(target=self._link, args=(node, near, port), daemon=True).start()

    def _link(self, node: int, near: socket.socket, port: int) -> None:
        sender = self._owner(port)
        try:
            far = socket.create_connection(("127.0.0.1", self.targets[node]), timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        threading.Thread(target=self._forward, args=(sender, node, far, near), daemon=True).start()
        self._forward(sender, node, near, far)

    def _forward(self, sender: int | None, node: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                while sender is None or self.group[sender] != self.group[node]:
                    time.sleep(HELD_SECONDS)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _owner(self, port: int) -> int | None:
        """Return the node whose process has the socket with this local port."""
        inodes = set()
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
        for node in range(self.agents):
            pid = self.pid_of(node)
            with contextlib.suppress(OSError):
                if pid is not None and any(
                    os.readlink(handle) in inodes for handle in list(Path(f"/proc/{pid}/fd").iterdir())
                ):
                    return node
        return None


class Trial:
    """A federation whose processes this program starts, stops and watches.

    Args:
        folder: where it is created.
        config: its configuration.
        attacks: what Byzantine nodes play, by number.
        cuttable: whether links can be cut, with `network`.
        checkpoint_every: iterations between two checkpoints.
    """

    def __init__(self, folder: Path, config, attacks=None, *, cuttable: bool = False, checkpoint_every: int = 20):
        self.folder, self.config = folder, config
        self.attacks, self.processes, self.events = attacks or {}, {}, []
        self.network = Network(config.agents, self._pid) if cuttable else None
        launcher.create(folder, config, self.network.addresses if self.network else ())
        registered = {index: attack for index, attack in self.attacks.items() if attack != "chaos"}
        self.options = launcher.node_options(launcher.read_federation(folder), registered, checkpoint_every)
        if self.network:
            for index in self.options:
                self.options[index] += ["--bind", self.network.bind(index)]
        self.begun = time.monotonic()

    def _pid(self, index: int) -> int | None:
        process = self.processes.get(index)
        return None if process is None or process.poll() is not None else process.pid

    def note(self, line: str) -> None:
        self.events.append(f"{time.monotonic() - self.begun:7.1f} s  {line}")
        print(self.events[-1], flush=True)

    def start(self, index: int) -> None:
        if self.attacks.get(index) == "chaos":
            self.processes[index] = subprocess.Popen([sys.executable, str(CHAOS), str(self.folder / node_name(index))])
            return
        self.processes[index] = launcher.start_node(self.folder, index, self.options[index])

    def start_all(self, seconds: float = 600) -> None:
        """Start node 0, which compiles, then the others; wait until all honest nodes take part."""
        self.start(0)
        launcher._wait_until_ready(self.folder, 0, self.processes[0], lambda: 0)
        for index in self.options:
            if index != 0:
                self.start(index)
        everyone = self.wait_for(lambda: all(self.phase(i) in ("running", "finished") for i in self.honest()), seconds)
        assert everyone, {i: self.phase(i) for i in self.honest()}
        self.note(f"all {len(self.honest())} honest nodes take part")

    def honest(self) -> list[int]:
        return [i for i in self.options if i not in self.attacks]

    def status(self, index: int) -> dict:
        path = self.folder / node_name(index) / STATUS_FILE
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            return {}

    def phase(self, index: int) -> str:
        return self.status(index).get("phase", "")

    def iteration(self, index: int) -> int:
        return self.status(index).get("iteration", -1)

    def kill(self, index: int) -> None:
        self.processes[index].kill()
        self.processes[index].wait()

    def lose_disk(self, index: int) -> None:
        """Remove everything from the folder of a node that was not there when the federation was created."""
        kept = ("federation.json", "node.json", "secret.key", "log.txt")
        for path in (self.folder / node_name(index)).iterdir():
            if path.name not in kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def freeze(self, index: int) -> None:
        self.processes[index].send_signal(signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        self.processes[index].send_signal(signal.SIGCONT)

    def back(self, index: int, seconds: float = 200) -> bool:
        """Wait until a node takes part again and is where node 0 was before; return whether it did."""
        ahead = self.iteration(0)
        return self.wait_for(lambda: self.phase(index) == "running" and self.iteration(index) >= ahead, seconds)

    def wait_for(self, condition, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if condition():
                return True
            time.sleep(0.1)
        return False

    def finished(self, indices) -> bool:
        return all(self.processes[i].poll() is not None for i in indices)

    def alive(self) -> list[int]:
        """Return the honest nodes whose processes are running."""
        return [i for i in self.honest() if self._pid(i) is not None]

    def diameter(self, nodes: Iterable[int] | None = None) -> tuple[int, float]:
        """Return the latest iteration of which these nodes have a checkpoint, and their largest distance then.

        By default, of all honest nodes.
        """
        folders = [self.folder / node_name(i) for i in (self.honest() if nodes is None else nodes)]
        found: list[tuple[int, float]] = []

        def compare() -> bool:
            common = set.intersection(*(set(checkpoint_iterations(folder)) for folder in folders))
            with contextlib.suppress(UsageError, ValueError):  # old checkpoints are removed while they are read
                t = max(common)
                checkpoints = [read_arrays(folder / CHECKPOINTS / f"{t}.npz") for folder in folders]
                rows = [arrays["state/parameters"][0].astype(float) for arrays in checkpoints]
                found.append((t, max(float(np.linalg.norm(a - b)) for a in rows for b in rows)))
            return bool(found)

        assert self.wait_for(compare, 60)
        return found[0]

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        if self.network:
            self.network.heal()
        launcher.end_processes(list(self.processes.values()))
        if self.network:
            self.network.close()


def resources(pid: int) -> tuple[float, int, int]:
    """Return the resident memory in MB, the number of threads and the number of open handles of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    handles = len(os.listdir(f"/proc/{pid}/fd"))
    return round(int(fields["VmRSS"].split()[0]) / 1024, 1), int(fields["Threads"]), handles
