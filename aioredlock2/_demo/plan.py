"""Which fault comes next.

A cycle is a list of steps that begins and ends with every node whole. In between never more nodes
are broken than the quorum can spare: dead, frozen, or back from the dead and still in their restart
guard, where they don't vote. Two nodes of five; of three or four nodes one, so that they are killed
and frozen in turn; with one or two nodes none, and only holders are killed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

__all__ = ["Action", "Step", "cycle", "guard_seconds", "spare"]

BEAT_S = 0.6
"""Time to see what a fault does before the next one comes."""


class Action(enum.Enum):
    """One thing that can be done to the fleet."""

    KILL_NODE = "kill node"
    FREEZE_NODE = "freeze node"
    KILL_HOLDER = "kill holder"
    RESTART_NODE = "restart node"
    THAW_NODE = "thaw node"
    SETTLE = "settle"
    """Wait until every node votes again."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and how long to wait before it."""

    pause: float
    action: Action
    node: int | None = None
    """Index of the node, where it is about one."""


def spare(nodes: int) -> int:
    """How many nodes may be broken while the others are still a quorum."""
    return nodes - (nodes // 2 + 1)


def guard_seconds(ttl: float) -> float:
    """How long a restarted node may be kept from voting, at most.

    The guard is the ttl and a second. A server tells its age in whole seconds, cut off on both
    sides, so that it can take one more until it is believed; and a little for everybody to notice.
    """
    return ttl + 1 + 1 + 0.25


def cycle(nodes: int, ttl: float, rng: random.Random) -> list[Step]:
    """One round of faults, on nodes drawn anew each time."""
    over_a_gap = ttl + BEAT_S
    holder_dies = Step(BEAT_S, Action.KILL_HOLDER)
    if spare(nodes) == 0:
        return [holder_dies, Step(over_a_gap, Action.SETTLE)]
    dead, frozen = rng.sample(range(nodes), 2)
    kill, freeze = Step(BEAT_S, Action.KILL_NODE, dead), Step(BEAT_S, Action.FREEZE_NODE, frozen)
    restart = Step(over_a_gap, Action.RESTART_NODE, dead)
    settle = Step(BEAT_S, Action.SETTLE)
    if spare(nodes) == 1:
        thaw = Step(over_a_gap, Action.THAW_NODE, frozen)
        return [kill, holder_dies, restart, settle, freeze, holder_dies, thaw, settle]
    thaw = Step(BEAT_S, Action.THAW_NODE, frozen)
    return [kill, freeze, holder_dies, restart, thaw, holder_dies, settle]
