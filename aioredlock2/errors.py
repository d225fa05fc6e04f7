"""Everything this library raises on its own account.

    RedlockError
    ├── AcquireError            the lock was not obtained
    │   ├── LockContended       somebody else holds it
    │   ├── QuorumUnreachable   too many nodes failed or kept silent to tell
    │   └── AcquiredTooLate     a quorum said yes, but after the validity was used up
    ├── LeaseError              about a lease that was obtained
    │   ├── LeaseLost           held before, no longer provable
    │   └── LeaseReleased       used after it was given back
    └── ConfigurationError      a wrong value, or a use that can't work (also a ValueError)

A wrong *type* is a TypeError. Errors carry data and build their text from it; neither ever contains
a token or a password. Apart from these only ``asyncio.CancelledError`` leaves the library.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioredlock2.outcomes import NodeOutcome, describe

__all__ = [
    "AcquireError",
    "AcquiredTooLate",
    "ConfigurationError",
    "LeaseError",
    "LeaseLost",
    "LeaseReleased",
    "LockContended",
    "QuorumUnreachable",
    "RedlockError",
]


SHOWN_CHARS_MAX = 80


def shown(value: object) -> str:
    """A value for a text: its repr, cut if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "..."


def printable(text: str) -> str:
    """A server's words for a log line: what could steer a terminal or begin a new line is taken out."""
    return "".join(char if char.isprintable() else " " for char in text)


class RedlockError(Exception):
    """Base of all errors of this library."""


class ConfigurationError(RedlockError, ValueError):
    """A value that can't work, or a use that can't (closed client, other loop, after a fork)."""


class AcquireError(RedlockError):
    """The lock was not obtained within its `wait`; nothing of ours is left behind on purpose.

    The class tells the outcome of the last round: catch `LockContended` for "busy" and
    `QuorumUnreachable` for "the nodes are down".
    """

    _what = "not acquired"

    def __init__(
        self,
        resource: str | bytes,
        elapsed: float,
        rounds: int,
        outcomes: Sequence[NodeOutcome] = (),
        hint: str = "",
    ) -> None:
        super().__init__(resource, elapsed, rounds, tuple(outcomes), hint)
        self.resource = resource
        """The resource asked for."""
        self.elapsed = elapsed
        """Seconds from the call to this error."""
        self.rounds = rounds
        """Rounds sent to the nodes; 0 if the whole wait passed in the local queue."""
        self.outcomes = tuple(outcomes)
        """Per node, the vote in the last round; empty if there was none."""
        self.hint = hint
        """What to know or do about it, or an empty string."""

    def __str__(self) -> str:
        rounds = f"{self.rounds} round{'' if self.rounds == 1 else 's'}"
        # Without a round nothing is known of others: the hint says what stood in the way.
        what = self._what if self.outcomes else "not acquired"
        text = f"{shown(self.resource)} {what} after {self.elapsed:.3f} s and {rounds}"
        if self.outcomes:
            text += f": {describe(self.outcomes)}"
        return f"{text}; {self.hint}" if self.hint else text


class LockContended(AcquireError):
    """Somebody else holds the resource, or won enough nodes to keep everybody from a quorum."""

    _what = "is held by somebody else: not acquired"


class QuorumUnreachable(AcquireError):
    """So many nodes failed or kept silent that no quorum could be had, whoever holds the rest."""

    _what = "not acquired, too few nodes answered"


class AcquiredTooLate(AcquireError):
    """A quorum said yes, but the answers took longer than the validity; the keys were removed."""

    _what = "acquired too late to be used, given back"


class LeaseError(RedlockError):
    """About a lease that was held."""

    def __init__(self, resource: str | bytes, reason: str) -> None:
        super().__init__(resource, reason)
        self.resource = resource
        """The resource of the lease."""
        self.reason = reason
        """One readable line: what ended the lease."""

    def __str__(self) -> str:
        return f"lease of {shown(self.resource)}: {self.reason}"


class LeaseLost(LeaseError):
    """The lease was held and is no longer provable: others may hold the resource now."""


class LeaseReleased(LeaseError):
    """The lease was given back before; it can't be used any more."""
