"""Measure a federation of processes on the loopback interface: learning under faults, survival, outsiders, cost.

    python benchmarks/federation.py learn      # 13 nodes: one lies, one breaks the protocol, one is killed five times
    python benchmarks/federation.py survive    # nodes killed, frozen, slow, without a disk; outsiders; chaos
    python benchmarks/federation.py cost       # time and bytes per iteration against the simulation

Each command writes `benchmarks/results/federation-NAME.json`; `learn` also writes the log of events and a picture. Run
it with `JAX_PLATFORMS=cpu` on an otherwise idle machine. Only processes that it started are ended, by their numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

from jaxbyz.accelerate.setup import prepare
from jaxbyz.experiments.resolving import resolve
from jaxbyz.federation import launcher
from jaxbyz.federation.keys import node_name
from jaxbyz.federation.records import STATUS_FILE
from jaxbyz.federation.results import load_federation

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
SOLVED = 450.0


class Trial:
    """A federation whose processes this program starts, stops and watches."""

    def __init__(self, folder: Path, config, attacks=None, options=()):
        self.folder, self.config = folder, config
        launcher.create(folder, config)
        federation = launcher.read_federation(folder)
        self.options = launcher.node_options(federation, attacks or {}, 20)
        for index in self.options:
            self.options[index] += list(options)
        self.attacks, self.processes, self.events = attacks or {}, {}, []
        self.begun = time.monotonic()

    def note(self, line: str) -> None:
        self.events.append(f"{time.monotonic() - self.begun:7.1f} s  {line}")
        print(self.events[-1], flush=True)

    def start(self, index: int) -> None:
        self.processes[index] = launcher.start_node(self.folder, index, self.options[index])

    def start_all(self, seconds: float = 600) -> None:
        """Start node 0, which compiles, then the others; wait until all honest nodes take part."""
        self.start(0)
        launcher._wait_until_ready(self.folder, 0, self.processes[0], lambda: 0)
        for index in self.options:
            if index != 0:
                self.start(index)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(self.phase(i) in ("running", "finished") for i in self.honest()):
            time.sleep(0.2)
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

    def wait_for(self, condition, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if condition():
                return True
            time.sleep(0.1)
        return False

    def finished(self, indices) -> bool:
        return all(self.processes[i].poll() is not None for i in indices)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
        launcher.end_processes(list(self.processes.values()))


def machine() -> dict:
    load = os.getloadavg()[0]
    return {"cores": os.cpu_count(), "load_at_the_end": round(load, 1)}


def write(name: str, values: dict) -> None:
    path = RESULTS / f"federation-{name}.json"
    path.write_text(json.dumps({**values, "machine": machine()}, indent=1) + "\n")
    print(path)


def learn(folder: Path, arguments: argparse.Namespace) -> None:
    """13 nodes: node 11 sends large noise, node 12 plays chaos, node 5 is killed and started again five times."""
    config = resolve("cartpole-best", agents=13, byzantine=3, trajectories=arguments.trajectories)
    trial = Trial(folder, config, {11: "large-noise", 12: "chaos"})
    victim, chance, kills = 5, random.Random(arguments.seed), 0
    try:
        trial.start_all()
        others = [i for i in trial.honest() if i != victim]
        while not trial.finished(others):
            if kills < 5 and trial.phase(victim) == "running" and trial.processes[victim].poll() is None:
                time.sleep(chance.uniform(1.0, 8.0))
                if trial.phase(0) != "running":
                    break
                at = trial.iteration(victim)
                trial.kill(victim)
                kills += 1
                empty = kills % 2 == 0  # every second time its disk is lost as well
                if empty:
                    shutil.rmtree(trial.folder / node_name(victim) / "checkpoints", ignore_errors=True)
                (trial.folder / node_name(victim) / STATUS_FILE).unlink(missing_ok=True)
                trial.note(f"node {victim} killed at iteration {at}" + (", checkpoints removed" if empty else ""))
                time.sleep(chance.uniform(0.0, 3.0))
                trial.start(victim)
                trial.wait_for(lambda: trial.phase(victim) in ("running", "finished"), 300)
                trial.note(f"node {victim} takes part again at iteration {trial.iteration(victim)}")
            time.sleep(0.2)
        trial.wait_for(lambda: trial.finished(trial.honest()), 120)
        seconds = time.monotonic() - trial.begun
    finally:
        trial.end()
    run = load_federation(folder)
    honest = [i for i in trial.honest() if (folder / node_name(i) / "metrics.npz").exists()]
    final = run.policy["last"][0, honest].astype(np.float64)
    diameter = max(float(np.linalg.norm(final - one, axis=1).max()) for one in final)
    returns = run.metrics["returns"][0]
    statuses = {i: trial.status(i) for i in trial.options}
    trial.note(f"honest nodes that finished: {len(honest)} of {len(trial.honest())}")
    trial.note(f"return of the last 20 iterations: {np.nanmean(returns[-20:]):.1f}; diameter: {diameter:.2e}")
    log = [*trial.events, "", "Logs of the nodes:"]
    for index in trial.options:
        path = folder / node_name(index) / "log.txt"
        log += [f"  {line}" for line in path.read_text(errors="replace").splitlines()] if path.exists() else []
    (RESULTS / "federation-learn.txt").write_text("\n".join(log).replace(str(folder), "DIR") + "\n")
    write("learn", {
        "nodes": 13, "faults": 3, "iterations": len(returns), "seconds": round(seconds, 1), "kills": kills,
        "final_return": float(np.nanmean(returns[-20:])), "diameter": diameter,
        "solved": bool(np.nanmean(returns[-20:]) >= SOLVED),
        "rejoined": statuses[victim].get("rejoined"), "chaos": statuses[12].get("played"),
        "refused": statuses[0].get("refused"), "refused_of": statuses[0].get("refused_of"),
        "returns": [round(float(x), 2) for x in returns], "diameters": [float(x) for x in run.metrics["diameter"][0]],
        "shares_of_noise_and_chaos": [float(np.nanmean(run.metrics["shares"][0, :, k])) for k in (11, 12)],
    })  # fmt: skip
    _picture(run, folder, victim)


def _picture(run, folder: Path, victim: int) -> None:
    """Draw the return, the distance between honest nodes, and when the killed node took part."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from jaxbyz.files import read_arrays

    own = (
        read_arrays(folder / node_name(victim) / "metrics.npz")
        if (folder / node_name(victim) / "metrics.npz").exists()
        else {}
    )
    figure, axes = plt.subplots(2, 1, figsize=(7, 5), sharex=True)
    axes[0].plot(run.metrics["returns"][0], label="mean of the honest nodes")
    axes[0].plot(run.metrics["worst_agent"][0], alpha=0.5, label="worst honest node")
    axes[0].axhline(SOLVED, color="grey", linestyle=":", label="solved (450)")
    axes[0].set_ylabel("return")
    axes[1].semilogy(run.metrics["diameter"][0], color="C2", label="largest distance between honest nodes")
    axes[1].axhline(1e-3, color="grey", linestyle=":")
    if own:
        absent = np.flatnonzero(own["took_part"][0] == 0)
        for axis in axes:
            for t in absent:
                axis.axvspan(t, t + 1, color="C3", alpha=0.25, linewidth=0)
    axes[1].set_ylabel("diameter")
    axes[1].set_ylim(1e-8, 1e-2)
    axes[1].set_xlabel(f"iteration (red: node {victim} was dead, or its record was lost with its disk)")
    for axis in axes:
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(IMAGES / "federation.png", dpi=110)


