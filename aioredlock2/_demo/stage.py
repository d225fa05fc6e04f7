"""Puts the demo on: servers, workers, faults and the look at them, and takes all down again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aioredlock2 import Redlock, embedded
from aioredlock2._demo.chaos import Chaos
from aioredlock2._demo.clock import now
from aioredlock2._demo.crew import Crew
from aioredlock2._demo.history import Ending, History, Section
from aioredlock2._demo.monitor import Monitor
from aioredlock2._demo.plan import guard_seconds
from aioredlock2._demo.record import Entered, Recorder, Tail, read_all
from aioredlock2._demo.scene import Holder, News, Presence, Scene, Speed
from aioredlock2._demo.verdict import Verdict, judge, overlaps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from aioredlock2._demo.audience import Audience
    from aioredlock2._demo.settings import Settings
    from aioredlock2.embedded import Servers

__all__ = ["Outcome", "perform"]

FRAME_S = 0.1
LOOK_S = 0.05
"""How long the monitor listens to one node: longer than a lock would, nothing depends on it."""
NEWS_KEPT = 30
RECENT = 400
"""Sections checked for overlaps while it runs; in the end all are."""
PATIENCE_S = 20.0
"""If nobody has obtained the lock so long after the restart guards, nobody will."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of it."""

    verdict: Verdict
    faults: dict[str, int]


async def perform(
    settings: Settings, audience: Audience, record: Path, stop: asyncio.Event
) -> Outcome:
    """The whole demo: ends when its time is up, or soon after *stop* is set."""
    with tempfile.TemporaryDirectory(prefix="aioredlock2-demo-") as directory:
        servers = await asyncio.to_thread(embedded.start, settings.nodes)
        try:
            with Recorder(record) as recorder:
                show = _Show(
                    settings=settings,
                    audience=audience,
                    servers=servers,
                    recorder=recorder,
                    record=record,
                    directory=Path(directory),
                )
                await show.run(stop)
        finally:
            await asyncio.to_thread(servers.stop)
    return Outcome(check(record, settings), show.chaos.counts)


