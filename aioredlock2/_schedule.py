"""When which lease needs attention: slots of equal due times in a heap, for one timer to follow.

A lease that is released long before its renewal is due costs a dict entry, set and removed, and
nothing else: the heap holds slots, not leases.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from aioredlock2._hold import Hold

__all__ = ["Schedule"]


class Schedule:
    """Due times of holds."""

    __slots__ = ("_heap", "_slots")

    def __init__(self) -> None:
        self._heap: list[float] = []
        self._slots: dict[float, dict[Hold, None]] = {}

    def put(self, hold: Hold, due_at: float, now: float) -> None:
        """Set or move `hold`'s due time: rounded down to its slot, or exact if that has passed."""
        slot = math.floor(due_at / hold.terms.slot) * hold.terms.slot
        if slot > now:
            due_at = slot
        if hold.due_at == due_at:
            return
        self.remove(hold)
        holds = self._slots.get(due_at)
        if holds is None:
            holds = self._slots[due_at] = {}
            heapq.heappush(self._heap, due_at)
        holds[hold] = None
        hold.due_at = due_at

    def remove(self, hold: Hold) -> None:
        """Forget `hold`."""
        if hold.due_at is not None:
            self._slots[hold.due_at].pop(hold, None)
            hold.due_at = None

    def due(self, now: float) -> Iterator[Hold]:
        """Take out what is due."""
        while self._heap and self._heap[0] <= now:
            holds = self._slots.pop(heapq.heappop(self._heap))
            for hold in holds:
                hold.due_at = None
            yield from holds

    def next_due_at(self) -> float | None:
        """The earliest due time of any hold."""
        # Slots whose holds are gone are dropped here, when they have come to the head.
        while self._heap and not self._slots[self._heap[0]]:
            del self._slots[heapq.heappop(self._heap)]
        return self._heap[0] if self._heap else None
