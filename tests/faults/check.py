"""Judges a history: did two valid leases overlap, did fences grow, was every loss told in time?

It knows nothing of how the history came about but the events. A lease counts from the moment its
worker had it in hand to the first of: its deadline, the moment the worker let go or was told, and the
worker's death. That is never longer than the worker could have relied on it, so that an overlap found
is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aioredlock2._demo.history import Ending, Section
from aioredlock2._demo.verdict import overlaps
from aioredlock2._watchdog import REFUSED
from tests.faults.history import (
    Died,
    Ended,
    Event,
    Extended,
    Faulted,
    Forked,
    Granted,
    Keys,
    Refused,
    Rested,
    Stalled,
    Stray,
    Whole,
)

__all__ = ["GAP_S_MAX", "LATE_S_MAX", "WAIT_S_MAX", "Held", "Verdict", "Violation", "judge"]

LATE_S_MAX = 0.5
"""A worker that runs is told of a loss by then. Generous: the machine is busy with the faults too."""
WAIT_S_MAX = 1.0
"""A call may overrun its `wait` by so much: a node timeout, the first contact, a busy machine."""
GAP_S_MAX = 15.0
"""A name that is free is granted to one who waits by then, also if all nodes were restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Section):
    """One lease, as long as its worker may have relied on it."""

    resource: str
    asked_at: float
    fence: int | None = None
    valid_until: float
    nodes: int
    away: int
    """Of them, those that had not its key when it was granted."""
    why: str = ""
    """What its loss was put down to."""

    def __str__(self) -> str:
        fence = "" if self.fence is None else f" fence {self.fence}"
        return (
            f"{self.resource} worker {self.worker + 1}{fence} asked {self.asked_at:.3f} "
            f"held {self.start:.3f}-{self.end:.3f} ({self.ending.value})"
        )


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be."""

    kind: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.at:.3f}: {self.text}"


@dataclass(slots=True)
class Verdict:
    """What a history says."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often: "acquired", "extended by hand", "lost", "refused: LockContended", ..."""
    faults: Counter[str] = field(default_factory=Counter)
    longest_gap: float = 0.0
    """Longest time a name was free, or its holder gone, while somebody waited for it."""
    longest_late: float = 0.0
    """Longest time from a deadline to the moment a worker that ran was told."""
    leases: list[Held] = field(default_factory=list)
    marks: list[Faulted] = field(default_factory=list)
    resting: list[Rested] = field(default_factory=list)
    whole_at: float | None = None

    def blame(self, kind: str, at: float, text: str) -> None:
        """Add a violation."""
        self.violations.append(Violation(kind, at, text))

    def of_resource(self) -> dict[str, list[Held]]:
        """The leases of each resource by their starts."""
        by_resource: defaultdict[str, list[Held]] = defaultdict(list)
        for lease in sorted(self.leases, key=lambda lease: lease.start):
            by_resource[lease.resource].append(lease)
        return by_resource


