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
from jaxbyz.experiments.config import resolve
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
    axes[1].set_xlabel(f"iteration (red: node {victim} was dead)")
    for axis in axes:
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(IMAGES / "federation.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["learn", "survive", "cost"])
    parser.add_argument("--trajectories", type=int, default=8000, help="learn: trajectories per node")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which nodes are killed")
    parser.add_argument("--keep", metavar="DIR", help="keep the folders of the nodes there")
    arguments = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory(prefix="jaxbyz-federation-") as temporary:
        folder = Path(arguments.keep or temporary) / arguments.command
        {"learn": learn}[arguments.command](folder, arguments)


if __name__ == "__main__":
    main()
