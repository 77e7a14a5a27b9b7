"""Communication graphs as boolean matrices `[K, K]`, symmetric with an empty diagonal, and mixing weights on them."""

from __future__ import annotations

import numpy as np

from jaxbyz.errors import UsageError, check_choice

GRAPHS = ("complete", "ring", "torus", "random-regular")


def complete(agents: int) -> np.ndarray:
    """Return the complete graph."""
    return ~np.eye(agents, dtype=bool)


def ring(agents: int) -> np.ndarray:
    """Return the ring, in which every agent has two neighbours."""
    return _circulant(agents, (1,))


def torus(agents: int) -> np.ndarray:
    """Return an r × c grid with opposite edges joined, r·c = K and as square as possible.

    Every agent has four neighbours, or fewer if r ≤ 2.
    """
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
    """Return a random graph in which every agent has `degree` neighbours; it is connected unless the degree is 1.

    It starts from a circulant graph and swaps the ends of two random edges many times (a–b and c–d become a–c and b–d),
    which preserves all degrees. The swaps are repeated while the result is not connected.
    """
    if not 0 < degree < agents or agents * degree % 2:
        raise UsageError(
            f"degree={degree} with agents={agents}: must be between 1 and {agents - 1}, and degree·agents must be even"
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
    """Return a graph by its name; `degree` and `seed` apply to `random-regular`."""
    if name == "random-regular":
        return random_regular(agents, degree, seed)
    check_choice("graph", name, GRAPHS)
    return {"complete": complete, "ring": ring, "torus": torus}[name](agents)


def connected(adjacency: np.ndarray) -> bool:
    """Return whether there is a path between any two agents."""
    reached = np.zeros(len(adjacency), bool)
    reached[:1] = True
    for _ in range(len(adjacency)):
        reached |= adjacency[reached].any(axis=0)
    return bool(reached.all())


def metropolis_weights(adjacency: np.ndarray) -> np.ndarray:
    """Return the Metropolis weights W_ij = 1/(1 + max(d_i, d_j)) for neighbours of degrees d_i and d_j.

    The diagonal makes every row sum to one. W is symmetric; on the complete graph all entries are 1/K.

    References:
        Xiao and Boyd, Fast linear iterations for distributed averaging, 2004.
    """
    degrees = adjacency.sum(axis=1)
    weights = np.where(adjacency, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    return weights + np.diag(1.0 - weights.sum(axis=1))


def _circulant(agents: int, steps: tuple[int, ...]) -> np.ndarray:
    """Return the graph that joins every agent to those `steps` further along a ring."""
    adjacency = np.zeros((agents, agents), bool)
    places = np.arange(agents)
    for step in steps:
        adjacency[places, (places + step) % agents] = True
    adjacency |= adjacency.T
    np.fill_diagonal(adjacency, False)
    return adjacency
