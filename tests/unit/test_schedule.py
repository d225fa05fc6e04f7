"""Due times in slots, against a plain dictionary."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._hold import Hold
from aioredlock2._schedule import Schedule
from tests.support.holds import make_hold

SLOT_S = 10 / 64
ROUNDING_S = 1e-9
"""What a slot's beginning may be off by, in floats."""
NOW = 1000.0


def put(schedule: Schedule, due_at: float, now: float = NOW) -> Hold:
    hold = make_hold(10)
    schedule.put(hold, due_at, now)
    return hold


def test_an_empty_schedule_has_nothing_due() -> None:
    schedule = Schedule()
    assert schedule.next_due_at() is None
    assert list(schedule.due(math.inf)) == []


def test_a_due_time_is_rounded_down_to_its_slot() -> None:
    schedule = Schedule()
    hold = put(schedule, NOW + 3.3)
    assert hold.due_at is not None
    assert NOW + 3.3 - SLOT_S < hold.due_at <= NOW + 3.3
    assert (hold.due_at / SLOT_S).is_integer()
    assert schedule.next_due_at() == hold.due_at


def test_a_due_time_within_the_running_slot_is_exact() -> None:
    """A deadline that is close must not be missed for the sake of company, nor come early."""
    schedule = Schedule()
    now = math.floor(NOW / SLOT_S) * SLOT_S + SLOT_S / 2
    hold = put(schedule, now + SLOT_S / 4, now)
    assert hold.due_at == now + SLOT_S / 4


def test_f059_renewals_of_one_slot_come_out_together() -> None:
    schedule = Schedule()
    start = math.ceil((NOW + 3) / SLOT_S) * SLOT_S
    holds = [put(schedule, start + SLOT_S * n / 1000) for n in range(1000)]
    assert len(schedule._heap) == 1
    due_at = schedule.next_due_at()
    assert due_at == start
    assert list(schedule.due(due_at)) == holds
    assert all(hold.due_at is None for hold in holds)
    assert schedule.next_due_at() is None


def test_nothing_is_due_before_its_time() -> None:
    schedule = Schedule()
    hold = put(schedule, NOW + 3)
    assert hold.due_at is not None
    assert list(schedule.due(math.nextafter(hold.due_at, 0))) == []
    assert list(schedule.due(hold.due_at)) == [hold]


def test_what_is_removed_is_not_due() -> None:
    schedule = Schedule()
    first, second = put(schedule, NOW + 1), put(schedule, NOW + 2)
    schedule.remove(first)
    assert first.due_at is None
    assert schedule.next_due_at() == second.due_at
    schedule.remove(first)
    assert list(schedule.due(NOW + 10)) == [second]


def test_a_hold_is_in_one_place_only() -> None:
    schedule = Schedule()
    hold = put(schedule, NOW + 1)
    schedule.put(hold, NOW + 5, NOW)
    schedule.put(hold, NOW + 3, NOW)
    assert list(schedule.due(NOW + 10)) == [hold]


def test_slots_whose_holds_are_gone_leave_the_heap() -> None:
    """A million locks released long before their renewal is due leave nothing behind."""
    schedule = Schedule()
    for number in range(1000):
        schedule.remove(put(schedule, NOW + number % 7))
    assert schedule.next_due_at() is None
    assert schedule._heap == []
    assert schedule._slots == {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.floats(0, 20)),
        st.tuples(st.just("remove"), st.integers(0, 5), st.just(0.0)),
        st.tuples(st.just("pass"), st.just(0), st.floats(0, 5)),
    ),
    max_size=50,
)


@given(STEPS, st.lists(st.sampled_from([0.1, 1.0, 10.0, 60.0]), min_size=6, max_size=6))
def test_it_agrees_with_a_plain_dictionary(
    steps: list[tuple[str, int, float]], ttls: list[float]
) -> None:
    """Each hold comes out once, at most a slot before its time and never after it."""
    schedule, now = Schedule(), NOW
    holds = [make_hold(ttl) for ttl in ttls]
    wanted: dict[Hold, float] = {}
    for step, number, value in steps:
        hold = holds[number]
        if step == "put":
            schedule.put(hold, now + value, now)
            wanted[hold] = now + value
        elif step == "remove":
            schedule.remove(hold)
            wanted.pop(hold, None)
        else:
            now += value
            for due in schedule.due(now):
                assert wanted.pop(due) - due.terms.slot <= now
            assert all(due_at > now - ROUNDING_S for due_at in wanted.values())
        for each, due_at in wanted.items():
            assert each.due_at is not None
            assert each.due_at <= due_at + ROUNDING_S
        soonest = schedule.next_due_at()
        assert soonest == min((h.due_at for h in wanted if h.due_at is not None), default=None)


@pytest.mark.parametrize("ttl", [0.1, 1.0, 10.0, 3600.0])
def test_slots_of_equal_ttls_begin_at_the_same_instants(ttl: float) -> None:
    """So that renewals of locks acquired at different times still leave together."""
    one, other = make_hold(ttl), make_hold(ttl)
    schedule = Schedule()
    schedule.put(one, NOW + ttl + 0.3 * one.terms.slot, NOW)
    schedule.put(other, NOW + ttl + 0.3 * one.terms.slot, NOW + ttl / 2)
    assert one.due_at == other.due_at
