"""The clock of the record: its readings can be compared between all processes of one machine."""

from __future__ import annotations

import time

__all__ = ["now"]

if hasattr(time, "CLOCK_BOOTTIME"):

    def now() -> float:
        """Seconds since the machine started, time asleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # pragma: no cover (no such clock outside Linux)

    def now() -> float:
        """Seconds since the machine started."""
        return time.monotonic()
