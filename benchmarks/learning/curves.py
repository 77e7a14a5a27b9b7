"""Learning curves of named configurations: the evidence behind the presets and the claims in the README.

    python benchmarks/learning/curves.py --list
    python benchmarks/learning/curves.py decbyzpg-avg-zero page-pg --seeds 5 --out curves.jsonl.gz
    python benchmarks/learning/curves.py --table

Each configuration has one row in the results, with its options, the machine, the smoothed return of every seed, and the
time. Configurations that have a row are skipped, so an interrupted call can be repeated.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.files import add_row, read_rows
from jaxbyz.report.plots import draw_curve, figure, save
from jaxbyz.report.statistics import first_reached

ATTACKS = ("random-action", "large-noise", "avg-zero")
ATTACKED = {"agents": 13, "byzantine": 3}
# Large batches only, with the step sizes that the preset `cartpole` had when its rule and batches were chosen.
LARGE_BATCHES = {"preset": "cartpole", "eta": 1e-2, "eta_end": 1e-3, "aggregator": "rfa", "trajectories": 4000}


def configurations() -> dict[str, dict]:
    """Return name -> options of `jaxbyz.resolve`."""
    named: dict[str, dict] = {
        "page-pg": {"algorithm": "page-pg"},
        "decbyzpg-k5": {"agents": 5, "agreement": "mda", "aggregator": "rfa"},
        "decbyzpg-k13": {"agents": 13},
        "dec-page-pg-k13": {"algorithm": "dec-page-pg", "agents": 13},
        "byzpg-k13": {"algorithm": "byzpg", "agents": 13},
    }
    for attack in ATTACKS:
        named[f"decbyzpg-{attack}"] = {**ATTACKED, "attack": attack}
        named[f"dec-page-pg-{attack}"] = {**ATTACKED, "attack": attack, "algorithm": "dec-page-pg"}
        named[f"byzpg-{attack}"] = {**ATTACKED, "attack": attack, "algorithm": "byzpg"}
        named[f"fed-page-pg-{attack}"] = {**ATTACKED, "attack": attack, "algorithm": "fed-page-pg"}
        named[f"fedpg-br-{attack}"] = {**ATTACKED, "attack": attack, "preset": "cartpole-fedpg-br"}
        named[f"svrpg-{attack}"] = {**ATTACKED, "attack": attack, "preset": "cartpole-svrpg"}
        named[f"marina-{attack}"] = {**ATTACKED, "attack": attack, "preset": "cartpole-marina"}
        # Choices that the paper leaves open, one at a time.
        named[f"own-{attack}"] = {**ATTACKED, "attack": attack, "previous": "own"}
        named[f"bucketing-{attack}"] = {**ATTACKED, "attack": attack, "pre_aggregator": "bucketing"}
        named[f"krum-{attack}"] = {**ATTACKED, "attack": attack, "aggregator": "krum"}
        named[f"literal-{attack}"] = {**ATTACKED, "attack": attack, "baseline": "none", "weight_clip": None}
        named[f"table-{attack}"] = {**ATTACKED, "attack": attack, "preset": "cartpole-paper"}
        named[f"best-{attack}"] = {**ATTACKED, "attack": attack, **LARGE_BATCHES}
    named["best-page-pg"] = {"algorithm": "page-pg", **LARGE_BATCHES}
    named["best-k13"] = {"agents": 13, **LARGE_BATCHES}
    for attack in ("alie", "ipm", "min-max", "mimic", "opt-alie", "opt-ipm", "gradient-found"):
        named[f"best-{attack}"] = {**ATTACKED, "attack": attack, **LARGE_BATCHES}
    for attack in ("none", *ATTACKS):
        federation = {"agents": 13} if attack == "none" else {**ATTACKED, "attack": attack}
        for name, preset in (("lunarlander", "lunarlander-steady"), ("lunarlander-paper", "lunarlander-paper")):
            named[f"{name}-decbyzpg-{attack}"] = {**federation, "env": "LunarLander-v3", "preset": preset}
            named[f"{name}-dec-page-pg-{attack}"] = {
                **federation, "env": "LunarLander-v3", "preset": preset, "algorithm": "dec-page-pg",
            }  # fmt: skip
    for attack in (*ATTACKS, "min-max", "opt-alie", "opt-ipm", "gradient-found"):
        named[f"lunarlander-best-{attack}"] = {
            **ATTACKED, "attack": attack, "env": "LunarLander-v3", "preset": "lunarlander-best", "trajectories": 8000,
        }  # fmt: skip
        named[f"lunarlander-best-rfa-{attack}"] = {**named[f"lunarlander-best-{attack}"], "aggregator": "rfa"}
    for name, options in SEARCH.items():
        named[f"search-{name}"] = {**ATTACKED, "attack": "avg-zero", **LARGE_BATCHES, **options}
    return named


# Candidates for the preset `cartpole`, under the attack that was hardest for it.
_SMALL = {"N": 4, "B": 4}
_DECAY = {**_SMALL, "eta": 5e-3, "eta_end": 5e-4, "output_scale": 3.0}
SEARCH: dict[str, dict] = {
    "step5e-3": {**_SMALL, "eta": 5e-3, "eta_end": None, "output_scale": 1.0},
    "step5e-3-n8": {"eta": 5e-3, "eta_end": None, "output_scale": 1.0},
    "step5e-3-scale3": {**_SMALL, "eta": 5e-3, "eta_end": None},
    "decay1e-2-scale2": {**_SMALL, "output_scale": 2.0},
    "decay5e-3-scale3": _DECAY,
    "decay5e-3-scale3-krum": {**_DECAY, "aggregator": "krum"},
    "decay5e-3-identity": {**_DECAY, "output_activation": "identity", "output_scale": 1.0},
    "decay3e-3-scale3": {**_DECAY, "eta": 3e-3, "eta_end": 3e-4},
    "page-decay5e-3-scale3": {**_DECAY, "p": 0.2, "N": 16},
    "decay1e-2-n8-scale3": {},
    "decay5e-3-scale3-nnm": {**_DECAY, "pre_aggregator": "nnm"},
    "decay5e-3-scale3-trimmed": {**_DECAY, "aggregator": "trimmed-mean"},
}


Record = dict[str, Any]


def train(name: str, options: dict[str, Any], seeds: int, trajectories: int | None, out: Path) -> None:
    """Train one configuration and add its row."""
    from jaxbyz.configuration.resolving import resolve
    from jaxbyz.report.tables import summarise
    from jaxbyz.reproduction.training_results import train_and_record

    options = {**options, "seeds": seeds}
    if trajectories is not None:
        options["trajectories"] = trajectories
    metrics, record = train_and_record({name: resolve(options.pop("preset", "cartpole-steady"), **options)})[name]
    stride = max(1, len(record["trajectories"]) // 20)
    record |= {
        "command": f"python benchmarks/learning/curves.py {name} --seeds {seeds}",
        "summary": summarise(metrics),
        "diameter": [round(float(value), 6) for value in metrics["diameter"].max(axis=0)[::stride]],
    }
    add_row(out, record)
    print(name, table_row(record), flush=True)


def curve(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """Return trajectories `[G]` and returns `[seeds, G]`."""
    return np.array(record["trajectories"]), np.array(record["return"])


def table_row(record: Record) -> str:
    """Format mean return at four points and at the end, the worst seed, trajectories to three levels, and the time."""
    x, y = curve(record)
    mean = y.mean(axis=0)
    cells = [f"{mean[np.searchsorted(x, at)]:6.1f}" if at <= x[-1] else "     –" for at in (1000, 2000, 4000, 8000)]
    cells += [f"{mean[-1]:6.1f}", f"{y[:, -1].min():6.1f}"]
    for level in (400, 450, 475):
        reached_at = first_reached(x, mean, level)
        cells.append("    –" if np.isnan(reached_at) else f"{int(reached_at):5d}")
    return " | ".join([*cells, f"{record['seconds']:6.1f} s"])


def draw_attacks(records: dict[str, Record]) -> Any:
    """Draw one panel per attack: DecByzPG, also with large batches only, the naive Dec-PAGE-PG, and one agent alone."""
    shown = {
        "decbyzpg-{}": "DecByzPG",
        "dec-page-pg-{}": "Dec-PAGE-PG (naive)",
        "page-pg": "PAGE-PG alone (K=1)",
        "best-{}": "DecByzPG, large batches only",
    }
    drawing, panels = figure(3, width=10.5, height=3.7, sharey=True)
    for axes, attack in zip(panels, ATTACKS, strict=True):
        for pattern, label in shown.items():
            if record := records.get(pattern.format(attack)):
                draw_curve(axes, *curve(record), label)
        axes.set_title(attack)
        axes.set_xlabel("trajectories per agent")
    panels[0].set_ylabel("honest return")
    drawing.legend(
        *panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9, frameon=False
    )
    drawing.suptitle("CartPole, 13 agents, 3 of them Byzantine; mean ± standard deviation over 10 seeds", fontsize=10)
    return drawing


def draw_named(records: dict[str, Record], names: list[str]) -> Any:
    """Draw one panel per named configuration, with the means of the others in grey; titles omit the common prefix."""
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    drawing, panels = figure(
        columns, rows, width=1 + 2.6 * columns, height=0.8 + 2.2 * rows, sharex=True, sharey=True, squeeze=False
    )
    common = os.path.commonprefix(names)  # noqa: RUF071 (names, not paths)
    curves = {name: curve(records[name]) for name in names}
    for axes, name in zip(panels.flat, names, strict=False):
        for x, y in curves.values():
            axes.plot(x, y.mean(axis=0), color="0.8", linewidth=0.8)
        draw_curve(axes, *curves[name], name)
        axes.set_title(name.removeprefix(common) or name, fontsize=10)
    for axes in panels.flat[len(names) :]:
        axes.remove()
    drawing.supxlabel("trajectories per agent", fontsize=10)
    drawing.supylabel("honest return", fontsize=10)
    seeds = len(next(iter(curves.values()))[1])
    setting = common.rstrip("-") + ": " if common else ""
    configs = [records[name]["config"] for name in names]
    described = {f"{c['algorithm']}, {c['agents']} agents, {c['byzantine']} Byzantine; " for c in configs}
    federation = described.pop() if len(described) == 1 else ""
    shown = f"mean ± standard deviation over {seeds} seeds; grey: the other panels' means"
    drawing.suptitle(f"{setting}{federation}{shown}", fontsize=10)
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="configurations (default: all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trajectories", type=int, help="per agent (default: those of the preset)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning.jsonl.gz"), help="the results")
    parser.add_argument("--list", action="store_true", help="list the configurations")
    parser.add_argument("--table", action="store_true", help="print a table of the results")
    parser.add_argument("--plot", type=Path, help="draw the README's picture, or the named curves, from the results")
    arguments = parser.parse_args()
    known, names = configurations(), arguments.names
    records = {record["name"]: record for record in read_rows(arguments.out)}
    if arguments.list:
        print("\n".join(known))
    elif arguments.table:
        print(f"{'name':<28} |   1000 |   2000 |   4000 |   8000 |    end |  worst | to 400 | to 450 | to 475")
        for name, record in records.items():
            print(f"{name:<28} | {table_row(record)}")
    elif arguments.plot:
        save(draw_named(records, names) if names else draw_attacks(records), arguments.plot)
    else:
        from jaxbyz.accelerate.setup import prepare

        prepare()
        for name in names or known:
            if name not in records:
                train(name, known[name], arguments.seeds, arguments.trajectories, arguments.out)


if __name__ == "__main__":
    main()
