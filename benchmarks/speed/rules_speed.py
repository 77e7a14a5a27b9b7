"""Compare the speed of the rules with byzfl (NumPy and torch) and byzpy on the same inputs.

    export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
    python benchmarks/speed/rules_speed.py --rivals PYTHON [--sizes 10x1000 50x1000 …] [--out FILE]

The environment variable gives all programs large memory pages, which NumPy requests by itself. PYTHON is an interpreter
that has byzfl and byzpy; it runs this file with --serve and returns timings on request. For each rule and size the
programs take TURNS turns: each is warmed up and timed until REPEATS calls or BUDGET seconds; one that takes longer has
one turn. Torch is timed with its default number of threads and with one, and the better counts. Ours has the flags
of `jaxbyz.accelerate.setup.set_flags` and runs in the calling thread (`jax_cpu_enable_async_dispatch` off). The ratio
of a turn compares the minima. All samples are stored, with the median and the range of the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

TURNS, REPEATS, BUDGET = 3, 60, 0.2
SIZES = ("10x1000", "50x1000", "100x1000", "10x100000", "50x100000", "100x100000", "10x1000000", "50x1000000")
# These are exponential elsewhere, so f is small enough for the others to finish within minutes.
EXPONENTIAL = ("mda", "smea")


def messages(n: int, D: int) -> np.ndarray:
    return np.random.default_rng(n + D).standard_normal((n, D)).astype(np.float32)


def timed(call, budget: float = BUDGET) -> list[float]:
    """Return the seconds of each call after a warm-up; if the warm-up takes the whole budget, return its time."""
    begin = time.perf_counter()
    call()
    first = time.perf_counter() - begin
    if first > budget:
        return [first]
    samples: list[float] = []
    while len(samples) < REPEATS and sum(samples) < budget:
        begin = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begin)
    return samples


def rivals(name: str, n: int, f: int) -> dict:
    """Return the same rule in other programs: program -> function (messages [n, D]) -> call to be timed."""
    import byzfl
    import torch

    theirs = {
        "mean": lambda: byzfl.Average(), "median": lambda: byzfl.Median(),
        "trimmed-mean": lambda: byzfl.TrMean(f), "rfa": lambda: byzfl.GeometricMedian(nu=0.1, T=3),
        "krum": lambda: byzfl.Krum(f), "multi-krum": lambda: byzfl.MultiKrum(f), "mda": lambda: byzfl.MDA(f),
        "centered-clipping": lambda: byzfl.CenteredClipping(), "monna": lambda: byzfl.MoNNA(f),
        "meamed": lambda: byzfl.Meamed(f), "caf": lambda: byzfl.CAF(f), "smea": lambda: byzfl.SMEA(f),
        "nnm": lambda: byzfl.NNM(f), "bucketing": lambda: byzfl.Bucketing(2),
        "clipping": lambda: byzfl.Clipping(2.0), "arc": lambda: byzfl.ARC(f),
    }  # fmt: skip
    in_place = name in ("clipping", "arc")  # byzfl's versions overwrite their input
    found: dict = {}
    if name in theirs:
        rule = theirs[name]()
        found["byzfl-numpy"] = lambda x: lambda: rule(x.copy() if in_place else x)
        if name != "centered-clipping":  # byzfl's version fails on a tensor
            found["byzfl-torch"] = lambda x: (lambda t: lambda: rule(t.clone() if in_place else t))(torch.from_numpy(x))
    other = _byzpy(name, f)
    if other is not None:
        found["byzpy"] = lambda x: (lambda rows: lambda: other(rows))(list(torch.from_numpy(x)))
    return found


def _byzpy(name: str, f: int):
    from byzpy.aggregators.coordinate_wise import median, trimmed_mean
    from byzpy.aggregators.geometric_wise import geometric_median, krum, minimum_diameter_average, monna, smea
    from byzpy.aggregators.norm_wise import caf, center_clipping, comparative_gradient_elimination
    from byzpy.pre_aggregators import ARC, Bucketing, Clipping, NearestNeighborMixing

    make = {
        "median": lambda: median.CoordinateWiseMedian(),
        "trimmed-mean": lambda: trimmed_mean.CoordinateWiseTrimmedMean(f=f),
        "rfa": lambda: geometric_median.GeometricMedian(), "krum": lambda: krum.Krum(f=f),
        "multi-krum": lambda: krum.MultiKrum(f=f, q=1),
        "mda": lambda: minimum_diameter_average.MinimumDiameterAveraging(f=f),
        "monna": lambda: monna.MoNNA(f=f), "smea": lambda: smea.SMEA(f=f), "caf": lambda: caf.CAF(f=f),
        "centered-clipping": lambda: center_clipping.CenteredClipping(c_tau=100.0, M=1),
        "cge": lambda: comparative_gradient_elimination.ComparativeGradientElimination(f=f),
        "nnm": lambda: NearestNeighborMixing(f=f), "bucketing": lambda: Bucketing(bucket_size=2),
        "clipping": lambda: Clipping(threshold=2.0), "arc": lambda: ARC(f=f),
    }.get(name)  # fmt: skip
    if make is None:
        return None
    built = make()
    return built.pre_aggregate if hasattr(built, "pre_aggregate") else built.aggregate


def serve() -> None:
    """Answer lines of JSON {name, n, D, f, turn} with {program: samples or an error}.

    A program that failed, or that used up its budget in one turn, is left out of later turns.
    """
    import torch

    versions = {p: __import__("importlib.metadata").metadata.version(p) for p in ("byzfl", "byzpy", "torch", "numpy")}
    threads = torch.get_num_threads()
    print(json.dumps({"versions": versions, "torch_threads": threads}), flush=True)
    for line in sys.stdin:
        ask, answer = json.loads(line), {}
        if ask["turn"] == 0:
            x = messages(ask["n"], ask["D"])
            calls = {program: bind(x) for program, bind in rivals(ask["name"], ask["n"], ask["f"]).items()}
        for program, call in list(calls.items()):
            try:
                answer[program] = timed(call)
                if program != "byzfl-numpy" and min(answer[program]) <= 5 * BUDGET:
                    torch.set_num_threads(1)
                    answer[program] = min(answer[program], timed(call), key=min)
                    torch.set_num_threads(threads)
            except Exception as error:
                answer[program] = f"{type(error).__name__}: {error}"[:120]
            if isinstance(answer[program], str) or answer[program][0] > BUDGET:
                del calls[program]
        print(json.dumps(answer), flush=True)


def ours(name: str, n: int, D: int, f: int) -> tuple[Callable[[], object], float]:
    """Return a call of our rule without its shares, which the others do not have, and the seconds to compile it."""
    import jax
    import jax.numpy as jnp

    from jaxbyz.rules import Receiver, aggregators, pre_aggregators

    options = {"rfa": {"rounds": 3, "floor": 0.1, "start": "zero"}, "bucketing": {"size": 2}}.get(name, {})
    rule = (aggregators if name in aggregators else pre_aggregators)[name].build(n, f, **options)
    state = rule.init(n, D)
    x = jnp.asarray(messages(n, D))
    keys = (jax.random.key_data(jax.random.key(0)),) if rule.random else ()

    def step(x: jax.Array, *keys: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(keys[0]) if keys else jax.random.key(0)
        return rule.apply(key, x, Receiver(x[0], jnp.int32(0)), state).rows

    begin = time.perf_counter()
    compiled = jax.jit(step).lower(x, *keys).compile()
    compiling = time.perf_counter() - begin
    return lambda: compiled(x, *keys).block_until_ready(), compiling


def compare(turns: list[dict]) -> tuple[dict, dict]:
    """Return {program: samples of each turn} and {program: [median, minimum, maximum] of the ratios to ours}."""
    samples: dict = {}
    ratios: dict = {}
    for turn in turns:
        for program, found in turn.items():
            if isinstance(found, str):
                samples[program] = found
                continue
            samples.setdefault(program, []).append([float(f"{t:.3g}") for t in found])
            if program != "jaxbyz":
                ratios.setdefault(program, []).append(min(found) / min(turn["jaxbyz"]))
    spread = {p: (float(np.median(r)), min(r), max(r)) for p, r in ratios.items()}
    return samples, {p: [float(f"{value:.3g}") for value in triple] for p, triple in spread.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rivals", help="a Python interpreter with byzfl and byzpy")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--rules", nargs="*")
    parser.add_argument("--append", action="store_true", help="keep the rows of other sizes and rules in the file")
    parser.add_argument("--out", default=str(Path(__file__).parents[1] / "results" / "rules_speed.json"))
    options = parser.parse_args()
    if options.serve:
        return serve()

    from jaxbyz.accelerate.setup import set_flags

    set_flags()
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    from jaxbyz.rules import aggregators, pre_aggregators

    names = options.rules or [*aggregators.names(), *pre_aggregators.names()]
    there, found = None, {}
    if options.rivals:
        there = subprocess.Popen(
            [options.rivals, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        found = json.loads(there.stdout.readline())
    record: dict = {
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "python": platform.python_version(),
                    "tunables": os.environ.get("GLIBC_TUNABLES", "")},
        "versions": {"jax": jax.__version__, "numpy": np.__version__, **found.get("versions", {})},
        "rows": [],
    }  # fmt: skip
    if options.append and Path(options.out).exists():
        record["rows"] = json.loads(Path(options.out).read_text())["rows"]
    for size in options.sizes:
        n, D = map(int, size.split("x"))
        for name in names:
            entry = (aggregators if name in aggregators else pre_aggregators)[name]
            f = min(n // 5, entry.most(n))
            if name in EXPONENTIAL and there is not None:
                f = 2 if n * D <= 50_000 else 1
            try:
                call, compiling = ours(name, n, D, f)
            except Exception as error:
                print(f"{size:>12} {name:18s} {error}", flush=True)
                continue
            turns: list[dict] = []
            for turn in range(TURNS):
                turns.append({"jaxbyz": timed(call)})
                if there is not None:
                    there.stdin.write(json.dumps({"name": name, "n": n, "D": D, "f": f, "turn": turn}) + "\n")
                    there.stdin.flush()
                    turns[-1] |= json.loads(there.stdout.readline())
            samples, ratios = compare(turns)
            row = {"rule": name, "n": n, "D": D, "f": f, "compile_s": round(compiling, 3), "load": os.getloadavg()[0]}
            kept = [r for r in record["rows"] if (r["rule"], r["n"], r["D"], r["f"]) != (name, n, D, f)]
            record["rows"] = [*kept, row | {"samples_s": samples, "times_faster": ratios}]
            best = min(min(turn) for turn in samples["jaxbyz"])
            print(f"{size:>12} {name:18s} f={f:<3d} {best * 1e3:9.3f} ms  " + "  ".join(
                f"{p} ×{r[0]} ({r[1]}–{r[2]})" for p, r in ratios.items()), flush=True)  # fmt: skip
            Path(options.out).write_text(as_lines(record))
    if there is not None:
        there.stdin.close()
        there.wait()


def as_lines(record: dict) -> str:
    """Format as JSON with one line per row of the table."""
    head = json.dumps(record | {"rows": []})
    return head[:-2] + "\n" + ",\n".join(map(json.dumps, record["rows"])) + "\n]}\n"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
