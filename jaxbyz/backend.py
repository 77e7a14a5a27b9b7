"""What programs are traced for: some are written differently for a CPU and for a GPU."""

from __future__ import annotations

import jax


def on_cpu() -> bool:
    """Whether programs are traced for a CPU."""
    return jax.default_backend() == "cpu"


def on_gpu() -> bool:
    """Whether programs are traced for a GPU."""
    return jax.default_backend() == "gpu"
