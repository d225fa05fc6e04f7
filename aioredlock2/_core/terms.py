"""What a lock asks for: validated once, converted from seconds once, all that follows derived here.

Decides what values are allowed. Must not know nodes, clocks or asyncio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from aioredlock2.errors import ConfigurationError

__all__ = ["LockTerms", "resource_bytes", "seconds"]

DRIFT_S_MIN = 0.002
"""Added to the drift allowance: Redis expires keys in whole milliseconds (redis.io, Redlock page)."""
NODE_TIMEOUT_SHARE = 0.005
NODE_TIMEOUT_S_MIN = 0.005
NODE_TIMEOUT_S_MAX = 0.05
SECONDS_MAX = 2.0**53 / 1000
"""About 285,000 years; milliseconds beyond 2**53 are no longer exact."""
SLOTS_PER_TTL = 64


def seconds(name: str, value: object, *, zero: bool = False) -> float:
    """A duration given by a user as float seconds.

    `name` is the argument's name for the error, `zero` whether 0 makes sense.
    Raises TypeError for anything but a real number or timedelta, ConfigurationError for NaN,
    infinity, a negative value, or 0 where it is meaningless.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        raise TypeError(
            f"{name} must be seconds as int or float, or a timedelta, not {type(value).__name__}"
        )
    if not (number > 0 or (zero and number == 0)) or number > SECONDS_MAX:
        allowed = "0 or more" if zero else "more than 0"
        raise ConfigurationError(f"{name}={value!r}: must be {allowed} seconds, and finite")
    return number


def resource_bytes(resource: object) -> bytes:
    """A resource's name as bytes: str by strict UTF-8, bytes as they are, never empty."""
    if isinstance(resource, str):
        try:
            name = resource.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"resource {resource!r}: has no UTF-8 form (lone surrogates); use bytes"
            ) from None
    elif isinstance(resource, bytes):
        name = resource
    else:
        raise TypeError(f"resource must be str or bytes, not {type(resource).__name__}")
    if not name:
        raise ConfigurationError(f"resource={resource!r}: must not be empty")
    return name


@dataclass(frozen=True, slots=True)
class LockTerms:
    """A ttl and all that follows from it. Times are seconds, except where the name ends in `_ms`."""

    ttl: float
    ttl_ms: int
    """What the nodes are told: whole milliseconds, rounded up."""
    drift: float
    """Allowance for clocks that run at different rates: drift_factor * ttl + 2 ms."""
    node_timeout: float
    """How long a round listens to one node."""
    renew_every: float
    """The watchdog extends this long after the last counted round began: ttl / 3."""
    slot: float
    """Renewals due within one slot leave together: ttl / 64."""

    @classmethod
    def of(cls, ttl: object, *, drift_factor: float, node_timeout: float | None) -> LockTerms:
        """Terms for `ttl` (seconds or timedelta).

        Raises TypeError or ConfigurationError; the latter also for a ttl so short that the drift
        allowance and two node timeouts (one round to win it, one to extend it) use it up.
        """
        duration = seconds("ttl", ttl)
        # Rounded first: 1.1 s is 1100.0000000000002 ms in floats, and must stay 1100.
        ttl_ms = math.ceil(round(duration * 1000, 6))
        drift = duration * drift_factor + DRIFT_S_MIN
        if node_timeout is None:
            share = duration * NODE_TIMEOUT_SHARE
            node_timeout = min(max(share, NODE_TIMEOUT_S_MIN), NODE_TIMEOUT_S_MAX)
        if duration - drift <= 2 * node_timeout:
            raise ConfigurationError(
                f"ttl={ttl!r}: too short; drift takes {drift:.4f} s of it and two node timeouts "
                f"{2 * node_timeout:.4f} s, so it must be more than {drift + 2 * node_timeout:.4f} s"
            )
        return cls(
            ttl=duration,
            ttl_ms=ttl_ms,
            drift=drift,
            node_timeout=node_timeout,
            renew_every=duration / 3,
            slot=duration / SLOTS_PER_TTL,
        )
