"""The adversary decides who takes part, how old gradients are and what is lost: against all other choices."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from channel_helpers import begin, channel_of

import jaxbyz as jb
from jaxbyz.attacks.on_delivery import liars_take_part, worst_ages, worst_losses
from jaxbyz.protocol.delay import EarlierMessages
from jaxbyz.rules import Receiver

KEY = jax.random.key(0)
MASK = np.array([False, True, False, False, False, True])
HONEST = np.flatnonzero(~MASK)
ROWS = np.random.default_rng(0).normal(size=(6, 3))
ages_program = jax.jit(worst_ages)
losses_program = jax.jit(worst_losses, static_argnums=4)


def test_liars_always_take_part_and_honest_agents_are_drawn_evenly():
    @jax.jit
    def four_of_six_and_one(mask):
        many = jax.vmap(lambda key: liars_take_part(key, mask, 4))(jax.random.split(KEY, 2000))
        return many, liars_take_part(KEY, mask, 1)

    draws, alone = map(np.asarray, four_of_six_and_one(MASK))
    takes_part = np.zeros((2000, 6), bool)
    np.put_along_axis(takes_part, draws, True, axis=1)
    assert (takes_part.sum(axis=1) == 4).all() and takes_part[:, MASK].all()
    np.testing.assert_allclose(takes_part[:, HONEST].mean(axis=0), 0.5, atol=0.04)
    assert (np.diff(draws, axis=1) > 0).all()
    assert set(alone.tolist()) <= {1, 5}


@pytest.mark.parametrize("sendings", [0, 1, 5])
def test_ages_are_the_worst_of_all_combinations(sendings):
    sent = np.random.default_rng(1).normal(size=(3, 6, 4))
    mean = sent[0, HONEST].mean(axis=0)
    ages = np.asarray(ages_program(sent.astype(np.float32), MASK, np.full(6, sendings)))
    allowed = range(min(sendings, 2) + 1)
    best = min(
        itertools.product(allowed, repeat=len(HONEST)), key=lambda ages: sent[list(ages), HONEST].mean(axis=0) @ mean
    )
    assert ages[HONEST].tolist() == list(best)


def test_an_unusable_gradient_is_not_chosen_unless_there_is_no_other():
    sent = np.random.default_rng(1).normal(size=(2, 6, 4)).astype(np.float32)
    sent[1] -= 10 * sent[0, HONEST].mean(axis=0)  # the older ones point the other way
    sent[1, 0], sent[0, 2] = np.nan, np.inf
    ages = ages_program(sent, MASK, np.full(6, 9))
    assert np.asarray(ages)[HONEST].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("origin", [np.zeros(3), ROWS[2]])
@pytest.mark.parametrize("losses", [1, 2])
def test_losses_are_the_worst_of_all_subsets(origin, losses):
    """The receiver 2 loses the messages that leave the smallest step along the honest mean."""
    own = np.arange(6) == 2
    lost = losses_program(ROWS.astype(np.float32), ~MASK, own, origin.astype(np.float32), losses)
    direction = ROWS[HONEST].mean(axis=0) - origin

    def step(subset):
        kept = [i for i in HONEST if i not in subset]
        return (ROWS[kept] - origin).mean(axis=0) @ direction

    worst = min(itertools.combinations([0, 3, 4], losses), key=step)
    assert np.flatnonzero(lost).tolist() == list(worst)


def test_only_usable_honest_messages_of_others_are_lost():
    rows = ROWS.astype(np.float32)
    rows[3] = np.nan
    lost = losses_program(rows, ~MASK, np.arange(6) == 2, np.zeros(3, np.float32), 6)
    assert np.flatnonzero(lost).tolist() == [0, 4]


def test_a_rule_sees_the_chosen_messages():
    """The mean of what arrives, along the honest mean: below 200 random draws of ages, and the worst single loss."""
    direction = ROWS[HONEST].mean(axis=0).astype(np.float32)
    older = np.random.default_rng(2).normal(size=(2, 6, 3)).astype(np.float32)

    @jax.jit
    def help_under_chance_delays_and_losses(messages, older, mask):
        def help_of(key, **options):
            channel = channel_of(6, **options)
            now, memory = begin(channel, key, mask), channel.init(6, 3)
            if options.get("delay"):
                memory = (EarlierMessages(older, jnp.full(6, 7)), memory[1])
            arrived, _ = channel.send(now, messages, memory)
            honest_only = jnp.where(mask[:, None], jnp.nan, arrived)
            rule = channel.hear_gradients(now, jb.mean(skip_missing=True), memory)
            receiver = Receiver(messages[0], jnp.int32(-1))
            return rule.apply(key, honest_only, receiver, ()).rows[0] @ direction

        return (
            jax.vmap(partial(help_of, delay=2))(jax.random.split(KEY, 200)),
            help_of(KEY, delay=2, arrivals="adversarial"),
            help_of(KEY, drop=0.15, arrivals="adversarial"),  # ⌈0.15·6⌉ = 1 is lost
        )

    by_chance, delayed, lost_one = map(
        np.asarray, help_under_chance_delays_and_losses(ROWS.astype(np.float32), older, MASK)
    )
    assert delayed <= by_chance.min() + 1e-6 < by_chance.max()
    without_one = [np.delete(ROWS[HONEST], i, axis=0).mean(axis=0) @ direction for i in range(4)]
    np.testing.assert_allclose(lost_one, min(without_one), rtol=1e-5)
