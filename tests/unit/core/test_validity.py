"""How long a round is worth something: always from before its first byte left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._core.terms import LockTerms
from aioredlock2._core.validity import valid_until

TTLS = st.floats(0.1, 1e6)
FACTORS = st.floats(0, 0.5)


def test_it_is_the_ttl_less_drift_from_the_start_of_the_round() -> None:
    terms = LockTerms.of(10, drift_factor=0.01, node_timeout=None)
    assert valid_until(1000.0, terms) == pytest.approx(1000 + 10 - 0.1 - 0.002)


@given(started_at=st.floats(0, 1e9), ttl=TTLS, factor=FACTORS)
def test_h04_it_ends_before_the_nodes_may_drop_the_key(
    started_at: float, ttl: float, factor: float
) -> None:
    """No node executes the SET before `started_at`, so none drops the key before started_at + ttl_ms.

    The margin is what a node's clock may gain meanwhile.
    """
    terms = LockTerms.of(ttl, drift_factor=factor, node_timeout=None)
    soonest = started_at + terms.ttl_ms / 1000
    margin = soonest - valid_until(started_at, terms)
    rounding = 1e-6 + started_at * 1e-12
    assert margin >= ttl * factor + 0.002 - rounding
    assert margin <= ttl * factor + 0.002 + 0.001 + rounding


@given(first=st.floats(0, 1e6), later=st.floats(0, 1e6), ttl=TTLS)
def test_a_round_that_began_later_lasts_longer(first: float, later: float, ttl: float) -> None:
    terms = LockTerms.of(ttl, drift_factor=0.01, node_timeout=None)
    early, late = sorted((first, later))
    assert valid_until(early, terms) <= valid_until(late, terms)
