"""The record: one JSON object a line, appended by every process to one file.

A line is written by a single ``write`` to a file opened for appending, so that lines of different
processes never mix and a line is whole even if its writer is killed right after it. The order of
the lines means nothing (a process may be put to sleep between reading the clock and writing); the
times do: see `clock`.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["Ended", "Entered", "Event", "Left", "Recorder", "Stopped", "Tail", "parse", "read_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """A worker has obtained the lock and starts its critical section. Written by the worker."""

    name: ClassVar[str] = "entered"
    at: float
    worker: int
    pid: int
    waited: float
    """Seconds from asking for the lock to holding it."""
    valid_until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A worker has ended its critical section and still holds the lock. Written by the worker."""

    name: ClassVar[str] = "left"
    at: float
    worker: int
    pid: int
    valid_until: float
    """With all renewals since the start; whatever the worker does after it isn't protected."""
    is_lost: bool
    """The lease was lost on the way, and the worker was told so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A worker was asked to end and does. Written by the worker."""

    name: ClassVar[str] = "stopped"
    at: float
    worker: int
    pid: int
    waited: float
    """Seconds it had been waiting for the lock; 0 if it wasn't."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A worker's process no longer exists. Written by the demo, after it has reaped the process."""

    name: ClassVar[str] = "ended"
    at: float
    worker: int
    pid: int
    killed_at: float | None
    """Just before SIGKILL was sent; None if the process ended by itself."""


Event = Entered | Left | Stopped | Ended

_EVENTS = {kind.name: kind for kind in (Entered, Left, Stopped, Ended)}


def parse(line: str) -> Event:
    """The event of one line. Raises ValueError with the line in it if that is none."""
    try:
        fields = json.loads(line)
        return _EVENTS[fields.pop("event")](**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a line of a demo's record: {line!r}") from error


class Recorder:
    """Appends events to the record file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: Event) -> None:
        """Append one event; it is in the file, for every other process to see, on return."""
        line = json.dumps({"event": event.name, **asdict(event)}) + "\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Tail:
    """Reads a record while it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""

    def read(self) -> list[Event]:
        """The events written since the last call. A line not whole yet waits for the next."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [parse(line.decode()) for line in lines]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_all(path: Path) -> list[Event]:
    """The events of a record that is written no more."""
    with contextlib.closing(Tail(path)) as tail:
        return tail.read()
