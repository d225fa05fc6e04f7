"""A lean asyncio loop that is driven turn by turn: ready callbacks, timers, tasks, and nothing else.

It keeps the order of asyncio's own: what was ready before, then input, then timers (or, like uvloop,
timers before input), each turn running only what was ready when it began.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

__all__ = ["SimLoop"]

Ts = TypeVarTuple("Ts")


class SimLoop(asyncio.BaseEventLoop):
    """One process' loop. `clock` drives its timers; `wake` is called when there is something to do."""

    def __init__(
        self, clock: Callable[[], float], wake: Callable[[], None], *, timers_first: bool
    ) -> None:
        self._turning = False
        super().__init__()
        self._clock = clock
        self._wake = wake
        self._timers_first = timers_first
        self._ready: deque[asyncio.Handle] = deque()
        self._arrived: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self.heard: list[str] = []
        """What its exception handler was told."""

    # Driven from outside.

    def arrive(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Input: it is read in the next turn."""
        self._arrived.append(asyncio.Handle(callback, args, self))
        self._wake()

    def turn(self) -> None:
        """One turn of the loop."""
        if self._timers_first:
            self._take_timers()
        self._ready.extend(self._arrived)
        self._arrived.clear()
        if not self._timers_first:
            self._take_timers()
        ready = self._ready
        self._turning = True
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
            self._turning = False

    def _take_timers(self) -> None:
        timers = self._timers
        now = self._clock()
        while timers and (timers[0][0] <= now or timers[0][2].cancelled()):
            self._ready.append(heapq.heappop(timers)[2])

    @property
    def is_idle(self) -> bool:
        """True if nothing happens before the next timer or input."""
        return not (self._ready or self._arrived)

    def next_timer(self) -> float | None:
        """When the next timer is due, by the loop's clock."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    # What asyncio and the library ask.

    def time(self) -> float:
        return self._clock()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._turning:
            self._wake()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._clock() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        if not self._turning:
            self._wake()
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.heard.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._turning

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
