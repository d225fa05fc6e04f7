"""The table of a lease's life: nothing is missing in it, and lost is final."""

from __future__ import annotations

import itertools

import pytest

from aioredlock2._core import lease_state
from aioredlock2._core.lease_state import LeaseEvent, LeaseState, after

HELD, LOST, RELEASED = LeaseState
PAIRS = list(itertools.product(LeaseState, LeaseEvent))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_f124_every_event_in_every_state_has_a_result(state: LeaseState, event: LeaseEvent) -> None:
    assert after(state, event) in LeaseState


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_the_table_in_the_text_is_the_table_in_force(state: LeaseState, event: LeaseEvent) -> None:
    assert lease_state.__doc__ is not None
    rows = [line.split() for line in lease_state.__doc__.splitlines()]
    documented = {(row[0], row[1]): row[2] for row in rows if len(row) >= 3}
    assert documented[state.name, event.value] == after(state, event).name


@pytest.mark.parametrize("end", [LOST, RELEASED])
@pytest.mark.parametrize("event", LeaseEvent)
def test_h41_what_is_over_stays_as_it_ended(end: LeaseState, event: LeaseEvent) -> None:
    assert after(end, event) is end


def test_a_held_lease_ends_by_loss_or_release_only() -> None:
    assert after(HELD, LeaseEvent.RENEWED) is HELD
    assert after(HELD, LeaseEvent.LOST) is LOST
    assert after(HELD, LeaseEvent.RELEASED) is RELEASED
