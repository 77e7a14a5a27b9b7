"""Short tables of results for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxbyz.configuration.config import Config
from jaxbyz.report.intervals import Estimate, bootstrap_mean
from jaxbyz.report.statistics import (
    failure_level,
    final_returns,
    have_failed,
    of_finite_seeds,
    standard_deviation,
    trajectories_to_level,
)

# environment -> returns of interest: tables say after how many trajectories they are reached
RETURN_LEVELS: dict[str, tuple[float, ...]] = {"CartPole-v1": (195, 400, 450), "LunarLander-v3": (0, 100, 200)}

# environment -> the range of returns, from doing nothing useful to solving the task; heatmaps use it
RETURN_RANGES: dict[str, tuple[float, float]] = {
    "CartPole-v1": (0, 500), "LunarLander-v3": (-300, 300), "LunarLanderContinuous-v3": (-300, 300),
    "Acrobot-v1": (-500, 0), "MountainCar-v0": (-200, 0), "Pendulum-v1": (-1600, 0),
}  # fmt: skip
# environment -> the least and the greatest return that an episode of so many steps can have
POSSIBLE_RETURNS: dict[str, Callable[[int], tuple[float, float]]] = {
    "CartPole-v1": lambda steps: (0, steps), "Acrobot-v1": lambda steps: (-steps, 0),
    "MountainCar-v0": lambda steps: (-steps, 0),
    "Pendulum-v1": lambda steps: (-steps * (np.pi**2 + 0.1 * 8**2 + 0.001 * 2**2), 0),
}  # fmt: skip
SHARES = ("ess", "byzantine_weight", "coin", "finite")  # metrics between 0 and 1
COLUMNS = 80


def value_range(environment: str, metric: str = "returns") -> tuple[float, float] | None:
    """Return the range in which values of a metric are shown, or None if the task does not define one."""
    if metric in ("returns", "worst_agent"):
        return RETURN_RANGES.get(environment)
    return (0.0, 1.0) if metric in SHARES else None


def possible_range(config: Config, metric: str) -> tuple[float, float]:
    """Return the least and the greatest value that a metric of a run can have, as far as they are known."""
    if metric in ("returns", "worst_agent"):
        known = POSSIBLE_RETURNS.get(config.env)
        return known(config.horizon) if known else (-np.inf, np.inf)
    if metric == "length":
        return (0.0, config.horizon)
    return (0.0, 1.0) if metric in SHARES else (0.0, np.inf)


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


def digits_for(value: float) -> int:
    """Return how many digits of a value after the point are worth showing."""
    return 2 if abs(value) < 10 else 1 if abs(value) < 1000 else 0


def mean_and_deviation(values: np.ndarray) -> str:
    """Return the mean over seeds and, if there are several, the standard deviation, as a short text."""
    mean, deviation = float(values.mean()), float(standard_deviation(values))
    digits = digits_for(mean)
    return f"{mean:.{digits}f}" + ("" if np.isnan(deviation) else f" ± {deviation:.{digits}f}")


def number_text(value: float, digits: int | None = None) -> str:
    """Return a number as a short text with a minus sign, or a dash if it is not finite."""
    if not np.isfinite(value):
        return "–"
    return f"{value:.{digits_for(value) if digits is None else digits}f}".replace("-", "−")


def with_interval(estimate: Estimate) -> str:
    """Return a value and its interval, if it has one, as `499.2 [498.0, 499.9]`."""
    value, low, high = map(float, estimate)
    digits = digits_for(value)
    ends = ", ".join(number_text(end, digits) for end in (low, high))
    return number_text(value, digits) + (f" [{ends}]" if np.isfinite(low) else "")


def comparison(rows: Sequence[tuple[str, dict[str, np.ndarray]]], levels: Sequence[float] = ()) -> str:
    """Compare runs, one per line: final return with its 95 % interval, worst seed, failed seeds, and speed.

    There is no interval below five seeds. The last columns say after how many trajectories per agent the mean return
    reaches each level (`trajectories_to_level`); `failure_level` defines when a seed has failed.

    Args:
        rows: name and metrics of each run.
        levels: returns to reach.
    """
    lowest = failure_level([metrics for _, metrics in rows])
    cells = [["", "return", "95 % interval", "worst", "failed", *(f"{level:g}" for level in levels)]]
    for name, metrics in rows:
        final = of_finite_seeds(metrics, final_returns(metrics))
        mean, low, high = map(float, bootstrap_mean(final))
        reached = (trajectories_to_level(metrics, level) for level in levels)
        interval = f"{number_text(low, 1)} to {number_text(high, 1)}" if np.isfinite(low) else "–"
        cells.append([
            name, number_text(mean, 1), interval, number_text(final.min(), 1),
            f"{have_failed(final, lowest).sum()}/{len(final)}",
            *("never" if np.isnan(x) else f"{x:.0f}" for x in reached),
        ])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*(row[1:] for row in cells), strict=True)]
    room = max(8, min(max(len(name) for name, *_ in cells), COLUMNS - sum(widths) - 2 * len(widths)))
    title = "trajectories per agent to a return of"
    lines = [" " * max(0, room + sum(widths) + 2 * len(widths) - len(title)) + title] if levels else []
    for name, *others in cells:
        if len(name) > room:  # a line of its own
            lines.append(name)
            name = ""
        texts = (f"{text:>{width}}" for text, width in zip(others, widths, strict=True))
        lines.append(f"{name:<{room}}  " + "  ".join(texts))
    return "\n".join(lines)
