"""Virtual time: a loop whose clock stands still while anything runs, and jumps when nothing can.

A coroutine run here sees an ordinary asyncio loop. When every task waits, the clock goes straight to
the next timer, so an hour of leases takes milliseconds and is the same each time. Three clocks matter:

    loop.time()       drives the timers; stands still while the machine is suspended
    loop.boottime()   what leases are judged by (`VirtualRuntime.clock`): goes on during suspend
    the wall clock    is the boottime clock, counted from 2030: only fences begin at it

`loop.block` lets time pass inside a callback, like code that hogs the loop; `loop.suspend` lets it pass
for the boottime clock only. When nothing is scheduled at all the test would hang: that is `Stuck`.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, cast

from aioredlock2._runtime import Runtime

__all__ = [
    "Stuck",
    "VirtualLoop",
    "VirtualRuntime",
    "in_virtual_time",
    "run",
    "settle",
    "the_loop",
]

P = ParamSpec("P")
T = TypeVar("T")

START_S = 1000.0
BOOT_S = 50_000.0
"""The clocks differ from the start, so that whoever mixes them up is found out. The larger one has the
coarser floats: an instant by it that is not reached yet is always reached by a timer."""
WALL_S = 1_900_000_000.0
TURNS_MAX = 200_000
"""Loop turns without any time passing, after which the loop is taken to spin."""
LAST_TURNS = 3
"""What a task that was told to end may take to end."""


class Stuck(Exception):
    """Nothing is ready and nothing is scheduled, or the loop turns without end in no time."""


class _Jump(selectors.DefaultSelector):
    """Instead of waiting for files, moves the clock to the next timer."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            self.loop.pass_time(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time; for timers, futures and tasks, not for sockets."""

    def __init__(self) -> None:
        self._now = START_S
        self._ahead = BOOT_S - START_S
        self._turns = 0
        selector = _Jump()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """What the timers go by."""
        return self._now

    def boottime(self) -> float:
        """What leases go by."""
        return self._now + self._ahead

    def block(self, seconds: float) -> None:
        """Time passes, as if the running callback took so long."""
        self._now += seconds

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: the boottime clock goes on, the timers don't."""
        self._ahead += seconds

    @property
    def timers(self) -> int:
        """How many timers are set."""
        timers = cast("list[asyncio.TimerHandle]", cast("Any", self)._scheduled)
        return sum(not timer.cancelled() for timer in timers)

    def pass_time(self, timeout: float | None) -> None:
        """Called by the loop when nothing is ready: `timeout` is 0 if something was made so."""
        if timeout == 0:
            self._turns += 1
            if self._turns > TURNS_MAX:
                raise Stuck(f"{TURNS_MAX} loop turns at {self._now}")
            return
        if timeout is None:
            raise Stuck("nothing is ready, nothing is scheduled")
        self._turns = 0
        # Exactly the timer's time: now + (when - now) may be a little less in floats.
        timers = cast("list[asyncio.TimerHandle]", cast("Any", self)._scheduled)
        self._now = max(self._now, timers[0].when())


class VirtualRuntime(Runtime):
    """Clock, randomness and tokens of a simulated client, all from its loop and a seed."""

    def __init__(self, loop: VirtualLoop, seed: object = 0) -> None:
        self.clock = loop.boottime
        self.wall_clock = lambda: WALL_S + loop.boottime()
        self._rng = random.Random(f"{seed} jitter")
        self._tokens = random.Random(f"{seed} tokens")

    def new_token(self) -> bytes:
        """A token that is the same in each run."""
        return self._tokens.randbytes(16).hex().encode()


def run(main: Coroutine[Any, Any, T], *, collect: bool = False) -> T:
    """Run `main` in a loop of its own, and fail if it leaves a task or an unheard exception behind.

    `collect` also collects garbage first, which tells of exceptions nobody retrieved.
    """
    heard: list[dict[str, Any]] = []
    debug = os.environ.get("AIOREDLOCK2_TEST_LOOP") == "debug"
    with asyncio.Runner(debug=debug, loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: heard.append(context))
        result, left = runner.run(_watched(main))
        if collect:
            gc.collect()
    # No assert statements: they would be gone under `python -O`.
    if left:
        raise AssertionError(f"tasks left over: {left}")
    if heard:
        raise AssertionError(f"the loop's exception handler was called: {heard}")
    return result


async def _watched(main: Coroutine[Any, Any, T]) -> tuple[T, list[str]]:
    result = await main
    await settle()
    return result, [repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()}]


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Decorates an async test: it runs by `run`."""

    @functools.wraps(test)
    def in_its_own_loop(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs), collect=True)

    return in_its_own_loop


def the_loop() -> VirtualLoop:
    """The running loop, for a test in virtual time."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise TypeError("this test must run in virtual time")
    return loop


async def settle(turns: int = LAST_TURNS) -> None:
    """Let so many loop turns pass, and no time."""
    for _ in range(turns):
        await asyncio.sleep(0)
