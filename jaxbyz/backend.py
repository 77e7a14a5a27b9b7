"""What programs are traced for: some are written differently for a CPU and for a GPU."""

from __future__ import annotations

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


def _device() -> Any:
    """The device that JAX would put an array on."""
    chosen = jax.config.values.get("jax_default_device")
    if isinstance(chosen, str):
        return jax.devices(chosen)[0]
    return chosen if chosen is not None else jax.devices()[0]
