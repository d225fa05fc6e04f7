"""From the record's events to critical sections, with the right end for each.

The start of a section is taken after the lock was obtained, its end before the lock is given back.
What counts as the end:

    left            the worker's own reading, but never later than `valid_until`: beyond that the
                    worker had no right to be inside, and `Section.overrun` says how long it was
    lost            the moment the worker was told, or `valid_until` if that was earlier
    killed          the moment the process was known to be gone
    died            the same, for a process that nobody had killed
    open            still going on when the record was read

Events come in any order as long as those of one process are in order among themselves.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from aioredlock2._demo.record import Ended, Entered, Event, Left, Stopped

__all__ = ["Ending", "History", "Section"]


class Ending(enum.Enum):
    """How a section ended."""

    LEFT = "left"
    LOST = "lost"
    KILLED = "killed"
    DIED = "died"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One critical section of one worker."""

    worker: int
    pid: int
    start: float
    end: float
    ending: Ending = Ending.LEFT
    killed_at: float | None = None
    """For a killed worker: just before the signal was sent (`end` is after its death)."""
    overrun: float = 0.0
    """Seconds the worker stayed inside after its lease's validity was over."""


class History:
    """The sections of a record, fed event by event."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        """The ended ones, in order of their ends as they were read."""
        self.waits: list[float] = []
        """Seconds waited for each section, and by each worker stopped while it waited."""
        self.deaths = 0
        """Workers that ended with neither a stop nor a kill on record."""
        self._open: dict[int, Entered] = {}
        self._stopped: set[int] = set()

    def feed(self, event: Event) -> None:
        """Take one more event. Raises ValueError if no process could have written it there."""
        match event:
            case Entered():
                if event.pid in self._open:
                    raise ValueError(f"entered twice without leaving: {event}")
                self._open[event.pid] = event
                self.waits.append(event.waited)
            case Left():
                self._close(event)
            case Stopped():
                self._stopped.add(event.pid)
                if event.waited:
                    self.waits.append(event.waited)
            case Ended():
                self._end(event)

    @property
    def holder(self) -> Entered | None:
        """The section going on; the newest, should there be several."""
        return max(self._open.values(), key=lambda entered: entered.at, default=None)

    def is_inside(self, pid: int) -> bool:
        """True while this process is inside its critical section, as far as the record tells."""
        return pid in self._open

    def all_sections(self, until: float) -> list[Section]:
        """Every section by its start; those still open end at *until*."""
        still_open = [
            _section(entered, max(until, entered.at), Ending.OPEN)
            for entered in self._open.values()
        ]
        return sorted([*self.sections, *still_open], key=lambda section: section.start)

    def _close(self, left: Left) -> None:
        entered = self._open.pop(left.pid, None)
        if entered is None or left.at < entered.at:
            raise ValueError(f"left without entering before: {left}")
        end = max(entered.at, min(left.at, left.valid_until))
        ending = Ending.LOST if left.is_lost else Ending.LEFT
        self.sections.append(_section(entered, end, ending, overrun=left.at - end))

    def _end(self, ended: Ended) -> None:
        was_stopped = ended.pid in self._stopped
        self._stopped.discard(ended.pid)  # the system may give the id to another process
        if ended.killed_at is None and not was_stopped:
            self.deaths += 1
        entered = self._open.pop(ended.pid, None)
        if entered is None:
            return
        ending = Ending.DIED if ended.killed_at is None else Ending.KILLED
        end = max(entered.at, ended.at)
        self.sections.append(_section(entered, end, ending, killed_at=ended.killed_at))


def _section(
    entered: Entered,
    end: float,
    ending: Ending,
    *,
    killed_at: float | None = None,
    overrun: float = 0.0,
) -> Section:
    return Section(
        worker=entered.worker,
        pid=entered.pid,
        start=entered.at,
        end=end,
        ending=ending,
        killed_at=killed_at,
        overrun=overrun,
    )
