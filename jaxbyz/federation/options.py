"""Which experiments can run as a federation of processes."""

from __future__ import annotations

import dataclasses

from jaxbyz.algorithms.settings import Ascent, Audits, Federation
from jaxbyz.configuration.config import FIELDS, Config, PolicyChoice, RunLength, StartAndResult, TaskOptions
from jaxbyz.errors import UsageError
from jaxbyz.policies.options import NetworkOptions
from jaxbyz.protocol.momentum import WorkerMomentum
from jaxbyz.sampling.settings import Sampling

# Records of options whose meaning carries over to separate processes. Any other option must have its default value.
RECORDS = (
    TaskOptions, RunLength, Federation, Audits, Sampling, Ascent, WorkerMomentum, PolicyChoice, NetworkOptions,
    StartAndResult,
)  # fmt: skip
SUPPORTED = {field.name for record in RECORDS for field in dataclasses.fields(record)}
SUPPORTED -= {"local_eta"}


def check_supported(config: Config) -> None:
    """Refuse a configuration that needs what separate processes do not have: a server, or someone who sees everything.

    Raises:
        UsageError: one line with the option.
    """
    traits = config.traits
    if traits.central or traits.single:
        raise UsageError(f"algorithm={config.algorithm}: a federation of processes runs decbyzpg or dec-page-pg")
    if config.agents < 2:
        raise UsageError(f"agents={config.agents}: a federation has at least 2 nodes")
    if config.agents < 2 * config.defended + 2:
        name = "byzantine" if config.assumed_byzantine is None else "assumed_byzantine"
        raise UsageError(
            f"{name}={config.defended}: a node that joins needs the states of 2f + 1 = {2 * config.defended + 1} "
            f"other nodes; with agents={config.agents}, {name} is at most {(config.agents - 2) // 2}"
        )
    if config.seeds != 1:
        raise UsageError(f"seeds={config.seeds}: a federation of processes trains one seed")
    if config.schedule != "fixed":
        raise UsageError(f"schedule={config.schedule}: in a federation of processes a node is Byzantine or it is not")
    if config.tolerance is not None:
        raise UsageError(f"tolerance={config.tolerance}: no node knows the honest diameter; use kappa")
    for name in FIELDS:
        if name not in SUPPORTED and getattr(config, name) != FIELDS[name].default:
            raise UsageError(f"{name}={getattr(config, name)}: not supported by a federation of processes")
