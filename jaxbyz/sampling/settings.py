"""How agents sample: batch sizes and the PAGE switch, together with estimator, critics and the reuse of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from jaxbyz.errors import UsageError
from jaxbyz.options import COUNT, UNIT_INTERVAL, Need, option, reads
from jaxbyz.sampling.critic import CriticSettings
from jaxbyz.sampling.estimators import IMPORTANCE_WEIGHTS, SMALL_BATCHES, Estimator, check_estimator
from jaxbyz.sampling.reuse import Reuse

ANY_SMALL_BATCH = Need(
    lambda config, traits: traits.has_small_batches(config) or traits.server_has_a_batch(config), "every batch is large"
)
NO_PERIOD = Need(
    lambda config, _: config.period is None or (config.kappa == "theorem" and config.agreement != "none"),
    "period={period} replaces the coin",
)
NO_SNAPSHOT = Need(lambda _, traits: not traits.snapshot, "{algorithm} compares small batches with its last snapshot")


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Batch sizes, in trajectories per agent: N for a large batch, B for a small one."""

    N: int = option(50, "large batch size", allowed=COUNT)
    B: int = option(4, "small batch size", allowed=COUNT, needs=[ANY_SMALL_BATCH])


@dataclass(frozen=True, kw_only=True)
class PageSwitch:
    """When batches are large, and what a small batch corrects.

    Attributes:
        p: the probability of a large batch.
        period: a large batch every `period` iterations instead of the coin.
        previous: what v_{t−1} is in the small-batch formula. `"realized"`, the paper's definition:
            (θ_t − θ_{t−1})/η, which is a gradient only under plain ascent with a constant step size, and only with
            `anchor="previous"`. `"aggregated"`: v_{t−1}^(k), the agent's own result of Aggregate. `"own"`:
            ṽ_{t−1}^(k), what the agent sent. A server that samples alone has one estimate, so that the last two agree.
        anchor: the parameters that a small batch is compared with. `"previous"`: θ_{t−1} (PAGE). `"proposed"`: θ̃_t, the
            result of the agent's own last step before agreement, as in the published code, which saves the
            parameters after the optimizer step instead of before it. SVRPG and FedPG-BR use `"snapshot"`: the
            parameters of the last large batch, whose estimate is then kept as well.
    """

    p: float = option(0.2, "probability of a large batch", allowed=UNIT_INTERVAL, needs=[reads("p"), NO_PERIOD])
    period: int | None = option(
        None, "take a large batch every this many iterations instead of a coin", allowed=COUNT, needs=[reads("period")]
    )
    previous: str = option(
        "aggregated", "previous estimate in the small-batch formula", choices=("aggregated", "own", "realized"),
        needs=[SMALL_BATCHES, IMPORTANCE_WEIGHTS],
    )  # fmt: skip
    anchor: str = option(
        "previous", "parameters that a small batch is compared with; proposed is what the published code uses",
        choices=("previous", "proposed"), needs=[SMALL_BATCHES, NO_SNAPSHOT],
    )  # fmt: skip

    @property
    def always_large(self) -> bool:
        """Whether every iteration has a large batch, so that no program for small batches is needed."""
        return self.p == 1 if self.period is None else self.period == 1


@dataclass(frozen=True, kw_only=True)
class Sampling(Reuse, CriticSettings, Estimator, PageSwitch, Batches):
    """How agents sample and estimate."""


def check_sampling(settings: Sampling) -> None:
    """Refuse settings that cannot be combined.

    A small batch corrects an estimate of the same kind, so that the previous one must have the same scale, which
    normalised advantages do not have, and must belong to the parameters before a single step.

    Raises:
        UsageError: one line that names the options and what would be right.
    """
    s = settings
    if s.B > s.N:
        raise UsageError(f"B={s.B} exceeds N={s.N}: B must not exceed N")
    if s.N % s.minibatches and not s.deals_steps:
        raise UsageError(
            f"minibatches={s.minibatches} with N={s.N}: N must be a multiple of minibatches, or use minibatch_of=steps"
        )
    if s.deals_steps and s.minibatches > s.N * s.horizon:
        raise UsageError(
            f"minibatches={s.minibatches} with N={s.N}, horizon={s.horizon}: must not exceed the steps of a batch"
        )
    if s.critic_parts > s.critic_steps:
        raise UsageError(f"critic_parts={s.critic_parts}: must be from 1 to critic_steps={s.critic_steps}")
    check_estimator(s)
    if s.always_large:
        return
    if s.uses > 1:
        raise UsageError(
            f"epochs={s.epochs}, minibatches={s.minibatches} with small batches: a small batch corrects the estimate "
            "of one step; use p=1"
        )
    if s.uses_critic and s.advantages == "normalised":
        raise UsageError(
            "advantages=normalised with small batches: estimates of differently scaled batches cannot be subtracted; "
            "use p=1 or advantages=plain"
        )