def survive(folder: Path, arguments: argparse.Namespace) -> None:
    """9 nodes for f = 2: node 8 plays chaos; node 3 is killed, frozen, slowed and loses its disk in turn."""
    config = resolve("cartpole-best", agents=9, byzantine=2, trajectories=10**6, horizon=50)
    trial = Trial(folder, config, {8: "chaos"})
    victim, observed = 3, [0, 1, 2, 4]
    usage, faults = [], {}

    def measure() -> None:
        usage.append([round(time.monotonic() - trial.begun, 1), *resources(trial.processes[0].pid), trial.iteration(0)])

    def during(name: str, seconds: float) -> None:
        before, begun = [trial.iteration(i) for i in observed], time.monotonic()
        longest, last, seen = 0.0, time.monotonic(), trial.iteration(0)
        while time.monotonic() - begun < seconds:
            time.sleep(0.05)
            if trial.iteration(0) != seen:
                longest, last, seen = max(longest, time.monotonic() - last), time.monotonic(), trial.iteration(0)
        measure()
        gained = [trial.iteration(i) - start for i, start in zip(observed, before, strict=True)]
        faults[name] = {
            "seconds": seconds, "iterations_of_others": min(gained),
            "longest_time_between_two_statuses": round(longest, 2),
            "deadlines": trial.status(0).get("deadlines"), "suspected": trial.status(0).get("suspected"),
        }  # fmt: skip
        trial.note(
            f"{name}: the others did {min(gained)} iterations in {seconds} s, status at most {longest:.1f} s apart"
        )

    def back(name: str) -> None:
        trial.wait_for(
            lambda: trial.phase(victim) == "running" and trial.status(victim).get("time", 0) > time.time() - 3, 200
        )
        ahead = trial.iteration(0)
        caught_up = trial.wait_for(lambda: trial.iteration(victim) >= ahead, 60)
        faults[name]["came_back"] = caught_up
        trial.note(f"{name}: node {victim} is back at iteration {trial.iteration(victim)}: {caught_up}")

    try:
        trial.start_all()
        during("no fault", 20)
        trial.kill(victim)
        during("killed", 10)
        trial.start(victim)
        back("killed")
        trial.processes[victim].send_signal(signal.SIGSTOP)
        during("frozen", 10)
        trial.processes[victim].send_signal(signal.SIGCONT)
        back("frozen")
        trial.kill(victim)
        shutil.rmtree(folder / node_name(victim) / "checkpoints", ignore_errors=True)
        trial.start(victim)
        during("empty disk", 10)
        back("empty disk")
        trial.kill(victim)
        trial.options[victim] = ["--slow", "0.5"]
        trial.start(victim)
        during("slow", 20)
        trial.wait_for(lambda: trial.phase(victim) == "running", 200)
        during("slow and running", 20)
        while time.monotonic() - trial.begun < arguments.seconds:
            during("chaos only", 30)
    finally:
        statuses = {i: trial.status(i) for i in trial.options}
        alive = [i for i in trial.honest() if trial.processes[i].poll() is None]
        trial.end()
    honest = [i for i in trial.honest() if i != victim]
    wrong = {r: sum(statuses[i].get("refused", {}).get(r, 0) for i in honest) for r in WRONG}
    write("survive", {
        "nodes": 9, "faults": 2, "seconds": round(time.monotonic() - trial.begun),
        "iterations": statuses[0].get("iteration"),
        "honest_processes_alive": len(alive), "of": len(trial.honest()), "by_fault": faults, "refused_frames": wrong,
        "refused_connections": {i: statuses[i].get("outsiders") for i in honest}, "chaos": statuses[8].get("played"),
        "columns": ["seconds", "resident_MB", "threads", "handles", "iteration"], "node_0": usage,
    })  # fmt: skip
    (RESULTS / "federation-survive.txt").write_text("\n".join(trial.events) + "\n")


