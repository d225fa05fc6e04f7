"""How long a holder may rely on what a round gave it.

The rule of the Redlock page (redis.io, "Distributed Locks with Redis"): the ttl, less the time since
just before the first byte of *that* round left, less the allowance for clock drift. Written as an
instant rather than a duration, so that nobody can measure it from the wrong moment.
"""

from __future__ import annotations

from aioredlock2._core.terms import LockTerms

__all__ = ["valid_until"]


def valid_until(started_at: float, terms: LockTerms) -> float:
    """The instant at which a round that began at `started_at` stops being worth anything.

    The same for an acquisition and an extension. A round decided at or after this instant does not
    count at all.
    """
    return started_at + terms.ttl - terms.drift
