"""How long a node waits, whatever the others do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxbyz.federation.deadlines import ALLOWANCE, CREDIT, FACTOR, SHARE, SILENT_AFTER, Deadlines, Trust


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=40))
def test_deadlines_follow_medians(times):
    deadlines = Deadlines(floor=0.5, cap=20.0)
    for own, quorum in times:
        deadlines.record("kind", own, quorum)
    recent = np.array(times[-16:])
    assert deadlines.longest("kind") == pytest.approx(min(20.0, 0.5 + FACTOR * np.median(recent[:, 0])))
    assert deadlines.allowance("kind") == pytest.approx(min(20.0, ALLOWANCE * np.median(recent[:, 1])))


@settings(max_examples=200)
@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 3)), max_size=300))
def test_the_time_that_a_node_can_cost_is_bounded(lateness):
    """Whenever its messages come, waiting beyond the allowance is at most the credit, the share, and one deadline."""
    trust, allowance, longest = Trust(5, 1), 0.1, 0.5
    cost = elapsed = 0.0
    for late, between in lateness:
        patience = trust.patience(0, allowance, longest)
        in_time, waited = late <= max(patience, allowance), min(late, patience)
        beyond = max(0.0, waited - allowance)
        cost, elapsed = cost + beyond, elapsed + between
        if in_time:
            trust.arrived(0, beyond / longest, between / longest)
            trust.doubt(0)
        else:
            trust.late(0, beyond / longest)
    assert cost <= CREDIT * longest + SHARE / 5 * elapsed + 1e-6


def test_a_silent_node_is_not_waited_for_until_it_speaks():
    trust = Trust(2, 1)
    assert [trust.late(0, 1.0) for _ in range(SILENT_AFTER)] == [False] * (SILENT_AFTER - 1) + [True]
    assert trust.patience(0, 0.1, 1.0) == 0
    assert not trust.arrived(0, 0.0, 0.0)
    assert trust.patience(0, 0.1, 1.0) == pytest.approx(0.1), "after one message it is waited for a little again"
    assert trust.patience(1, 0.1, 1.0) == pytest.approx(1.1)
    rounds = 0
    while not trust.arrived(0, 0.0, 1.0):
        rounds += 1
    assert rounds == pytest.approx(0.5 / (SHARE / 2), abs=1)


def test_a_node_that_is_slow_now_and_then_keeps_its_credit():
    """One deadline missed by half in every two minutes of a federation of 13, with rounds of 0.1 s."""
    trust, longest = Trust(13, 3), 0.5
    for minute in range(30):
        for i in range(1200):
            trust.arrived(0, 0.25 if i == 0 and minute % 2 else 0.0, 0.1 / longest)
        assert not trust.doubt(0)
