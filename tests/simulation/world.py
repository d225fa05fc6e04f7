"""True time, and who runs when: one heap of events for everything that is simulated.

True time is seconds since the start of the simulation. Nobody in it can read it; everybody has a
`Clock` of their own, which runs at a rate of its own and may be stepped. Only the history is in true
time, and so is every verdict.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

__all__ = ["Clock", "World"]


class World:
    """What happens next. Nothing takes time but what is scheduled."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """Call `action` at a true time, or next if that has passed."""
        heapq.heappush(self._events, (when, next(self._numbers), action, args))

    def later(self, delay: float, action: Callable[..., object], *args: Any) -> None:
        """Call `action` in so many seconds."""
        self.at(self.now + delay, action, *args)

    def run(self, until: float) -> None:
        """Let everything happen that is due until then."""
        events = self._events
        while events and events[0][0] <= until:
            when, _, action, args = heapq.heappop(events)
            self.now = max(self.now, when)
            action(*args)
        self.now = until


class Clock:
    """What somebody takes for the time: `start` at true time 0, then `rate` seconds per second."""

    __slots__ = ("_rate", "_start")

    def __init__(self, start: float, rate: float = 1.0) -> None:
        self._start = start
        self._rate = rate

    def at(self, true: float) -> float:
        """What it shows at a true time, by its steps so far."""
        return self._start + true * self._rate

    def when(self, reading: float) -> float:
        """The true time at which it shows `reading`."""
        return (reading - self._start) / self._rate

    def step(self, seconds: float) -> None:
        """Set it forward, or back."""
        self._start += seconds

    def stand_still(self, seconds: float) -> None:
        """It misses so many true seconds."""
        self._start -= seconds * self._rate
