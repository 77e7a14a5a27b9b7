"""Structured inputs to begin a search with: honest outliers, clusters, a simplex; liars near, far, in between."""

from __future__ import annotations

import numpy as np

HONEST = ("gaussian", "simplex", "outlier", "outliers", "two", "three", "heavy", "line", "skewed")


def honest_rows(rng: np.random.Generator, kind: str, n: int, D: int, few: int) -> np.ndarray:
    """[n, D] one arrangement of honest messages, of spread about one.

    outlier(s): one, or `few`, away from the rest; two, three: clusters, with `few` at each end and the rest in the
    middle for three; simplex: all equally far from each other (as many as D allows); skewed: just under half in each
    coordinate elsewhere.
    """
    jitter = rng.choice([0.0, 1e-6, 1e-2]) * rng.normal(size=(n, D))
    way = rng.normal(size=D)
    way /= np.linalg.norm(way)
    if kind == "gaussian":
        rows = rng.normal(size=(n, D)) * rng.choice([1.0, 0.1], size=D)
    elif kind == "simplex":
        rows = np.eye(n, D) * np.sqrt(n)
    elif kind in ("outlier", "outliers"):
        count = 1 if kind == "outlier" else max(1, min(few, n - 1))
        rows = np.zeros((n, D))
        rows[:count] = way * np.sqrt(n)
    elif kind == "two":
        count = int(rng.integers(1, max(2, n)))
        rows = np.zeros((n, D))
        rows[:count] = way
    elif kind == "three":
        count = max(1, min(few, n // 2))
        rows = np.zeros((n, D))
        rows[:count], rows[-count:] = -way, way
    elif kind == "heavy":
        rows = rng.standard_t(1.5, size=(n, D)) / 3.0
    elif kind == "line":
        rows = np.linspace(-1, 1, n)[:, None] * way
    else:
        rows = np.zeros((n, D))
        for c in range(D):
            rows[rng.permutation(n)[: max(1, (n - 1) // 2)], c] = 1.0
    return rows + jitter


def lies(rng: np.random.Generator, honest: np.ndarray, count: int) -> np.ndarray:
    """[count, D] one arrangement of Byzantine messages against these honest ones."""
    D = honest.shape[1]
    mean = honest.mean(0)
    spread = np.sqrt(((honest - mean) ** 2).sum(1).mean()) + 1e-12
    kind = rng.choice(["ray", "outlier", "mirror", "copy", "cloud", "far", "beside"])
    scale = spread * 10.0 ** rng.uniform(-1, 1.5)
    far = honest[np.argmax(((honest - mean) ** 2).sum(1))]
    if kind == "ray":
        way = rng.normal(size=D)
        return np.tile(mean + scale * way / np.linalg.norm(way), (count, 1))
    if kind == "outlier":
        return np.tile(mean + (far - mean) * 10.0 ** rng.uniform(-1, 0.7), (count, 1))
    if kind == "mirror":
        return np.tile(mean - (far - mean) * 10.0 ** rng.uniform(-1, 0.7), (count, 1))
    if kind == "copy":
        return np.tile(honest[rng.integers(len(honest))], (count, 1))
    if kind == "cloud":
        return mean + scale * rng.normal(size=(count, D)) / np.sqrt(D)
    if kind == "far":
        return np.tile(mean + spread * 10.0 ** rng.uniform(2, 5) * rng.normal(size=D), (count, 1))
    a, b = honest[rng.integers(len(honest), size=2)]
    return np.tile(a + (a - b) * rng.choice([0.5, 0.99, 1.0, 1.01, 2.0]), (count, 1))


def placed(rng: np.random.Generator, honest: np.ndarray, byzantine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([K, D] messages, [K] mask): liars first, last, or anywhere, since ties go by index."""
    K = len(honest) + len(byzantine)
    how = rng.integers(3)
    mask = np.zeros(K, bool)
    places = np.arange(len(byzantine)) if how == 0 else np.arange(K - len(byzantine), K)
    if how == 2:
        places = rng.permutation(K)[: len(byzantine)]
    mask[places] = True
    messages = np.empty((K, honest.shape[1]))
    messages[mask], messages[~mask] = byzantine, honest
    return messages, mask


def inputs(seed: int, count: int, K: int, f: int, D: int) -> tuple[np.ndarray, np.ndarray]:
    """([B, 1, K, D], [B, K]): inputs for Definition 2.

    One in eight has fewer liars than f, for H may be larger; a third lie away from the origin or at another scale, for
    the definition knows neither.
    """
    rng = np.random.default_rng(seed)
    points, masks = [], []
    for i in range(count):
        b = int(rng.integers(0, f)) if i % 8 == 7 else f
        honest = honest_rows(rng, HONEST[i % len(HONEST)], K - b, D, max(f, 1))
        messages, mask = placed(rng, honest, lies(rng, honest, b))
        if i % 3 == 2:
            way = rng.normal(size=D)
            messages = messages * rng.choice([1.0, 0.03, 30.0]) + rng.choice([0.0, 10.0, 1e3]) * way / np.linalg.norm(
                way
            )
        points.append(messages[None])
        masks.append(mask)
    return np.stack(points), np.stack(masks)


def agreement_inputs(
    seed: int, count: int, K: int, f: int, D: int, told: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([B, 1 + told, K, D], [B, K], [B, 2]): parameters and what `told` receivers hear; mask; two receivers."""
    rng = np.random.default_rng(seed)
    points, masks, pairs = [], [], []
    for i in range(count):
        honest = honest_rows(rng, HONEST[i % len(HONEST)], K - f, D, f)
        first = lies(rng, honest, f)
        # the other half hears the mirror image, or something else altogether
        second = 2 * honest.mean(0) - first if rng.random() < 0.5 else lies(rng, honest, f)
        messages, mask = placed(rng, honest, first)
        point = np.repeat(messages[None], 1 + told, axis=0)
        for r in range(told):
            point[1 + r][mask] = first if r % 2 == 0 else second
        middle = honest.mean(0)
        ends = np.argsort((honest - middle) @ (honest[0] - middle))[[0, -1]]
        pair = ends if rng.random() < 0.5 and ends[0] != ends[1] else rng.permutation(len(honest))[:2]
        points.append(point)
        masks.append(mask)
        pairs.append(np.flatnonzero(~mask)[pair] if len(honest) > 1 else np.zeros(2, int))
    return np.stack(points), np.stack(masks), np.stack(pairs)
