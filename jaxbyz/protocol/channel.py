"""How messages travel from senders to receivers: at once and unchanged, unless a wrapper changes that.

A wrapper is a function from a channel to a channel, with one file per idea:

| wrapper | what it changes |
| --- | --- |
| `participation.with_participation` | a part of the agents takes part; receivers hear those only |
| `participation.with_cached_messages` | the same, but the last gradient of absent agents counts |
| `momentum.with_momentum` | agents send the momentum of their gradients |
| `compression.with_compression` | gradients are compressed, with feedback of the error |
| `delay.with_delay` | gradients arrive up to some exchanges late |
| `loss.with_loss` | each message is lost for each receiver with some probability |

Participation and loss also concern the parameters of an agreement. A wrapper that is not asked for is not in the
program.

Byzantine agents are as likely to be absent as the others, unless arrivals are adversarial: then they always take part.
What they send is brought into the compressed format, but it is never late and never lost: the adversary answers what
arrives in this iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from jaxbyz.protocol.iteration import Iteration
from jaxbyz.protocol.placement import FLOAT_BYTES
from jaxbyz.rules.base import Rule, within_batch


class Channel(NamedTuple):
    """Pure functions that say what happens to messages on their way, and facts for those that use them.

    Attributes:
        begin: `Iteration -> Iteration`, which decides who takes part.
        init: `(K, D) -> memory` of the senders, and of messages that may still arrive.
        send: `(iteration, gradients [K, D], memory) -> (what arrives [K, D], memory)`. For an agent that does not
            take part, the row is what it would have sent, for the adversary to see.
        hear_gradients: `(iteration, rule, memory before sending) -> rule`, which takes K gradients and applies the rule
            to what a receiver hears of them.
        hear_parameters: `(iteration, rule) -> rule`, the same for the parameters of an agreement.
        voters: how many gradient messages a rule sees, which its limit on f refers to.
        present: how many agents take part in an iteration.
        leaves_gaps: whether a rule may see missing messages, which are rows of NaN.
        all_alike: whether all receivers take part in every iteration, so that rules with memory remember the same.
        message_bytes: `D -> bytes` of one gradient message.
    """

    begin: Callable[[Iteration], Iteration]
    init: Callable[[int, int], Any]
    send: Callable[[Iteration, Float[Array, "K D"], Any], tuple[Float[Array, "K D"], Any]]
    hear_gradients: Callable[[Iteration, Rule, Any], Rule]
    hear_parameters: Callable[[Iteration, Rule], Rule]
    voters: int
    present: int
    leaves_gaps: bool = False
    all_alike: bool = True
    message_bytes: Callable[[int], int] = lambda D: FLOAT_BYTES * D


def direct_channel(agents: int) -> Channel:
    """Return the channel that delivers every message of K agents at once."""
    return Channel(
        begin=lambda now: now,
        init=lambda K, D: (),
        send=lambda now, gradients, memory: (gradients, memory),
        hear_gradients=lambda now, rule, memory: within_batch(rule, now.number == 0),
        hear_parameters=lambda now, rule: rule,
        voters=agents,
        present=agents,
    )


def sized(rule: Rule, voters: int) -> Rule:
    """Return a rule whose memory is that of as many messages as it sees."""
    return rule._replace(init=lambda n, D: rule.init(voters, D))
