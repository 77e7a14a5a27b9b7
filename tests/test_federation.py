"""A federation of processes computes what the simulation computes, and survives nodes that lie, stall and die."""

from __future__ import annotations

import numpy as np
import pytest
from federation_helpers import Threads, simulated, small_config

pytest.importorskip("zmq")

CASES = [
    pytest.param(4, 0, "rfa", "mda"),
    pytest.param(7, 1, "krum", "gda"),
    pytest.param(4, 0, "krum", "gda", marks=pytest.mark.slow),
    pytest.param(4, 0, "rfa", "gda", marks=pytest.mark.slow),
    pytest.param(4, 0, "krum", "mda", marks=pytest.mark.slow),
    pytest.param(7, 1, "rfa", "mda", marks=pytest.mark.slow),
    pytest.param(7, 1, "rfa", "gda", marks=pytest.mark.slow),
    pytest.param(7, 1, "krum", "mda", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("agents", "faults", "aggregator", "agreement"), CASES)
def test_nodes_compute_what_the_simulation_computes(tmp_path, agents, faults, aggregator, agreement):
    config = small_config(agents=agents, byzantine=faults, aggregator=aggregator, agreement=agreement)
    federation = Threads(tmp_path, config).join()
    assert federation.errors == {}
    assert federation.nodes[0].form.iterations >= 20
    np.testing.assert_allclose(federation.parameters(), simulated(config), rtol=0, atol=1e-5)
    assert all(sum(node.inbox.refused.values()) == 0 for node in federation.nodes.values())
