"""What happened, in true time: written by the simulator, read by the checkers, known to nobody else."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Attempt", "Command", "Expired", "History", "Removed", "Tenure", "Wired"]


@dataclass(eq=False, slots=True)
class Attempt:
    """One call for a lock, by one task."""

    process: str
    name: str
    ttl: float
    fenced: bool
    called_at: float
    tokens: list[tuple[bytes, float]] = field(default_factory=list)
    """One per round, and when it was made: the one before was given up by then."""
    ended_at: float = math.inf
    outcome: str = ""
    """What the call returned or raised."""
    tenure: Tenure | None = None
    must: bool = False
    """True in the healed system: it has to be granted within a bound."""


@dataclass(eq=False, slots=True)
class Tenure:
    """One lease, from its holder's view: true times, infinite until it happens."""

    attempt: Attempt
    token: bytes
    granted_at: float
    until: float = math.inf
    """The true time at which its holder's clock shows `valid_until`, by the last extension."""
    fence: int | None = None
    deadlines: list[tuple[float, float]] = field(default_factory=list)
    """Each deadline it ever had: when it was noticed, and `valid_until`, by the holder's clock."""
    true_deadlines: list[tuple[float, float]] = field(default_factory=list)
    """The same in true time."""
    released_at: float = math.inf
    """The call of release, or the body's end."""
    voted_out_at: float = math.inf
    """Its state turned to lost, by vote or by clock."""
    told_at: float = math.inf
    """The user's code learnt of the loss."""
    listens: bool = True
    """Whether anybody waits to be told."""
    dropped: bool = False
    """Nobody has the handle any more."""

    @property
    def name(self) -> str:
        """The resource."""
        return self.attempt.name

    @property
    def process(self) -> str:
        """Whose it is."""
        return self.attempt.process


@dataclass(frozen=True, slots=True)
class Command:
    """One command that left a process."""

    at: float
    process: str
    server: str
    wire: int
    verb: str
    """grant, renew (a confirmation too), revoke or look."""
    token: bytes
    ttl: float


@dataclass(frozen=True, slots=True)
class Removed:
    """A revoke took a lock key away."""

    at: float
    server: str
    by: str
    token: bytes
    wanted: bytes
    """The token that the revoke named, if it named one."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A lock key came to the end of its ttl."""

    at: float
    server: str
    token: bytes


@dataclass(eq=False, slots=True)
class Wired:
    """One connection, from when its greeting was over until its client's side was closed."""

    number: int
    process: str
    server: str
    opened_at: float
    """When it was dialled."""
    up_at: float = math.inf
    down_at: float = math.inf


@dataclass(eq=False, slots=True)
class Stalls:
    """When a process got no turn, and how it ended."""

    stalls: list[tuple[float, float]]
    mistimed: list[tuple[float, float]]
    died_at: float | None = None


@dataclass
class History:
    """Everything that a verdict may be based on."""

    attempts: list[Attempt] = field(default_factory=list)
    tenures: list[Tenure] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    removed: list[Removed] = field(default_factory=list)
    expired: list[Expired] = field(default_factory=list)
    wires: dict[int, Wired] = field(default_factory=dict)
    stalls: dict[str, Stalls] = field(default_factory=dict)
    broken: list[tuple[float, str]] = field(default_factory=list)
    """Assumptions broken on purpose: when, and which."""
    faults: list[tuple[float, str]] = field(default_factory=list)
    healed_at: float = math.inf
    vanished_at: float = math.inf
    """When the keys of a lease were taken away on purpose, after all else."""
    oddities: list[str] = field(default_factory=list)
    """What must never happen and was seen on the spot: keys without a ttl, unheard exceptions."""

    def odd(self, at: float, what: str) -> None:
        """Note an oddity; `what` begins with its kind."""
        self.oddities.append(f"{at:.6f} {what}")
