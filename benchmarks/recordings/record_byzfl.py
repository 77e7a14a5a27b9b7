"""Record the results of byzfl on random float64 messages, for the parity test. Run it with a Python that has byzfl.

    python benchmarks/recordings/record_byzfl.py tests/data/byzfl_parity.npz [--seed 0]

Its CAF, SMEA and Bucketing draw random numbers, so there is no value to record. Those rules are tested against their
definitions instead.
"""

from __future__ import annotations

import argparse

import byzfl
import numpy as np

SIZES = ((11, 3, 12),)  # messages, Byzantine, parameters
DRAWS = 8


def rules(f: int) -> dict:
    """Return byzfl's rules under our names."""
    return {
        "mean": byzfl.Average(),
        "median": byzfl.Median(),
        "trimmed-mean": byzfl.TrMean(f),
        "rfa": byzfl.GeometricMedian(nu=0.1, T=3),
        "krum": byzfl.Krum(f),
        "multi-krum": byzfl.MultiKrum(f),
        "mda": byzfl.MDA(f),
        "monna": byzfl.MoNNA(f, idx=0),
        "meamed": byzfl.Meamed(f),
        "nnm": byzfl.NNM(f),
        "clipping": byzfl.Clipping(c=2.0),
        "arc": byzfl.ARC(f),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    stored: dict[str, np.ndarray] = {"sizes": np.array(SIZES)}
    for n, f, D in SIZES:
        messages = rng.standard_normal((DRAWS, n, D)) * rng.lognormal(size=(DRAWS, n, 1)) + 0.5
        stored[f"messages_{n}"] = messages
        for name, rule in rules(f).items():
            stored[f"{name}_{n}"] = np.stack([np.asarray(rule(x.copy())) for x in messages])
        clip = byzfl.CenteredClipping(L=2, tau=1.5)  # stateful, so the order matters
        stored[f"centered-clipping_{n}"] = np.stack([clip(x.copy()) for x in messages])
    np.savez_compressed(arguments.path, **stored)


if __name__ == "__main__":
    main()
