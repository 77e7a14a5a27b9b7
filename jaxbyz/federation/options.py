"""Which experiments can run as a federation of processes."""

from __future__ import annotations

from jaxbyz.configuration.config import FIELDS, Config
from jaxbyz.errors import UsageError

# Options whose meaning carries over to separate processes. Any other option must have its default value.
SUPPORTED = frozenset((
    "algorithm", "env", "env_param", "env_spread", "env_agents", "policy", "agents", "byzantine", "attack", "schedule",
    "aggregator", "pre_aggregator", "agreement", "kappa", "tolerance", "seeds", "seed", "coin", "trajectories", "N",
    "B", "p", "period", "eta", "eta_end", "optimizer", "gamma", "horizon", "estimator", "baseline", "baseline_value",
    "gae_lambda", "advantages", "critic_hidden", "critic_eta", "critic_steps", "critic_parts", "epochs", "minibatches",
    "ratio_clip", "entropy", "weights", "weight_clip", "previous", "anchor", "clip_norm", "hidden", "activation",
    "output_activation", "output_scale", "initialiser", "initial_std", "deviation", "start", "output", "unsafe",
))  # fmt: skip


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
    if config.seeds != 1:
        raise UsageError(f"seeds={config.seeds}: a federation of processes trains one seed")
    if config.schedule != "fixed":
        raise UsageError(f"schedule={config.schedule}: in a federation of processes a node is Byzantine or it is not")
    if config.tolerance is not None:
        raise UsageError(f"tolerance={config.tolerance}: no node knows the honest diameter; use kappa")
    for name in FIELDS:
        if name not in SUPPORTED and getattr(config, name) != FIELDS[name].default:
            raise UsageError(f"{name}={getattr(config, name)}: not supported by a federation of processes")
