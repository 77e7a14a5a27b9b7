"""Each attack's formula against an independent float64 NumPy computation."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import jaxbyz as jb
from jaxbyz.attacks import View, attacks
from jaxbyz.attacks.honest_statistics import angle
from jaxbyz.attacks.time_coupled import Trend

K, D = 9, 6
X = np.random.default_rng(3).normal(size=(K, D)) + np.linspace(0.5, 1.5, D)
MASK = np.isin(np.arange(K), [1, 4])
H, B = X[~MASK], X[MASK]
MU, STD = H.mean(0), H.std(0)
PAIRS = ((H[:, None] - H[None]) ** 2).sum(2)


def mean(x: jax.Array) -> jax.Array:
    return jnp.mean(x, axis=0)


def median(x: jax.Array) -> jax.Array:
    return jnp.median(x, axis=0)


@cache
def forging_program(name: str, rule, **options):
    """Return what the attack sends in one program for all receivers, memories and weights of a graph."""
    attack = attacks[name].build(K, int(MASK.sum()), **options)
    forge = attack.gradients or attack.parameters

    @jax.jit
    def messages(x: jax.Array, mask: jax.Array, memory, receiver: jax.Array, weights: jax.Array | None) -> jax.Array:
        memory = attack.init(K, D) if memory is None else memory
        return forge(jax.random.key(7), View(x, mask, rule, memory, jnp.int32(0), weights=weights), receiver)

    return messages


def forged(name: str, *, rule=mean, receiver: int = 0, weights=None, memory=None, **options):
    """Return the forged messages `[f, D]` of the Byzantine senders."""
    weights = None if weights is None else np.asarray(weights, np.float32)
    program = forging_program(name, rule, **options)
    return np.asarray(program(X.astype(np.float32), MASK, memory, np.int32(receiver), weights))[MASK]


def z_of(n: int, f: int) -> float:
    k = int(np.floor(n / 2 + 1)) - f
    return norm.ppf((n - f - k) / (n - f))


SIMPLE = {
    "sign flip of own": ("sign-flip", {}, -B),
    "sign flip scaled": ("sign-flip", {"scale": 2.5}, -2.5 * B),
    "sign flip of mean": ("sign-flip", {"of": "mean"}, np.tile(-MU, (2, 1))),
    "ipm": ("ipm", {"epsilon": 0.1}, np.tile(-0.1 * MU, (2, 1))),
    "alie": ("alie", {}, np.tile(MU - z_of(K, 2) * STD, (2, 1))),
    "alie upwards": ("alie", {"sign": 1.0, "z": 1.5}, np.tile(MU + 1.5 * STD, (2, 1))),
    "zero": ("zero", {}, np.zeros((2, D))),
    "mimic first": ("mimic", {}, np.tile(H[0], (2, 1))),
    "mimic third": ("mimic", {"target": 2}, np.tile(H[2], (2, 1))),
    "mimic beyond": ("mimic", {"target": 99}, np.tile(H[-1], (2, 1))),
    "avg zero": ("avg-zero", {}, np.tile(-H.sum(0) / 2, (2, 1))),
}


@pytest.mark.parametrize("case", SIMPLE)
def test_simple_formulas(case: str) -> None:
    name, options, expected = SIMPLE[case]
    np.testing.assert_allclose(forged(name, **options), expected, rtol=1e-5, atol=1e-6)


def test_avg_zero_makes_the_average_zero() -> None:
    sent = X.copy()
    sent[MASK] = forged("avg-zero")
    np.testing.assert_allclose(sent.mean(0), 0, atol=1e-6)


def test_alie_equivocates_to_both_sides() -> None:
    z = z_of(K, 2)
    sent = {tuple(np.round(forged("equivocating-alie", receiver=r)[0], 4)) for r in (0, 2, 3, 5)}
    assert sent == {tuple(np.round(MU + sign * z * STD, 4).astype(np.float32)) for sign in (-1, 1)}


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
def test_min_max_and_min_sum_are_as_far_as_allowed(direction: str) -> None:
    """The closed forms against bisection on the definitions."""
    p = {"std": -STD, "unit": -MU / np.linalg.norm(MU), "sign": -np.sign(MU)}[direction]

    def furthest(allowed) -> float:
        low, high = 0.0, 1e3
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if allowed(MU + middle * p) else (low, middle)
        return low

    gap = lambda m: ((m - H) ** 2).sum(1)  # noqa: E731
    limit_max, limit_sum = PAIRS.max(), PAIRS.sum(1).max()
    for name, allowed in (
        ("min-max", lambda m: gap(m).max() <= limit_max),
        ("min-sum", lambda m: gap(m).sum() <= limit_sum),
    ):
        expected = MU + furthest(allowed) * p
        np.testing.assert_allclose(forged(name, direction=direction), np.tile(expected, (2, 1)), rtol=1e-4, atol=1e-4)


def test_line_searches_take_the_worst_scale() -> None:
    """Against the coordinate-wise median, with every scale of the grid evaluated in NumPy."""
    grid = np.geomspace(0.01, 100.0, 24)

    def moved(row: np.ndarray) -> float:
        sent = X.copy()
        sent[MASK] = row
        return np.linalg.norm(np.median(sent, axis=0) - MU)

    for name, candidates in (
        ("opt-ipm", [-c * MU for c in grid]),
        ("opt-alie", [MU + c * STD for c in np.concatenate([-grid, grid])]),
    ):
        best = max(moved(row) for row in candidates)
        found = forged(name, rule=median)
        assert moved(found[0]) == pytest.approx(best, rel=1e-4)
        assert min(np.abs(found[0] - row).max() for row in candidates) < 1e-3, "not on the grid"


def test_noise_has_its_documented_variance() -> None:
    """The moments and bounds of Gaussian noise, large noise and FedPG-BR's noise over many coordinates."""
    wide = np.zeros((K, 4000), np.float32)
    wide[:, 0] = 2.0  # range of every message: 2
    scales = {"gaussian": 20.0, "large-noise": 30.0}

    @jax.jit
    def sent(wide: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
        view = View(wide, mask, lambda x: x[0], (), jnp.int32(0))
        every = {name: attacks[name].build(K, 2, scale=scale) for name, scale in scales.items()}
        every["fedpg-br-noise"] = attacks["fedpg-br-noise"].build(K, 2)
        return {name: attack.gradients(jax.random.key(0), view, jnp.int32(0)) for name, attack in every.items()}

    found = {name: np.asarray(messages)[MASK] for name, messages in sent(wide, MASK).items()}
    for name, scale in scales.items():
        noise = found[name]
        assert noise.std() == pytest.approx(scale, rel=0.05)
        assert abs(noise.mean()) < 0.05 * scale
        assert abs(np.corrcoef(noise)[0, 1]) < 0.1, "two Byzantine agents send the same noise"
    noise = found["fedpg-br-noise"] - wide[MASK]
    assert np.abs(noise).max() <= 6.0 and np.abs(noise).max() > 5.9
    assert noise.std() == pytest.approx(6.0 / np.sqrt(3.0), rel=0.05)


def test_fedpg_br_colluders_know_only_themselves() -> None:
    found = forged("fedpg-br")
    offset = found - B.mean(0)
    np.testing.assert_allclose(found[0], found[1])
    np.testing.assert_allclose(np.linalg.norm(offset, axis=1), 1.5 * np.linalg.norm(B[0] - B[1]), rtol=1e-5)


def test_dissensus_formula_on_a_graph_and_all_to_all() -> None:
    weights = np.random.default_rng(0).uniform(size=(K, K))
    weights /= weights.sum(1, keepdims=True)
    for W, given in ((weights, weights), (np.full((K, K), 1 / K), None)):
        for i in (0, 5):
            pull = sum(W[i, j] * (X[j] - X[i]) for j in range(K) if not MASK[j])
            expected = X[i] - 2.0 * pull / W[i][MASK].sum()
            found = forged("dissensus", receiver=i, weights=given, epsilon=2.0)
            np.testing.assert_allclose(found, np.tile(expected, (2, 1)), rtol=1e-4, atol=1e-4)


def test_dissensus_with_epsilon_one_stops_gossip() -> None:
    """Under plain averaging, no honest agent moves."""
    for i in np.flatnonzero(~MASK):
        sent = X.copy()
        sent[MASK] = forged("dissensus", receiver=int(i), epsilon=1.0)
        np.testing.assert_allclose(sent.mean(0), X[i], atol=1e-5)


def test_dissensus_harms_gossip_on_a_graph() -> None:
    """In a compiled round on a ring, honest agents end up farther apart than without attack."""
    without, under_attack = (
        jb.agree(
            "clipped-gossip:graph=ring", jax.random.key(0), X.astype(np.float32), byzantine=int(MASK.sum()), mask=MASK,
            attack=name,
        )
        for name in ("none", "dissensus")
    )  # fmt: skip
    spread = [np.ptp(np.asarray(rows)[~MASK], axis=0).max() for rows in (without, under_attack)]
    assert np.isfinite(spread).all() and spread[1] > spread[0]


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
@pytest.mark.parametrize("scale", [1e-12, 1e10, 1e15])
def test_min_max_and_min_sum_scale(name: str, scale: float) -> None:
    plain, other = (
        np.asarray(jb.attack(name, jax.random.key(0), (s * X).astype(np.float32), MASK))[0] for s in (1.0, scale)
    )
    np.testing.assert_allclose(other[MASK] / scale, plain[MASK], rtol=1e-4)
    assert np.abs(plain[MASK] - MU).max() > 0.1


def test_mimic_warmup_learns_who_stands_out() -> None:
    """It follows the recurrence computed in NumPy, and chooses the agent farthest along the widest direction."""
    attack = attacks["mimic-warmup"].build(K, 2, warmup=5)
    rng = np.random.default_rng(1)
    memory = jax.jit(lambda: attack.init(K, D))()
    z, projections = np.where(np.arange(D) % 2 == 0, 1.0, -1.0) / np.sqrt(D), np.zeros(K)
    remember = jax.jit(lambda x, mask, memory: attack.remember(View(x, mask, lambda m: m[0], memory, jnp.int32(0))))
    direction = np.eye(D)[2]
    for t in range(6):
        x = 0.1 * rng.normal(size=(K, D))
        x[6] += 5.0 * direction
        early = forged("mimic-warmup", warmup=5, memory=memory)
        gaps = np.where(MASK[:, None], 0.0, x - x[~MASK].mean(0))
        w = gaps.T @ (gaps @ z)
        z = (t * z + w / np.linalg.norm(w)) / (t + 1) if t else w / np.linalg.norm(w)
        projections = projections + gaps @ z
        if t < 5:
            np.testing.assert_allclose(early, np.tile(H[0], (2, 1)), rtol=1e-6)
        memory = remember(x.astype(np.float32), MASK, memory)
    np.testing.assert_allclose(memory.projections, projections, rtol=1e-4, atol=1e-4)
    assert abs(np.asarray(memory.direction) @ direction) > 0.9
    np.testing.assert_allclose(forged("mimic-warmup", warmup=5, memory=memory), np.tile(X[6], (2, 1)), rtol=1e-6)


def angle_between(u: np.ndarray, v: np.ndarray) -> float:
    return float(np.arccos(u @ v / np.linalg.norm(u) / np.linalg.norm(v)))


def test_angle_is_exact_for_small_large_and_degenerate_angles() -> None:
    found = jax.jit(lambda u, v: angle(u, v))
    for u, v in np.random.default_rng(0).normal(size=(20, 2, 3)):
        np.testing.assert_allclose(found(*np.float32([u, v])), angle_between(u, v), rtol=1e-5)
    first = np.float32([1, 0, 0])
    for tilt in (1e-4, np.pi - 1e-4):
        v = np.array([np.cos(tilt), np.sin(tilt), 0.0], np.float32)
        np.testing.assert_allclose(found(first, 7 * v), tilt, rtol=1e-3)
    assert float(found(first, np.zeros(3, np.float32))) == pytest.approx(np.pi / 2)
    assert float(found(first, np.full(3, np.inf, np.float32))) == pytest.approx(np.pi)


def test_normalized_turns_the_rule_further_than_every_candidate() -> None:
    """Against the median, by brute force over the same grid of directions and scales in float64."""
    sent = forged("normalized", rule=median, tries=8)
    before = np.median(X, axis=0)

    def turned(row: np.ndarray) -> float:
        x = X.copy()
        x[MASK] = row
        return angle_between(np.median(x, axis=0), before)

    directions = [-STD / np.linalg.norm(STD), -MU / np.linalg.norm(MU), -np.sign(MU) / np.sqrt(D)]
    candidates = [
        MU + scale * np.linalg.norm(MU) * direction for direction in directions for scale in np.geomspace(0.01, 100, 8)
    ]
    assert turned(sent[0]) == pytest.approx(max(map(turned, candidates)), rel=1e-4)


@pytest.mark.slow
def test_angle_is_an_objective_of_the_searches() -> None:
    """Searching for the angle turns the median at least as far as searching for the distance does."""

    def turned(name: str, objective: str, **options) -> float:
        sent = X.copy()
        sent[MASK] = forged(name, rule=median, objective=objective, on="gradients", **options)
        return angle_between(np.median(sent, axis=0), np.median(X, axis=0))

    for name, options in (("opt-ipm", {}), ("opt-alie", {}), ("gradient-found", {"steps": 0})):
        assert turned(name, "angle", **options) >= turned(name, "distance", **options) - 1e-4, name


def test_drift_keeps_its_direction_and_stays_within_honest_distances() -> None:
    other = np.random.default_rng(4).normal(size=D)
    memory = Trend((other / np.linalg.norm(other)).astype(np.float32), np.int32(3))
    shift = forged("drift", memory=memory)[0] - MU
    np.testing.assert_allclose(shift / np.linalg.norm(shift), -other / np.linalg.norm(other), atol=1e-5)
    farthest = np.sqrt(((H - MU - shift) ** 2).sum(1)).max()
    assert farthest == pytest.approx(np.sqrt(PAIRS.max()), rel=1e-4)
    np.testing.assert_allclose(forged("drift", memory=memory, fraction=0.5)[0] - MU, shift / 2, atol=1e-5)
    first = forged("drift")[0] - MU  # nothing is remembered yet: against the honest mean of this iteration
    np.testing.assert_allclose(first / np.linalg.norm(first), -MU / np.linalg.norm(MU), atol=1e-5)


def test_drift_remembers_only_the_first_iteration() -> None:
    attack = attacks["drift"].build(K, 2)

    @jax.jit
    def memories(x: jax.Array, mask: jax.Array) -> tuple[Trend, Trend]:
        view = View(x, mask, jnp.sum, attack.init(K, D), jnp.int32(0))
        first = attack.remember(view)
        return first, attack.remember(view._replace(messages=-3.0 * x, memory=first))

    first, second = memories(X.astype(np.float32), MASK)
    np.testing.assert_allclose(first.direction, MU / np.linalg.norm(MU), rtol=1e-5)
    np.testing.assert_array_equal(first.direction, second.direction)


def test_coupled_alie_pushes_against_the_moving_average() -> None:
    past = np.random.default_rng(5).normal(size=D)
    memory = Trend(past.astype(np.float32), np.int32(3))
    expected = MU - z_of(K, 2) * STD * np.sign(0.9 * past + 0.1 * MU)
    np.testing.assert_allclose(forged("coupled-alie", memory=memory)[0], expected, rtol=1e-4)


def test_spectral_attack_uses_the_fiedler_vector_of_the_honest_graph() -> None:
    W = np.random.default_rng(6).uniform(size=(K, K))
    W = np.where(W + W.T > 0.8, W + W.T, 0.0) / 20
    honest = np.flatnonzero(~MASK)
    among = W[np.ix_(honest, honest)] * (1 - np.eye(len(honest)))
    e = np.zeros(K)
    e[honest] = np.linalg.eigh(np.diag(among.sum(1)) - among)[1][:, 1]
    u = e @ (X - MU)
    u /= np.linalg.norm(u)
    for i in honest:  # −e gives the same messages as e
        neighbours = [j for j in honest if W[i, j] > 0]
        reach = max([np.linalg.norm(X[j] - X[i]) for j in neighbours], default=0.0)
        expected = X[i] + reach * e[i] / np.abs(e).max() * u
        found = forged("spectral", receiver=int(i), weights=W)
        np.testing.assert_allclose(found, np.tile(expected, (2, 1)), rtol=1e-3, atol=1e-3)
