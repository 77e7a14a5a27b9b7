"""Growth of the rules' time in K and D, from the stored benchmark: python benchmarks/plot_rules_speed.py."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results"
RULES = ("median", "meamed", "rfa", "krum", "nnm", "mda", "smea")


def main() -> None:
    rows = json.loads((RESULTS / "rules_growth.json").read_text())["rows"]
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for panel, moving, fixed, at in ((panels[0], "n", "D", 1000), (panels[1], "D", "n", 50)):
        for name in RULES:
            points = sorted((r[moving], min(map(min, r["samples_s"]["jaxbyz"])) * 1e3) for r in rows
                            if r["rule"] == name and r[fixed] == at)  # fmt: skip
            if points:
                panel.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        panel.set_xlabel({"n": "messages K (D = 1000, f = K/5)", "D": "parameters D (K = 50, f = 10)"}[moving])
        panel.grid(True, which="major", alpha=0.3)
    panels[0].set_ylabel("ms a call")
    panels[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS.parents[1] / "docs" / "images" / "rules_growth.png", dpi=90)


if __name__ == "__main__":
    main()
