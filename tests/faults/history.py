"""The history of a chapter: one JSON object a line, appended by all processes to one file.

Times are readings of CLOCK_BOOTTIME (`aioredlock2._demo.clock`), which all processes of a machine
share. The order of the lines means nothing: a process may be put to sleep between reading the clock
and writing. A line is whole even if its writer is killed right after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, get_args

from aioredlock2._demo.record import Recorder

__all__ = [
    "Died",
    "Ended",
    "Event",
    "Extended",
    "Faulted",
    "Forked",
    "Granted",
    "History",
    "Keys",
    "Refused",
    "Rested",
    "Stalled",
    "Stray",
    "Whole",
    "read",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A worker has obtained a lease."""

    name: ClassVar[str] = "granted"
    at: float
    worker: int
    pid: int
    lease: int
    """Counts the worker's leases."""
    resource: str
    asked_at: float
    valid_until: float
    fence: int | None = None
    nodes: int = 5
    away: int = 0
    """Of them, those known not to have the key: denied, failed, silent or not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended:
    """A lease's deadline was seen to have moved: by `extend`, or by the watchdog a little earlier."""

    name: ClassVar[str] = "extended"
    at: float
    pid: int
    lease: int
    valid_until: float
    by: str
    """"extend" or "watchdog"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A worker does no longer rely on a lease; read before anything is sent to give it back."""

    name: ClassVar[str] = "ended"
    at: float
    pid: int
    lease: int
    valid_until: float
    how: str
    """"released", "lost", or "cancelled" (from outside)."""
    why: str = ""
    """What the loss was put down to, if it was announced by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A worker got an AcquireError instead of a lease."""

    name: ClassVar[str] = "refused"
    at: float
    pid: int
    resource: str
    asked_at: float
    wait: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """A worker stood still: stopped, starved or blocked."""

    name: ClassVar[str] = "stalled"
    at: float
    """When it went on."""
    pid: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A worker's process no longer exists; read after it was reaped."""

    name: ClassVar[str] = "died"
    at: float
    pid: int
    expected: bool
    errors: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """What a forked child of a worker found wrong about its parent's leases."""

    name: ClassVar[str] = "forked"
    at: float
    pid: int
    wrong: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """What reached a loop's exception handler, or an exception that no section expects."""

    name: ClassVar[str] = "stray"
    at: float
    pid: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rested:
    """A worker holds nothing and asks for nothing; what it has of the system's resources then."""

    name: ClassVar[str] = "rested"
    at: float
    worker: int
    pid: int
    tasks: int
    files: int
    kilobytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted:
    """A fault was there, from `at` to `until`."""

    name: ClassVar[str] = "faulted"
    at: float
    until: float
    fault: str
    target: str
    """"node 2" or "worker 1"."""
    side: int | None = None
    """The workers for whom the node was so; None: for all."""
    forgets: bool = False
    """The node has lost keys, and no client can know."""
    empties: bool = False
    """The node has lost its keys, and every client can know."""
    error: str = ""
    """Why it could not be made or healed: a failure of the suite itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All faults are over."""

    name: ClassVar[str] = "whole"
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys that a node should not have, with their milliseconds to live (-1: for ever)."""

    name: ClassVar[str] = "keys"
    at: float
    node: int
    keys: dict[str, int] = field(default_factory=dict)


Event = (
    Granted
    | Extended
    | Ended
    | Refused
    | Stalled
    | Died
    | Forked
    | Stray
    | Rested
    | Faulted
    | Whole
    | Keys
)

_EVENTS: dict[str, type[Event]] = {each.name: each for each in get_args(Event)}


class History(Recorder):
    """Appends to a history file, as the demo does to its record."""

    def write(self, event: Event) -> None:  # type: ignore[override]
        """Append one event, by a single write: lines of different processes never mix."""
        super().write(event)  # type: ignore[arg-type]


def read(path: Path) -> Iterator[Event]:
    """All events of a file. Raises ValueError with the line that is none."""
    with path.open() as file:
        for line in file:
            try:
                fields = json.loads(line)
                yield _EVENTS[fields.pop("event")](**fields)
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"not a line of a history: {line!r}") from error
