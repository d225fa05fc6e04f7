"""What is known of one lease: its state, its deadline, and who waits for its end."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._core.lease_state import LeaseEvent, LeaseState
from tests.support.holds import make_hold

DEADLINE = 1000 + 10 - 0.1 - 0.002


def test_it_begins_held_until_the_deadline_of_its_round() -> None:
    hold = make_hold(10, started_at=1000)
    assert hold.state is LeaseState.HELD
    assert hold.held_since == 1000
    assert hold.valid_until == pytest.approx(DEADLINE)
    assert hold.hold_until is None
    assert (hold.key, hold.token) == (b"x", b"token")


def test_it_is_valid_up_to_the_deadline_and_not_at_it() -> None:
    hold = make_hold(10)
    assert hold.is_valid(math.nextafter(hold.valid_until, 0))
    assert not hold.is_valid(hold.valid_until)


@pytest.mark.parametrize("event", [LeaseEvent.LOST, LeaseEvent.RELEASED])
def test_what_is_over_is_not_valid_whatever_the_clock(event: LeaseEvent) -> None:
    hold = make_hold(10)
    assert hold.move(event, "why")
    assert not hold.is_valid(1000)


def test_the_first_reason_stands() -> None:
    hold = make_hold(10)
    assert hold.move(LeaseEvent.LOST, "first")
    assert not hold.move(LeaseEvent.LOST, "second")
    assert not hold.move(LeaseEvent.RELEASED, "third")
    assert not hold.move(LeaseEvent.RENEWED)
    assert (hold.state, hold.reason) == (LeaseState.LOST, "first")


def test_max_hold_bounds_the_first_deadline_too() -> None:
    hold = make_hold(10, started_at=1000, max_hold=5)
    assert hold.hold_until == 1005
    assert hold.valid_until == 1005


@given(st.lists(st.floats(900, 1100)), st.one_of(st.none(), st.floats(0, 60)))
def test_the_deadline_moves_forward_only_and_never_past_max_hold(
    untils: list[float], max_hold: float | None
) -> None:
    hold = make_hold(10, started_at=1000, max_hold=max_hold)
    before = hold.valid_until
    for until in untils:
        hold.counts_until(until)
        assert hold.valid_until >= before
        if max_hold is not None:
            assert hold.valid_until <= 1000 + max_hold
        elif until > before:
            assert hold.valid_until == until
        before = hold.valid_until


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.loop
async def test_everybody_who_waits_is_told_once(lost: bool) -> None:
    hold, loop = make_hold(10), asyncio.get_running_loop()
    waiters = tuple(loop.create_future() for _ in range(3))
    hold.loss_waiters += waiters
    waiters[1].cancel()
    hold.tell(lost)
    hold.tell(not lost)
    assert [waiters[0].result(), waiters[2].result()] == [lost, lost]
    assert hold.loss_waiters == ()
