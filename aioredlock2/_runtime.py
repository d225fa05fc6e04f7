"""The only place that reads time or entropy; tests and simulations pass another one."""

from __future__ import annotations

import functools
import hashlib
import os
import random
import time
from collections.abc import Callable

__all__ = ["Runtime", "digest"]

TOKEN_BYTES = 16


def _suspend_counting_clock() -> Callable[[], float]:
    """The monotonic clock that goes on while the machine sleeps, where the system has one.

    On Linux CLOCK_MONOTONIC, and so the loop's clock, stands still during suspend: a lease would look
    younger than it is. macOS' and Windows' monotonic clocks are the best they have.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return time.monotonic
    return functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class Runtime:
    """Clock, randomness and tokens."""

    __slots__ = ("_rng", "clock", "wall_clock")

    def __init__(self) -> None:
        self.clock = _suspend_counting_clock()
        """Seconds since some fixed instant; counts suspend; steps of the wall clock don't touch it."""
        self.wall_clock = time.time
        """Seconds since 1970. Only fences begin at it; no decision about time is based on it."""
        self._rng: random.Random | None = None

    @property
    def rng(self) -> random.Random:
        """For jitter. Seeded by the operating system at first use, which is after a fork: jitter must
        differ between forked processes, and between those that seed the global generator alike.
        """
        if self._rng is None:
            self._rng = random.Random()  # noqa: S311 - nothing secret comes from it
        return self._rng

    def new_token(self) -> bytes:
        """128 random bits from the operating system as 32 lower-case hex characters."""
        return os.urandom(TOKEN_BYTES).hex().encode()


def digest(token: bytes) -> str:
    """A short name for a token that can be shown: it can't be turned back into the token."""
    return hashlib.sha256(token).hexdigest()[:8]
