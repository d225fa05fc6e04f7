"""A client's process: a loop and clocks of its own, which can be held up, put to sleep and killed.

A callback is a function of what the process knows, and it learns of the world only by reading a clock
and by input in the next turn. So a callback that takes long is simulated by letting the process run
`ahead` of true time: its clocks read later, what it writes leaves later, and it gets no turn before true
time has caught up. That way a process can be held up at any clock read, not only between callbacks.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

from aioredlock2._runtime import Runtime
from tests.simulation.loop import SimLoop
from tests.simulation.world import Clock, World

__all__ = ["Process", "SimRuntime"]

TIMER_LATE_S = 1e-6
"""No timer fires early, by whatever float arithmetic."""
BOOT_S, MONOTONIC_S, WALL_S = 50_000.0, 1_000.0, 1_900_000_000.0


class Process:
    """One process with one loop."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        rate: float = 1.0,
        wall_skew: float = 0.0,
        turn_s: float = 50e-6,
        timers_first: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self.boottime = Clock(BOOT_S, rate)
        self._monotonic = Clock(MONOTONIC_S, rate)
        self._wall = Clock(WALL_S + wall_skew)
        self._turn_s = turn_s
        self._turn_at = math.inf
        self._free_at = 0.0
        self._ahead = 0.0
        self._hiccup: tuple[int, float, bool] | None = None
        self._last_writes: int | None = None
        self._stop_after: tuple[str, float] | None = None
        self._stops_for = 0.0
        self._cancellations: list[list[Any]] = []
        self.died_at: float | None = None
        self.stalls: list[tuple[float, float]] = []
        """When it got no turn although it had something to do, in true time."""
        self.mistimed: list[tuple[float, float]] = []
        """Those of them after which a timer may be late: suspends, and stops between the read of a clock
        and the timer that is set by it. The watchdog's next tick makes up for it."""
        self.after_turn: Callable[[], None] = lambda: None
        self.on_death: Callable[[], None] = lambda: None
        self.loop = SimLoop(self.monotonic, self.wake, timers_first=timers_first)

    # Its clocks.

    def now(self) -> float:
        """The true time, as far as this process has got."""
        return self.world.now + self._ahead

    def monotonic(self) -> float:
        """What its timers go by."""
        return self._monotonic.at(self.world.now + self._ahead)

    def read_boottime(self) -> float:
        """What its leases go by; it may be held up just before or just after the read."""
        if self._hiccup is None:
            return self.boottime.at(self.world.now + self._ahead)
        reads, seconds, before = self._hiccup
        self._hiccup = (reads - 1, seconds, before) if reads > 0 else None
        if reads > 0:
            return self.boottime.at(self.now())
        at = self.now()
        self.stalls.append((at, at + seconds))
        self.mistimed.append((at, at + seconds))
        self._ahead += seconds
        return self.boottime.at(self.now() if before else at)

    def wall_clock(self) -> float:
        """Seconds since 1970, as it believes."""
        return self._wall.at(self.now())

    # What happens to it.

    def start(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `coro` in it."""
        return self.loop.create_task(coro)

    def stall(self, seconds: float) -> None:
        """It gets no turn for so long: stopped, or its loop is blocked."""
        at = max(self.now(), self._free_at)
        self.stalls.append((at, at + seconds))
        self._free_at = at + seconds

    def hiccup(self, reads: int, seconds: float, *, before: bool) -> None:
        """It is held up in the middle of a callback, at a clock read that is still to come."""
        self._hiccup = (reads, seconds, before)

    def stall_after(self, verb: str, seconds: float) -> None:
        """It is stopped right after the next such command: the answers come while it stands still."""
        self._stop_after = (verb, seconds)

    def has_sent(self, verb: str) -> None:
        """A command has left."""
        if self._stop_after is not None and self._stop_after[0] == verb:
            self._stops_for, self._stop_after = self._stop_after[1], None

    def suspend(self, seconds: float) -> None:
        """Its machine sleeps: timers stand still, boottime goes on."""
        self.stall(seconds)
        self.mistimed.append(self.stalls[-1])
        self._monotonic.stand_still(seconds)

    def freeze_clocks(self, seconds: float) -> None:
        """Its virtual machine is paused: no clock of its own tells."""
        self.suspend(seconds)
        self.boottime.stand_still(seconds)

    def crash(self) -> None:
        """It ends, at once."""
        if self.died_at is None:
            self.died_at = self.now()
            self.loop.close()
            self.on_death()

    def crash_after_writes(self, writes: int) -> None:
        """It ends right after so many more writes, in the middle of whatever it does."""
        self._last_writes = writes

    def calm(self) -> None:
        """What was planned to befall it does not."""
        self._hiccup = self._last_writes = self._stop_after = None

    def may_write(self) -> bool:
        """Called for each write; False for one that it doesn't live to see."""
        if self._last_writes is None:
            return self.died_at is None
        self._last_writes -= 1
        return self._last_writes >= 0

    def cancel_in(self, turns: int, task: asyncio.Task[Any]) -> None:
        """Cancel `task` after so many turns of the loop."""
        self._cancellations.append([turns, task])

    # Its turns.

    def wake(self, at: float | None = None) -> None:
        """See to it that it gets a turn, now or then."""
        at = max(self.world.now if at is None else at, self._free_at)
        if at < self._turn_at and self.died_at is None:
            self._turn_at = at
            self.world.at(at, self._turn_due, at)

    def _turn_due(self, at: float) -> None:
        if at != self._turn_at or self.died_at is not None:
            return
        self._turn_at = math.inf
        if at < self._free_at:
            self.wake()
            return
        self.loop.turn()
        self.after_turn()
        self._free_at = self.now() + self._turn_s
        self._ahead = 0.0
        if self._stops_for:
            self.stall(self._stops_for)
            self._stops_for = 0.0
        if self._last_writes is not None and self._last_writes < 0:
            self.crash()
            return
        self._cancel_due()
        timer = self.loop.next_timer()
        if not self.loop.is_idle:
            self.wake()
        elif timer is not None:
            self.wake(self._monotonic.when(timer) + TIMER_LATE_S)

    def _cancel_due(self) -> None:
        if not self._cancellations:
            return
        for entry in self._cancellations:
            entry[0] -= 1
            if entry[0] < 0:
                entry[1].cancel()
        self._cancellations = [entry for entry in self._cancellations if entry[0] >= 0]


class SimRuntime(Runtime):
    """Clock, randomness and tokens of a simulated process."""

    __slots__ = ("_on_token", "_tokens")

    def __init__(self, process: Process, seed: object, on_token: Callable[[bytes], None]) -> None:
        self.clock = process.read_boottime
        self.wall_clock = process.wall_clock
        self._rng = random.Random(f"{seed} jitter")
        self._tokens = random.Random(f"{seed} tokens")
        self._on_token = on_token

    def new_token(self) -> bytes:
        """A token that is the same in each run."""
        token = self._tokens.randbytes(16).hex().encode()
        self._on_token(token)
        return token
