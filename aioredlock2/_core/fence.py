"""The fence: a number per lease that grows from holder to holder, out of counters on independent nodes.

Each node keeps a counter beside the lock key, F, and answers a grant with its *grant counter*: a value
strictly above all that F ever was there. Out of a quorum's answers:

1.  The fence is the largest grant counter. If a quorum of nodes gave just that, it is settled: one round
    trip, the usual case, because all counters of a name move alike.
2.  Otherwise the nodes *behind* are asked to confirm: "where the lock key is still my token, raise F to
    the fence at least". A node counts for the fence if it gave it itself or has confirmed it, and only
    if its own grant counter is known and not above the fence. With a quorum of these it is settled.

Why it grows. Any two settled leases A and B share a node w that counts for both. At w each of them held
the lock key from its grant until w counted for it, and one key has one holder: say A's span comes first.
When it ended, F at w was at least A's fence (given or confirmed). B's grant came later, so its grant
counter at w is larger, and B's fence is not below its own grant counter. Hence A's fence < B's. No clock
and no bound on pauses is used, only that w remembers F. Each half of the rule is needed: without "still
my token" the two spans may overlap, and without "known and not above" a straggling grant may be larger
than the fence it would count for. Whatever raises F besides (losers, later confirmations) does no harm.

Where F is forgotten. A node without F begins at the client's wall clock in microseconds (`seed`), above
what counting can have reached: a counter is raised less than once per microsecond. So F may expire
(`LIFETIME_S` after it was made or confirmed: millions of names leave nothing behind), and a node that
was wiped doesn't pull the fence back, as long as the clients' wall clocks agree: to within `LIFETIME_S`
for an F that expired, to within the time since the lease before for one that was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FENCE_MAX", "LIFETIME_S", "SEED_MIN", "Candidate", "candidate", "seed"]

FENCE_MAX = 2**53 - 1
"""Fences are exact where numbers are doubles: in Lua, in JSON, in JavaScript."""
LIFETIME_S = 86_400
"""A node's counter is forgotten so long after it was made or confirmed."""
CLOCK_S_MIN, CLOCK_S_MAX = 1_735_689_600, 7_258_118_400
"""From 2025 to 2200: a wall clock outside has certainly not been set."""
SEED_MIN = CLOCK_S_MIN * 1_000_000
"""No counter that was seeded is below."""


def seed(wall_clock: float) -> int:
    """What a counter begins with where there is none, by a clock in seconds since 1970.

    Raises ValueError for a clock that can't be right.
    """
    if not CLOCK_S_MIN <= wall_clock < CLOCK_S_MAX:
        raise ValueError(
            f"fences begin at the system's clock, and that says {wall_clock:.0f} s since 1970: "
            "it must be set (to a time between 2025 and 2200)"
        )
    return int(wall_clock * 1_000_000)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fence that may come to stand, and what is missing for it."""

    fence: int
    level: frozenset[int]
    """The nodes that gave it themselves: they count."""
    behind: Mapping[int, int]
    """By how much the other nodes' grant counters are below it: they count once they confirm."""


def candidate(counters: Mapping[int, int]) -> Candidate:
    """The fence that follows from the grant counters known, by node; at least one."""
    fence = max(counters.values())
    level = frozenset(node for node, counter in counters.items() if counter == fence)
    behind = {node: fence - counter for node, counter in counters.items() if counter < fence}
    return Candidate(fence, level, behind)
