"""Run all speed benchmarks for a CPU and write one table of their results.

    python benchmarks/speed/bench.py [--torch PYTHON] [--only batches run growth limits torch]

Every part writes a JSON file into benchmarks/results, and the table `benchmarks/results/bench.md` is made from these
files. With `--torch`, a Python interpreter with torch and gymnasium, the same batch is also timed there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
RESULTS = FOLDER.parent / "results"
PARTS = {
    "batches": ["against_plain.py", "--out", str(RESULTS / "speed-cpu.json")],
    "run": ["whole_run.py"],
    "growth": ["growth.py"],
    "limits": ["limits.py"],
}


def against_torch(python: str, rounds: int = 3) -> None:
    """Time our batch and that of torch in turns."""
    import against_plain

    from jaxbyz.files import write_json
    from jaxbyz.runs.run_folder import describe_environment

    programs = against_plain.batch_programs(against_plain.AGENTS, endless=True)
    ours = programs.get("all_cores", programs["ours"])
    report: dict = {"command": "python benchmarks/speed/bench.py --only torch", "environment": describe_environment()}
    for kind, times in (("native", rounds), ("sync", 1)):
        for _ in range(times):
            here = against_plain.samples(5, ours=ours)["ours"]
            command = [python, str(FOLDER / "torch_batch.py"), kind, "1"]
            there = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            ratio = there["seconds"][0] / statistics.median(here)
            report.setdefault(kind, []).append({"ours": here, "torch": there, "ratio": ratio})
            print(kind, round(ratio, 1), flush=True)
    write_json(RESULTS / "torch.json", report)


def rows() -> list[tuple[str, str, str]]:
    """Return the rows of the table: quantity, target, measured value."""

    def read(name: str) -> dict | None:
        path = RESULTS / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def spread(values: list[float]) -> str:
        return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    table = []
    if data := read("speed-cpu"):
        for row in data["batches"]:
            target = "≥ 2.5" if row["episodes"] == "full" else "–"
            for key, name in (
                ("ratio", f"speedup over the plain program, large batch of {row['episodes']} episodes"),
                ("ratio_all_cores", "… with our agents on all cores"),
            ):
                if r := row.get(key):
                    table.append((name, target, f"{r['median']:.1f} ({r['least']:.1f} to {r['most']:.1f})"))
        shares = data["iterations"]
        for kind, target in (("large", "≤ 0.05"), ("small", "≤ 0.25")):
            for suffix, episodes in (("_full", "full"), ("", "fresh")):
                share = f"{shares[f'protocol_share_{kind}{suffix}']:.2f}"
                table.append((f"share of the protocol in a {kind} iteration, {episodes} episodes", target, share))
    if data := read("whole_run"):
        for name, target, text in (
            ("plain_over_one_device", "≥ 3", "speedup over the plain program, run to 8000 trajectories, one device"),
            ("plain_over_ours", "≥ 3", "… with our agents on all cores, as the command line runs it"),
            ("ten_seeds_over_one_on_one_device", "≤ 6", "time of ten seeds on all cores / one seed on one core"),
            ("ten_seeds_over_one", "–", "… / one seed on all cores"),
        ):
            table.append((text, target, spread(data["ratios"][name])))
    if data := read("torch"):
        for kind, name in (("sync", "SyncVectorEnv"), ("native", "gymnasium's own NumPy CartPole")):
            table.append((f"speedup over torch with {name}", "≥ 100", spread([r["ratio"] for r in data[kind]])))
    if data := read("growth"):
        for name in ("agents", "parameters", "seeds"):
            e = data[name]["exponents"]
            table.append((f"growth with {name}: time, memory", "–", f"n^{e['time']:.2f}, n^{e['memory']:.2f}"))
        largest = data["agents"]["rows"][-1]
        table.append((f"memory at K = {largest['size']}", "≤ 24 GiB", f"{largest['bytes'] / 2**30:.2f} GiB"))
    if data := read("limits"):
        table.append(("share of the matrix-product limit, one core", "–", f"{data['share_of_matrix_limit']:.2f}"))
        table.append(("share of the copy limit", "–", f"{data['share_of_copy_limit']:.2f}"))
        table.append(("share of the floor with tanh and random bits", "–", f"{data['share_of_floor']:.2f}"))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="a Python interpreter with torch and gymnasium")
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "torch", "table"], default=[*PARTS, "torch"])
    given = parser.parse_args()
    for name, command in PARTS.items():
        if name in given.only:
            subprocess.run([sys.executable, str(FOLDER / command[0]), *command[1:]], check=True)
    if "torch" in given.only and given.torch:
        against_torch(given.torch)
    lines = ["| quantity | target | measured |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows())]
    text = "\n".join(lines) + "\n"
    (RESULTS / "bench.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
