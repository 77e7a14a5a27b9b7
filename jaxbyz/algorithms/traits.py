"""What distinguishes algorithms, which options they read, and the checks before one is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from functools import wraps
from typing import Any, NamedTuple

from jaxbyz.algorithms.base import Algorithm
from jaxbyz.algorithms.settings import Settings, check_settings
from jaxbyz.components import Limit, check_limits, limits_of_agreement, limits_of_rule, make_group_rules, make_rule
from jaxbyz.environments import Environment, check_environment
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.policies import Policy
from jaxbyz.protocol.channel_options import make_channel

RARELY_READ = frozenset(
    {"groups", "small_batches", "batch_spread", "ratio_window", "audit"}
)  # options of single algorithms


class Traits(NamedTuple):
    """What distinguishes an algorithm from the others.

    Attributes:
        central: a trusted server aggregates; the agents do not agree on parameters among themselves.
        server_samples: the server samples the small batches alone, unless `small_batches="workers"`.
        snapshot: small batches are compared with the parameters of the last large batch.
        naive: the algorithm always aggregates with the mean and never runs an agreement.
        single: the algorithm has one agent only.
        splits_batch: of the N trajectories of a batch, B have another purpose, so that B must be less than N.
        limit: it tolerates f < limit·K, besides what its rules tolerate; None if it has no limit of its own.
        ignores: the options that it does not read.
        instead: values that replace those of a preset for tasks, where the algorithm cannot use them.
    """

    central: bool = False
    server_samples: bool = False
    snapshot: bool = False
    naive: bool = False
    single: bool = False
    splits_batch: bool = False
    limit: Fraction | None = None
    ignores: frozenset[str] = RARELY_READ
    instead: dict[str, Any] = {}  # noqa: RUF012 (a tuple's default is not shared state: nobody changes it)

    @property
    def in_groups(self) -> bool:
        """Whether the agents train one policy per group."""
        return "groups" not in self.ignores

    def has_small_batches(self, config: Settings) -> bool:
        """Return whether some batches are small."""
        p = 0.5 if "p" in self.ignores else config.p
        return not replace(config, p=p, period=None if "period" in self.ignores else config.period).always_large

    def draws_coins(self, config: Settings) -> bool:
        """Return whether coins decide the batch sizes. Of algorithms without an option p, only FedPG-BR has coins."""
        if "p" in self.ignores:
            return "period" in self.ignores and self.server_samples
        return config.period is None and config.p < 1

    def server_has_a_batch(self, config: Settings) -> bool:
        """Return whether the rule measures messages by a small batch of the server's own, as FLTrust does."""
        try:
            return make_rule(config.rule, config.agents, config.byzantine, unsafe=True).trusts_own
        except UsageError:  # building the run refuses it and says why
            return False

    def is_safe(self, config: Settings) -> bool:
        """Return whether the settings would be accepted without `unsafe`."""
        try:
            self.check_tolerance(replace(config, unsafe=False))
        except UsageError:
            return False
        return True

    def check(self, settings: Settings) -> None:
        """Refuse settings that the algorithm cannot use, among them more Byzantine agents than are tolerated.

        Raises:
            UsageError: one line that names the options.
        """
        if self.snapshot and settings.previous == "realized":
            raise UsageError("previous='realized' with anchor='snapshot': (θ_t − θ_{t−1})/η needs anchor='previous'")
        self.check_tolerance(settings)

    def check_tolerance(self, settings: Settings) -> None:
        """Refuse more Byzantine agents than the algorithm, its rule and its agreement tolerate, all in one message.

        Raises:
            UsageError: if f is too large and `unsafe` is False.
        """
        if self.naive:  # it tolerates nobody, and is run with Byzantine agents to show that
            return
        K, most, rule = settings.agents, settings.most_byzantine, settings.rule
        if self.in_groups:
            check_limits([Limit("the", "server", self.limit, K, most)], settings.unsafe)
            make_group_rules(rule, K, most, settings.groups, unsafe=settings.unsafe)
            return
        channel = make_channel(settings, K)
        limits = [Limit("the", "server", self.limit, channel.voters, most)] if self.central else []
        limits += limits_of_rule(rule, channel.voters, most)
        if not self.central:
            limits += limits_of_agreement(settings.agreement, channel.present, most)
        larger = "byzantine" if most == settings.byzantine else "assumed_byzantine"
        check_limits(limits, settings.unsafe, larger)


Build = Callable[[Environment, Policy, Settings], Algorithm]


def algorithm(traits: Traits) -> Callable[[Build], Callable[..., Algorithm]]:
    """Decorate `(environment, policy, settings) -> Algorithm` so that settings are checked and may be given as options.

        decbyzpg(environment, policy, settings)
        decbyzpg(environment, policy, agents=13, byzantine=3, attack="avg-zero", optimizer=optax.adam(1e-3))

    Args:
        traits: what distinguishes the algorithm; the decorated function has them as its attribute `traits`.
    """

    def decorate(build: Build) -> Callable[..., Algorithm]:
        @wraps(build)
        def checked(
            environment: Environment, policy: Policy, settings: Settings | None = None, **options: Any
        ) -> Algorithm:
            check_environment(environment)
            if not isinstance(policy, Policy):
                raise UsageError(f"policy={_shown(policy)}: must be a Policy, such as jaxbyz.mlp_policy(environment)")
            if unread := traits.ignores & options.keys():
                raise UsageError(f"{min(unread)}={options[min(unread)]}: {build.__name__} does not read it")
            settings = _with_options(settings or Settings(), options)
            if not isinstance(settings.optimizer, str) and not hasattr(settings.optimizer, "update"):
                given = _shown(settings.optimizer)
                raise UsageError(f"optimizer={given}: must be a name, or an optax optimizer such as optax.adam(0.01)")
            if settings.eta_end is not None and isinstance(settings.optimizer, str):
                raise UsageError(
                    f"eta_end={settings.eta_end}: the length of the run is not known here; use `jaxbyz.build`, or an "
                    "optax optimizer with a schedule"
                )
            check_settings(settings)
            traits.check(settings)
            return build(environment, policy, settings)

        checked.traits = traits  # type: ignore[attr-defined]
        return checked

    return decorate


def _with_options(settings: Settings, options: dict[str, Any]) -> Settings:
    if not isinstance(settings, Settings):
        raise UsageError(f"settings={_shown(settings)}: must be `jaxbyz.Settings`; options are given by name")
    for name in options:
        check_choice("option", name, [declared.name for declared in fields(settings)])
    return replace(settings, **options)


def _shown(value: Any) -> str:
    """Return a number or a text as it is written, and the type of anything else."""
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__