@contextlib.contextmanager
def _followed(tell: Callable[[str, str], None]) -> Generator[None]:
    """What the library logs about the nodes is news too, and must not run across the live view."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(f"the library's log: {record.getMessage()}", "dim")

    logger, handler = logging.getLogger("aioredlock2"), Handler()
    passed_on, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = passed_on


def check(record: Path, settings: Settings) -> Verdict:
    """Read a record from its beginning and judge it."""
    history = History()
    for event in read_all(record):
        history.feed(event)
    return judge(history, now(), settings.workers)


class _Show:
    """Everything that is there while it runs. It is the `Stage` of its chaos."""

    def __init__(
        self,
        *,
        settings: Settings,
        audience: Audience,
        servers: Servers,
        recorder: Recorder,
        record: Path,
        directory: Path,
    ) -> None:
        self._settings = settings
        self._audience = audience
        self._tail = Tail(record)
        self._history = History()
        self._redlock = Redlock(
            servers.urls, ttl=settings.ttl, node_timeout=LOOK_S, restart_guard=True
        )
        self._monitor = Monitor(self._redlock)
        self._crew = Crew(
            urls=servers.urls,
            settings=settings,
            directory=directory,
            record=record,
            recorder=recorder,
            tell=self._tell,
        )
        self.chaos = Chaos(servers, settings, self, self._tell)
        self._started_at = now()
        self._ends_at: float | None = None
        self._phase = "restart guard: servers this young don't vote yet"
        self._news: deque[News] = deque(maxlen=NEWS_KEPT)
        self._counts: Counter[int] = Counter()
        self._newest: Entered | None = None
        self._overlaps = 0
        self._speed = Speed()
        self._orphaned: Section | None = None
        """The killed holder's section until somebody comes after it."""
        self._longest_gap: float | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """From the first worker's start to the last one's end."""
        try:
            self._crew.start()
            self._tell("started; servers this young don't vote yet (restart guard)", "")
            with _followed(self._tell):
                async with self._redlock:
                    await self._contend(stop)
                    await self._close()
        finally:
            await self._crew.stop()  # once more, for the way out by an exception
            self._tail.close()

    # What the chaos asks.

    def holder(self) -> Entered | None:
        """Who is inside now."""
        self._refresh()
        return self._history.holder

    def kill_worker(self, pid: int) -> Section | None:
        """Kill that worker; the section it was inside of, if any."""
        before = len(self._history.sections)
        self._crew.kill(pid)
        self._refresh()
        for section in self._history.sections[before:]:
            if section.pid == pid and section.ending is Ending.KILLED:
                self._orphaned = section
                return section
        return None

    def all_vote(self) -> bool:
        """True when every node is up and out of its guard."""
        return self._monitor.all_vote

    def seconds_left(self) -> float:
        """Until the end; the whole time as long as it hasn't begun."""
        if self._ends_at is None:
            return self._settings.seconds
        return max(0.0, self._ends_at - now())

    # The parts of the show.

    async def _contend(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._monitor.run()),
                group.create_task(self._draw()),
                group.create_task(self._make_trouble()),
            ]
            await self._until_over(stop)
            for task in tasks:
                task.cancel()

    async def _close(self) -> None:
        self._phase = "stopping"
        self._ends_at = now()
        self._audience.show(self._scene())
        await self._crew.stop()
        await self._monitor.look()
        self._refresh()
        self._phase = "over"
        self._audience.show(self._scene())

    async def _until_over(self, stop: asyncio.Event) -> None:
        give_up_at = self._started_at + guard_seconds(self._settings.ttl) + PATIENCE_S
        while not stop.is_set() and self._crew.size:
            self._refresh()
            self._crew.look()
            if now() > (self._ends_at or give_up_at):
                return
            await asyncio.sleep(FRAME_S / 4)

    async def _draw(self) -> None:
        while True:
            self._audience.show(self._scene())
            await asyncio.sleep(FRAME_S)

    async def _make_trouble(self) -> None:
        while self._ends_at is None or not self._monitor.all_vote:
            await asyncio.sleep(FRAME_S)
        await self.chaos.run()

    # The record, followed.

    def _refresh(self) -> None:
        for event in self._tail.read():
            self._history.feed(event)
            if isinstance(event, Entered):
                self._count(event)

    def _count(self, entered: Entered) -> None:
        self._counts[entered.worker] += 1
        self._newest = entered
        if self._ends_at is None:
            self._ends_at = entered.at + self._settings.seconds
            self._phase = "running"
            self._tell(f"worker {entered.worker} holds the lock first", "green", at=entered.at)
        orphaned = self._orphaned
        if orphaned is None or orphaned.killed_at is None or entered.at <= orphaned.start:
            return
        self._orphaned = None
        gap = entered.at - orphaned.killed_at
        self._longest_gap = max(gap, self._longest_gap or 0.0)
        text = f"worker {entered.worker} came next, {gap:.2f} s after the kill"
        self._tell(text, "green", at=entered.at)

    def _tell(self, text: str, style: str, at: float | None = None) -> None:
        news = News((at or now()) - self._started_at, text, style)
        self._news.append(news)
        self._audience.tell(news)

    def _holder_seen(self, at: float) -> Holder | None:
        newest, orphaned = self._history.holder or self._newest, self._orphaned
        if newest is None:
            return None
        presence, since = Presence.GONE, newest.at
        if self._history.is_inside(newest.pid):
            presence = Presence.INSIDE
        elif orphaned is not None:
            presence, since = Presence.KILLED, orphaned.end
        return Holder(
            worker=newest.worker,
            pid=newest.pid,
            presence=presence,
            seconds=max(0.0, at - since),
        )

    def _scene(self) -> Scene:
        at = now()
        count = self._counts.total()
        recent = self._history.sections[-RECENT:]
        self._overlaps = max(self._overlaps, len(overlaps(recent)))
        return Scene(
            settings=self._settings,
            phase=self._phase,
            at=at - self._started_at,
            seconds_left=self.seconds_left() if self._ends_at is not None else 0.0,
            nodes=self._monitor.nodes(self.chaos.dead, self.chaos.frozen),
            holder=self._holder_seen(at),
            digest=self._monitor.digest,
            remaining=self._monitor.remaining,
            sections=count,
            rate=self._speed.rate(at, count),
            by_worker=[self._counts[n] for n in range(1, self._settings.workers + 1)],
            overlaps=self._overlaps,
            longest_wait=max(self._history.waits, default=0.0),
            longest_gap=self._longest_gap,
            news=tuple(self._news),
        )
