"""Ablations on equal trajectories per agent: what makes a federation learn, and what robustness costs.

    python benchmarks/learning/what_matters.py page --task cartpole --jobs 2 --out what_matters.jsonl.gz
    python benchmarks/learning/what_matters.py --table
    python benchmarks/learning/what_matters.py --ranks benchmarks/results/benchmark/v1.jsonl.gz

The experiments are `page` (large and small batches), `agents` (their number), `price` (rules without Byzantine agents),
`kappa` (rounds of agreement) and `components` (baseline, logits, decay, weight clipping). The tasks are those of the
benchmark's suite v1, with their budgets. Every variant has its own step size: the best of a grid on tuning seeds; the
numbers are those of ten other seeds, of 40 on the tabular MDP. All step sizes and seeds of a variant are one compiled
program. Each variant has one row in the results, and is not computed again if it is there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.accelerate.setup import prepare
from jaxbyz.files import add_row, read_rows

TASKS = ("tabular", "cartpole", "lunarlander")
FEDERATION = {"agents": 13, "byzantine": 3}
RULES = ("mean", "rfa", "bucketing+rfa", "krum", "mda", "median", "trimmed-mean", "nnm+trimmed-mean", "caf")
KAPPAS = (0, 1, 2, 4, 8)


class Effort(NamedTuple):
    """The step sizes that are tried, as factors on the task's, and the seeds that choose among them and that count."""

    factors: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    tuning_seeds: range = range(1000, 1005)
    seeds: range = range(10)


MANY_SEEDS = Effort(tuning_seeds=range(1000, 1010), seeds=range(40))  # for the tabular MDP, which is cheap
QUICK = Effort((0.5, 1.0, 2.0), range(1000, 1003), range(6))


class Variant(NamedTuple):
    """One program: the options that differ from the task's, and the values of p that it serves."""

    name: str
    options: dict[str, Any]
    p: tuple[float, ...] = (1.0,)


