"""What programs are traced for: some are written differently for a CPU and for a GPU."""

from __future__ import annotations

import os
from typing import Any

import jax


def on_cpu() -> bool:
    """Whether programs are traced for a CPU."""
    return _device().platform == "cpu"


def kernels_run() -> bool:
    """Whether programs are traced for a GPU that runs Triton's kernels: NVIDIA's from Ampere on."""
    device = _device()
    capability = str(getattr(device, "compute_capability", ""))
    return device.platform == "gpu" and capability[:1].isdigit() and float(capability) >= 8.0


# XLA ends a process whose host devices wait 40 s for each other. Agents' episodes need not be equally long.
PATIENCE = " ".join(
    f"--xla_cpu_collective_call_{what}_timeout_seconds={seconds}"
    for what, seconds in (("warn_stuck", 3600), ("terminate", 86400))
)


def be_patient() -> None:
    """Before JAX starts: let host devices wait for each other as long as it takes."""
    if not patient():
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {PATIENCE}".strip()


def patient() -> bool:
    """Whether they do."""
    return "collective_call" in os.environ.get("XLA_FLAGS", "")


def _device() -> Any:
    """The device that JAX would put an array on."""
    chosen = jax.config.values.get("jax_default_device")
    if isinstance(chosen, str):
        return jax.devices(chosen)[0]
    return chosen if chosen is not None else jax.devices()[0]
