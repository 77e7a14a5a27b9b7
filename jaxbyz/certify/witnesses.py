"""Witnesses: the inputs that break a rule, saved to a file and measured again from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxbyz.certify.averaging_agreement import measure_round
from jaxbyz.certify.robust_aggregation import measure_ratio
from jaxbyz.certify.rule_names import AGREEMENT
from jaxbyz.errors import UsageError
from jaxbyz.files import read_arrays, write_output


def make_witness_folder(folder: str | Path) -> None:
    """Create the folder unless it exists."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out={folder}: cannot be created ({error.strerror})") from error


def save_witness(
    folder: str | Path, rule: str, agents: int, byzantine: int, seed: int, arrays: dict[str, np.ndarray]
) -> str:
    """Save an input with everything that is needed to measure it again, and return the path of the file."""
    safe_name = "".join(c if c.isalnum() or c in "-+" else "_" for c in rule)
    path = Path(folder) / f"{safe_name}_K{agents}_f{byzantine}.npz"
    settings = {"rule": rule, "agents": agents, "byzantine": byzantine, "seed": seed}
    contents = {**{key: np.asarray(value) for key, value in settings.items()}, **arrays}
    write_output(path, lambda file: np.savez(file, **contents))  # type: ignore[arg-type]
    return str(path)


def reproduce_witness(path: str | Path) -> float:
    """Measure a saved witness again: the ratio of Definition 2, or what breaks Definition 4, contraction or drift."""
    data = read_arrays(Path(path))
    name, K, f, seed = str(data["rule"]), int(data["agents"]), int(data["byzantine"]), int(data["seed"])
    if name.startswith(AGREEMENT):
        return measure_round(name, K, f, data, str(data["quantity"]), seed)
    return measure_ratio(name, K, f, data["messages"], data["mask"], seed)
