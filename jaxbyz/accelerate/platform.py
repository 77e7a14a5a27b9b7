"""Which platform programs are traced for. Only the modules of `jaxbyz.accelerate` ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Literal

import jax

Platform = Literal["plain", "cpu", "gpu", "kernels"]
_forced: ContextVar[Platform | None] = ContextVar("_forced", default=None)
_only_lowered: ContextVar[bool] = ContextVar("_only_lowered", default=False)


@contextlib.contextmanager
def trace_for(platform: Platform, only_lowered: bool = False) -> Iterator[None]:
    """Trace programs for a chosen platform instead of the one that JAX runs on. Meant for tests and benchmarks.

    A function that was jitted and called before keeps the program it has, so jit it inside this context.

    Args:
        platform: `"plain"` selects the plain version of every function of `jaxbyz.accelerate`, the one that documents
            what is computed; `"cpu"` and `"gpu"` select the versions for that platform; `"kernels"` selects those for a
            GPU that runs Triton kernels, which Pallas interprets on any other device.
        only_lowered: the program is lowered for a GPU and not run, so that its kernels are not interpreted.
    """
    tokens = _forced.set(platform), _only_lowered.set(only_lowered)
    try:
        yield
    finally:
        _forced.reset(tokens[0])
        _only_lowered.reset(tokens[1])


def traced_for() -> Platform:
    """Return the platform that programs are traced for now."""
    forced = _forced.get()
    if forced is not None:
        return forced
    device = _default_device()
    if device.platform == "cpu":
        return "cpu"
    return "kernels" if _runs_triton(device) else "gpu"


def plain() -> bool:
    """Whether the plain versions are asked for."""
    return traced_for() == "plain"


def on_cpu() -> bool:
    """Whether programs are traced for a CPU."""
    return traced_for() == "cpu"


def kernels_run() -> bool:
    """Whether programs are traced for a GPU that runs Triton kernels."""
    return traced_for() == "kernels"


def interpret_kernels() -> bool:
    """Whether kernels must be interpreted, because the device cannot run them."""
    return not (_only_lowered.get() or _runs_triton(_default_device()))


def _runs_triton(device: Any) -> bool:
    """Whether the device is an NVIDIA GPU of the Ampere generation or newer."""
    capability = str(getattr(device, "compute_capability", ""))
    return device.platform == "gpu" and capability[:1].isdigit() and float(capability) >= 8.0


def _default_device() -> Any:
    """Return the device that JAX would put a new array on."""
    chosen = jax.config.values.get("jax_default_device")
    if isinstance(chosen, str):
        return jax.devices(chosen)[0]
    return chosen if chosen is not None else jax.devices()[0]
