"""Attacks: in the environment, on gradients, and on parameters; and the registry of attacks."""

from functools import partial

from jaxbyz.attacks.against_memory import budget, discredit, downhill, scattered, sleeper
from jaxbyz.attacks.alie import alie
from jaxbyz.attacks.avg_zero import avg_zero
from jaxbyz.attacks.base import (
    Attack,
    Interference,
    View,
    from_function,
    no_attack,
    on_messages,
    rule_output,
    sent_by_all,
    with_forged_rows,
)
from jaxbyz.attacks.constant_message import inf, nan, zero
from jaxbyz.attacks.dissensus import dissensus
from jaxbyz.attacks.environment import (
    constant_action,
    random_action,
    reward_flip,
    reward_poison,
    reward_shuffle,
)
from jaxbyz.attacks.fedpg_br_attacks import fedpg_br, fedpg_br_noise
from jaxbyz.attacks.gradient_found import gradient_found
from jaxbyz.attacks.honest_statistics import honest_mean, honest_std
from jaxbyz.attacks.ipm import ipm, sign_flip
from jaxbyz.attacks.learned import learned
from jaxbyz.attacks.line_search import opt_alie, opt_ipm
from jaxbyz.attacks.mimic import mimic, mimic_warmup
from jaxbyz.attacks.min_max import min_max, min_sum
from jaxbyz.attacks.noise import gaussian, large_noise
from jaxbyz.attacks.normalized import normalized
from jaxbyz.attacks.spectral import spectral
from jaxbyz.attacks.time_coupled import coupled_alie, drift
from jaxbyz.registry import Registry

attacks = Registry("attack")
attacks.add("none", no_attack)
# In the environment
attacks.add("random-action", random_action, "uniformly random actions (paper)")
attacks.add("constant-action", constant_action, "always the same action")
attacks.add("reward-flip", reward_flip, "negated rewards")
attacks.add("reward-shuffle", reward_shuffle, "rewards permuted within each episode")
attacks.add("reward-poison", reward_poison, "the false rewards that turn the agent's own estimate furthest")
# On messages
attacks.add("large-noise", large_noise, "large Gaussian noise, drawn anew for every receiver (paper)")
attacks.add("avg-zero", avg_zero, "makes the average of all gradients zero (paper)")
attacks.add("sign-flip", sign_flip, "sends the negative of its own message")
attacks.add("ipm", ipm, "inner-product manipulation: −ε times the honest mean")
attacks.add("alie", alie, "a little is enough: honest mean ± z honest standard deviations")
attacks.add("opt-ipm", opt_ipm, "IPM with the ε that moves this rule's aggregate furthest")
attacks.add("opt-alie", opt_alie, "ALIE with the z that moves this rule's aggregate furthest")
attacks.add("mimic", mimic, "repeats one honest agent")
attacks.add("mimic-warmup", mimic_warmup, "repeats the honest agent farthest along the largest honest spread")
attacks.add("min-max", min_max, "as far from the honest mean as the largest honest distance allows")
attacks.add("min-sum", min_sum, "as far from the honest mean as the largest honest sum of squared distances allows")
attacks.add("normalized", normalized, "turns the aggregate furthest from its own direction")
attacks.add("drift", drift, "pushes against the first honest gradient for ever, within the honest distances")
attacks.add("coupled-alie", coupled_alie, "ALIE that always pushes against what has been learnt so far")
attacks.add("turning-drift", partial(drift, period=5), "drift that chooses its direction anew every 5 iterations")
attacks.add("downhill", downhill, "the negative honest mean at the median length of honest messages")
attacks.add("budget", budget, "harms exactly as long as a rule with memory trusts the sender")
attacks.add("discredit", discredit, "makes a rule with memory distrust honest senders, and harms meanwhile")
attacks.add("scattered", scattered, "downhill with a deviation of every sender's own, so that liars are not alike")
attacks.add("sleeper", sleeper, "behaves until it is trusted, then pushes downhill")
attacks.add("gaussian", gaussian, "N(0, 200²) noise, the same for all receivers")
attacks.add("zero", zero, "sends zero")
attacks.add("inf", inf, "sends infinity")
attacks.add("nan", nan, "sends not-a-number")
attacks.add("fedpg-br", fedpg_br, "FedPG-BR's colluders: their mean plus a far random direction")
attacks.add(
    "fedpg-br-noise", fedpg_br_noise, "FedPG-BR's random noise: its own message plus noise of three times its range"
)
attacks.add("equivocating-alie", partial(alie, equivocate=True), "ALIE, mirrored for half of the receivers")
attacks.add("equivocating-min-max", partial(min_max, equivocate=True), "MinMax, mirrored for half of the receivers")
attacks.add("dissensus", dissensus, "undoes gossip: pushes each receiver away from its honest neighbours")
attacks.add("spectral", spectral, "pulls the least connected halves of a graph apart")
attacks.add("gradient-found", gradient_found, "found by gradient ascent through the rule in use")
attacks.add("learned", learned, "a network trained by `jaxbyz adversary`, from a file")

__all__ = [
    "Attack", "Interference", "View", "alie", "attacks", "avg_zero", "budget", "constant_action", "coupled_alie",
    "discredit", "dissensus", "downhill", "drift", "fedpg_br", "fedpg_br_noise", "from_function", "gaussian",
    "gradient_found", "honest_mean", "honest_std", "inf", "ipm", "large_noise", "learned", "mimic", "mimic_warmup",
    "min_max", "min_sum", "nan", "no_attack", "normalized", "on_messages", "opt_alie", "opt_ipm", "random_action",
    "reward_flip", "reward_poison", "reward_shuffle", "rule_output", "scattered", "sent_by_all", "sign_flip", "sleeper",
    "spectral", "with_forged_rows", "zero",
]  # fmt: skip
