"""Listed nodes that try to slow, poison or kill the others."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest

pytest.importorskip("zmq")

import federation_faults
from federation_faults import BY_NODE_4, FAULTS
from federation_helpers import Threads, small_config
from federation_insiders import SLOW_DOWNS, Trial

import jaxbyz as jb
from jaxbyz.errors import UsageError
from jaxbyz.federation.options import check_supported
from jaxbyz.federation.programs import build_programs
from jaxbyz.federation.settings import NodeSettings
from jaxbyz.federation.state_vectors import joined, layout_of, to_vector

FIVE = {"agents": 5, "byzantine": 1, "aggregator": "krum", "agreement": "mda", "p": 1.0, "trajectories": 100_000}


@pytest.fixture(scope="module")
def config():
    return small_config(**FIVE)


@pytest.fixture(scope="module")
def five(config):
    """The programs of five nodes that compile quickly."""
    return build_programs(config)


@pytest.mark.parametrize(
    "mode", [*(pytest.param(mode, marks=pytest.mark.slow) for mode in SLOW_DOWNS[:3]), SLOW_DOWNS[3]]
)
def test_a_liar_cannot_slow_the_others_down_for_long(tmp_path, config, five, mode):
    """After its credit is spent, the federation keeps half of its speed. This is compared with itself before."""
    trial = Trial(tmp_path, config, five, floor=0.2)
    for node in trial.nodes.values():  # a full disk, all the time
        node.checkpoints.save = no_space
        node.settings = node.settings._replace(checkpoint_every=5)
    trial.iterate(10)
    quiet = trial.speed(1.0)
    trial.insider.mode = mode
    trial.iterate(50)
    time.sleep(1.0)
    # The theory says 0.52. Other programs may slow a second or two down; a liar that succeeds slows all of them down.
    assert any(trial.speed(1.0) >= quiet / 3 for _ in range(10)), (quiet, trial.lines[-10:])
    assert any("going on without a checkpoint" in line for line in trial.lines)
    for node in trial.nodes.values():
        del node.checkpoints.save
    trial.end()
    assert not any(trial.nodes[i].rejoined for i in range(4))


def no_space(*_):
    raise UsageError("5.npz: cannot be written (No space left on device); nothing was overwritten")


@pytest.mark.slow
@pytest.mark.parametrize("liar", [False, True], ids=["", "and a liar"])
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SLOW_DOWNS])
def test_what_insiders_and_accidents_do_is_over_when_they_end(tmp_path, config, five, monkeypatch, name, liar):
    """Short versions of the trials of `benchmarks/federation/insiders.py`, which measures what they cost."""
    if liar and name in BY_NODE_4:
        pytest.skip("node 4 is the liar already")
    monkeypatch.setattr(federation_faults, "FROZEN_SECONDS", 3.0)
    trial = Trial(tmp_path, config, five, floor=0.2)
    trial.insider.mode = SLOW_DOWNS[3] if liar else "none"
    trial.iterate(10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with FAULTS[name](trial):
        if not (liar and name == "frozen for 30 s"):  # f nodes lie, and one more is gone: nobody can go on
            trial.iterate(10)
        time.sleep(1.0)
    trial.insider.mode = "none"
    trial.iterate(10)
    honest = [trial.nodes[i] for i in range(4)]
    wait_until(lambda: all(node.phase == "running" for node in honest))
    trial.iterate(5)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"
    t = min(node.t for node in honest) - 1
    rows = np.stack([node.record.rows["parameters"][t] for node in honest])
    rows = rows[np.isfinite(rows).all(axis=1)]
    assert len(rows) >= 2 and np.abs(rows - rows[0]).max() < 1e-3, "they heard different messages meanwhile"
    assert not {i for node in honest for i in node.others.evidence.excluded} & {0, 1, 2, 3}
    trial.end()


# Joining


@pytest.fixture(scope="module")
def layout(five):
    return layout_of(five.start)


def offers(layout, count, scale=0.0):
    """Honest offers that differ a little."""
    rng = np.random.default_rng(0)
    true = to_vector(layout.like)
    return [(true * (1 + scale * rng.normal(size=len(true)))).astype(np.float32) for _ in range(count)]


def test_a_joining_node_takes_no_state_that_liars_could_have_chosen(layout):
    sevens = np.full(layout.size, 7, np.float32)
    honest = offers(layout, 3, 1e-5)
    # f liars can be the majority of too few offers: these are not used.
    assert joined(layout, np.stack([honest[0], sevens, sevens]), None, 2) is None
    assert joined(layout, np.stack([honest[0], sevens]), None, 1) is None
    # 2f + 1 offers suffice, and so do f + 1 that agree.
    for found in (np.stack([honest[0], honest[1], sevens]), np.stack(honest[:2])):
        np.testing.assert_allclose(joined(layout, found, None, 1), honest[0], rtol=1e-3, atol=1e-6)


def test_what_few_offers_do_not_agree_on_starts_anew(layout):
    a, b = offers(layout, 2, 1e-5)
    b[-layout.sizes[-1] :] += 1.0
    size = layout.sizes[0]
    got = joined(layout, np.stack([a, b]), None, 1)
    np.testing.assert_array_equal(got[:size], a[:size])
    np.testing.assert_array_equal(got[-layout.sizes[-1] :], to_vector(layout.like)[-layout.sizes[-1] :])
    b[:size] = np.nan
    assert joined(layout, np.stack([a, b]), None, 1) is None


def test_settings_in_which_nobody_could_join_are_refused():
    options = {"agents": 5, "byzantine": 2, "aggregator": "rfa", "agreement": "clipped-gossip"}
    with pytest.raises(UsageError, match=r"2f \+ 1 = 5 other nodes; with agents=5, byzantine is at most 1"):
        check_supported(jb.configuration.resolving.resolve(**options))
    with pytest.raises(UsageError, match="agreement=trimmed-mean tolerates 1"):
        jb.configuration.resolving.resolve(agents=4, byzantine=1)


@pytest.mark.parametrize(
    ("options", "restarted"),
    [
        ({}, [2, 3]),
        pytest.param(
            {"agents": 4, "aggregator": "trimmed-mean", "agreement": "trimmed-mean"}, [2], marks=pytest.mark.slow
        ),
    ],
    ids=["two of five", "one of four"],
)
def test_nodes_join_again_beside_a_liar_that_ignores_them(tmp_path, five, options, restarted):
    """Two honest offers that agree are enough; the disks of the nodes are lost."""

    def deaf(node):
        node.others.service.asked = lambda peer: False

    config = small_config(**{**FIVE, **options})
    K = config.agents
    settings = {i: NodeSettings(start_wait=5.0, floor=0.2) for i in range(K)}
    federation = Threads(tmp_path, config, settings, build_programs(config) if options else five, only=range(K - 1))
    federation.start(K - 1, prepare=deaf)
    wait_until(lambda: federation.nodes[0].t > 10)
    for index in restarted:
        federation.stops[index].set()
    for index in restarted:
        federation.stop(index)
        federation.nodes[index].checkpoints.remove_all()
        del federation.errors[index]
    for index in restarted:
        federation.start(index)
    goal = federation.nodes[0].t + 20
    wait_until(lambda: all(federation.nodes[i].t > goal for i in range(K - 1)))
    assert all(federation.nodes[i].rejoined for i in restarted)
    for stop in federation.stops.values():
        stop.set()
    federation.join(60)


def wait_until(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
