"""What reaches the receivers: agents that are absent, messages that are late, lost or compressed.

`Delivery` describes it, and `Delivery.draw` decides it for one iteration:

- A random part of the agents takes part. Absent agents neither sample nor send nor receive, and keep their state. What
  the others do about them is `absent`: they count those present only, or the last message of those absent as well.
- A gradient may be up to `delay` iterations old when it arrives, at all receivers alike.
- Each message, of gradients and of parameters, is lost with probability `drop` for each receiver on its own. A lost
  message is an unusable row, which a rule counts as one Byzantine message.
- An agent may send the momentum of its gradients instead, and gradients may be compressed, with feedback of the error
  (`jaxbyz.protocol.compression`).

Byzantine agents are drawn like the others, and what they send is brought into the compressed format, but their messages
are never late and never lost: the adversary answers what arrives in this iteration. With `arrivals="adversarial"` the
adversary also decides, within the same limits, who takes part, how old gradients are and what is lost
(`jaxbyz.attacks.on_delivery`). With everything off, nothing is traced and a run is the same to the bit.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxbyz.attacks.on_delivery import liars_take_part, worst_ages, worst_losses
from jaxbyz.errors import UsageError, check_choice
from jaxbyz.protocol.agreements import Agreement
from jaxbyz.protocol.compression import Compressor
from jaxbyz.protocol.placement import FLOAT_BYTES
from jaxbyz.rules.base import Outcome, Receiver, Rule, RuleState

ABSENT = ("ignore", "cached")
ARRIVALS = ("random", "adversarial")


class Mailbox(NamedTuple):
    """What the agents remember of their earlier gradients.

    Attributes:
        sent: `[d, K, D]`, the last gradients of each agent, the latest first; zero before its first one.
        sendings: `[K]`, the number of iterations with messages since each agent sent its first gradient, including that
            one; 0 before. As many of its entries in `sent` are gradients that it has sent.
        residual: `[K, D]`, what compression has taken away and the next message adds; `[K, 0]` without feedback.
        momentum: `[K, D]`, the last momentum of each agent; `[K, 0]` without momentum.
    """

    sent: Float[Array, "d K D"]
    sendings: Int[Array, " K"]
    residual: Float[Array, "K E"]
    momentum: Float[Array, "K F"]

    @property
    def known(self) -> Bool[Array, " K"]:
        """`[K]`, whether each agent has sent a gradient."""
        return self.sendings > 0


Mail = Mailbox | tuple[()]  # an empty tuple if no earlier gradient is needed


class Delivery(NamedTuple):
    """Which messages reach their receivers.

    Attributes:
        participation: the part of the agents that takes part in each iteration, ⌈participation·K⌉ of them.
        absent: `"ignore"`: rules see the messages of those present only. `"cached"`: the last gradient of those absent
            counts; before their first one it is missing. Agreement is always among those present.
        delay: gradients are 0 to `delay` iterations old when they arrive, each number with the same probability.
        drop: the probability that a message is lost.
        compression: how gradients are compressed; None for 32-bit floats.
        momentum: β; agents send m_t = βm_{t−1} + (1 − β)g_t, with m_0 = g_0, in the place of their gradients g_t.
        arrivals: `"random"`: chance decides as described above. `"adversarial"`: Byzantine agents always take part,
            gradients arrive at the most harmful age, and every receiver loses the ⌈drop·n⌉ most helpful of n messages.
    """

    participation: float = 1.0
    absent: str = "ignore"
    delay: int = 0
    drop: float = 0.0
    compression: Compressor | None = None
    momentum: float = 0.0
    arrivals: str = "random"

    def check(self) -> None:
        """Raise a `UsageError` if a value is not allowed."""
        if not 0 < self.participation <= 1:
            raise UsageError(f"participation={self.participation}: must be in (0, 1]")
        check_choice("absent", self.absent, ABSENT)
        check_choice("arrivals", self.arrivals, ARRIVALS)
        if self.delay < 0:
            raise UsageError(f"delay={self.delay}: must be at least 0")
        if not 0 <= self.drop < 1:
            raise UsageError(f"drop={self.drop}: must be in [0, 1)")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"momentum={self.momentum}: must be in [0, 1)")

    def present(self, agents: int) -> int:
        """Return how many of K agents take part in an iteration."""
        return max(1, math.ceil(Fraction(str(self.participation)) * agents))

    def voters(self, agents: int) -> int:
        """Return how many gradient messages a rule sees, which its limit on f refers to."""
        return agents if self.absent == "cached" else self.present(agents)

    @property
    def adversarial(self) -> bool:
        """Whether the adversary decides what arrives."""
        return self.arrivals == "adversarial"

    @property
    def leaves_gaps(self) -> bool:
        """Whether a rule may see missing messages."""
        return self.drop > 0 or (self.absent == "cached" and self.participation < 1)

    @property
    def memory(self) -> int:
        """The number of earlier messages per agent that have to be kept."""
        return max(self.delay, int(self.absent == "cached" and self.participation < 1))

    @property
    def feedback(self) -> bool:
        """Whether agents remember what compression takes away."""
        return self.compression is not None and self.compression.feedback

    def message_bytes(self, size: int) -> int:
        """Return the bytes of one gradient message of `size` entries."""
        return FLOAT_BYTES * size if self.compression is None else self.compression.size(size)

    def no_mail(self, agents: int, size: int) -> Mail:
        """Return the mail before the first iteration."""
        if not (self.memory or self.feedback or self.momentum):
            return ()
        residual, momentum = (jnp.zeros((agents, size if kept else 0)) for kept in (self.feedback, self.momentum))
        sent, sendings = jnp.zeros((self.memory, agents, size)), jnp.zeros(agents, jnp.int32)
        return Mailbox(sent, sendings, residual, momentum)

    def sized(self, rule: Rule) -> Rule:
        """Return a rule for gradients whose memory is that of as many messages as the rule sees."""
        return rule._replace(init=lambda n, D: rule.init(self.voters(n), D))

    def draw(self, key: PRNGKeyArray, mask: Bool[Array, " K"], mail: Mail) -> Arrivals:
        """Decide who takes part in an iteration, and how old gradients are.

        Args:
            key: random key of the iteration.
            mask: `[K]`, True for Byzantine agents.
            mail: earlier gradients.
        """
        K, present, age, missing = mask.shape[0], None, None, None
        if self.present(K) < K and self.adversarial:
            present = liars_take_part(jax.random.fold_in(key, 0), mask, self.present(K))
        elif self.present(K) < K:
            present = jnp.sort(jax.random.permutation(jax.random.fold_in(key, 0), K)[: self.present(K)])
        if self.delay and isinstance(mail, Mailbox) and not self.adversarial:
            drawn = jax.random.randint(jax.random.fold_in(key, 1), (K,), 0, self.delay + 1)
            age = jnp.minimum(drawn, mail.sendings)
        if present is not None and self.absent == "cached" and isinstance(mail, Mailbox):
            missing = (~(mail.known | mask)).at[present].set(False)
        return Arrivals(self, mask, present, age, missing)


class Arrivals(NamedTuple):
    """What arrives in one iteration.

    Attributes:
        delivery: the description that this was drawn from.
        mask: `[K]`, True for Byzantine agents.
        present: `[m]`, the agents that take part, in increasing order; None if all do.
        age: `[K]`, how many iterations old the gradient of each agent is; None if all are new, or if the adversary
            decides when it sees them.
        missing: `[K]`, absent agents whose last gradient would count but who have sent none; None if there are none.
    """

    delivery: Delivery
    mask: Bool[Array, " K"]
    present: Int[Array, " m"] | None = None
    age: Int[Array, " K"] | None = None
    missing: Bool[Array, " K"] | None = None

    @property
    def takes_part(self) -> Bool[Array, " K"] | None:
        """`[K]`, whether each agent takes part; None if all do."""
        if self.present is None:
            return None
        return jnp.zeros_like(self.mask).at[self.present].set(True)

    def collect(self, messages: Float[Array, "K D"], mail: Mail) -> tuple[Float[Array, "K D"], Mail]:
        """Return the gradients that arrive, and the mail of the next iteration.

        The row of an agent that has never sent one is what it would have sent, for the adversary to see; `heard` hides
        it from the rule, and `Mailbox.sendings` keeps it from arriving later.

        Args:
            messages: `[K, D]`, the gradients that the agents have estimated.
            mail: earlier gradients.
        """
        compression = self.delivery.compression
        if not isinstance(mail, Mailbox):
            return messages if compression is None else jax.vmap(compression.decoded)(messages), mail
        takes_part = self.takes_part
        here = jnp.ones_like(self.mask) if takes_part is None else takes_part
        messages, momentum = self._with_momentum(messages, mail, here)
        messages, residual = self._compressed(messages, mail, here)
        sendings = mail.sendings + (mail.known | here)
        after = mail._replace(sendings=sendings, residual=residual, momentum=momentum)
        if not self.delivery.memory:
            return messages, after
        latest = jnp.where((here | ~mail.known)[:, None], messages, mail.sent[0])
        sent = jnp.concatenate([latest[None], mail.sent])
        if self.delivery.delay and self.delivery.adversarial:
            age = worst_ages(sent, self.mask, mail.sendings)
        else:
            age = jnp.zeros(self.mask.shape, jnp.int32) if self.age is None else self.age
        arrived = jnp.take_along_axis(sent, age[None, :, None], axis=0)[0]
        arrived = jnp.where(self.mask[:, None], messages, arrived)
        return arrived, after._replace(sent=sent[:-1])

    def _with_momentum(self, gradients: Array, mail: Mailbox, here: Array) -> tuple[Array, Array]:
        """Return what agents send in the place of their gradients, and what they remember of it."""
        beta = self.delivery.momentum
        if beta == 0:
            return gradients, mail.momentum
        moving = jnp.where(mail.known[:, None], beta * mail.momentum + (1.0 - beta) * gradients, gradients)
        usable = here & jnp.all(jnp.isfinite(moving), axis=1)
        return moving, jnp.where(usable[:, None], moving, mail.momentum)

    def _compressed(self, messages: Array, mail: Mailbox, here: Array) -> tuple[Array, Array]:
        """Return what receivers decode, and what is left for the next message."""
        compression = self.delivery.compression
        if compression is None:
            return messages, mail.residual
        corrected = messages + mail.residual if compression.feedback else messages
        decoded = jax.vmap(compression.decoded)(corrected)
        if not compression.feedback:
            return decoded, mail.residual
        left = corrected - decoded
        usable = here & jnp.all(jnp.isfinite(left), axis=1)
        return decoded, jnp.where(usable[:, None], left, mail.residual)

    def heard(self, rule: Rule, *, gradients: bool = True, at_server: bool = False) -> Rule:
        """Return a rule that sees of K messages what a receiver hears.

        Args:
            rule: what the receivers apply.
            gradients: whether the messages are gradients, which may be compressed, and of which those of absent agents
                may count; in an agreement they are parameters.
            at_server: whether the receiver is none of the agents. Otherwise an agent always hears itself.
        """
        caching = gradients and self.delivery.absent == "cached"
        present, missing = (None, self.missing) if caching else (self.present, None)
        drop, compression = self.delivery.drop, self.delivery.compression if gradients else None
        if present is None and missing is None and drop == 0 and compression is None:
            return rule

        def apply(key: PRNGKeyArray, messages: Array, receiver: Receiver, state: RuleState) -> Outcome:
            K = messages.shape[0]
            index = jnp.arange(K, dtype=jnp.int32) if present is None else present
            own = jnp.zeros(index.shape, bool) if at_server else index == receiver.index
            position = jnp.where(jnp.any(own), jnp.argmax(own), -1).astype(jnp.int32)
            rows = messages if present is None else messages[present]
            if compression is not None:
                rows = jnp.where(self.mask[index][:, None], jax.vmap(compression.decoded)(rows), rows)
            if missing is not None:
                rows = jnp.where(missing[:, None], jnp.nan, rows)
            if drop and self.delivery.adversarial:
                origin = jnp.zeros_like(receiver.own) if gradients else receiver.own
                losses = math.ceil(Fraction(str(drop)) * index.shape[0])
                lost = worst_losses(rows, ~self.mask[index], own, origin, losses)
                rows = jnp.where(lost[:, None], jnp.nan, rows)
            elif drop:
                key, key_loss = jax.random.split(key)
                lost = jax.random.bernoulli(key_loss, drop, index.shape) & ~self.mask[index] & ~own
                rows = jnp.where(lost[:, None], jnp.nan, rows)
            outcome = rule.apply(key, rows, receiver._replace(index=position), state)
            shares = jnp.zeros((outcome.shares.shape[0], K), outcome.shares.dtype).at[:, index].set(outcome.shares)
            return outcome._replace(shares=shares)

        def init(n: int, D: int) -> RuleState:
            return rule.init(n if present is None else present.shape[0], D)

        rotates = rule.rotates and compression is None  # compression looks at coordinates
        return rule._replace(apply=apply, init=init, random=rule.random or drop > 0, rotates=rotates)

    @overload
    def heard_in(self, agreement: Agreement) -> Agreement: ...
    @overload
    def heard_in(self, agreement: None) -> None: ...
    def heard_in(self, agreement: Agreement | None) -> Agreement | None:
        """Return the agreement among those present, whose messages may be lost."""
        return None if agreement is None else agreement._replace(rule=self.heard(agreement.rule, gradients=False))

    def only_present(self, after: Any, before: Any, places: Any = None) -> Any:
        """Return what agents hold after the iteration: those absent keep what they had before.

        Args:
            after: leaves `[R, …]`, one row per agent, on this device if `places` is given.
            before: leaves of the same shapes.
            places: where agents live; None if the rows are those of all agents.
        """
        here = self.takes_part
        if here is None:
            return after
        here = here if places is None else places.local(here)
        return jax.tree.map(lambda a, b: jnp.where(here.reshape(-1, *[1] * (a.ndim - 1)), a, b), after, before)
