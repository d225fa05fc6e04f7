"""What runs under a lock in the unit tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aioredlock2 import Lease, Lock


class BodyError(Exception):
    """What the body raises."""


async def under(lock: Lock, body: Callable[[Lease], Awaitable[object]]) -> None:
    """Run `body` under `lock`."""
    async with lock as lease:
        await body(lease)


async def long(_: Lease) -> None:
    await asyncio.sleep(100)
