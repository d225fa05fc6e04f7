"""Pauses between rounds: never none, never all alike, never longer than promised."""

from __future__ import annotations

import math
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aioredlock2 import ConfigurationError, RetryPolicy

FLOORS = st.floats(1e-4, 1.0)
POLICIES = st.builds(
    lambda floor, above, growth, jitter: RetryPolicy(floor, floor + above, growth, jitter),
    FLOORS,
    st.floats(0, 5),
    st.floats(1, 10),
    st.floats(0, 1),
)
ROUNDS = st.integers(0, 10_000)


@given(policy=POLICIES, n=ROUNDS, took=st.floats(0, 1), seed=st.integers())
def test_f021_a_pause_is_never_below_the_floor_nor_above_the_cap(
    policy: RetryPolicy, n: int, took: float, seed: int
) -> None:
    """A slow round stretches the pause: rivals need as long for theirs."""
    pause = policy.pause(n, took, random.Random(seed))
    slack = 1e-9
    assert pause >= policy.floor - slack
    assert pause >= 2 * took
    assert pause <= max(policy.cap, 2 * took) + slack


@given(policy=POLICIES, n=ROUNDS, seed=st.integers())
def test_the_span_grows_from_the_first_pause_on(policy: RetryPolicy, n: int, seed: int) -> None:
    """The n-th pause is at most floor * growth ** (n + 1)."""
    assume(n < 60)
    top = policy.floor * policy.growth ** (n + 1)
    assert policy.pause(n, 0.0, random.Random(seed)) <= top + 1e-9


@given(policy=POLICIES, n=st.integers(0, 50))
def test_without_jitter_it_is_the_upper_end(policy: RetryPolicy, n: int) -> None:
    exact = RetryPolicy(policy.floor, policy.cap, policy.growth, jitter=0)
    expected = min(exact.cap, exact.floor * exact.growth ** (n + 1))
    assert exact.pause(n, 0.0, random.Random(0)) == pytest.approx(expected)


def test_f022_each_pause_is_drawn_afresh_over_the_whole_span() -> None:
    """Rivals in lockstep split the votes for ever: a quarter of all draws falls in each quarter."""
    policy, rng = RetryPolicy(), random.Random(1)
    pauses = [policy.pause(20, 0.0, rng) for _ in range(4000)]
    span = policy.cap - policy.floor
    quarters = [0] * 4
    for pause in pauses:
        quarters[min(3, math.floor((pause - policy.floor) / span * 4))] += 1
    assert all(850 < count < 1150 for count in quarters), quarters


def test_a_very_late_round_does_not_overflow() -> None:
    policy = RetryPolicy(growth=10.0)
    assert policy.floor <= policy.pause(10**9, 0.0, random.Random(0)) <= policy.cap


@pytest.mark.parametrize("growth", [1e5, 1e20, 1e300])
def test_a_growth_that_is_large_itself_does_not_overflow_either(growth: float) -> None:
    policy = RetryPolicy(growth=growth, jitter=0)
    assert [policy.pause(n, 0, random.Random(0)) for n in (0, 14, 50, 60, 10_000)] == [0.1] * 5


def test_the_default_floor_and_cap_are_as_documented() -> None:
    policy = RetryPolicy()
    assert (policy.floor, policy.cap, policy.growth, policy.jitter) == (0.01, 0.1, 2.0, 1.0)


def test_durations_may_be_timedeltas() -> None:
    """Like every duration of the public API."""
    given = RetryPolicy(floor=timedelta(milliseconds=20), cap=timedelta(milliseconds=200))  # type: ignore[arg-type]
    plain = RetryPolicy(floor=0.02, cap=0.2)
    assert given.pause(3, 0.0, random.Random(5)) == plain.pause(3, 0.0, random.Random(5))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"floor": 0}, "floor=0"),
        ({"floor": -1.0}, "floor=-1.0"),
        ({"floor": math.nan}, "floor=nan"),
        ({"cap": math.inf}, "cap=inf"),
        ({"cap": 0.001}, "cap=0.001: must be at least floor=0.01"),
        ({"growth": 0.5}, "growth=0.5: must be 1 or more, and finite"),
        ({"growth": math.inf}, "growth=inf"),
        ({"growth": math.nan}, "growth=nan"),
        ({"jitter": -0.1}, "jitter=-0.1: must be from 0 to 1"),
        ({"jitter": 1.1}, "jitter=1.1"),
        ({"jitter": math.nan}, "jitter=nan"),
    ],
)
def test_a_wrong_value_is_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy(**wrong)
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["floor", "cap", "growth", "jitter"])
@pytest.mark.parametrize("value", ["1", None, True, 1j])
def test_a_wrong_type_is_a_type_error(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        RetryPolicy(**{name: value})  # type: ignore[arg-type]
