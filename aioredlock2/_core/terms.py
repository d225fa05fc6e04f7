"""What a lock asks for: validated once, converted from seconds once, all that follows derived here.

Decides what values are allowed. Must not know nodes, clocks or asyncio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from aioredlock2.errors import ConfigurationError, shown

__all__ = [
    "LockTerms",
    "number",
    "resource_bytes",
    "seconds",
    "utf8",
    "wrong_type",
    "wrong_value",
]

DRIFT_S_MIN = 0.002
"""Added to the drift allowance: Redis expires keys in whole milliseconds (redis.io, Redlock page)."""
NODE_TIMEOUT_SHARE = 0.005
NODE_TIMEOUT_S_MIN = 0.005
NODE_TIMEOUT_S_MAX = 0.05
SECONDS_MAX = 2.0**53 / 1000
"""About 285,000 years; milliseconds beyond 2**53 are no longer exact."""
SLOTS_PER_TTL = 64
NAME_BYTES_MAX = 65_536
"""Every request carries the name, to every node."""


def wrong_type(name: str, value: object, allowed: str) -> TypeError:
    """The error for an argument of a type that can't work."""
    return TypeError(f"{name}={shown(value)}: must be {allowed}, not {type(value).__name__}")


def wrong_value(name: str, value: object, allowed: str) -> ConfigurationError:
    """The error for an argument whose value can't work."""
    return ConfigurationError(f"{name}={shown(value)}: must be {allowed}")


def number(name: str, value: object) -> float:
    """An int or float given by a user, as float; raises TypeError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(name, value, "an int or float")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def seconds(name: str, value: object, *, zero: bool = False, instead: str = "") -> float:
    """A duration given by a user as float seconds.

    `name` is the argument's name for the error, `zero` whether 0 makes sense, `instead` what else
    may be given. Raises TypeError for anything but a real number or timedelta, ConfigurationError
    for NaN, infinity, a negative value, or 0 where it is meaningless.
    """
    least = "0 or more" if zero else "more than 0"
    allowed = f"{least} and at most {SECONDS_MAX:.2f} seconds{instead}"
    if isinstance(value, timedelta):
        duration = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(name, value, f"{allowed}, as int, float or timedelta")
    else:
        duration = number(name, value)
    if not (duration > 0 or (zero and duration == 0)) or duration > SECONDS_MAX:
        raise wrong_value(name, value, allowed)
    return duration


def utf8(name: str, text: str) -> bytes:
    """A user's text as strict UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise wrong_value(name, text, "text that has a UTF-8 form (no lone surrogates)") from None


def resource_bytes(resource: object) -> bytes:
    """A resource's name as bytes: str by strict UTF-8, bytes as they are, never empty or huge."""
    if not isinstance(resource, (str, bytes)):
        raise wrong_type("resource", resource, "a non-empty str or bytes")
    if not resource:
        raise wrong_value("resource", resource, "non-empty")
    name = utf8("resource", resource) if isinstance(resource, str) else resource
    if len(name) > NAME_BYTES_MAX:
        raise ConfigurationError(
            f"resource={shown(resource)}: must be at most {NAME_BYTES_MAX} bytes, not {len(name)}: "
            "lock a hash of what is longer"
        )
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
            least = drift + 2 * node_timeout
            raise wrong_value(
                "ttl",
                ttl,
                f"more than {least:.4f} seconds: drift ({drift:.4f} s) and two node timeouts "
                f"({2 * node_timeout:.4f} s) use up the rest",
            )
        return cls(
            ttl=duration,
            ttl_ms=ttl_ms,
            drift=drift,
            node_timeout=node_timeout,
            renew_every=duration / 3,
            slot=duration / SLOTS_PER_TTL,
        )
