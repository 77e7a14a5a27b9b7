"""jaxbyz: Byzantine-fault-tolerant federated policy gradient in JAX.

Names are imported when they are first used: importing gymnax starts JAX's devices, and whoever wants another number of
them must be able to say so between `import jaxbyz` and the first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxbyz.agreements import Agreement
    from jaxbyz.algorithms import Algorithm, Metrics, State, byzpg, dec_page_pg, decbyzpg, fed_page_pg, page_pg
    from jaxbyz.api import aggregate, agree, attack
    from jaxbyz.attacks import Attack, Interference, View, avg_zero, large_noise, no_attack, random_action
    from jaxbyz.backend import prepare
    from jaxbyz.config import Config, build, resolve
    from jaxbyz.environments import Environment, make_environment
    from jaxbyz.estimators import Estimator
    from jaxbyz.page import Page
    from jaxbyz.policies import Policy, mlp_policy
    from jaxbyz.registry import UsageError
    from jaxbyz.results import RunData, load_run
    from jaxbyz.rules import Rule, aggregators, bucketing, chain, krum, mda, mean, monna, pre_aggregators, rfa
    from jaxbyz.training import common_coins, train

__version__ = "0.1.0"

__all__ = [
    "Agreement",
    "Algorithm",
    "Attack",
    "Config",
    "Environment",
    "Estimator",
    "Interference",
    "Metrics",
    "Page",
    "Policy",
    "Rule",
    "RunData",
    "State",
    "UsageError",
    "View",
    "aggregate",
    "aggregators",
    "agree",
    "attack",
    "avg_zero",
    "bucketing",
    "build",
    "byzpg",
    "chain",
    "common_coins",
    "dec_page_pg",
    "decbyzpg",
    "fed_page_pg",
    "krum",
    "large_noise",
    "load_run",
    "make_environment",
    "mda",
    "mean",
    "mlp_policy",
    "monna",
    "no_attack",
    "page_pg",
    "pre_aggregators",
    "prepare",
    "random_action",
    "resolve",
    "rfa",
    "train",
]

_HOME = {
    "Agreement": "jaxbyz.agreements",
    "Algorithm": "jaxbyz.algorithms",
    "Metrics": "jaxbyz.algorithms",
    "State": "jaxbyz.algorithms",
    "byzpg": "jaxbyz.algorithms",
    "dec_page_pg": "jaxbyz.algorithms",
    "decbyzpg": "jaxbyz.algorithms",
    "fed_page_pg": "jaxbyz.algorithms",
    "page_pg": "jaxbyz.algorithms",
    "aggregate": "jaxbyz.api",
    "agree": "jaxbyz.api",
    "attack": "jaxbyz.api",
    "Attack": "jaxbyz.attacks",
    "Interference": "jaxbyz.attacks",
    "View": "jaxbyz.attacks",
    "avg_zero": "jaxbyz.attacks",
    "large_noise": "jaxbyz.attacks",
    "no_attack": "jaxbyz.attacks",
    "random_action": "jaxbyz.attacks",
    "prepare": "jaxbyz.backend",
    "Config": "jaxbyz.config",
    "build": "jaxbyz.config",
    "resolve": "jaxbyz.config",
    "Environment": "jaxbyz.environments",
    "make_environment": "jaxbyz.environments",
    "Estimator": "jaxbyz.estimators",
    "Page": "jaxbyz.page",
    "Policy": "jaxbyz.policies",
    "mlp_policy": "jaxbyz.policies",
    "UsageError": "jaxbyz.registry",
    "RunData": "jaxbyz.results",
    "load_run": "jaxbyz.results",
    "Rule": "jaxbyz.rules",
    "aggregators": "jaxbyz.rules",
    "bucketing": "jaxbyz.rules",
    "chain": "jaxbyz.rules",
    "krum": "jaxbyz.rules",
    "mda": "jaxbyz.rules",
    "mean": "jaxbyz.rules",
    "monna": "jaxbyz.rules",
    "pre_aggregators": "jaxbyz.rules",
    "rfa": "jaxbyz.rules",
    "common_coins": "jaxbyz.training",
    "train": "jaxbyz.training",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        try:
            value = importlib.import_module(f"jaxbyz.{name}")  # a submodule
        except ModuleNotFoundError:
            raise AttributeError(f"module 'jaxbyz' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
