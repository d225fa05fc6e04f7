"""Holders to be killed, for `Child`: ``python -m tests.support.doomed churn|extend URL...``."""

from __future__ import annotations

import asyncio
import random
import sys

from aioredlock2 import AcquireError, LeaseError, Redlock
from tests.support.connected import connected

__all__ = ["TTL_S"]

TTL_S = 1.0
TASKS = 20


async def churn(redlock: Redlock) -> None:
    """Acquire, extend, lose and release all the time, under many names."""

    async def work(name: str) -> None:
        while True:
            try:
                async with redlock(name, ttl=TTL_S, on_lost="notify") as lease:
                    await lease.extend(random.uniform(0.5, 2) * TTL_S)
                    await asyncio.sleep(random.choice([0, 0, 0.002, 0.5]))
            except (AcquireError, LeaseError):
                continue

    print("ready")
    await asyncio.gather(*(work(f"churn:{task}") for task in range(TASKS)))


async def extend(redlock: Redlock) -> None:
    """Extend a lease twenty times, then hold it without renewing."""
    lease = await redlock("extended", ttl=TTL_S, renew=False).acquire()
    for _ in range(20):
        await lease.extend()
    print("extended")
    await lease.lost()


async def main(program: str, urls: list[str]) -> None:
    """Run one of the programs above."""
    async with connected(urls, node_timeout=0.1) as redlock:
        await {"churn": churn, "extend": extend}[program](redlock)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
