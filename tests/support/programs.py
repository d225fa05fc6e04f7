"""Programs for `Child`: ``python -m tests.support.programs NAME URL...``.

Each is a plain user of the library, and prints what happened to it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from aioredlock2 import AcquireError, LeaseLost
from tests.support.clients import patient
from tests.support.connected import connected

Program = Callable[[list[str]], Coroutine[Any, Any, None]]

left_behind: list[object] = []
"""Alive until the interpreter shuts down."""


async def hold(urls: list[str]) -> None:
    """Hold "x" with a ttl of 0.8 s until it is lost."""
    async with connected(urls, node_timeout=0.1) as redlock:
        try:
            async with redlock("x", ttl=0.8):
                print("held")
                await asyncio.Event().wait()
        except LeaseLost:
            print("lost")


async def hold_long(urls: list[str]) -> None:
    """Hold "x" with a ttl of 60 s until SIGTERM or Ctrl-C ends it in good order."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with connected(urls) as redlock, redlock("x", ttl=60):
        print("held")
        await asyncio.Event().wait()


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


async def seeded(urls: list[str]) -> None:
    """Seed the global generator as everybody else does, and hold "seeded" in turn."""
    random.seed(1)
    async with connected(urls) as redlock, redlock("seeded", ttl=60) as lease:
        print(lease.digest)


async def forget_to_close(urls: list[str]) -> None:
    """Use a client properly, but for its end."""
    redlock = patient(urls)
    async with redlock("x"):
        pass
    left_behind.append(redlock)
    print("done")


async def forget_to_release(urls: list[str]) -> None:
    """Leave a lease and its client to the interpreter's shutdown."""
    redlock = patient(urls)
    left_behind.extend([await redlock("x", ttl=2).acquire(), redlock])
    print("done")


PROGRAMS: dict[str, Program] = {
    "acquire_once": acquire_once,
    "forget_to_close": forget_to_close,
    "forget_to_release": forget_to_release,
    "hold": hold,
    "hold_long": hold_long,
    "seeded": seeded,
}

if __name__ == "__main__":
    name, *urls_given = sys.argv[1:]
    asyncio.run(PROGRAMS[name](urls_given))
