"""Run folders for tests of pictures and the report: one is trained, the others are copies with shifted returns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from jaxbyz.cli import main

TINY = ["--agents", "5", "--byzantine", "1", "--N", "4", "--B", "2", "--horizon", "20", "--hidden", "4",
        "--trajectories", "12", "--p", "0.5", "--kappa", "2", "--aggregator", "rfa"]  # fmt: skip


def make_folders(root: Path) -> list[Path]:
    """Make three folders: RFA under AvgZero as trained, RFA under LargeNoise and Krum under AvgZero as copies."""
    first = root / "rfa-avg-zero"
    assert main(["train", *TINY, "--attack", "avg-zero", "--seeds", "3", "--out", str(first), "--quiet"]) == 0
    noise = altered(first, root / "rfa-large-noise", 3.25, attack="large-noise")
    krum = altered(first, root / "krum-avg-zero", -2.5, aggregator="krum")
    return [first, noise, krum]


def altered(folder: Path, copy: Path, shift: float, **options: object) -> Path:
    """Copy a run folder, with other options in its configuration and shifted returns."""
    copy.mkdir()
    for name in ("policy.npz", "environment.json"):
        (copy / name).write_bytes((folder / name).read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **options}))
    with np.load(folder / "metrics.npz") as metrics:
        np.savez_compressed(copy / "metrics.npz", **{**metrics, "returns": metrics["returns"] + shift})
    return copy
