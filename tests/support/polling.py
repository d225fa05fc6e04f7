"""Waiting for what there is no event for: another process, a server's keys, a relay's bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ["until"]

PAUSE_S = 0.002

T = TypeVar("T")


async def until(condition: Callable[[], T], within: float = 5.0) -> T:
    """What *condition* returns once that is true; fails after *within* seconds.

    The loop runs meanwhile. The bound is for a loaded machine: it is not part of what is tested.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not (result := condition()):
        if loop.time() >= deadline:
            raise AssertionError(f"still {result!r} after {within:g} s: {condition}")
        await asyncio.sleep(PAUSE_S)
    return result
