"""From critical sections to what the demo is about: did any two overlap, who waited how long."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from aioredlock2._demo.history import Ending, Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aioredlock2._demo.history import History

__all__ = ["Gap", "Overlap", "Verdict", "gaps", "judge", "overlaps"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two sections that were going on at the same time."""

    first: Section
    second: Section

    @property
    def seconds(self) -> float:
        """How long both were going on."""
        return min(self.first.end, self.second.end) - self.second.start


@dataclass(frozen=True, slots=True)
class Gap:
    """The time from a holder's death to the next section."""

    killed: Section
    next: Section | None
    """None while nobody has come after it."""

    @property
    def seconds(self) -> float | None:
        """None while nobody has come after it."""
        if self.next is None or self.killed.killed_at is None:
            return None
        return max(0.0, self.next.start - self.killed.killed_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the record says."""

    sections: int
    by_worker: dict[int, int]
    """Sections of each worker's number, in order of the numbers."""
    overlaps: tuple[Overlap, ...]
    longest_wait: float
    gaps: tuple[Gap, ...]
    """One for each holder killed, in order."""
    lost: int
    """Sections whose worker was told that its lease was lost."""
    overruns: tuple[Section, ...]
    """Sections whose worker stayed inside after the validity without being told in time."""
    deaths: int
    """Workers that died without being killed: a fault of the demo or of the library."""

    @property
    def is_good(self) -> bool:
        """Something was done, nothing overlapped and no worker failed."""
        return self.sections > 0 and not self.overlaps and not self.deaths

    @property
    def longest_gap(self) -> float | None:
        """None if no holder was killed, or nobody came after one."""
        return max((gap.seconds for gap in self.gaps if gap.seconds is not None), default=None)


def overlaps(sections: Iterable[Section]) -> list[Overlap]:
    """Every section that starts before all earlier ones have ended, with the one it meets.

    It is enough to compare with the section that ends last of those before: if that one has ended,
    all have. Sections that only touch don't overlap; times are far finer than anything in between.
    """
    found: list[Overlap] = []
    last: Section | None = None
    for section in sorted(sections, key=lambda section: (section.start, section.end)):
        if last is not None and section.start < last.end:
            found.append(Overlap(last, section))
        if last is None or section.end > last.end:
            last = section
    return found


def gaps(sections: Sequence[Section]) -> list[Gap]:
    """For each holder killed, the section that came next."""
    ordered = sorted(sections, key=lambda section: section.start)
    return [
        Gap(section, following)
        for section, following in pairwise([*ordered, None])
        if section is not None and section.ending is Ending.KILLED
    ]


def judge(history: History, until: float, workers: int) -> Verdict:
    """Check a whole record, read at the time *until*."""
    sections = history.all_sections(until)
    counts = Counter(section.worker for section in sections)
    return Verdict(
        sections=len(sections),
        by_worker={number: counts[number] for number in range(1, workers + 1)},
        overlaps=tuple(overlaps(sections)),
        longest_wait=max(history.waits, default=0.0),
        gaps=tuple(gaps(sections)),
        lost=sum(section.ending is Ending.LOST for section in sections),
        overruns=tuple(
            section for section in sections if section.overrun > 0 and section.ending is Ending.LEFT
        ),
        deaths=history.deaths,
    )
