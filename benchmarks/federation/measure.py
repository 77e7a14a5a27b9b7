"""Measure a federation of processes on the loopback interface: learning under faults, survival, outsiders, cost.

    python benchmarks/federation/measure.py learn    # 13 nodes: one lies, one breaks the protocol, one is often killed
    python benchmarks/federation/measure.py survive  # nodes killed, frozen, slow, without a disk; chaos for ten minutes
    python benchmarks/federation/measure.py cut      # nodes whose network is cut
    python benchmarks/federation/measure.py cost     # time and bytes per iteration against the simulation
    python benchmarks/federation/measure.py draw     # the picture of the stored results of `learn`
    python benchmarks/federation/outsiders.py        # strangers who try to be heard
    python benchmarks/federation/insiders.py         # insiders and common faults

Each command writes `benchmarks/results/federation-NAME.json`; `learn` also writes the log of events and a picture. Run
it with `JAX_PLATFORMS=cpu` on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from trial import Trial, resources

from jaxbyz.accelerate.setup import prepare
from jaxbyz.configuration.resolving import resolve
from jaxbyz.federation import launcher
from jaxbyz.federation.keys import node_name
from jaxbyz.federation.results import load_federation
from jaxbyz.federation.status import STATUS_FILE

RESULTS = Path(__file__).parents[1] / "results"
IMAGES = Path(__file__).parents[2] / "docs" / "images"
SOLVED = 450.0


def machine() -> dict:
    load = os.getloadavg()[0]
    return {"cores": os.cpu_count(), "load_at_the_end": round(load, 1)}


def write(name: str, values: dict) -> None:
    path = RESULTS / f"federation-{name}.json"
    path.write_text(json.dumps({**values, "machine": machine()}, indent=1) + "\n")
    print(path)


def learn(folder: Path, arguments: argparse.Namespace) -> None:
    """13 nodes: node 11 sends large noise, node 12 plays chaos, node 5 is killed and started again five times."""
    config = resolve("cartpole", agents=13, byzantine=3, trajectories=arguments.trajectories)
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
        "returns": [round(float(x), 2) for x in returns],
        "worst": [round(float(x), 2) for x in run.metrics["worst_agent"][0]],
        "diameters": [float(x) for x in run.metrics["diameter"][0]],
        "shares_of_noise_and_chaos": [float(np.nanmean(run.metrics["shares"][0, :, k])) for k in (11, 12)],
    })  # fmt: skip
    draw_learning()


def _absences(log: str) -> list[tuple[int, int]]:
    """Return the iterations at which the killed node was killed and took part again, from the log of a trial."""
    killed = [int(at) for at in re.findall(r"killed at iteration (\d+)", log)]
    back = [int(at) for at in re.findall(r"takes part again at iteration (\d+)", log)]
    return list(zip(killed, back, strict=False))


def draw_learning() -> None:
    """Draw the return, the distance between honest nodes, and when a node was dead, from the files of `learn`."""
    from jaxbyz.report.plots import COLOURS, figure, legend_below, save

    report = json.loads((RESULTS / "federation-learn.json").read_text())
    absences = _absences((RESULTS / "federation-learn.txt").read_text())
    drawing, (above, below) = figure(1, 2, width=7.4, height=5.6, sharex=True)
    iterations = np.arange(1, 1 + len(report["returns"]))
    if "worst" in report:
        above.plot(iterations, report["worst"], color=COLOURS[4], linewidth=0.8, label="worst honest node")
    above.plot(iterations, report["returns"], color=COLOURS[0], label="return, mean of the honest nodes")
    above.axhline(SOLVED, color="0.3", linestyle=":", label=f"solved ({SOLVED:g})")
    distance = np.array(report["diameters"])
    drawn = np.where(distance > 0, distance, np.nan)  # zero has no logarithm
    below.semilogy(iterations, drawn, ".", markersize=3, color=COLOURS[2], label="largest distance, where not zero")
    for axes in (above, below):
        for start, end in absences:
            label = "one node killed and not back" if (start, end) == absences[0] else None
            axes.axvspan(start, end, color=COLOURS[1], alpha=0.2, linewidth=0, label=label)
    above.set_ylabel("honest return")
    below.set_ylabel("distance between honest nodes")
    below.set_ylim(1e-8, 1e-4)
    below.set_xlabel("iteration")
    legend_below(drawing, 3)
    drawing.suptitle(
        f"{report['nodes']} processes on CartPole: one sends noise, one breaks the protocol,\n"
        f"and one is killed {report['kills']} times",
        fontsize=10,
    )
    save(drawing, IMAGES / "federation.png")


class Watch:
    """What the other nodes do while something is wrong with one of them.

    Args:
        trial: the federation.
        observed: the nodes that nothing is wrong with; node 0 is one of them.
    """

    def __init__(self, trial: Trial, observed: list[int]):
        self.trial, self.observed, self.faults, self.usage = trial, observed, {}, []

    def during(self, name: str, seconds: float) -> None:
        """Watch for a while, and note how far the others came and how long they waited beyond their deadlines."""
        before = [self.trial.iteration(i) for i in self.observed]
        time.sleep(seconds)
        statuses = [self.trial.status(i) for i in self.observed]
        pid = self.trial.processes[0].pid
        self.usage.append([round(time.monotonic() - self.trial.begun, 1), *resources(pid), statuses[0]["iteration"]])
        gained = [status["iteration"] - start for status, start in zip(statuses, before, strict=True)]
        self.faults[name] = {
            "seconds": seconds, "iterations_of_others": min(gained),
            "longest_wait_for_the_last_f": round(max(status["longest_wait"] for status in statuses), 3),
            "longest_overrun_of_a_deadline": round(max(status["longest_overrun"] for status in statuses), 3),
            "deadlines": statuses[0]["deadlines"], "suspected": statuses[0]["suspected"],
        }  # fmt: skip
        self.trial.note(f"{name}: the others did {min(gained)} iterations in {seconds} s")

    def back(self, name: str, node: int) -> None:
        """Wait until a node takes part again."""
        begun = time.monotonic()
        self.faults[name][f"node_{node}_came_back"] = self.trial.back(node)
        self.faults[name][f"after_seconds_{node}"] = round(time.monotonic() - begun, 1)
        self.trial.note(f"{name}: node {node} is back at iteration {self.trial.iteration(node)}")


def survive(folder: Path, arguments: argparse.Namespace) -> None:
    """9 nodes for f = 2: node 8 plays chaos; node 3 is killed, frozen, slowed and loses its disk in turn."""
    config = resolve("cartpole", agents=9, byzantine=2, trajectories=10**6, horizon=50)
    trial = Trial(folder, config, {8: "chaos"})
    victim, watch = 3, Watch(trial, [0, 1, 2, 4])
    try:
        trial.start_all()
        watch.during("no fault", 20)
        trial.kill(victim)
        watch.during("killed", 10)
        trial.start(victim)
        watch.back("killed", victim)
        trial.freeze(victim)
        watch.during("frozen", 10)
        trial.thaw(victim)
        watch.back("frozen", victim)
        trial.kill(victim)
        trial.lose_disk(victim)
        trial.start(victim)
        watch.during("empty disk", 10)
        watch.back("empty disk", victim)
        trial.kill(victim)
        trial.options[victim] += ["--slow", "0.5"]
        trial.start(victim)
        watch.during("slow", 20)
        trial.wait_for(lambda: trial.phase(victim) == "running", 200)
        watch.during("slow and running", 20)
        while time.monotonic() - trial.begun < arguments.seconds:
            watch.during("chaos only", 30)
    finally:
        statuses = {i: trial.status(i) for i in trial.options}
        alive = trial.alive()
        trial.end()
    honest = [i for i in trial.honest() if i != victim]
    wrong = {r: sum(statuses[i].get("refused", {}).get(r, 0) for i in honest) for r in WRONG}
    write("survive", {
        "nodes": 9, "faults": 2, "seconds": round(time.monotonic() - trial.begun),
        "iterations": statuses[0].get("iteration"),
        "honest_processes_alive": len(alive), "of": len(trial.honest()), "by_fault": watch.faults,
        "refused_frames": wrong, "refused_connections": {i: statuses[i].get("outsiders") for i in honest},
        "chaos": trial.status(8).get("played"),
        "columns": ["seconds", "resident_MB", "threads", "handles", "iteration"], "node_0": watch.usage,
    })  # fmt: skip
    (RESULTS / "federation-survive.txt").write_text("\n".join(trial.events) + "\n")


def cut(folder: Path, arguments: argparse.Namespace) -> None:
    """9 nodes for f = 2: one node is cut off, then two, then a split leaves nobody with K − f nodes."""
    config = resolve("cartpole", agents=9, byzantine=2, trajectories=10**6, horizon=50)
    trial = Trial(folder, config, cuttable=True)
    watch = Watch(trial, [0, 1, 2, 3, 4])
    assert trial.network is not None
    try:
        trial.start_all()
        watch.during("no fault", 15)
        for name, away in (("one node cut off", [8]), ("two nodes cut off", [7, 8])):
            trial.network.split(away)
            watch.during(name, 20)
            watch.faults[name]["iterations_of_those_cut_off"] = [trial.iteration(i) for i in away]
            trial.network.heal()
            for node in away:
                watch.back(name, node)
        name = "split into 5 and 4"
        trial.network.split([5, 6, 7, 8])
        time.sleep(5)
        before = [trial.iteration(i) for i in range(9)]
        watch.during(name, 20)
        watch.faults[name]["iterations_of_all"] = [trial.iteration(i) - t for i, t in enumerate(before)]
        trial.network.heal()
        healed = trial.iteration(0)
        watch.faults[name]["goes_on"] = trial.wait_for(
            lambda: min(trial.iteration(i) for i in range(9)) > healed + 25, 200
        )
        watch.during("healed", 15)
        t, diameter = trial.diameter()
        alive = trial.alive()
    finally:
        trial.end()
    write("cut", {
        "nodes": 9, "faults": 2, "honest_processes_alive": len(alive), "by_fault": watch.faults,
        "diameter": diameter, "at_iteration": t,
    })  # fmt: skip
    (RESULTS / "federation-cut.txt").write_text("\n".join(trial.events) + "\n")


WRONG = ("short", "format", "federation", "kind", "sender", "dtype", "length", "position", "unasked")


def cost(folder: Path, arguments: argparse.Namespace) -> None:
    """Processor time of the protocol per round; time and bytes per iteration of processes and of the simulation."""
    protocol = [protocol_overhead(folder / f"protocol-{K}", K) for K in (4, 7, 10, 13, 16)]
    for row in protocol:
        print(row, flush=True)
    processes = []
    for K in arguments.agents:
        processes.append(process_cost(folder / f"processes-{K}", K))
        print(processes[-1], flush=True)
        write("cost", {"protocol": protocol, "processes": processes})


def protocol_overhead(folder: Path, K: int, D: int = 386, rounds: int = 300) -> dict:
    """Let K nodes exchange vectors of D numbers without computing anything, as threads of this process.

    Returns the processor time per node and round in milliseconds: of all threads, of libzmq's, which encrypt, and the
    rest; and the bytes per node and round against the paper's count.
    """
    import threading

    from jaxbyz.federation import keys
    from jaxbyz.federation.deadlines import Deadlines
    from jaxbyz.federation.evidence import Evidence
    from jaxbyz.federation.frames import Format, Writer
    from jaxbyz.federation.inbox import Inbox
    from jaxbyz.federation.signatures import signer, verifier
    from jaxbyz.federation.transport import Transport

    config = resolve(agents=K)
    federation = keys.write_federation(folder, config, launcher._addresses(K, (), None), False)
    form = Format(federation.identifier(), K, D, 5 * D, 0, 10**6)
    identities = [keys.read_identity(folder / node_name(k), federation) for k in range(K)]
    writers = [Writer(form, k, signer(identities[k].secret_key), 1) for k in range(K)]
    verify = verifier([member.signing_key for member in federation.members])
    inboxes = [
        Inbox(form, k, 0, Deadlines(60.0), print, evidence=Evidence(form, k, verify, lambda *_: b"", None, print))
        for k in range(K)
    ]
    transports = [Transport(federation, i, form.largest, 100, inboxes[i.node].put) for i in identities]
    vector, start = np.ones(D, np.float32), threading.Barrier(K + 1)

    def node(k: int) -> None:
        for t in range(rounds + 1):
            if t == 1:
                start.wait()
                start.wait()
            frame = writers[k].vector(t, 0, vector, inboxes[k].tags((t, 0)))
            inboxes[k].note_own((t, 0), frame)
            transports[k].broadcast(frame)
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


def _seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def process_cost(folder: Path, K: int) -> dict:
    """Run K processes without faults, and the simulation of the same configuration."""
    from jaxbyz.runs.run import run as simulate

    config = resolve("cartpole", agents=K, byzantine=0, aggregator="rfa", trajectories=400)
    trial = Trial(folder, config)
    try:
        trial.start_all()
        libzmq, used, largest = {}, {}, 0
        while not trial.finished(trial.honest()):
            if trial.phase(0) == "running" and trial.iteration(0) > largest:
                largest = trial.iteration(0)
                libzmq[largest] = _libzmq_seconds(trial.processes[0].pid)
                used[largest] = _seconds(trial.processes[0].pid)
            time.sleep(0.2)
    finally:
        trial.end()
    federation = load_federation(folder)
    own = np.load(folder / node_name(0) / "metrics.npz")
    seconds, waited = own["seconds"][0][5:], own["waited"][0][5:]
    simulate(config)  # compile
    begun, used_before = time.monotonic(), time.process_time()
    simulate(config)
    T = len(federation.metrics["returns"][0])
    simulated, simulated_cpu = (time.monotonic() - begun) / T, (time.process_time() - used_before) / T
    first, last = min(used), max(used)
    encrypting, computing = ((one[last] - one[first]) / max(1, last - first) for one in (libzmq, used))
    return {
        "nodes": K, "iterations": len(seconds), "seconds_per_iteration": float(np.median(seconds)),
        "share_waiting": float(np.sum(waited) / np.sum(seconds)),
        "cpu_seconds_per_node_and_iteration": computing, "of_it_libzmq": encrypting,
        "simulation_seconds_per_iteration": simulated, "simulation_cpu_seconds_per_iteration": simulated_cpu,
        "bytes_per_iteration": float(np.median(federation.metrics["bytes_moved"])),
        "paper_bytes": float(federation.metrics["bytes_sent"][0, 0]),
        "largest_difference_to_simulation": _difference(folder, config),
    }  # fmt: skip


def _difference(folder: Path, config) -> float:
    """Return the largest difference between the final parameters of the nodes and of the simulation."""
    from jaxbyz.runs.run import run as simulate

    return float(np.abs(load_federation(folder).policy["last"] - simulate(config).policy["last"]).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["learn", "survive", "cut", "cost", "draw"])
    parser.add_argument("--trajectories", type=int, default=8000, help="learn: trajectories per node")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which nodes are killed")
    parser.add_argument("--seconds", type=float, default=900, help="survive: how long the whole trial takes at least")
    parser.add_argument("--agents", type=int, nargs="*", default=[4, 7, 10, 13, 16], help="cost: numbers of processes")
    parser.add_argument("--keep", metavar="DIR", help="keep the folders of the nodes there")
    arguments = parser.parse_args()
    if arguments.command == "draw":  # the picture of the stored results of `learn`
        draw_learning()
        return
    prepare()
    with tempfile.TemporaryDirectory(prefix="jaxbyz-federation-") as temporary:
        folder = Path(arguments.keep or temporary) / arguments.command
        {"learn": learn, "survive": survive, "cut": cut, "cost": cost}[arguments.command](folder, arguments)


if __name__ == "__main__":
    main()
