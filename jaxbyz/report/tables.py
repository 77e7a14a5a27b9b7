"""Short tables of results for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxbyz.experiments.config import Config

WINDOW = 0.05  # the last part of a run whose mean is its final return
LEVELS: dict[str, tuple[float, ...]] = {"CartPole-v1": (195, 400, 450), "LunarLander-v3": (0, 100, 200)}


def final_returns(metrics: dict[str, np.ndarray]) -> np.ndarray:
    """[seeds] mean honest return over the last 5 % of the trajectories."""
    spent, returns = metrics["trajectories"], metrics["returns"]
    late = spent >= (1 - WINDOW) * spent[:, -1:]
    return np.sum(np.where(late, returns, 0.0), axis=1) / np.sum(late, axis=1)


def smoothed(metrics: dict[str, np.ndarray], width: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Return against trajectories on one grid: (x [G], y [seeds, G]), each a mean over `width` trajectories.

    Trajectory-weighted, so that large and small batches count by what they sampled.
    """
    spent, returns = metrics["trajectories"].astype(float), metrics["returns"].astype(float)
    grid = np.arange(width, spent[:, -1].min() + 1e-9, width)
    if grid.size == 0:
        grid = spent[:1, -1]
    rows = []
    for x, y in zip(spent, returns, strict=True):
        batch = np.diff(x, prepend=0.0)
        total = np.concatenate([[0.0], np.cumsum(y * batch)])
        edges = np.concatenate([[0.0], x])
        area = np.interp(grid, edges, total) - np.interp(np.maximum(grid - width, 0), edges, total)
        rows.append(area / np.minimum(width, grid))
    return grid, np.stack(rows)


def arrival(x: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """x [G] at which curves y [G] or [n, G] first reach a level, NaN if never. A NaN in y is below any level."""
    reached = np.nan_to_num(y, nan=-np.inf) >= level
    return np.where(reached.any(axis=-1), x[np.argmax(reached, axis=-1)], np.nan)


def trajectories_to(metrics: dict[str, np.ndarray], level: float) -> np.ndarray:
    """[seeds] trajectories an agent until the smoothed return first reaches `level`; NaN when it never does."""
    return arrival(*smoothed(metrics), level)


def trajectories_of_mean(metrics: dict[str, np.ndarray], level: float) -> float:
    """Trajectories an agent until the mean over seeds of the smoothed return reaches `level`; NaN if it never does."""
    x, y = smoothed(metrics)
    return float(arrival(x, y.mean(axis=0), level))


def summarise(metrics: dict[str, np.ndarray]) -> dict[str, Any]:
    """Plain numbers of a run."""
    final = final_returns(metrics)
    return {
        "seeds": int(final.size),
        "iterations": int(metrics["returns"].shape[1]),
        "trajectories": int(metrics["trajectories"][:, -1].max()),
        "return": {
            "mean": float(final.mean()),
            "std": float(final.std()),
            "worst_seed": float(final.min()),
            "best_seed": float(final.max()),
            "seeds": [float(value) for value in final],
        },
        "diameter": float(np.max(metrics["diameter"][:, -1])),
        "smallest_ess": float(np.min(metrics["ess"])),
        "largest_weight": float(np.max(metrics["max_weight"])),
        "bytes_sent": float(np.sum(metrics["bytes_sent"]) / final.size),
    }


def comparison(rows: Sequence[tuple[str, dict[str, np.ndarray]]], levels: Sequence[float] = ()) -> str:
    """Runs under each other: final return, worst seed, trajectories until the mean over seeds reaches each level."""
    width = max(len(name) for name, _ in rows)
    head = f"{'':<{width}}  {'return':>8}  {'± seeds':>8}  {'worst':>8}"
    lines = [head + "".join(f"  {f'to {level:g}':>8}" for level in levels)]
    for name, metrics in rows:
        final = final_returns(metrics)
        cells = [f"{final.mean():8.1f}", f"{final.std():8.1f}", f"{final.min():8.1f}"]
        reached = (trajectories_of_mean(metrics, level) for level in levels)
        cells += [f"{at:8.0f}" if at == at else f"{'never':>8}" for at in reached]
        lines.append(f"{name:<{width}}  " + "  ".join(cells))
    return "\n".join(lines)


def summary_table(config: Config, summary: dict[str, Any]) -> str:
    """A few lines that say how the run went."""
    r = summary["return"]
    lines = [
        f"{config.algorithm} on {config.env}: {config.agents} agents, {config.byzantine} Byzantine, "
        f"attack {config.attack}",
        f"  honest return   {r['mean']:.1f} ± {r['std']:.1f} over {summary['seeds']} seed(s), "
        f"worst {r['worst_seed']:.1f}",
        f"  trajectories    {summary['trajectories']} an agent in {summary['iterations']} iterations",
        f"  diameter        {summary['diameter']:.2e} between honest agents at the end",
        f"  weights         largest {summary['largest_weight']:.2f}, effective share at least "
        f"{summary['smallest_ess']:.2f}",
        f"  communication   {summary['bytes_sent'] / 1e6:.1f} MB a run",
    ]
    return "\n".join(lines)
