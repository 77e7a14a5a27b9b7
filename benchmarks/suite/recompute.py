"""Compute all scores of suite v2 or v2-lite from the files again, with NumPy and nothing of the package.

    cd benchmarks/results/benchmark
    python ../../suite/recompute.py ../../../jaxbyz/benchmark/suites/v2-lite.toml v2-lite.jsonl.gz

The definition is in docs/statistics.md; this script is short so that it can be checked by reading.
"""

from __future__ import annotations

import gzip
import json
import sys
import tomllib
from pathlib import Path

import numpy as np

FOLDS = 5


def recompute(suite_file: str, results_file: str) -> dict[str, dict[str, float]]:
    """Return entry -> names of scores -> values."""
    suite = tomllib.loads(Path(suite_file).read_text())
    with gzip.open(results_file, "rt") as lines:
        records = [record for record in map(json.loads, lines) if "cell" in record]
    measure = suite["statistics"]["measure"]
    returns = {tuple(record["cell"].values()): np.array(record[measure], float) for record in records}
    sizes = {name: (f["agents"], f["byzantine"]) for name, f in suite["federations"].items()}
    entries = sorted({entry for _, _, entry, _ in returns} - {"alone", "mean", "pooled"})
    scores: dict[str, dict[str, float]] = {entry: {} for entry in entries}
    for task, federations in suite["settings"].items():
        for federation in federations:
            first = next(name for name in sizes if sizes[name] == sizes[federation])
            references = (task, "one-agent", "alone", "none"), (task, federation, "mean", "none")
            if any(cell not in returns for cell in (*references, (task, first, "pooled", "none"))):
                continue
            alone, mean = (np.nan_to_num(returns[cell], nan=np.nanmin(returns[cell])) for cell in references)
            unit = np.mean(mean - alone)
            left_out = [*suite["tasks"][task].get("without", []), *suite["federations"][federation].get("without", [])]
            attacks = [name for name in suite["attacks"] if name not in left_out]
            for entry in entries:
                if any((task, federation, entry, attack) not in returns for attack in attacks):
                    continue
                gains = np.array([returns[task, federation, entry, attack] - alone for attack in attacks])
                gains = np.where(np.isnan(gains), suite["statistics"]["floor"] * unit, gains)  # [attacks, seeds]
                part = np.arange(len(alone)) % FOLDS
                others = np.array([gains[:, part != part[i]].mean(axis=1) for i in range(len(alone))])
                scored = gains[others.argmin(axis=1), np.arange(len(alone))]
                scores[entry][f"{task}.{federation}"] = float(np.mean(scored) / unit)
                for attack, row in zip(attacks, gains, strict=True):
                    scores[entry][f"{task}.{federation}.{attack}"] = float(np.mean(row) / unit)
    tasks = {
        task: federations for task, federations in suite["settings"].items() if suite["tasks"][task].get("ranked", True)
    }
    for found in scores.values():
        ranked = {
            task: [f"{task}.{name}" for name in federations if suite["federations"][name].get("ranked", True)]
            for task, federations in tasks.items()
        }
        if all(name in found for names in ranked.values() for name in names):
            found["overall"] = float(np.mean([np.mean([found[name] for name in names]) for names in ranked.values()]))
    return scores


if __name__ == "__main__":
    for name, values in recompute(*sys.argv[1:]).items():
        print(f"{name}: {values.get('overall', float('nan')):.4f}")
