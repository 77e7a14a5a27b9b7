"""Attacks that reverse a direction: sign flip and inner-product manipulation (IPM)."""

from __future__ import annotations

from jaxtyping import Array, Float, PRNGKeyArray

from jaxbyz.attacks.base import Attack, MessageKind, View, on_messages, same_row
from jaxbyz.attacks.honest_statistics import honest_mean
from jaxbyz.errors import check_choice

EPSILON = 0.5


def ipm_row(view: View, epsilon: float | Float[Array, ""]) -> Float[Array, " D"]:
    """Return −ε·μ, where μ is the honest mean."""
    return -epsilon * honest_mean(view.messages, view.mask)


def ipm(*, epsilon: float = EPSILON, on: MessageKind = "gradients", equivocate: bool = False) -> Attack:
    """Inner-product manipulation, or fall of empires: every Byzantine agent sends −ε·μ, where μ is the honest mean.

    A small ε passes distance-based filters and still decreases ⟨aggregate, μ⟩; other libraries use 0.1, 2 or 10.

    Args:
        epsilon: ε.
        on: which messages are forged. By default gradients: parameters have a large common part, whose negative is
            only an outlier.

    References:
        Xie et al., Fall of empires, 2020.
    """

    return same_row(lambda view: ipm_row(view, epsilon), on, mirror_for_half=equivocate)


def sign_flip(
    *, scale: float = 1.0, of: str = "own", on: MessageKind = "gradients", equivocate: bool = False
) -> Attack:
    """Byzantine agents send the negative of a message, so that gradient ascent becomes descent.

    Args:
        scale: factor of the negative; 2.5 for FedPG-BR's sign flip.
        of: `"own"` for −scale·g_b, where g_b is what the agent would have sent; `"mean"` for −scale·μ, which is IPM.

    References:
        Li et al., RSA: Byzantine-robust stochastic aggregation, 2019.
    """
    check_choice("of", of, ("own", "mean"))
    if of == "mean":
        return ipm(epsilon=scale, on=on, equivocate=equivocate)

    def forge(key: PRNGKeyArray, view: View, receiver: Array) -> Array:
        return -scale * view.messages

    return on_messages(forge, on, mirror_for_half=equivocate)
