"""Memory of senders: what it computes, how often it is wrong about honest senders, and what it does to liars."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxbyz as jb
from jaxbyz.components import make_rule
from jaxbyz.errors import UsageError
from jaxbyz.rules import Receiver, chain, clipping, from_function, senders_of
from jaxbyz.rules.memory import alarm_threshold, memory, votes_of_groups

K, F, D = 13, 3, 12
WINDOW, FALSE_ALARMS = 20.0, 0.005


def judge(rule, batches, messages_per_batch=1):
    """Apply a rule to messages `[T, K, D]`; return its rows, its shares, and what it remembers after each of them."""

    def step(state, inputs):
        t, messages = inputs
        receiver = Receiver(messages[0], jnp.int32(0), begins=t % messages_per_batch == 0)
        outcome = rule.apply(jax.random.key(0), messages, receiver, state)
        remembered = senders_of(outcome.state)
        return outcome.state, (outcome.rows[0], outcome.shares[0], remembered.trust, remembered.excluded)

    inputs = jnp.arange(len(batches)), jnp.asarray(batches, jnp.float32)
    return jax.tree.map(np.asarray, jax.jit(lambda: jax.lax.scan(step, rule.init(*batches.shape[1:]), inputs)[1])())


def draw(batches, seed=0, signal=0.0, agents=K):
    return np.random.default_rng(seed).normal(signal, 1.0, (batches, agents, D))


class Reference:
    """The same in NumPy with float64, one sender after another, in front of the mean."""

    def __init__(self):
        self.past, self.batch = np.zeros((K, D)), np.zeros((K, D))
        self.trust, self.strikes, self.left, self.out = np.ones(K), np.zeros(K), np.zeros(K), np.zeros(K, bool)
        self.spreads, self.likeness, self.noise = [], [], np.zeros(D)
        self.h, self.beta = alarm_threshold(FALSE_ALARMS), 1 - 1 / WINDOW

    @staticmethod
    def limit(vectors):
        return np.sort(np.linalg.norm(vectors, axis=1))[-1 - F] or 1.0

    @staticmethod
    def agreement(sent, before, j):
        length = np.linalg.norm(before[j]) or 1.0
        cosines = [x @ before[j] / np.linalg.norm(x) / length for k, x in enumerate(sent) if k != j]
        return np.mean(sorted(cosines)[F : K - 1 - F])

    def scaled(self, vectors):
        usual = self.noise.mean()
        return vectors / (self.noise + 0.1 * usual) if usual > 0 else vectors

    def cosines(self, vectors):
        scaled = self.scaled(vectors)
        units = scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-30)
        return units @ units.T

    def votes(self):
        past = [self.beta**age * cosines for age, cosines in enumerate(reversed(self.likeness))]
        count = sum(self.beta**age for age in range(len(past)))
        likeness = (sum(past) + self.cosines(self.batch)) / (count + 1)
        pairs = [likeness[i, j] for i in range(K) for j in range(i + 1, K)]
        usual = np.clip(np.median(pairs), 0, 0.99)
        middle = np.median(np.abs(pairs - usual))
        spread = np.hypot(1.4826 * 78 / 77.2 * middle, 0.2 / np.sqrt(count + 1))
        votes = []
        for i in range(K):
            size, surest = 1.0, 0.0
            for j in range(K):
                excess = likeness[i, j] - usual
                if i != j:
                    sure = np.clip((excess / spread - 3.5) / 1.5, 0, 1)
                    same = np.clip((excess - spread) / (1 - usual), 0, 1) ** 2
                    size, surest = size + max(same, sure), max(surest, sure)
            votes.append(max(size - F, 1 - surest) / size * min(2 * self.trust[i], 1) * (not self.out[i]))
        return np.array(votes)

    def begin(self, sent):
        self.past = self.beta * self.past + self.batch / self.limit(self.batch)
        distances = np.abs(sent - np.median(sent, axis=0))
        self.noise = self.beta * self.noise + np.sort(distances, axis=0)[:-F].mean(axis=0)
        new, last, past = map(self.scaled, (sent, self.batch, self.past))
        score = np.array([self.agreement(new, last, j) + self.agreement(new, past, j) for j in range(K)])
        if not self.batch.any():
            return
        self.likeness.append(self.cosines(self.batch))
        self.batch = np.zeros((K, D))
        difference = score - np.median(score)
        self.spreads.append(1.4826 * K / (K - 0.8) * np.median(np.abs(difference)))
        weights = self.beta ** np.arange(len(self.spreads))[::-1]
        scale = max(self.spreads[-1], np.average(self.spreads, weights=weights))
        z = np.clip(difference / scale, -3, 3) if scale > 0 else np.zeros(K)
        self.strikes, self.left = 0.99 * self.strikes, np.maximum(self.left - 1, 0)
        self.trust = np.clip(self.trust + (z + 0.5) / self.h, 0, 1)
        self.out &= (self.left > 0) | (self.trust < 0.5)
        for j in np.argsort(score, kind="stable"):
            if self.trust[j] <= 0 and not self.out[j] and self.out.sum() < F:
                self.out[j], self.left[j] = True, 4 * 2 ** min(self.strikes[j], 5)
                self.strikes[j] += 1

    def apply(self, messages, begins):
        limit = self.limit(messages)
        sent = np.array([x * min(1, limit / np.linalg.norm(x)) for x in messages])
        if begins:
            self.begin(sent)
        self.batch = self.batch + sent
        votes = self.votes()
        most = votes / np.sort(votes)[F:].sum()
        low, high = 0.0, 1e6  # weights of the mean are min(most, scale·votes), with sum 1
        for _ in range(200):
            scale = (low + high) / 2
            low, high = (scale, high) if np.minimum(most, scale * votes).sum() < 1 else (low, scale)
        return np.minimum(most, scale * votes) @ sent


def test_it_computes_what_its_docstring_says():
    rng, messages_per_batch = np.random.default_rng(3), 2
    messages = np.repeat(draw(40, seed=3, signal=0.2), messages_per_batch, axis=0)
    messages += 0.3 * rng.normal(size=messages.shape)
    messages[:, 10] -= 0.6
    messages[30:, 11] *= -5  # from batch 15 on
    rows, _, trust, excluded = judge(make_rule("memory+mean", K, F), messages, messages_per_batch)
    reference = Reference()
    for t, batch in enumerate(messages):
        row = reference.apply(batch, t % messages_per_batch == 0)
        np.testing.assert_allclose(rows[t], row, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(trust[t], reference.trust, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(excluded[t], reference.out)
    assert excluded[:, 10].any()


@pytest.mark.parametrize("agents,byzantine", [(13, 3), (30, 7)])
def test_honest_senders_are_excluded_no_more_often_than_stated(agents, byzantine):
    """10,000 batches of noise without any signal, which is the worst case."""
    rule = make_rule(f"memory:false_alarms={FALSE_ALARMS}+mean", agents, byzantine)
    *_, excluded = judge(rule, draw(10_000, agents=agents))
    assert 0 < excluded.mean() < FALSE_ALARMS


def test_liars_are_excluded_and_come_back_by_good_conduct():
    messages = draw(200, seed=5, signal=0.3)
    messages[50:100, :F] = -messages[50:100, :F]
    _, shares, _, excluded = judge(make_rule("memory+caf", K, F), messages)
    assert excluded[:50].mean() < 0.05 and excluded[:, F:].mean() < 0.05
    assert excluded[60:100, :F].mean() > 0.8 and not shares[excluded].any()
    assert excluded[150:].mean() < 0.05


def test_a_second_exclusion_is_longer():
    messages = draw(140, seed=6, signal=1.0)
    pushes = [(20, 24), (80, 84)]
    for begin, end in pushes:
        messages[begin:end, 0] = -messages[begin:end, 0]
    *_, excluded = judge(make_rule("memory:window=2+mean", K, F), messages)
    first, second = (excluded[begin : begin + 60, 0].sum() for begin, _ in pushes)
    assert second > first > 0


def test_no_more_than_f_are_excluded_at_once():
    messages = draw(100, seed=7, signal=0.3)
    messages[20:, : F + 2] *= -1
    *_, excluded = judge(make_rule("memory+mean", K, F), messages)
    assert excluded.sum(axis=1).max() == F


def test_a_steady_push_within_the_noise_loses_its_weight():
    """Three senders push by half the noise of a message, which no rule sees in one batch."""
    messages = draw(60, seed=8, signal=0.1)
    messages[:, :F] -= 1.0
    _, shares, *_ = judge(make_rule("memory+caf", K, F), messages)
    assert shares[0, :F].sum() > 0.1
    assert shares[10:, :F].sum(axis=1).mean() < 0.02


@pytest.mark.parametrize("alike,votes", [(F, 0), (F + 2, 2)])
def test_a_group_has_the_votes_of_those_in_it_who_must_be_honest(alike, votes):
    messages = draw(30, seed=11)
    messages[:, :alike] = messages[:, :1]
    _, shares, *_ = judge(make_rule("memory+mean", K, F), messages)
    assert shares[-1, :alike].sum() / np.median(shares[-1, alike:]) == pytest.approx(votes, abs=0.3)


@pytest.mark.parametrize("agents,byzantine", [(4, 1), (13, 3), (30, 7)])
@pytest.mark.parametrize("batches", [1, 4, 20])
def test_noise_alone_makes_few_senders_alike(agents, byzantine, batches):
    messages = np.random.default_rng(16).normal(size=(400, batches, agents, 100))
    units = messages / np.linalg.norm(messages, axis=-1, keepdims=True)
    likeness = jnp.asarray(np.einsum("rtid,rtjd->rij", units, units) / batches)
    votes = jax.vmap(lambda one: votes_of_groups(one, jnp.float32(batches), len(one), byzantine))(likeness)
    assert jnp.mean(votes < 0.8 * jnp.mean(votes, axis=1, keepdims=True)) < 0.005


@pytest.mark.parametrize("seed", range(5))
def test_a_strong_gradient_does_not_make_honest_senders_alike_in_the_first_batch(seed):
    rng, parameters = np.random.default_rng(seed), 6
    noise = rng.uniform(0.1, 2.0, size=(K, 1)) * rng.normal(size=(K, parameters))
    messages = np.where(np.arange(K)[:, None] < F, -1.0, 1.0 + noise)
    units = messages / np.linalg.norm(messages, axis=1, keepdims=True)
    votes = votes_of_groups(jnp.asarray(units @ units.T, jnp.float32), jnp.float32(1), K, F)
    assert jnp.mean(votes[F:]) > 0.95


def test_liars_with_noise_of_their_own_are_recognised_over_time():
    messages = draw(40, seed=12)
    messages[:, :F] = 0.7 * messages[:, :F] + 0.7 * draw(40, seed=13)[:, :1]
    _, shares, *_ = judge(make_rule("memory+mean", K, F), messages)
    assert shares[0, :F].sum() > 0.15 > 0.12 > shares[-1, :F].sum()


def test_noise_in_one_direction_does_not_make_honest_senders_alike():
    """The history of each sender is a multiple of one vector, so that all of them have a cosine of 1 or −1."""
    messages = draw(60, seed=14)[..., :1] * np.ones(D)
    messages[:, :F] = messages[:, :1]
    _, shares, *_ = judge(make_rule("memory+mean", K, F), messages)
    assert shares[30:, :F].sum(axis=1).mean() < 0.15


def test_the_rule_behind_it_cannot_prefer_few_senders():
    """The geometric median of this history is at the three liars, because they are the same and honest noise is not."""
    messages = np.random.default_rng(15).normal(size=(10, K, 200))
    messages[:, :F] = 0.01
    _, shares, *_ = judge(make_rule("memory+rfa", K, F), messages)
    assert shares[3:, :F].sum(axis=1).max() < 0.15


def test_a_long_message_is_shortened_before_it_counts():
    messages = draw(10, seed=9)
    messages[-1, 0] = 1e6
    rows, *_ = judge(make_rule("memory+mean", K, F), messages)
    assert np.linalg.norm(rows[-1]) < np.linalg.norm(messages[-1, 1:], axis=1).max()


def test_unusable_messages_count_for_nothing():
    messages = draw(30, seed=10, signal=0.3)
    messages[5:, 0], messages[::2, 1] = np.nan, np.inf
    rows, shares, trust, _ = judge(make_rule("memory+caf", K, F), messages)
    assert np.isfinite(rows).all() and np.isfinite(trust).all()
    assert not shares[5:, 0].any() and not shares[::2, 1].any()


def test_a_second_memory_is_refused():
    with pytest.raises(UsageError, match="memory: needs a rule"):
        make_rule("memory+memory+caf", K, F)


def test_a_server_has_no_history_of_its_own_to_trust():
    config = jb.Config(env="TabularMDP", algorithm="byzpg", agents=13, byzantine=1, aggregator="memory+fltrust")
    with pytest.raises(UsageError, match="a server sends nothing"):
        jb.build(config)


def test_behind_memory_fltrust_ignores_whoever_opposes_the_history_of_the_receiver():
    """Also if more senders lie than it defends against."""
    messages = draw(30, seed=17, signal=0.5)
    messages[:, 1:7] *= -1
    _, shares, *_ = judge(make_rule("memory+fltrust", K, F), messages)
    assert shares[5:, 1:7].sum(axis=1).max() < 0.05


def test_a_late_receiver_trusts_no_sender_in_place_of_itself():
    """A node whose own message is not among those that it heard has the index −1, and no message."""
    messages = draw(1, seed=3, signal=0.5)[0]
    messages[-1] *= -1
    rule = make_rule("memory+fltrust", K, F)
    absent = Receiver(jnp.full(D, jnp.nan), jnp.int32(-1))
    shares = rule.apply(jax.random.key(0), jnp.asarray(messages), absent, rule.init(K, D)).shares[0]
    assert shares[-1] < 1 / K


def test_a_plain_function_has_no_shares_to_remember():
    with pytest.raises(UsageError, match="known shares"):
        memory(F)(chain(clipping(), from_function(lambda messages: messages[0])))


def test_agents_that_are_absent_cannot_be_remembered():
    settings = {"env": "TabularMDP", "agents": 13, "byzantine": 1, "aggregator": "memory+caf"}
    with pytest.raises(UsageError, match="participation=1 or absent=cached"):
        jb.build(jb.Config(**settings, participation=0.5))
