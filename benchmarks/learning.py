"""Learning curves of named configurations: the evidence behind the defaults and the README's claims.

    python benchmarks/learning.py --list
    python benchmarks/learning.py decbyzpg-avg-zero page-pg --seeds 5 --out benchmarks/results/learning

Each name becomes one small JSON file: configuration, machine, smoothed return of every seed, seconds. Files that exist
are kept, so an interrupted call goes on where it stopped; `--table` prints what a folder holds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

ATTACKS = ("random-action", "large-noise", "avg-zero")
LIARS = {"agents": 13, "byzantine": 3}


def configurations() -> dict[str, dict]:
    """name -> options of `jaxbyz.resolve`."""
    named: dict[str, dict] = {
        "page-pg": {"algorithm": "page-pg"},
        "decbyzpg-k5": {"agents": 5, "agreement": "mda", "aggregator": "rfa"},
        "decbyzpg-k13": {"agents": 13},
        "dec-page-pg-k13": {"algorithm": "dec-page-pg", "agents": 13},
        "byzpg-k13": {"algorithm": "byzpg", "agents": 13},
    }
    for attack in ATTACKS:
        named[f"decbyzpg-{attack}"] = {**LIARS, "attack": attack}
        named[f"dec-page-pg-{attack}"] = {**LIARS, "attack": attack, "algorithm": "dec-page-pg"}
        named[f"byzpg-{attack}"] = {**LIARS, "attack": attack, "algorithm": "byzpg"}
        named[f"fed-page-pg-{attack}"] = {**LIARS, "attack": attack, "algorithm": "fed-page-pg"}
        named[f"fedpg-br-{attack}"] = {**LIARS, "attack": attack, "preset": "cartpole-fedpg-br"}
        named[f"svrpg-{attack}"] = {**LIARS, "attack": attack, "preset": "cartpole-svrpg"}
        named[f"marina-{attack}"] = {**LIARS, "attack": attack, "preset": "cartpole-marina"}
        # Choices the paper leaves open, one at a time.
        named[f"own-{attack}"] = {**LIARS, "attack": attack, "previous": "own"}
        named[f"bucketing-{attack}"] = {**LIARS, "attack": attack, "pre_aggregator": "bucketing"}
        named[f"krum-{attack}"] = {**LIARS, "attack": attack, "aggregator": "krum"}
        named[f"literal-{attack}"] = {**LIARS, "attack": attack, "baseline": "none", "weight_clip": None}
        named[f"table-{attack}"] = {**LIARS, "attack": attack, "preset": "cartpole-paper"}
        named[f"best-{attack}"] = {**LIARS, "attack": attack, "preset": "cartpole-best", "trajectories": 4000}
    named["best-page-pg"] = {"algorithm": "page-pg", "preset": "cartpole-best", "trajectories": 4000}
    named["best-k13"] = {"agents": 13, "preset": "cartpole-best", "trajectories": 4000}
    for attack in ("alie", "ipm", "min-max", "mimic", "opt-alie", "opt-ipm", "gradient-found"):
        named[f"best-{attack}"] = {**LIARS, "attack": attack, "preset": "cartpole-best", "trajectories": 4000}
    for attack in ("none", *ATTACKS):
        liars = {"agents": 13} if attack == "none" else {**LIARS, "attack": attack}
        for preset in ("lunarlander", "lunarlander-paper"):
            named[f"{preset}-decbyzpg-{attack}"] = {**liars, "env": "LunarLander-v3", "preset": preset}
            named[f"{preset}-dec-page-pg-{attack}"] = {
                **liars, "env": "LunarLander-v3", "preset": preset, "algorithm": "dec-page-pg",
            }  # fmt: skip
    for attack in (*ATTACKS, "min-max", "opt-alie", "opt-ipm", "gradient-found"):
        named[f"lunarlander-best-{attack}"] = {
            **LIARS, "attack": attack, "env": "LunarLander-v3", "preset": "lunarlander-best", "trajectories": 8000,
        }  # fmt: skip
        named[f"lunarlander-best-rfa-{attack}"] = {**named[f"lunarlander-best-{attack}"], "aggregator": "rfa"}
    for name, options in SEARCH.items():
        named[f"search-{name}"] = {
            **LIARS,
            "attack": "avg-zero",
            "preset": "cartpole-best",
            "trajectories": 4000,
            **options,
        }
    return named


# What was tried for `cartpole-best`, under the attack that was hardest for it.
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


def run(name: str, options: dict, seeds: int, trajectories: int | None, out: Path) -> None:
    """Train one configuration and write its file."""
    from jaxbyz.experiments.config import resolve
    from jaxbyz.experiments.files import write_json
    from jaxbyz.report.tables import summarise
    from jaxbyz.reproduction.result_files import train_and_record

    path = out / f"{name}.json"
    if path.exists():
        return
    options = dict(options)
    if trajectories is not None:
        options["trajectories"] = trajectories
    config = resolve(options.pop("preset", None), **{**options, "seeds": seeds})
    done, record = train_and_record(name, config)
    x = record["trajectories"]
    out.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            **record,
            "command": f"python benchmarks/learning.py {name} --seeds {seeds}",
            "summary": summarise(done.metrics),
            "diameter": [
                round(float(value), 6) for value in done.metrics["diameter"].max(axis=0)[:: max(1, len(x) // 20)]
            ],
        },
    )
    print(name, row(path), flush=True)


def row(path: Path) -> str:
    """Mean over seeds at four points, the worst seed at the end, trajectories to 400 and 450."""
    import numpy as np

    from jaxbyz.report.statistics import first_reached

    data = json.loads(path.read_text())
    x, y = np.array(data["trajectories"]), np.array(data["return"])
    cells = [
        f"{y[:, np.searchsorted(x, at)].mean():6.1f}" if at <= x[-1] else "     –" for at in (1000, 2000, 4000, 8000)
    ]
    reached = []
    for level in (400, 450, 475):
        at = first_reached(x, y.mean(axis=0), level)
        reached.append("    –" if np.isnan(at) else f"{int(at):5d}")
    return " | ".join(
        [*cells, f"{y[:, -1].mean():6.1f}", f"{y[:, -1].min():6.1f}", *reached, f"{data['seconds']:6.1f} s"]
    )


def draw(folder: Path, picture: Path) -> None:
    """Three panels, one an attack: the tolerant federation, the naive one, one agent alone, and the best preset."""
    import numpy as np

    from jaxbyz.report.plots import draw_curve, figure, save

    shown = {"decbyzpg-{}": "DecByzPG", "dec-page-pg-{}": "Dec-PAGE-PG (naive)", "page-pg": "PAGE-PG alone (K=1)"}
    shown["best-{}"] = "DecByzPG, preset cartpole-best"
    drawing, axes = figure(3, width=10.5, height=3.4, sharey=True)
    for panel, attack in zip(axes, ATTACKS, strict=True):
        for pattern, name in shown.items():
            path = folder / f"{pattern.format(attack)}.json"
            if path.exists():
                data = json.loads(path.read_text())
                draw_curve(panel, np.array(data["trajectories"]), np.array(data["return"]), name)
        panel.set_title(attack)
        panel.set_xlabel("trajectories per agent")
    axes[0].set_ylabel("return of honest agents")
    axes[-1].legend(loc="center right", fontsize=8)
    drawing.suptitle("CartPole, 13 agents, 3 of them Byzantine; mean and standard deviation over 10 seeds", fontsize=10)
    save(drawing, picture)


def draw_named(folder: Path, names: list[str], picture: Path) -> None:
    """The named curves in one panel."""
    import numpy as np

    from jaxbyz.report.plots import draw_curve, figure, save

    drawing, panel = figure(1, width=6.4, height=3.8)
    for name in names:
        data = json.loads((folder / f"{name}.json").read_text())
        draw_curve(panel, np.array(data["trajectories"]), np.array(data["return"]), name)
    panel.set_xlabel("trajectories per agent")
    panel.set_ylabel("return of honest agents")
    panel.legend(fontsize=8)
    save(drawing, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trajectories", type=int)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/learning"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", type=Path, help="draw the README's picture, or the named curves, from the folder")
    arguments = parser.parse_args()
    known = configurations()
    if arguments.list:
        print("\n".join(known))
        return
    if arguments.table:
        print(f"{'name':<28} |   1000 |   2000 |   4000 |   8000 |    end |  worst | to 400 | to 450 | to 475")
        for path in sorted(arguments.out.glob("*.json")):
            print(f"{path.stem:<28} | {row(path)}")
        return
    if arguments.plot:
        if arguments.names:
            draw_named(arguments.out, arguments.names, arguments.plot)
        else:
            draw(arguments.out, arguments.plot)
        return
    from jaxbyz.accelerate.setup import prepare

    prepare()
    for name in arguments.names or known:
        run(name, known[name], arguments.seeds, arguments.trajectories, arguments.out)


if __name__ == "__main__":
    main()
