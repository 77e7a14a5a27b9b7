"""Who hears whom: graphs of agents as 0/1 matrices, and doubly stochastic weights on them."""

from __future__ import annotations

import numpy as np

from jaxbyz.errors import UsageError

GRAPHS = ("complete", "ring", "torus", "random-regular")


def complete(agents: int) -> np.ndarray:
    """Everybody hears everybody. [K, K] bool, symmetric, empty diagonal, as all graphs here."""
    return ~np.eye(agents, dtype=bool)


def ring(agents: int) -> np.ndarray:
    """Everybody hears the one before and the one after."""
    return _circulant(agents, (1,))


def torus(agents: int) -> np.ndarray:
    """A grid r × c, r·c = K as square as can be, with opposite edges joined: four neighbours each (fewer if r ≤ 2)."""
    rows = max(r for r in range(1, int(agents**0.5) + 1) if agents % r == 0)
    columns = agents // rows
    place = np.arange(agents).reshape(rows, columns)
    adjacency = np.zeros((agents, agents), bool)
    for axis in (0, 1):
        adjacency[place, np.roll(place, 1, axis=axis)] = True
    adjacency |= adjacency.T
    np.fill_diagonal(adjacency, False)
    return adjacency


def random_regular(agents: int, degree: int = 4, seed: int = 0) -> np.ndarray:
    """A connected random graph in which everybody has `degree` neighbours.

    From a circulant graph by random exchanges of two edges' ends (a–b, c–d to a–c, b–d), which keep every degree;
    redone with the next draw should it fall apart.
    """
    if not 0 < degree < agents or agents * degree % 2:
        raise UsageError(
            f"degree={degree} of agents={agents}: between 1 and {agents - 1}, with degree·agents even "
            f"(no graph has an odd number of odd degrees)"
        )
    steps = tuple(range(1, degree // 2 + 1)) + ((agents // 2,) if degree % 2 else ())
    rng = np.random.default_rng(seed)
    adjacency = _circulant(agents, steps)
    for _ in range(100):
        for _ in range(10 * agents * degree):
            edges = np.argwhere(np.triu(adjacency))
            (a, b), (c, d) = edges[rng.integers(len(edges), size=2)]
            if rng.random() < 0.5:
                c, d = d, c
            if len({a, b, c, d}) == 4 and not adjacency[a, c] and not adjacency[b, d]:
                for i, j, joined in ((a, b, False), (c, d, False), (a, c, True), (b, d, True)):
                    adjacency[i, j] = adjacency[j, i] = joined
        if connected(adjacency) or degree == 1:
            return adjacency
    raise UsageError(f"no connected graph of degree={degree} found for agents={agents}")


def graph(name: str, agents: int, *, degree: int = 4, seed: int = 0) -> np.ndarray:
    """A graph by name; `degree` and `seed` are for random-regular."""
    if name == "random-regular":
        return random_regular(agents, degree, seed)
    if name not in GRAPHS:
        raise UsageError(f"graph={name!r} is unknown; known: {', '.join(GRAPHS)}")
    return {"complete": complete, "ring": ring, "torus": torus}[name](agents)


def connected(adjacency: np.ndarray) -> bool:
    """Whether there is a path between any two."""
    reached = np.zeros(len(adjacency), bool)
    reached[:1] = True
    for _ in range(len(adjacency)):
        reached |= adjacency[reached].any(axis=0)
    return bool(reached.all())


def metropolis_weights(adjacency: np.ndarray) -> np.ndarray:
    """W_ij = 1/(1 + max(d_i, d_j)) for neighbours, the rest of each row on the diagonal: symmetric, rows sum to one.

    On the complete graph 1/K everywhere. (Xiao & Boyd 2004.)
    """
    degrees = adjacency.sum(axis=1)
    weights = np.where(adjacency, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    return weights + np.diag(1.0 - weights.sum(axis=1))


def spectral_gap(weights: np.ndarray) -> float:
    """1 − the second largest absolute eigenvalue of W: how fast plain averaging on the graph agrees."""
    values = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(1.0 - (values[-2] if len(values) > 1 else 0.0))


def _circulant(agents: int, steps: tuple[int, ...]) -> np.ndarray:
    adjacency = np.zeros((agents, agents), bool)
    places = np.arange(agents)
    for step in steps:
        adjacency[places, (places + step) % agents] = True
    adjacency |= adjacency.T
    np.fill_diagonal(adjacency, False)
    return adjacency
