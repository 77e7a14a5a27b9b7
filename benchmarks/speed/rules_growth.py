"""Print the stored benchmark of the rules as a table, and draw how the time grows with K and D."""

from __future__ import annotations

import json
from pathlib import Path

from jaxbyz.report.plots import COLOURS, figure, legend_below, save

RESULTS = Path(__file__).parents[1] / "results"
RULES = ("median", "meamed", "rfa", "krum", "nnm", "mda", "smea")
RIVALS = ("byzfl-numpy", "byzfl-torch", "byzpy")


def table() -> str:
    """Return a Markdown table of how many times slower the others are: median over turns (minimum to maximum)."""

    def cell(ratio: list[float] | None) -> str:
        if ratio is None:
            return "–"
        alone = ratio[1] == ratio[2]  # there was time for one turn only
        return f"{ratio[0]:g}" if alone else f"{ratio[0]:g} ({ratio[1]:g}–{ratio[2]:g})"

    lines = ["| rule | K | D | f | ms | byzfl NumPy | byzfl torch | byzpy |", "| --- " * 8 + "|"]
    rows = json.loads((RESULTS / "rules_speed.json").read_text())["rows"]
    for row in sorted(rows, key=lambda row: (row["rule"], row["n"], row["D"])):
        least = min(map(min, row["samples_s"]["jaxbyz"])) * 1e3
        facts = [row["rule"], str(row["n"]), str(row["D"]), str(row["f"]), f"{least:.3g}"]
        lines.append("| " + " | ".join(facts + [cell(row["times_faster"].get(rival)) for rival in RIVALS]) + " |")
    return "\n".join(lines)


def main() -> None:
    print(table())
    report = json.loads((RESULTS / "rules_growth.json").read_text())
    rows, machine = report["rows"], report["machine"]
    processor = machine["processor"].replace("(R)", "")
    drawing, panels = figure(2, width=9, height=4.2, sharey=True)
    for panel, moving, fixed, at in ((panels[0], "n", "D", 1000), (panels[1], "D", "n", 50)):
        for number, name in enumerate(RULES):
            points = sorted((r[moving], min(map(min, r["samples_s"]["jaxbyz"])) * 1e3) for r in rows
                            if r["rule"] == name and r[fixed] == at)  # fmt: skip
            if points:
                panel.loglog(*zip(*points, strict=True), marker="o", markersize=3, label=name, color=COLOURS[number])
        panel.set_title({"n": "D = 1000 parameters, f = K/5", "D": "K = 50 messages, f = 10"}[moving], fontsize=10)
        panel.set_xlabel({"n": "messages K", "D": "parameters D"}[moving])
    panels[0].set_ylabel("milliseconds per call")
    legend_below(drawing, len(RULES))
    drawing.suptitle(
        f"Time of one aggregation, the fastest call, {machine['cores']} cores of an {processor}", fontsize=10
    )
    save(drawing, RESULTS.parents[1] / "docs" / "images" / "rules_growth.png")


if __name__ == "__main__":
    main()
