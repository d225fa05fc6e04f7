"""One contending process: takes the lock, stays inside for a moment, leaves, again and again.

    python -m aioredlock2._demo.worker '{"number": 1, ...}'

It ends on SIGTERM, and when its standard input ends: that is a pipe from the demo, so that no
worker outlives it, however it went. Started by `crew`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from aioredlock2 import LeaseLost, Redlock
from aioredlock2._demo.clock import now
from aioredlock2._demo.plan import spare
from aioredlock2._demo.record import Entered, Left, Recorder, Stopped
from aioredlock2._demo.settings import RESOURCE

__all__ = ["Orders"]

SHORT_S = (0.002, 0.012)
PAUSE_S = (0.005, 0.045)
"""Between two sections, doing something else."""
LONG_TTLS = 1.4
"""A long section lasts so many ttls: it needs renewals, which is what it is there to show."""
LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a worker is told at its start."""

    number: int
    urls: list[str]
    ttl: float
    record: str
    long_after: float
    """Seconds until this worker's first long section."""
    long_every: float
    """Seconds from one long section to the next."""

    def to_argument(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> Self:
        """The orders `to_argument` has written."""
        return cls(**json.loads(argument))


class _Worker:
    def __init__(self, orders: Orders, recorder: Recorder) -> None:
        self._orders = orders
        self._recorder = recorder
        self._who = {"worker": orders.number, "pid": os.getpid()}
        self._random = random.Random()  # noqa: S311  (nothing secret)
        self._asked_at: float | None = None
        self._long_at = now() + orders.long_after

    async def run(self) -> None:
        """Work until cancelled."""
        orders = self._orders
        try:
            async with Redlock(orders.urls, ttl=orders.ttl, restart_guard=True) as redlock:
                await self._until_a_quorum_votes(redlock)
                while True:
                    await self._one_section(redlock)
                    await asyncio.sleep(self._random.uniform(*PAUSE_S))
        except asyncio.CancelledError:
            at = now()
            waited = 0.0 if self._asked_at is None else at - self._asked_at
            self._recorder.write(Stopped(at=at, waited=waited, **self._who))
            raise

    async def _until_a_quorum_votes(self, redlock: Redlock) -> None:
        """Waiting for servers to start is no waiting for the lock."""
        needed = len(self._orders.urls) - spare(len(self._orders.urls))
        while sum(node.state.value == "up" for node in redlock.nodes) < needed:
            await asyncio.sleep(LOOK_S)

    async def _one_section(self, redlock: Redlock) -> None:
        self._asked_at = now()
        # Loss is no accident here: the body is cancelled, its end recorded, and the next one waits.
        with contextlib.suppress(LeaseLost):
            async with redlock(RESOURCE, wait=None) as lease:
                entered_at = now()
                waited, self._asked_at = entered_at - self._asked_at, None
                self._recorder.write(
                    Entered(
                        at=entered_at, waited=waited, valid_until=lease.valid_until, **self._who
                    )
                )
                try:
                    await asyncio.sleep(self._length(entered_at))
                finally:
                    self._recorder.write(
                        Left(
                            at=now(),
                            valid_until=lease.valid_until,
                            is_lost=lease.is_lost,
                            **self._who,
                        )
                    )

    def _length(self, at: float) -> float:
        if at < self._long_at:
            return self._random.uniform(*SHORT_S)
        self._long_at = at + self._orders.long_every
        return self._orders.ttl * LONG_TTLS


async def _main(orders: Orders) -> None:
    work = asyncio.current_task()
    assert work is not None  # noqa: S101  (a coroutine that runs has a task)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_reader(sys.stdin)
        loop.remove_signal_handler(signal.SIGTERM)
        work.cancel()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_reader(sys.stdin, stop)
    with Recorder(Path(orders.record)) as recorder, contextlib.suppress(asyncio.CancelledError):
        await _Worker(orders, recorder).run()


if __name__ == "__main__":
    asyncio.run(_main(Orders.from_argument(sys.argv[1])))
