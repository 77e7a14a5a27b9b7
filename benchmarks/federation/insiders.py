"""What one insider and common faults cost a federation of five nodes for f = 1: speed, memory, agreement.

    python benchmarks/federation/insiders.py [NAME …] [--seconds 4]

Nodes are threads of one process, connected over the loopback interface, and compute very little, so that the protocol
decides how fast they are. Every fault is tried beside an honest node 4 and beside one that withholds its messages from
one node in turn. The result is `benchmarks/results/federation-insiders.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from federation_faults import BY_NODE_4, FAULTS
from federation_helpers import small_config
from federation_insiders import SLOW_DOWNS, Trial
from trial import resources

from jaxbyz.accelerate.setup import prepare
from jaxbyz.federation.programs import build_programs

RESULT = Path(__file__).parents[1] / "results" / "federation-insiders.json"
SPENT_SECONDS = 10.0  # after so long, the credit of a liar is spent


def measure(name: str, liar: bool, config, programs, seconds: float) -> dict:
    """Return iterations per second before, during and after a fault, memory, and the distance of honest nodes."""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder), config, programs)
        try:
            trial.iterate(20)
            if liar:
                trial.insider.mode = SLOW_DOWNS[3]
                time.sleep(SPENT_SECONDS)
            before, memory = trial.speed(seconds), resources(os.getpid())[0]
            with FAULTS[name](trial):
                first = trial.speed(seconds)
                if name in SLOW_DOWNS:
                    time.sleep(SPENT_SECONDS)
                during = trial.speed(seconds)
            time.sleep(1.0)
            after = trial.speed(seconds)
            memory = resources(os.getpid())[0] - memory
            honest = [trial.nodes[i] for i in range(4)]
            trial.iterate(5)
            t = min(node.t for node in honest) - 1
            rows = np.stack([node.record.rows["parameters"][t] for node in honest])
            rows = rows[np.isfinite(rows).all(axis=1)]
            return {
                "fault": name, "liar": liar, "before": round(before, 1), "at_first": round(first, 1),
                "during": round(during, 1), "after": round(after, 1), "memory_mb": round(memory, 1),
                "distance": float(np.abs(rows - rows[0]).max()), "honest_nodes_compared": len(rows),
                "excluded": sorted({i for node in honest for i in node.others.evidence.excluded}),
            }  # fmt: skip
        finally:
            trial.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    prepare()
    config = small_config(agents=5, byzantine=1, aggregator="krum", agreement="mda", p=1.0, trajectories=40_000)
    programs, results = build_programs(config), []
    for name in arguments.names or FAULTS:
        for liar in (False,) if name in BY_NODE_4 else (False, True):
            results.append(measure(name, liar, config, programs, arguments.seconds))
            print(results[-1], flush=True)
    if not arguments.names:
        machine = {"cores": os.cpu_count(), "load_at_the_end": round(os.getloadavg()[0], 1)}
        RESULT.write_text(json.dumps({"nodes": 5, "faults": results, "machine": machine}, indent=1) + "\n")


if __name__ == "__main__":
    main()
