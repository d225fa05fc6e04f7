"""The life of a lease, as a table: every event in every state has a result.

    state     event     -> state
    HELD      renewed      HELD       the deadline moves forward
    HELD      lost         LOST       by vote, by the clock, by max_hold
    HELD      released     RELEASED
    LOST      renewed      LOST       lost is final: it never comes back
    LOST      lost         LOST       told once, the first reason stands
    LOST      released     LOST       the keys are removed as far as possible, the loss stays
    RELEASED  renewed      RELEASED   a late answer changes nothing
    RELEASED  lost         RELEASED   what was given back can't be lost
    RELEASED  released     RELEASED   releasing twice is harmless

A user's call in each state: `extend` works while HELD and raises LeaseLost or LeaseReleased otherwise;
`release` works while HELD, makes one best-effort round when LOST, and repeats its report when RELEASED.
"""

from __future__ import annotations

import enum

__all__ = ["HELD", "LOST", "RELEASED", "LeaseEvent", "LeaseState", "after"]


class LeaseState(enum.StrEnum):
    """Where a lease is in its life."""

    HELD = "held"
    LOST = "lost"
    RELEASED = "released"


HELD, LOST, RELEASED = LeaseState
"""For the hot path: looking a member up in its class takes several times as long."""


class LeaseEvent(enum.StrEnum):
    """What can happen to a lease."""

    RENEWED = "renewed"
    LOST = "lost"
    RELEASED = "released"


_AFTER = {
    (LeaseState.HELD, LeaseEvent.RENEWED): LeaseState.HELD,
    (LeaseState.HELD, LeaseEvent.LOST): LeaseState.LOST,
    (LeaseState.HELD, LeaseEvent.RELEASED): LeaseState.RELEASED,
    (LeaseState.LOST, LeaseEvent.RENEWED): LeaseState.LOST,
    (LeaseState.LOST, LeaseEvent.LOST): LeaseState.LOST,
    (LeaseState.LOST, LeaseEvent.RELEASED): LeaseState.LOST,
    (LeaseState.RELEASED, LeaseEvent.RENEWED): LeaseState.RELEASED,
    (LeaseState.RELEASED, LeaseEvent.LOST): LeaseState.RELEASED,
    (LeaseState.RELEASED, LeaseEvent.RELEASED): LeaseState.RELEASED,
}


def after(state: LeaseState, event: LeaseEvent) -> LeaseState:
    """The state that follows `state` when `event` happens."""
    return _AFTER[state, event]