WRONG = ("short", "format", "federation", "kind", "sender", "dtype", "length", "position", "unasked")


def resources(pid: int) -> tuple[float, int, int]:
    """Return the resident memory in MB, the number of threads and the number of open handles of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    handles = len(os.listdir(f"/proc/{pid}/fd"))
    return round(int(fields["VmRSS"].split()[0]) / 1024, 1), int(fields["Threads"]), handles


def cost(folder: Path, arguments: argparse.Namespace) -> None:
    """Processor time of the protocol per round; time and bytes per iteration of processes and of the simulation."""
    protocol = [protocol_overhead(folder / f"protocol-{K}", K) for K in (4, 7, 10, 13, 16)]
    for row in protocol:
        print(row, flush=True)
    processes = [process_cost(folder / f"processes-{K}", K) for K in arguments.agents]
    write("cost", {"protocol": protocol, "processes": processes})


def protocol_overhead(folder: Path, K: int, rounds: int = 300) -> dict:
    """Let K nodes exchange vectors of 386 numbers without computing anything, as threads of this process.

    Returns the processor time per node and round in milliseconds: of all threads, of libzmq's, which encrypt, and the
    rest; and the bytes per node and round against the paper's count.
    """
    import threading

    from jaxbyz.federation import keys
    from jaxbyz.federation.deadlines import Deadlines
    from jaxbyz.federation.frames import VECTOR, Format, encode_vector
    from jaxbyz.federation.inbox import Inbox
    from jaxbyz.federation.transport import Transport

    D = 386
    config = resolve(agents=K)
    federation = keys.write_federation(folder, config, launcher._addresses(K, (), None), False)
    form = Format(federation.identifier(), K, D, 5 * D, 0, 10**6)
    inboxes = [Inbox(form, k, 0, Deadlines(60.0), print) for k in range(K)]
    identities = [keys.read_identity(folder / node_name(k), federation) for k in range(K)]
    transports = [Transport(federation, i, form.largest, 100, inboxes[i.node].put) for i in identities]
    vector, start = np.ones(D, np.float32), threading.Barrier(K + 1)

    def node(k: int) -> None:
        for t in range(rounds + 1):
            if t == 1:
                start.wait()
                start.wait()
            transports[k].broadcast(encode_vector(form, VECTOR, k, t, 0, vector))
            inboxes[k].collect(t, 0, vector, "round", time.monotonic())

    for transport in transports:
        transport.__enter__()
    threads = [threading.Thread(target=node, args=(k,)) for k in range(K)]
    for thread in threads:
        thread.start()
    start.wait()  # everyone is connected and has done one round
    before, sent, encrypting, begun = time.process_time(), _sent(transports), _libzmq_seconds(), time.monotonic()
    start.wait()
    for thread in threads:
        thread.join()
    seconds, wall = time.process_time() - before, time.monotonic() - begun
    encrypting = _libzmq_seconds() - encrypting
    for transport in transports:
        transport.__exit__()
    per = 1000 / (K * rounds)
    return {
        "nodes": K, "parameters": D, "rounds": rounds, "cpu_ms_per_node_and_round": round(seconds * per, 3),
        "of_it_libzmq_ms": round(encrypting * per, 3), "wall_ms_per_round_of_all_nodes": round(1000 * wall / rounds, 2),
        "bytes_per_node_and_round": (_sent(transports) - sent) / (K * rounds), "paper_bytes": K * D * 4,
    }  # fmt: skip


def _sent(transports) -> int:
    return sum(transport.traffic.bytes_out for transport in transports)


def _libzmq_seconds(pid: int | str = "self") -> float:
    """Return the processor time of libzmq's own threads, which encrypt, authenticate and move the bytes."""
    total, ticks = 0, os.sysconf("SC_CLK_TCK")
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            if (task / "comm").read_text().startswith("ZMQ"):
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return total / ticks