def page_variants(task: str) -> list[Variant]:
    """Plain batches of several sizes against small batches, for one agent and for 13."""
    base = {"tabular": 4, "cartpole": 4, "lunarlander": 16}[task]
    variants = []
    for K in (1, 13):
        who = {"algorithm": "page-pg"} if K == 1 else {"algorithm": "dec-page-pg", "agents": K}
        for N in (base, 2 * base, 4 * base):
            variants.append(Variant(f"k{K}-plain-n{N}", {**who, "N": N, "B": 1}))
        for N, B in ((2 * base, base // 2), (4 * base, base // 2), (4 * base, base)):
            for clip in (1.0, None):
                name = f"k{K}-page-n{N}-b{B}{'' if clip else '-unclipped'}"
                variants.append(Variant(name, {**who, "N": N, "B": B, "weight_clip": clip}, (0.1, 0.2, 0.5)))
    return variants


def agents_variants(task: str) -> list[Variant]:
    """From one agent to 64, honest, and with a fifth of them Byzantine."""
    variants = [Variant("honest-k1", {"algorithm": "page-pg"})]
    for K in (2, 4, 8, 16, 32, 64):
        variants.append(Variant(f"honest-k{K}", {"algorithm": "dec-page-pg", "agents": K}))
    for K in (5, 10, 20, 40):
        defended = {"algorithm": "decbyzpg", "agents": K, "byzantine": K // 5, "aggregator": "rfa"}
        variants.append(Variant(f"attacked-k{K}", {**defended, "agreement": "trimmed-mean", "attack": "avg-zero"}))
    return variants


def price_variants(task: str) -> list[Variant]:
    """Rules that defend against three of 13 agents while all behave honestly."""
    options = {**FEDERATION, "algorithm": "decbyzpg", "agreement": "none"}
    return [Variant(rule, {**options, "aggregator": rule}) for rule in RULES]


def kappa_variants(task: str) -> list[Variant]:
    """Rounds of agreement, without attack, under noise for every receiver, and under equivocation."""
    variants = []
    for attack in ("none", "large-noise", "equivocating-min-max"):
        for kappa in KAPPAS:
            agreement = {"agreement": "mda", "kappa": str(kappa)} if kappa else {"agreement": "none"}
            options = {**FEDERATION, **agreement, "algorithm": "decbyzpg", "aggregator": "rfa", "attack": attack}
            variants.append(Variant(f"{attack}-kappa{kappa}", options))
    return variants


def components_variants(task: str) -> list[Variant]:
    """The estimator, the policy and the step size, one change at a time, in a federation without attack."""
    who = {"algorithm": "dec-page-pg", "agents": 13}
    variants = [Variant("as-is", who), Variant("baseline-none", {**who, "baseline": "none"})]
    variants.append(Variant("baseline-leave-one-out", {**who, "baseline": "leave-one-out"}))
    if task != "tabular":
        variants += [Variant(f"logits-{scale:g}", {**who, "output_scale": scale}) for scale in (1.0, 2.0, 3.0, 5.0)]
    variants.append(Variant("decay-to-tenth", {**who, "eta_end": 0.1}))  # a share of the step size
    return variants


EXPERIMENTS = {
    "page": page_variants,
    "agents": agents_variants,
    "price": price_variants,
    "kappa": kappa_variants,
    "components": components_variants,
}


def row_name(experiment: str, task: str, variant: str) -> str:
    """Return the name of a variant's row."""
    return f"{experiment}.{task}.{variant}"


def measure(experiment: str, task: str, variant: Variant, coin: str, effort: Effort) -> dict[str, Any]:
    """Train all step sizes and seeds of a variant, for each p; return its row of the results."""
    from jaxbyz.benchmark.suite import load_suite
    from jaxbyz.configuration.building import DATA
    from jaxbyz.configuration.resolving import resolve, to_dict
    from jaxbyz.runs.run_folder import describe_environment
    from jaxbyz.runs.together import train_together

    described = load_suite("v1").tasks[task]
    options = {**described.defaults, **described.fixed, **variant.options}
    if "eta_end" in options:
        options["eta_end"] *= options["eta"]
    config = resolve("default", **options, coin=coin)
    started = time.monotonic()
    rows = []
    for p in variant.p:
        by_seeds = []  # tuning seeds and the others, whose shared coins differ
        for seeds in effort[1:]:
            own = replace(config, p=p, seed=seeds[0], seeds=len(seeds))
            steps = [{n: getattr(own, n) * f for n in DATA if getattr(own, n) is not None} for f in effort.factors]
            by_seeds.append(train_together([replace(own, **step) for step in steps]))
        rows.append({"p": p, **_summary(effort, config.eta, config.trajectories, list(zip(*by_seeds, strict=True)))})
    return {
        "name": row_name(experiment, task, variant.name),
        "experiment": experiment,
        "task": task,
        "variant": variant.name,
        "config": to_dict(config),
        "environment": describe_environment(),
        "seconds": round(time.monotonic() - started, 1),
        "rows": rows,
    }


def _summary(effort: Effort, eta: float, budget: int, runs: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the average and the final return of every seed for each step size, and which step size is best."""
    from jaxbyz.report.statistics import window_averages

    average, final = [], []
    for of_step_size in runs:
        windows = np.array([0.0, 0.9 * budget]), np.full(2, float(budget))
        both = np.concatenate([window_averages(run.metrics, *windows) for run in of_step_size])
        finite = np.concatenate([np.all(run.metrics["finite"] == 1, axis=1) for run in of_step_size])
        both[~finite] = np.nan
        average.append([float(f"{value:.5g}") for value in both[:, 0]])
        final.append([float(f"{value:.5g}") for value in both[:, 1]])
    tuning = np.nan_to_num(np.mean(np.array(average)[:, : len(effort.tuning_seeds)], axis=1), nan=-np.inf)
    return {
        "eta": [float(f"{eta * factor:.4g}") for factor in effort.factors],
        "best": int(np.argmax(tuning)),
        "average": [row[len(effort.tuning_seeds) :] for row in average],
        "final": [row[len(effort.tuning_seeds) :] for row in final],
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return Markdown tables of all results: interquartile means with 95 % intervals at the best step size."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for data in results:
        found.setdefault((data["experiment"], data["task"]), []).append(data)
    lines = []
    for (experiment, task), variants in sorted(found.items()):
        order = [variant.name for variant in EXPERIMENTS[experiment](task)]
        lines += ["", f"### {experiment}, {task}", "", "| variant | p | η | average return | at the end | worst seed |"]
        lines.append("| --- " * 6 + "|")
        for data in sorted(variants, key=lambda data: order.index(data["variant"])):
            for row in data["rows"]:
                best = row["best"]
                average, final = (np.array(row[kind][best], float) for kind in ("average", "final"))
                cells = [f"{e.value:.4g} ({e.low:.4g} to {e.high:.4g})" for e in map(_iqm, (average, final))]
                edge = " (end of the grid)" if best in (0, len(row["eta"]) - 1) else ""
                cells = [data["variant"], f"{row['p']:g}", f"{row['eta'][best]:g}{edge}", *cells, f"{final.min():.4g}"]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def _iqm(values: np.ndarray) -> Any:
    from jaxbyz.report.intervals import stratified_iqm

    return stratified_iqm([values])


class Standing(NamedTuple):
    """How a rule compares with the others in a setting under an attack.

    Attributes:
        score: its score.
        rank: 1 for the best.
        beaten: two or more others are better by more than both intervals, so that it is not even as good as second.
    """

    score: float
    rank: int
    beaten: bool


Standings = dict[tuple[str, str], dict[str, dict[str, Standing]]]  # (task, federation) -> rule -> attack


def compare_rules(board: dict[str, Any]) -> Standings:
    """Compare DecByzPG's rules with each other, under the attacks for which a setting has results of all of them."""
    standings: Standings = {}
    for setting in board["settings"]:
        where = (setting["task"], setting["federation"])
        found = {
            entry["name"].removeprefix("decbyzpg-"): one["cells"]
            for entry in board["entries"]
            for one in entry["settings"]
            if (one["task"], one["federation"]) == where and entry["name"].startswith("decbyzpg-")
            if "p" not in one["options"]  # with small batches, more than the rule differs
        }
        attacks = [attack for attack in ("none", *board["attacks"]) if all(attack in cells for cells in found.values())]
        if not found or not attacks:
            continue
        standings[where] = {rule: {} for rule in found}
        for rule, cells in found.items():
            for attack in attacks:
                own = cells[attack]["score"]
                others = [other[attack]["score"] for name, other in found.items() if name != rule]
                rank = 1 + sum(other["value"] > own["value"] for other in others)
                beaten = sum(other["low"] > own["high"] for other in others) > 1
                standings[where][rule][attack] = Standing(own["value"], rank, beaten)
    return standings


def ranks(standings: Standings) -> str:
    """Return a table of ranks per setting, and one over all settings."""
    from jaxbyz.benchmark.table import number

    def heading(attack: str) -> str:
        return "no attack" if attack == "none" else attack

    lines = []
    for (task, federation), rules in standings.items():
        attacks = next(iter(rules.values()))
        lines += [
            f"{task}, {federation}: rank (score)",
            "",
            f"| rule | {' | '.join(map(heading, attacks))} | worst rank | clearly worse than two others under |",
            "| --- " * (len(attacks) + 3) + "|",
        ]
        for rule, found in rules.items():
            texts = [f"{one.rank} ({number(one.score)})" for one in found.values()]
            beaten = ", ".join(heading(attack) for attack, one in found.items() if one.beaten)
            worst = max(one.rank for one in found.values())
            lines.append(f"| {rule} | {' | '.join(texts)} | {worst} | {beaten or '–'} |")
        lines.append("")
    together: dict[str, list[Standing]] = {}
    for rules in standings.values():
        for rule, found in rules.items():
            together.setdefault(rule, []).extend(found.values())
    lines += [
        f"all {len(standings)} settings",
        "",
        "| rule | settings × attacks | mean rank | first | first or second | clearly worse than two others |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for rule, all_found in sorted(together.items(), key=lambda pair: np.mean([one.rank for one in pair[1]])):
        places = np.array([one.rank for one in all_found])
        counts = (len(places), f"{places.mean():.2f}", (places == 1).sum(), (places <= 2).sum())
        beaten_in = sum(one.beaten for one in all_found)
        lines.append(f"| {rule} | {' | '.join(map(str, counts))} | {beaten_in} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", choices=tuple(EXPERIMENTS), help="which question")
    parser.add_argument("--task", choices=TASKS, default="tabular")
    parser.add_argument("--only", nargs="+", help="variants whose name is or contains one of these")
    parser.add_argument("--coin", choices=("own", "shared"), default="own", help="shared is faster where p < 1")
    parser.add_argument("--quick", action="store_true", help="three step sizes, three tuning seeds, six seeds")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/what_matters.jsonl.gz"))
    parser.add_argument("--table", action="store_true", help="print a table of the results")
    parser.add_argument(
        "--ranks", type=Path, metavar="DIR", help="print the ranks of rules in results of the benchmark"
    )
    parser.add_argument("--suite", default="v1", help="the suite of these results")
    arguments = parser.parse_args()
    if arguments.ranks is not None:
        from jaxbyz.benchmark.leaderboard import load_leaderboard

        print(ranks(compare_rules(load_leaderboard(arguments.suite, arguments.ranks))))
        return
    if arguments.table:
        print(table(read_rows(arguments.out)))
        return
    if arguments.experiment is None:
        parser.error("name an experiment, or give --table")
    known = {variant.name: variant for variant in EXPERIMENTS[arguments.experiment](arguments.task)}
    only = arguments.only or [""]
    chosen = [name for name in known if any(text == name if text in known else text in name for text in only)]
    finished = {row["name"] for row in read_rows(arguments.out)}
    missing = [name for name in chosen if row_name(arguments.experiment, arguments.task, name) not in finished]
    if arguments.jobs > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        from jaxbyz.reproduction.subprocesses import run_in_processes

        words = [arguments.experiment, "--task", arguments.task, "--coin", arguments.coin, "--out", str(arguments.out)]
        words += ["--quick"] if arguments.quick else []
        commands: dict[str, Any] = {name: [*words, "--only", name] for name in missing}
        log = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
        failed = run_in_processes(commands, arguments.jobs, log, program=(__file__,))
        for name, reason in failed.items():
            print(f"{name} failed: {reason}", file=sys.stderr)
        raise SystemExit(int(bool(failed)))
    prepare()
    effort = QUICK if arguments.quick else MANY_SEEDS if arguments.task == "tabular" else Effort()
    for name in missing:
        print(name, flush=True)
        add_row(arguments.out, measure(arguments.experiment, arguments.task, known[name], arguments.coin, effort))


if __name__ == "__main__":
    main()
