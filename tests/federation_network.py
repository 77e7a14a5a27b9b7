"""Machines of a test: network namespaces on one host, and a network between them with latency and loss.

The network is made of tun devices, one per namespace, whose packets this process carries. It needs root and
`ip` (Debian: iproute2), but, unlike `tc … netem`, no module of the kernel that may be missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

TUN_DEVICE, TUN_SET = "/dev/net/tun", 0x400454CA
TUN_MODE = 0x1001  # packets of the internet protocol, without a header
PACKET_BYTES = 65_536


def run_ip(*words: str) -> None:
    """Run `ip`; raise OSError with what it says if it fails."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.stderr.strip() or f"ip ended with code {done.returncode}")


class Network:
    """`count` machines with the addresses 10.46.0.1, 10.46.0.2, …; they exist inside the context.

    Args:
        count: the number of machines.
        latency: seconds that a packet is on its way.
        loss: the probability that it is lost.

    Raises:
        OSError: if namespaces or tun devices are not permitted here.
    """

    def __init__(self, count: int, latency: float, loss: float):
        self.count, self.latency, self.loss = count, latency, loss
        self.prefix = f"jbz{os.getpid()}"
        self.addresses = [f"10.46.0.{1 + i}" for i in range(count)]
        self.over, self.random = threading.Event(), random.Random(0)
        self.carried = self.lost = 0
        self.cut: set[int] = set()  # machines that are cut off
        self.devices: list[int] = []

    def __enter__(self) -> Network:
        with contextlib.ExitStack() as stack:
            for i, address in enumerate(self.addresses):
                device, name = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK), self.name(i)
                stack.callback(os.close, device)
                fcntl.ioctl(device, TUN_SET, struct.pack("16sH", name.encode(), TUN_MODE))
                self.devices.append(device)
                run_ip("netns", "add", name)
                stack.callback(run_ip, "netns", "del", name)
                run_ip("link", "set", name, "netns", name)
                run_ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
                for interface in ("lo", name):
                    run_ip("-n", name, "link", "set", interface, "up")
            thread = threading.Thread(target=self._carry, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self.over.set)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def name(self, machine: int) -> str:
        """Return the name of the namespace of a machine, and of its device."""
        return f"{self.prefix}n{machine}"

    def command(self, machine: int, *words: str) -> list[str]:
        """Return the arguments of Python that run a program on a machine."""
        replace = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        return ["-c", replace, "ip", "netns", "exec", self.name(machine), *words]

    def _carry(self) -> None:
        """Deliver every packet after the latency, unless it is lost."""
        on_the_way: list[tuple[float, int, int, bytes]] = []
        while not self.over.is_set():
            due = on_the_way[0][0] - time.monotonic() if on_the_way else 0.1
            ready, _, _ = select.select(self.devices, [], [], min(0.1, max(0.0, due)))
            for device in ready:
                with contextlib.suppress(OSError):
                    packet = os.read(device, PACKET_BYTES)
                    source, target = self.devices.index(device), packet[19] - 1
                    if packet[0] >> 4 != 4 or packet[16:19] != b"\x0a\x2e\x00" or not 0 <= target < self.count:
                        continue
                    self.carried += 1
                    if self.random.random() < self.loss or {source, target} & self.cut:
                        self.lost += 1
                    else:
                        heapq.heappush(on_the_way, (time.monotonic() + self.latency, self.carried, target, packet))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(on_the_way)
                with contextlib.suppress(OSError):
                    os.write(self.devices[target], packet)