class _Stalls:
    """When each process stood still."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._of: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        for event in events:
            if isinstance(event, Stalled):
                self._of[event.pid].append((event.since, event.at))

    def running(self, pid: int, since: float, until: float) -> float:
        """How much of that time the process ran."""
        total, at = 0.0, since
        for start, end in sorted(self._of[pid]):
            if end > at and start < until:
                total += max(0.0, start - at)
                at = max(at, end)
        return total + max(0.0, until - at)


def judge(
    events: Iterable[Event], *, beyond: bool = False, fences: Mapping[str, int] | None = None
) -> Verdict:
    """Judge a whole history; `fences` are the highest of each resource before it.

    `beyond` says that assumptions were broken on purpose: overlaps and gaps are counted only, and of
    two leases the fences must be in order where one was there before the other was asked for.
    """
    listed = list(events)
    stalls = _Stalls(listed)
    verdict = Verdict()
    _read_leases(listed, verdict, stalls)
    for event in listed:
        _read_rest(event, verdict, stalls)
    for resource, leases in verdict.of_resource().items():
        _judge_overlaps(leases, verdict, beyond=beyond)
        _judge_fences(leases, verdict, (fences or {}).get(resource, 0), beyond=beyond)
    _judge_gaps(verdict, stalls, beyond=beyond)
    _judge_losses(verdict, beyond=beyond)
    _judge_healing(verdict)
    verdict.violations.sort(key=lambda violation: violation.at)
    return verdict


def _read_leases(events: list[Event], verdict: Verdict, stalls: _Stalls) -> None:
    """Every lease with its end."""
    open_leases: dict[tuple[int, int], tuple[Granted, float]] = {}
    for event in events:
        if isinstance(event, Granted):
            open_leases[event.pid, event.lease] = event, event.valid_until
            verdict.counts["acquired"] += 1
        elif isinstance(event, Extended):
            granted, _ = open_leases[event.pid, event.lease]
            open_leases[event.pid, event.lease] = granted, event.valid_until
            verdict.counts[f"extended by {event.by}"] += 1
        elif isinstance(event, Ended):
            granted, _ = open_leases.pop((event.pid, event.lease))
            verdict.counts[event.how] += 1
            ending = Ending.LOST if event.how == "lost" else Ending.LEFT
            verdict.leases.append(_held(granted, event.at, event.valid_until, ending, event.why))
            late = stalls.running(event.pid, event.valid_until, event.at)
            verdict.longest_late = max(verdict.longest_late, late)
            if late > LATE_S_MAX:
                verdict.blame("late loss", event.at, f"{late:.3f} s: {verdict.leases[-1]}")
        elif isinstance(event, Died):
            for key in [key for key in open_leases if key[0] == event.pid]:
                granted, until = open_leases.pop(key)
                verdict.counts["holder died"] += 1
                verdict.leases.append(_held(granted, event.at, until, Ending.KILLED))
    for granted, until in open_leases.values():
        verdict.leases.append(_held(granted, until, until, Ending.OPEN))
        verdict.blame("unfinished", granted.at, str(verdict.leases[-1]))


def _held(granted: Granted, end: float, valid_until: float, ending: Ending, why: str = "") -> Held:
    return Held(
        worker=granted.worker,
        pid=granted.pid,
        resource=granted.resource,
        asked_at=granted.asked_at,
        fence=granted.fence,
        valid_until=valid_until,
        nodes=granted.nodes,
        away=granted.away,
        why=why,
        start=granted.at,
        end=max(granted.at, min(end, valid_until)),
        ending=ending,
    )


def _read_rest(event: Event, verdict: Verdict, stalls: _Stalls) -> None:
    """What is not about one lease."""
    wrong = _wrong(event)
    if wrong is not None:
        verdict.blame(wrong[0], event.at, wrong[1])
    match event:
        case Refused():
            verdict.counts[f"refused: {event.error}"] += 1
            over = stalls.running(event.pid, event.asked_at, event.at) - event.wait
            if over > WAIT_S_MAX:
                verdict.blame("overran its wait", event.at, f"{over:.3f} s: {event}")
        case Forked():
            verdict.counts["children forked"] += 1
        case Rested():
            verdict.resting.append(event)
        case Faulted():
            verdict.marks.append(event)
            verdict.faults[f"{event.target.partition(' ')[0]} {event.fault}"] += 1
        case Whole():
            verdict.whole_at = event.at
        case Keys():
            verdict.counts["orphans"] += len(event.keys)
            for key, ms in event.keys.items():
                text = f"{key} on node {event.node + 1}, {ms} ms to live"
                verdict.blame("orphan key", event.at, text)
        case _:
            pass


def _wrong(event: Event) -> tuple[str, str] | None:
    """What must not be in any history."""
    match event:
        case Died() if event.errors or not event.expected:
            return "worker failed", event.errors[-1000:] or "it ended"
        case Forked() if event.wrong:
            return "inherited by a fork", event.wrong
        case Stray():
            return "stray error", event.text
        case Faulted() if event.error:
            return "suite", f"{event.fault} of {event.target}: {event.error}"
        case _:
            return None


def _judge_overlaps(leases: list[Held], verdict: Verdict, *, beyond: bool) -> None:
    for found in overlaps(leases):
        first, second = found.first, found.second
        assert isinstance(first, Held)  # all are
        if not (beyond or _is_remembered(first, verdict.marks, second.start)):
            verdict.counts["overlaps by a node too many"] += 1
            continue
        verdict.counts["overlaps"] += 1
        if not beyond:
            text = f"{found.seconds * 1000:.1f} ms: {first}; {second}"
            verdict.blame("overlap", second.start, text)


def _is_remembered(lease: Held, marks: list[Faulted], until: float) -> bool:
    """Whether so many nodes still had its key that the others were no quorum.

    The schedule sees to that: no node is away where one forgets. But a busy machine may have left a
    node behind for a moment, and then this is more than the library can promise.
    """
    return lease.away + sum(m.forgets for m in _during(lease, marks, until)) <= lease.nodes // 2


def _during(lease: Held, marks: list[Faulted], until: float) -> list[Faulted]:
    return [mark for mark in marks if mark.at < until and mark.until > lease.start]


def _judge_fences(leases: list[Held], verdict: Verdict, highest: int, *, beyond: bool) -> None:
    """Each fence is above those of all leases before it, and none comes twice."""
    fenced = [lease for lease in leases if lease.fence is not None]
    starts = [lease.start for lease in fenced]
    highest_after = [highest]
    for lease in fenced:
        highest_after.append(max(highest_after[-1], lease.fence or 0))
    seen: Counter[int] = Counter(lease.fence or 0 for lease in fenced)
    for index, lease in enumerate(fenced):
        earlier = bisect_left(starts, lease.asked_at) if beyond else index
        if (lease.fence or 0) <= highest_after[earlier] or seen[lease.fence or 0] > 1:
            verdict.counts["fence inversions"] += 1
            text = f"{lease}, after fence {highest_after[earlier]}"
            verdict.blame("fence inversion", lease.start, text)


def _judge_losses(verdict: Verdict, *, beyond: bool) -> None:
    """While a quorum remembers, no lease is taken away before its time."""
    for lease in verdict.leases:
        if REFUSED not in lease.why:
            continue
        verdict.counts["refused by a quorum"] += 1
        during = _during(lease, verdict.marks, lease.end)
        gone = lease.away + sum(mark.forgets or mark.empties for mark in during)
        if not beyond and gone <= lease.nodes // 2:
            verdict.blame("lease taken away", lease.end, f"{lease}: {lease.why}")


def _judge_gaps(verdict: Verdict, stalls: _Stalls, *, beyond: bool) -> None:
    """How long a free name took to be granted to one who waited for it all the time."""
    for leases in verdict.of_resource().values():
        free_at = 0.0
        for lease in leases:
            gap = stalls.running(lease.pid, max(free_at, lease.asked_at), lease.start)
            verdict.longest_gap = max(verdict.longest_gap, gap)
            if gap > GAP_S_MAX and not beyond:
                verdict.blame("long gap", lease.start, f"{gap:.3f} s before {lease}")
            free_at = max(free_at, lease.end)


def _judge_healing(verdict: Verdict) -> None:
    """Once all faults are over, everybody gets a lock."""
    if verdict.whole_at is None:
        return
    since = verdict.whole_at
    served = {lease.pid for lease in verdict.leases if lease.start >= since}
    for rested in verdict.resting:
        if rested.pid not in served:
            text = f"worker {rested.worker + 1} acquired nothing after the faults were over"
            verdict.blame("not healed", rested.at, text)
