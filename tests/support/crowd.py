"""A process full of rivals for `Child`: ``python -m tests.support.crowd TASKS SECTIONS URL...``.

Prints "ready" once it is connected, then "enter leave" per critical section, by the system's
monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from aioredlock2 import Redlock
from tests.support.connected import connected

__all__ = ["NAME", "TTL_S"]

NAME = "crowd"
TTL_S = 10.0
THINK_S_MAX = 0.05


async def work(redlock: Redlock, sections: int) -> None:
    """Enter so many sections, with a little random time after each."""
    for _ in range(sections):
        async with redlock(NAME, ttl=TTL_S, wait=None):
            entered_at = time.monotonic()
            await asyncio.sleep(0)
            print(entered_at, time.monotonic())
        await asyncio.sleep(random.random() * THINK_S_MAX)


async def main(tasks: int, sections: int, urls: list[str]) -> None:
    """Let *tasks* tasks work."""
    async with connected(urls) as redlock:
        print("ready")
        await asyncio.gather(*(work(redlock, sections) for _ in range(tasks)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
