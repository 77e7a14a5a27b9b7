"""Short tables of results for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxbyz.configuration.config import Config
from jaxbyz.report.statistics import final_returns, standard_deviation, trajectories_to_level

# environment -> returns of interest: tables say after how many trajectories they are reached
RETURN_LEVELS: dict[str, tuple[float, ...]] = {"CartPole-v1": (195, 400, 450), "LunarLander-v3": (0, 100, 200)}

# environment -> the range of returns, from doing nothing useful to solving the task; heatmaps use it
RETURN_RANGES: dict[str, tuple[float, float]] = {
    "CartPole-v1": (0, 500), "LunarLander-v3": (-300, 300), "LunarLanderContinuous-v3": (-300, 300),
    "Acrobot-v1": (-500, 0), "MountainCar-v0": (-200, 0), "Pendulum-v1": (-1600, 0),
}  # fmt: skip
SHARES = ("ess", "byzantine_weight", "coin", "finite")  # metrics between 0 and 1
COLUMNS = 80


def value_range(environment: str, metric: str = "returns") -> tuple[float, float] | None:
    """Return the range in which values of a metric are shown, or None if the task does not define one."""
    if metric in ("returns", "worst_agent"):
        return RETURN_RANGES.get(environment)
    return (0.0, 1.0) if metric in SHARES else None


def summarise(metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    """Summarise a run in plain numbers that JSON can hold."""
    final = final_returns(metrics)
    deviation = standard_deviation(final)
    returns = {"mean": final.mean(), "std": deviation, "worst_seed": final.min(), "best_seed": final.max()}
    return {
        "seeds": int(final.size),
        "iterations": int(metrics["returns"].shape[1]),
        "trajectories": int(metrics["trajectories"][:, -1].max()),
        "return": {**{name: float(value) for name, value in returns.items()}, "seeds": final.tolist()},
        "diameter": float(np.max(metrics["diameter"][:, -1])),
        "smallest_ess": float(np.min(metrics["ess"])),
        "largest_weight": float(np.max(metrics["max_weight"])),
        "bytes_sent": float(np.sum(metrics["bytes_sent"]) / final.size),
    }


def summary_table(config: Config, summary: dict[str, Any]) -> str:
    """Format the result of `summarise` in a few lines."""
    final = summary["return"]
    std = "" if np.isnan(final["std"]) else f" ± {final['std']:.1f}"
    lines = [
        f"{config.algorithm} on {config.env}: {config.agents} agents, {config.byzantine} Byzantine, "
        f"attack {config.attack}",
        f"  honest return   {final['mean']:.1f}{std} over {summary['seeds']} seed(s), "
        f"worst seed {final['worst_seed']:.1f}",
        f"  trajectories    {summary['trajectories']} per agent in {summary['iterations']} iterations",
        f"  diameter        {summary['diameter']:.2e} between honest agents at the end",
        f"  weights         largest {summary['largest_weight']:.2f}, "
        f"smallest effective sample size {summary['smallest_ess']:.2f} of a batch",
        f"  communication   {summary['bytes_sent'] / 1e6:.1f} MB sent per seed",
    ]
    return "\n".join(lines)


def mean_and_deviation(values: np.ndarray) -> str:
    """Return the mean over seeds and, if there are several, the standard deviation, as a short text."""
    mean, deviation = float(values.mean()), float(standard_deviation(values))
    digits = 2 if abs(mean) < 10 else 1 if abs(mean) < 1000 else 0
    return f"{mean:.{digits}f}" + ("" if np.isnan(deviation) else f" ± {deviation:.{digits}f}")


def comparison(rows: Sequence[tuple[str, dict[str, np.ndarray]]], levels: Sequence[float] = ()) -> str:
    """Compare runs, one per line: final return, worst seed, and trajectories until the mean return reaches each level.

    The standard deviation over seeds has n − 1 in the denominator; it is unknown (nan) for one seed.

    Args:
        rows: name and metrics of each run.
        levels: returns to reach.
    """
    width = min(max(len(name) for name, _ in rows), COLUMNS - 10 * (3 + len(levels)))
    head = f"{'':<{width}}  {'return':>8}  {'± std':>8}  {'worst':>8}"
    lines = [head + "".join(f"  {f'to {level:g}':>8}" for level in levels)]
    for name, metrics in rows:
        final = final_returns(metrics)
        cells = [f"{final.mean():8.1f}", f"{standard_deviation(final):8.1f}", f"{final.min():8.1f}"]
        reached_at = (trajectories_to_level(metrics, level) for level in levels)
        cells += [f"{'never':>8}" if np.isnan(x) else f"{x:8.0f}" for x in reached_at]
        if len(name) > width:  # a line of its own
            lines.append(name)
            name = ""
        lines.append(f"{name:<{width}}  " + "  ".join(cells))
    return "\n".join(lines)
