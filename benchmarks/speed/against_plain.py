"""Measure the speed of an iteration and of its parts, in comparison with the plain program of `plain.py`.

    python benchmarks/speed/against_plain.py --out benchmarks/results/speed-cpu.json
    python benchmarks/speed/against_plain.py --seeds 1 10 100 400 --agents 13 100 1000 10000
        --out benchmarks/results/speed-gpu.json

Everything is compiled and run once before it is timed. The alternatives take turns, so that noise of the machine
affects all of them. On a CPU, the plain program runs in a separate process with the default flags of XLA. The file
contains every sample; the ratios are more reliable than the times.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from default_flags import prepare, with_default_flags

prepare()  # before JAX starts, so that every core becomes a device

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import plain  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

import jaxbyz as jb  # noqa: E402
from jaxbyz.accelerate.batching import repeat_last  # noqa: E402
from jaxbyz.accelerate.platform import on_cpu  # noqa: E402
from jaxbyz.configuration import building  # noqa: E402
from jaxbyz.files import write_json  # noqa: E402
from jaxbyz.protocol.placement import Places  # noqa: E402
from jaxbyz.runs.run_folder import describe_environment  # noqa: E402
from jaxbyz.sampling import page  # noqa: E402
from jaxbyz.sampling.estimators import Estimator, estimate  # noqa: E402
from jaxbyz.sampling.rollout import collect  # noqa: E402
from jaxbyz.sampling.scoring import SamplingInputs  # noqa: E402
from jaxbyz.training.devices import Shape, choose_shape, make_mesh  # noqa: E402

AGENTS, EPISODES, HORIZON = 13, 50, 500
ENDLESS = {"x_threshold": 1e9, "theta_threshold_radians": 1e9}  # every episode lasts until the horizon


def warm(programs: Iterable[Callable[[], Any]]) -> None:
    """Compile programs in parallel and run each once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda program: jax.block_until_ready(program()), programs))


def samples(rounds: int, **programs: Callable[[], Any]) -> dict[str, list[float]]:
    """Time programs in turns and return the seconds of every round."""
    taken: dict[str, list[float]] = {name: [] for name in programs}
    warm(programs.values())
    for _ in range(rounds):
        for name, program in programs.items():
            started = time.perf_counter()
            jax.block_until_ready(program())
            taken[name].append(time.perf_counter() - started)
    return taken


