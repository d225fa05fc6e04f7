"""What there is to see at one moment, as plain data: made by `stage`, drawn by `view`."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioredlock2._demo.settings import Settings

__all__ = ["Ballot", "Holder", "Light", "News", "NodeView", "Presence", "Scene", "Speed"]


class Light(enum.Enum):
    """State of a node: what the demo did to it, else what the client sees."""

    CONNECTING = "connecting"
    UP = "up"
    GUARDED = "guarded"
    FROZEN = "frozen"
    DEAD = "dead"
    DOWN = "down"


class Ballot(enum.Enum):
    """What a node says about the current holder."""

    GRANTED = "granted"
    OTHER = "other"
    NONE = "none"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node."""

    number: int
    address: str
    server: str
    light: Light
    ballot: Ballot
    guard_left: float = 0.0


class Presence(enum.Enum):
    """Where the newest holder is."""

    INSIDE = "inside"
    GONE = "gone"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who is inside the critical section, or was last, as the record tells."""

    worker: int
    pid: int
    presence: Presence
    seconds: float
    """Since it entered; for a killed one since the kill."""


@dataclass(frozen=True, slots=True)
class News:
    """One line for people: something that was done, or happened."""

    at: float
    """Seconds since the start of the demo."""
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One moment."""

    settings: Settings
    phase: str
    at: float
    """Seconds since the start of the demo."""
    seconds_left: float
    """Until its end."""
    nodes: Sequence[NodeView]
    holder: Holder | None = None
    digest: str = ""
    """Short name of the token that holds a quorum of the nodes."""
    remaining: float = 0.0
    """Seconds until the stored keys end, unless renewed."""
    sections: int = 0
    rate: float = 0.0
    """Sections per second, lately."""
    by_worker: Sequence[int] = ()
    overlaps: int = 0
    """Found so far, by a look at the newest sections only."""
    longest_wait: float = 0.0
    longest_gap: float | None = None
    news: Sequence[News] = ()


class Speed:
    """Sections per second over the last few moments."""

    WINDOW_S = 2.0

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def rate(self, at: float, count: int) -> float:
        """Take the count of this moment, and tell how fast it grew over the window."""
        self._samples.append((at, count))
        while at - self._samples[0][0] > self.WINDOW_S:
            self._samples.popleft()
        first_at, first_count = self._samples[0]
        return (count - first_count) / (at - first_at) if at > first_at else 0.0
