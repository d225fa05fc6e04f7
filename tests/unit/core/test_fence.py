"""The pure rule of the fence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._core.fence import FENCE_MAX, LIFETIME_S, candidate, seed

COUNTERS = st.dictionaries(st.integers(0, 8), st.integers(1, 20), min_size=1, max_size=9)


def test_where_all_agree_nobody_is_behind() -> None:
    wanted = candidate({0: 7, 2: 7, 3: 7})
    assert wanted.fence == 7
    assert wanted.level == {0, 2, 3}
    assert wanted.behind == {}


def test_the_largest_counter_is_the_fence_and_the_others_are_behind_by_the_rest() -> None:
    wanted = candidate({0: 3, 1: 9, 4: 8})
    assert wanted.fence == 9
    assert wanted.level == {1}
    assert wanted.behind == {0: 6, 4: 1}


@given(COUNTERS)
def test_each_known_node_is_level_or_behind(counters: dict[int, int]) -> None:
    """And raising those behind by their gap levels all of them."""
    wanted = candidate(counters)
    assert wanted.level | wanted.behind.keys() == counters.keys()
    assert wanted.level.isdisjoint(wanted.behind)
    assert wanted.level
    for node, counter in counters.items():
        assert counter + wanted.behind.get(node, 0) == wanted.fence


def test_a_seed_is_the_clock_in_microseconds() -> None:
    assert seed(1_800_000_000.25) == 1_800_000_000_250_000


@given(st.floats(1_735_689_600, 7_258_118_399))
def test_h38_whatever_the_clock_counting_from_it_stays_exact_in_doubles(clock: float) -> None:
    """Even a lifetime of a grant per microsecond later."""
    assert 0 < seed(clock) + LIFETIME_S * 1_000_000 < FENCE_MAX


@pytest.mark.parametrize("clock", [0.0, 86_400.0, 1_735_689_599.9, 7_258_118_400.0, 1e18])
def test_h38_a_clock_that_was_never_set_is_refused(clock: float) -> None:
    with pytest.raises(ValueError, match=r"says \d+ s since 1970"):
        seed(clock)