def process_cost(folder: Path, K: int) -> dict:
    """Run K processes without faults, and the simulation of the same configuration."""
    from jaxbyz.experiments.run import run as simulate

    config = resolve("cartpole-best", agents=K, byzantine=0, trajectories=800)
    trial = Trial(folder, config)
    try:
        trial.start_all()
        libzmq, largest = {}, 0
        while not trial.finished(trial.honest()):
            if trial.phase(0) == "running" and trial.iteration(0) > largest:
                largest = trial.iteration(0)
                libzmq[largest] = _libzmq_seconds(trial.processes[0].pid)
            time.sleep(0.2)
    finally:
        trial.end()
    federation = load_federation(folder)
    own = np.load(folder / node_name(0) / "metrics.npz")
    seconds, waited = own["seconds"][0][5:], own["waited"][0][5:]
    simulate(config)  # compile
    begun = time.monotonic()
    simulate(config)
    simulated = (time.monotonic() - begun) / len(federation.metrics["returns"][0])
    steps = sorted(libzmq)
    encrypting = (libzmq[steps[-1]] - libzmq[steps[0]]) / max(1, steps[-1] - steps[0]) if len(steps) > 1 else None
    return {
        "nodes": K, "iterations": len(seconds), "seconds_per_iteration": float(np.median(seconds)),
        "share_waiting": float(np.sum(waited) / np.sum(seconds)), "libzmq_cpu_seconds_per_iteration": encrypting,
        "simulation_seconds_per_iteration": simulated,
        "bytes_per_iteration": float(np.median(federation.metrics["bytes_moved"])),
        "paper_bytes": float(federation.metrics["bytes_sent"][0, 0]),
        "largest_difference_to_simulation": _difference(folder, config),
    }  # fmt: skip


def _difference(folder: Path, config) -> float:
    """Return the largest difference between the final parameters of the nodes and of the simulation."""
    from jaxbyz.experiments.run import run as simulate

    return float(np.abs(load_federation(folder).policy["last"] - simulate(config).policy["last"]).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["learn", "survive", "cost"])
    parser.add_argument("--trajectories", type=int, default=8000, help="learn: trajectories per node")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which nodes are killed")
    parser.add_argument("--seconds", type=float, default=900, help="survive: how long the whole trial takes at least")
    parser.add_argument("--agents", type=int, nargs="*", default=[4, 7, 13, 16], help="cost: numbers of processes")
    parser.add_argument("--keep", metavar="DIR", help="keep the folders of the nodes there")
    arguments = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory(prefix="jaxbyz-federation-") as temporary:
        folder = Path(arguments.keep or temporary) / arguments.command
        {"learn": learn, "survive": survive, "cost": cost}[arguments.command](folder, arguments)


if __name__ == "__main__":
    main()
