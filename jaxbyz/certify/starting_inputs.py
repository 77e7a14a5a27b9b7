"""Structured inputs from which the search starts: arrangements of honest and Byzantine messages."""

from __future__ import annotations

import numpy as np

HONEST_ARRANGEMENTS = (
    "gaussian", "simplex", "outlier", "outliers", "two clusters", "three clusters", "heavy tails", "line", "skewed",
)  # fmt: skip


def honest_rows(rng: np.random.Generator, arrangement: str, n: int, D: int, few: int) -> np.ndarray:
    """Return `[n, D]` honest messages with a spread of about one.

    Args:
        rng: random numbers.
        arrangement: one of `HONEST_ARRANGEMENTS`. A simplex has all messages equally far from each other, as many as D
            allows. Three clusters have `few` messages at each end and the others in the middle. In a skewed cube, just
            under half of the messages are elsewhere in each coordinate.
        n: the number of messages.
        D: their length.
        few: the number of outliers, or of messages in the outer clusters.
    """
    jitter = rng.choice([0.0, 1e-6, 1e-2]) * rng.normal(size=(n, D))
    direction = random_direction(rng, D)
    rows = np.zeros((n, D))
    if arrangement == "gaussian":
        rows = rng.normal(size=(n, D)) * rng.choice([1.0, 0.1], size=D)
    elif arrangement == "simplex":
        rows = np.eye(n, D) * np.sqrt(n)
    elif arrangement in ("outlier", "outliers"):
        count = 1 if arrangement == "outlier" else max(1, min(few, n - 1))
        rows[:count] = direction * np.sqrt(n)
    elif arrangement == "two clusters":
        rows[: int(rng.integers(1, max(2, n)))] = direction
    elif arrangement == "three clusters":
        count = max(1, min(few, n // 2))
        rows[:count], rows[-count:] = -direction, direction
    elif arrangement == "heavy tails":
        rows = rng.standard_t(1.5, size=(n, D)) / 3.0
    elif arrangement == "line":
        rows = np.linspace(-1, 1, n)[:, None] * direction
    else:
        for c in range(D):
            rows[rng.permutation(n)[: max(1, (n - 1) // 2)], c] = 1.0
    return rows + jitter


def random_direction(rng: np.random.Generator, D: int) -> np.ndarray:
    """Return a random unit vector."""
    vector = rng.normal(size=D)
    return vector / np.linalg.norm(vector)


def byzantine_rows(rng: np.random.Generator, honest: np.ndarray, count: int) -> np.ndarray:
    """Return `[count, D]` Byzantine messages against these honest ones `[h, D]`, of a random kind."""
    D = honest.shape[1]
    mean = honest.mean(0)
    spread = np.sqrt(((honest - mean) ** 2).sum(1).mean()) + 1e-12
    kind = rng.choice(["ray", "at outlier", "opposite outlier", "copy", "cloud", "far", "beside pair"])
    scale = spread * 10.0 ** rng.uniform(-1, 1.5)
    outlier = honest[np.argmax(((honest - mean) ** 2).sum(1))]
    if kind == "ray":
        row = mean + scale * random_direction(rng, D)
    elif kind == "at outlier":
        row = mean + (outlier - mean) * 10.0 ** rng.uniform(-1, 0.7)
    elif kind == "opposite outlier":
        row = mean - (outlier - mean) * 10.0 ** rng.uniform(-1, 0.7)
    elif kind == "copy":
        row = honest[rng.integers(len(honest))]
    elif kind == "cloud":
        return mean + scale * rng.normal(size=(count, D)) / np.sqrt(D)
    elif kind == "far":
        row = mean + spread * 10.0 ** rng.uniform(2, 5) * rng.normal(size=D)
    else:
        a, b = honest[rng.integers(len(honest), size=2)]
        row = a + (a - b) * rng.choice([0.5, 0.99, 1.0, 1.01, 2.0])
    return np.tile(row, (count, 1))


def interleave(rng: np.random.Generator, honest: np.ndarray, byzantine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return messages `[K, D]` and mask `[K]`: Byzantine agents first, last, or anywhere, because ties go by index."""
    K, f = len(honest) + len(byzantine), len(byzantine)
    where = rng.integers(3)
    indices = np.arange(f) if where == 0 else np.arange(K - f, K) if where == 1 else rng.permutation(K)[:f]
    mask = np.zeros(K, bool)
    mask[indices] = True
    messages = np.empty((K, honest.shape[1]))
    messages[mask], messages[~mask] = byzantine, honest
    return messages, mask


def aggregation_inputs(seed: int, count: int, K: int, f: int, D: int) -> tuple[np.ndarray, np.ndarray]:
    """Return messages `[count, 1, K, D]` and masks `[count, K]` for Definition 2.

    One input in eight has fewer than f Byzantine agents, because the definition allows a larger H. One in three is away
    from the origin or at another scale, because the definition depends on neither.
    """
    rng = np.random.default_rng(seed)
    points, masks = [], []
    for i in range(count):
        b = int(rng.integers(0, f)) if i % 8 == 7 else f
        honest = honest_rows(rng, HONEST_ARRANGEMENTS[i % len(HONEST_ARRANGEMENTS)], K - b, D, max(f, 1))
        messages, mask = interleave(rng, honest, byzantine_rows(rng, honest, b))
        if i % 3 == 2:
            direction = random_direction(rng, D)
            messages = messages * rng.choice([1.0, 0.03, 30.0]) + rng.choice([0.0, 10.0, 1e3]) * direction
        points.append(messages[None])
        masks.append(mask)
    return np.stack(points), np.stack(masks)


def agreement_inputs(
    seed: int, count: int, K: int, f: int, D: int, groups: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs for Definition 4.

    Returns:
        Points `[count, 1 + groups, K, D]`: the parameters, and what each group of receivers is sent; masks
        `[count, K]`; pairs of honest receivers `[count, 2]`.
    """
    rng = np.random.default_rng(seed)
    points, masks, pairs = [], [], []
    for i in range(count):
        honest = honest_rows(rng, HONEST_ARRANGEMENTS[i % len(HONEST_ARRANGEMENTS)], K - f, D, f)
        first = byzantine_rows(rng, honest, f)
        # Every second group is sent the mirror image or something unrelated.
        second = 2 * honest.mean(0) - first if rng.random() < 0.5 else byzantine_rows(rng, honest, f)
        messages, mask = interleave(rng, honest, first)
        point = np.repeat(messages[None], 1 + groups, axis=0)
        for group in range(groups):
            point[1 + group][mask] = first if group % 2 == 0 else second
        mean = honest.mean(0)
        ends = np.argsort((honest - mean) @ (honest[0] - mean))[[0, -1]]
        pair = ends if rng.random() < 0.5 and ends[0] != ends[1] else rng.permutation(len(honest))[:2]
        points.append(point)
        masks.append(mask)
        pairs.append(np.flatnonzero(~mask)[pair] if len(honest) > 1 else np.zeros(2, int))
    return np.stack(points), np.stack(masks), np.stack(pairs)