def ratio(taken: dict[str, list[float]], slow: str, fast: str) -> dict[str, float]:
    """Return the median, least and greatest ratio over the rounds."""
    ratios = sorted(a / b for a, b in zip(taken[slow], taken[fast], strict=True))
    return {"median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}


def batch_programs(agents: int, endless: bool) -> dict[str, Callable[[], Any]]:
    """Return programs for the rollout and gradient of a large batch: the plain one and ours."""
    params = ENDLESS if endless else {}
    keys = jax.random.split(jax.random.key(0), agents)
    environment = jb.make_environment("CartPole-v1", **params)
    policy = jb.mlp_policy(environment)
    estimator = Estimator(gamma=0.999, horizon=HORIZON)
    theta = jax.vmap(policy.init)(keys)

    def ours(theta: jax.Array, keys: jax.Array) -> jax.Array:
        return estimate(estimator, policy, theta, episodes(theta, keys))

    def episodes(theta: jax.Array, keys: jax.Array) -> Any:
        return collect(environment, policy, theta, keys, EPISODES, HORIZON)

    programs: dict[str, Callable] = {"ours": jax.jit(ours), "rollout": jax.jit(episodes)}
    timed = {name: functools.partial(program, theta, keys) for name, program in programs.items()}
    if on_cpu() and len(jax.devices()) > 1:
        timed["all_cores"] = on_all_cores(ours, theta, keys)
    arguments = (agents, EPISODES, HORIZON, tuple(params.items()))
    if on_cpu():
        return {"plain": lambda: with_default_flags().submit(plain.run_large_batch, *arguments).result(), **timed}
    return {"plain": lambda: plain.large_batch(*arguments)(), **timed}


def on_all_cores(program: Callable, theta: jax.Array, keys: jax.Array) -> Callable[[], Any]:
    """Spread the agents over all devices, as the command line does."""
    places = Places(len(theta), choose_shape(None, 1, len(theta)).agents)
    mesh, spec = make_mesh(Shape(1, places.devices)), PartitionSpec("agents")
    everyone = repeat_last(len(theta), places.per_device * places.devices)
    spread = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    given = [jax.device_put(array[everyone], NamedSharding(mesh, spec)) for array in (theta, keys)]
    return functools.partial(spread, *given)


def batches(rounds: int, seeds: list[int]) -> list[dict[str, Any]]:
    """Measure full episodes and the short ones of fresh policies, for several numbers of seeds."""
    rows = []
    made = {(count, full): batch_programs(AGENTS * count, full) for count in seeds for full in (True, False)}
    warm(program for programs in made.values() for program in programs.values())
    for (count, full), programs in made.items():
        taken = samples(rounds, **programs)
        steps = AGENTS * count * EPISODES * HORIZON
        row = {"seeds": count, "episodes": "full" if full else "fresh", "ratio": ratio(taken, "plain", "ours")}
        if "all_cores" in taken:
            row["ratio_all_cores"] = ratio(taken, "plain", "all_cores")
        if full:
            row["steps_per_second"] = {name: steps / statistics.median(values) for name, values in taken.items()}
        rows.append({**row, "seconds": taken})
        print(row, flush=True)
    return rows


def iteration(
    seeds: int,
    coin: bool,
    endless: bool = False,
    agents: int = AGENTS,
    byzantine: int = 3,
    sampler: Callable = page.sampler,
    **options: Any,
) -> Callable[[], Any]:
    """Return a program for one iteration of an algorithm with several seeds."""
    settings = jb.resolve("default", agents=agents, byzantine=byzantine, attack="avg-zero", **options)
    params = ENDLESS if endless else {}
    environment = mock.patch.object(building, "environment_once", lambda name, _: jb.make_environment(name, **params))
    with environment, plain.replaced_sampler(sampler):
        algorithm = jb.build(settings)
    states = jax.vmap(algorithm.init)(jax.random.split(jax.random.key(0), seeds))
    step = jax.jit(jax.vmap(algorithm.step, in_axes=(0, None)))
    states, _ = step(states, jnp.bool_(True))
    return lambda: step(states, jnp.bool_(coin))[0].parameters


def random_estimates(_: Any, policy: jb.Policy, *__: Any, **___: Any) -> page.Sampler:
    """Return random estimates without sampling, so that the rest of an iteration can be timed."""

    def drawn(inputs: SamplingInputs) -> page.Drawn:
        estimates = jax.vmap(lambda key: jax.random.normal(key, (policy.size,)))(inputs.keys)
        return page.Drawn(page.Sampled(estimates, *[jnp.ones(len(estimates))] * 4), private=(), batch=())

    return page.Sampler(
        init=lambda key: (),
        large=drawn,
        small=drawn,
        either=lambda coin, inputs: drawn(inputs),
        estimate=lambda drawn, theta, index: drawn.sampled,
    )


def many_agents(rounds: int, agents: list[int]) -> list[dict[str, Any]]:
    """Measure iterations with many agents that agree with GDA, and with the naive version."""
    rows = []
    for count in agents:
        options = {"endless": True, "agents": count, "byzantine": (count - 1) // 5}
        taken = samples(
            rounds,
            gda=iteration(1, True, **options, agreement="gda"),
            naive=iteration(1, True, **options, algorithm="dec-page-pg"),
        )
        steps = count * EPISODES * HORIZON / statistics.median(taken["gda"])
        share = 1 - 1 / ratio(taken, "gda", "naive")["median"]
        rows.append({"agents": count, "steps_per_second": steps, "protocol_share": share, "seconds": taken})
        print({name: value for name, value in rows[-1].items() if name != "seconds"}, flush=True)
    return rows


def iterations(rounds: int) -> dict[str, Any]:
    """Measure large and small iterations, the share of the protocol in them, and 10 seeds against one.

    Without sampling, DecByzPG and its naive version differ only in aggregation and agreement.
    """
    taken = samples(
        rounds,
        large=iteration(1, True),
        small=iteration(1, False),
        large_full=iteration(1, True, endless=True),
        small_full=iteration(1, False, endless=True),
        large_ten=iteration(10, True),
        small_ten=iteration(10, False),
        unsampled=iteration(1, True, sampler=random_estimates),
        unsampled_naive=iteration(1, True, sampler=random_estimates, algorithm="dec-page-pg"),
    )
    median = {name: statistics.median(values) for name, values in taken.items()}
    kinds = ("large", "small", "large_full", "small_full")
    protocol = median["unsampled"] - median["unsampled_naive"]
    result = {
        **{f"protocol_share_{kind}": protocol / median[kind] for kind in kinds},
        "ten_seeds_over_one_large_one_device": median["large_ten"] / median["large"],
        "ten_seeds_over_one_small_one_device": median["small_ten"] / median["small"],
        "small_over_large_ten_seeds": median["small_ten"] / median["large_ten"],
        "seconds": taken,
    }
    print({name: value for name, value in result.items() if name != "seconds"}, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--agents", type=int, nargs="+", default=[], help="also measure these numbers of agents with GDA"
    )
    parser.add_argument("--no-iterations", action="store_true", help="do not measure whole iterations")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    crowd = " ".join(["--agents", *map(str, arguments.agents)]) if arguments.agents else ""
    command = f"python benchmarks/speed/against_plain.py --seeds {' '.join(map(str, arguments.seeds))} {crowd}"
    report = {"command": f"{command.strip()} --out {arguments.out.name}", "environment": describe_environment()}
    report["batches"] = batches(arguments.rounds, arguments.seeds)
    write_json(arguments.out, report)
    if arguments.agents:
        report["crowds"] = many_agents(arguments.rounds, arguments.agents)
        write_json(arguments.out, report)
    if not arguments.no_iterations:
        report["iterations"] = iterations(arguments.rounds)
        write_json(arguments.out, report)


if __name__ == "__main__":
    main()
