"""jaxbyz: Byzantine-fault-tolerant federated policy gradient in JAX.

Public names are imported when they are first used. Importing gymnax initialises JAX's devices, so a program can still
choose their number (`jaxbyz.prepare()`) between `import jaxbyz` and the first use of another name.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_PUBLIC = {
    "jaxbyz.accelerate.setup": "prepare",
    "jaxbyz.algorithms": "Algorithm Metrics Settings State byzpg dec_page_pg decbyzpg fed_page_pg page_pg",
    "jaxbyz.api": "aggregate agree attack",
    "jaxbyz.attacks": "Attack Interference View avg_zero large_noise no_attack random_action",
    "jaxbyz.data_parallel": "aggregate_gradients robust_mean",
    "jaxbyz.environments": "Environment gymnasium_environment make_environment",
    "jaxbyz.errors": "UsageError",
    "jaxbyz.configuration.building": "build",
    "jaxbyz.configuration.config": "Config",
    "jaxbyz.configuration.resolving": "resolve",
    "jaxbyz.report.compare": "compare",
    "jaxbyz.runs.run": "run_experiment",
    "jaxbyz.runs.run_folder": "RunData load_run",
    "jaxbyz.policies": "Policy cnn_policy flax_policy gru_policy mlp_policy",
    "jaxbyz.protocol.agreements": "Agreement",
    "jaxbyz.rules": "Rule aggregators bucketing chain krum mda mean monna pre_aggregators rfa",
    "jaxbyz.sampling.settings": "Sampling",
    "jaxbyz.training": "common_coins train",
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names.split()}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        try:
            value = importlib.import_module(f"jaxbyz.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"module 'jaxbyz' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
