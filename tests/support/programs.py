"""Programs for `Child`: ``python -m tests.support.programs NAME URL...``.

Each is a plain user of the library, and prints what happened to it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aioredlock2 import AcquireError, LeaseLost
from tests.support.connected import connected

Program = Callable[[list[str]], Coroutine[Any, Any, None]]


async def hold(urls: list[str]) -> None:
    """Hold "x" with a ttl of 0.8 s until it is lost."""
    async with connected(urls, node_timeout=0.1) as redlock:
        try:
            async with redlock("x", ttl=0.8):
                print("held")
                await asyncio.Event().wait()
        except LeaseLost:
            print("lost")


async def acquire_once(urls: list[str]) -> None:
    """Told to, ask for "x" with a ttl of 1 s in one round; print the error's type, or "held"."""
    async with connected(urls, node_timeout=0.45) as redlock:
        print("ready")
        await asyncio.to_thread(sys.stdin.readline)
        try:
            lease = await redlock("x", ttl=1, wait=0).acquire()
        except AcquireError as error:
            print(type(error).__name__)
        else:
            print("held")
            await lease.release()


PROGRAMS: dict[str, Program] = {
    "acquire_once": acquire_once,
    "hold": hold,
}

if __name__ == "__main__":
    name, *urls_given = sys.argv[1:]
    asyncio.run(PROGRAMS[name](urls_given))
