"""The options of a channel, and the channel that they describe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxbyz.options import Need, option, reads
from jaxbyz.protocol.channel import Channel, direct_channel
from jaxbyz.protocol.compression import Compression, compressors, with_compression
from jaxbyz.protocol.delay import Delay, with_delay
from jaxbyz.protocol.loss import Loss, with_loss
from jaxbyz.protocol.momentum import WorkerMomentum, with_momentum
from jaxbyz.protocol.participation import Participation, with_cached_messages, with_participation
from jaxbyz.registry import parse_spec

UNCERTAIN_ARRIVALS = Need(
    lambda config, _: config.present(config.agents) < config.agents or config.delay > 0 or config.drop > 0,
    "every message arrives at once (--participation, --delay, --drop)",
)


@dataclass(frozen=True, kw_only=True)
class ChannelOptions(WorkerMomentum, Compression, Loss, Delay, Participation):
    """How messages travel.

    Attributes:
        arrivals: `"random"`: chance decides who takes part, how old gradients are and what is lost. `"adversarial"`:
            Byzantine agents always take part, gradients arrive at the most harmful age, and every receiver loses the
            most helpful messages, within the same limits (`jaxbyz.attacks.on_delivery`).
    """

    arrivals: str = option(
        "random", "who decides which agents take part, how old gradients are and what is lost: chance, or the "
        "adversary within the same limits", choices=("random", "adversarial"),
        needs=[reads("participation"), UNCERTAIN_ARRIVALS],
    )  # fmt: skip


CHANNEL_OPTIONS = frozenset(declared.name for declared in dataclasses.fields(ChannelOptions))


def make_channel(options: ChannelOptions, agents: int) -> Channel:
    """Return the channel of K agents that the options describe, with a wrapper for each option that is on."""
    adversarial, present = options.arrivals == "adversarial", options.present(agents)
    channel = direct_channel(agents)
    if options.drop:
        channel = with_loss(channel, options.drop, adversarial=adversarial)
    if options.delay:
        channel = with_delay(channel, options.delay, adversarial=adversarial)
    if present < agents:
        with_absent = with_cached_messages if options.absent == "cached" else with_participation
        channel = with_absent(channel, present, adversarial=adversarial)
    if (compressor := make_compressor(options.compression)) is not None:
        channel = with_compression(channel, compressor)
    if options.momentum:
        channel = with_momentum(channel, options.momentum)
    return channel


def make_compressor(compression: Any) -> Any:
    """Return a compressor from its name, or a `Compressor` unchanged; None for none."""
    if not isinstance(compression, str):
        return compression
    name, chosen = parse_spec(compression)
    return compressors[name].build(0, 0, **chosen)
