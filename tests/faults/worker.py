"""A worker process: contends for a few names and writes down all that it is told.

    python -m tests.faults.worker NUMBER LOG on|off URL...        (the restart guard: on or off)

It is told what to do by lines of JSON on its standard input: "work" (with the history's path and a
seed), "rest", "block", "cancel", "fork", "explain". It ends when its input does. Started by `crew`.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.handlers
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from aioredlock2 import AcquireError, Lease, LeaseError, Lock, Redlock, Vote
from aioredlock2._demo.clock import now
from tests.faults.history import (
    Ended,
    Event,
    Extended,
    Forked,
    Granted,
    History,
    Refused,
    Rested,
    Stalled,
    Stray,
)
from tests.faults.plan import TTL_S
from tests.support.forking import refusal, try_everything

__all__ = ["NODE_TIMEOUT_S"]

NODE_TIMEOUT_S = 0.1
CONTENDERS = 3
RESOURCES = [f"account:{number}" for number in range(8)]
PAUSE_S = (0.005, 0.1)
LOOK_S = 0.1
"""How often deadlines are looked at."""
BEAT_S = 0.02
STALL_S_MIN = 0.05
FORK_S_MAX = 10
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


class Worker:
    """Contenders for locks, and what is done to them."""

    def __init__(self, number: int, redlock: Redlock) -> None:
        self._number = number
        self._redlock = redlock
        self._pid = os.getpid()
        self._rng = random.Random(number)
        self._history: History | None = None
        self._working = asyncio.Event()
        self._sections: set[asyncio.Task[None]] = set()
        self._held: dict[int, tuple[Lease, float]] = {}
        self._count = 0
        self._forks = False
        self._helpers: set[asyncio.Task[None]] = set()
        self._input = b""
        self._closed = asyncio.Event()

    async def run(self) -> None:
        """Until the input ends."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._stray(repr(context)))
        loop.add_reader(sys.stdin.fileno(), self._read)
        contenders = [asyncio.create_task(self._contend()) for _ in range(CONTENDERS)]
        watches = [asyncio.create_task(work) for work in (self._watch(), self._beat())]
        print("ready")
        await self._closed.wait()
        loop.remove_reader(sys.stdin.fileno())
        tasks = [*watches, *contenders, *self._sections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _write(self, event: Event) -> None:
        if self._history is not None:
            self._history.write(event)

    def _stray(self, text: str) -> None:
        self._write(Stray(at=now(), pid=self._pid, text=text))

    # What it is told.

    def _read(self) -> None:
        chunk = os.read(sys.stdin.fileno(), 65536)
        if not chunk:
            self._closed.set()
            return
        *lines, self._input = (self._input + chunk).split(b"\n")
        for line in lines:
            order = json.loads(line)
            getattr(self, f"_{order.pop('do')}")(**order)

    def _work(self, history: str, seed: int) -> None:
        if self._history is not None:
            self._history.close()
        self._history = History(Path(history))
        self._rng = random.Random(f"{seed} {self._number}")
        self._working.set()

    def _rest(self) -> None:
        self._working.clear()
        self._help(self._come_to_rest())

    def _block(self, seconds: float) -> None:
        time.sleep(seconds)

    def _cancel(self, seconds: float) -> None:
        self._help(self._cancel_for(seconds))

    def _fork(self) -> None:
        self._forks = True
        if self._held:
            self._fork_now()

    def _explain(self) -> None:
        """It was to rest and does not: what it is at."""
        for section in self._sections:
            with io.StringIO() as text:
                section.print_stack(file=text)
                self._stray(text.getvalue())

    def _help(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def _come_to_rest(self) -> None:
        while self._sections:
            await asyncio.wait(self._sections)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self._write(
            Rested(
                at=now(),
                worker=self._number,
                pid=self._pid,
                tasks=len(asyncio.all_tasks()),
                files=len(list(Path("/proc/self/fd").iterdir())),
                kilobytes=pages * PAGE_KB,
            )
        )
        print("resting")

    async def _cancel_for(self, seconds: float) -> None:
        until = now() + seconds
        while now() < until:
            await asyncio.sleep(self._rng.uniform(0, 0.1))
            if self._sections:
                self._rng.choice(list(self._sections)).cancel()

    def _fork_now(self) -> None:
        self._forks = False
        lease, _ = next(iter(self._held.values()))
        pid = os.fork()
        if pid == 0:
            signal.alarm(FORK_S_MAX)
            wrong = "it didn't get to its end"
            try:
                wrong = asyncio.run(_seen_in_child(self._redlock, lease))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is what was found
                wrong = repr(error)
            finally:
                self._write(Forked(at=now(), pid=self._pid, wrong=wrong))
                os._exit(0)
        self._help(self._reap(pid))

    async def _reap(self, pid: int) -> None:
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        if status:
            self._write(Forked(at=now(), pid=self._pid, wrong=f"it ended with status {status}"))

    # What it sees.

    async def _beat(self) -> None:
        """Notice when this process stood still: stopped, starved, or blocked on purpose.

        What the loop itself was busy with is no excuse, so its own work doesn't count.
        """
        before, worked_before = now(), time.thread_time()
        while True:
            await asyncio.sleep(BEAT_S)
            after, worked = now(), time.thread_time()
            idle = (after - before) - (worked - worked_before)
            if idle > STALL_S_MIN:
                self._write(Stalled(at=after, pid=self._pid, since=after - idle))
            before, worked_before = after, worked

    async def _watch(self) -> None:
        """Notice deadlines that the watchdog has moved."""
        while True:
            await asyncio.sleep(LOOK_S)
            for number, (lease, seen) in list(self._held.items()):
                if lease.valid_until != seen:
                    self._extended(number, lease, "watchdog")

    def _extended(self, number: int, lease: Lease, by: str) -> None:
        until = lease.valid_until
        self._held[number] = lease, until
        self._write(Extended(at=now(), pid=self._pid, lease=number, valid_until=until, by=by))

    def _granted(self, resource: str, asked_at: float, lease: Lease) -> int:
        at = now()
        self._count += 1
        self._held[self._count] = lease, lease.valid_until
        votes = [outcome.vote for outcome in lease.votes]
        self._write(
            Granted(
                at=at,
                worker=self._number,
                pid=self._pid,
                lease=self._count,
                resource=resource,
                asked_at=asked_at,
                valid_until=lease.valid_until,
                fence=lease.fence,
                nodes=len(votes),
                away=sum(vote not in (Vote.GRANTED, Vote.PENDING) for vote in votes),
            )
        )
        number = self._count
        if self._forks:
            self._fork_now()
        return number

    def _ended(self, number: int, lease: Lease, how: str) -> None:
        at = now()
        del self._held[number]
        how = "lost" if lease.is_lost else how
        self._write(
            Ended(
                at=at,
                pid=self._pid,
                lease=number,
                valid_until=lease.valid_until,
                how=how,
                why=lease._hold.reason,
            )
        )

    # What it does.

    async def _contend(self) -> None:
        while True:
            await self._working.wait()
            section = asyncio.create_task(self._section())
            self._sections.add(section)
            await asyncio.wait([section])
            self._sections.discard(section)
            if not section.cancelled() and (error := section.exception()) is not None:
                self._stray(repr(error))
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))

    async def _section(self) -> None:
        rng = self._rng
        resource = rng.choice(RESOURCES)
        wait = rng.choice([0.0, 0.5, 3.0, None, None])
        asked_at = now()
        try:
            if rng.random() < 0.2:
                await self._by_hand(resource, wait, asked_at)
            else:
                await self._in_block(resource, wait, asked_at)
        except AcquireError as error:
            self._write(
                Refused(
                    at=now(),
                    pid=self._pid,
                    resource=resource,
                    asked_at=asked_at,
                    wait=wait or 0.0,
                    error=type(error).__name__,
                )
            )
        except LeaseError:
            pass  # written when the section ended

    def _lock(self, resource: str, wait: float | None, **options: Any) -> Lock:
        return self._redlock(resource, wait=wait, fenced=True, **options)

    async def _in_block(self, resource: str, wait: float | None, asked_at: float) -> None:
        """`async with`, mostly short, sometimes so long that it takes renewals."""
        rng = self._rng
        is_long = rng.random() < 0.06
        seconds = rng.uniform(0.5, 1.6) * TTL_S if is_long else rng.uniform(0.001, 0.03)
        on_lost = rng.choice(["cancel", "cancel", "notify"])
        async with self._lock(resource, wait, on_lost=on_lost) as lease:
            number = self._granted(resource, asked_at, lease)
            how = "cancelled"
            try:
                if on_lost == "notify":
                    await _lost_within(lease, seconds)
                else:
                    await asyncio.sleep(seconds)
                how = "released"
            finally:
                self._ended(number, lease, how)

    async def _by_hand(self, resource: str, wait: float | None, asked_at: float) -> None:
        """Without a watchdog: extended by hand, or left to run out."""
        rng = self._rng
        ttl = rng.choice([TTL_S, TTL_S / 2])
        lease = await self._lock(resource, wait, ttl=ttl, renew=False).acquire()
        number = self._granted(resource, asked_at, lease)
        how = "cancelled"
        try:
            for _ in range(rng.randrange(4)):
                if await _lost_within(lease, rng.uniform(0, 0.4) * ttl):
                    break
                await lease.extend(rng.choice([None, TTL_S, TTL_S / 2]))
                self._extended(number, lease, "extend")
            if rng.random() < 0.1:
                await lease.lost()
            how = "released"
        finally:
            self._ended(number, lease, how)
            await lease.release()


async def _lost_within(lease: Lease, seconds: float) -> bool:
    """Whether it was lost in that time; waits no longer than that."""
    try:
        return await asyncio.wait_for(lease.lost(), seconds)
    except TimeoutError:
        return False


async def _seen_in_child(redlock: Redlock, lease: Lease) -> str:
    """In a forked child: empty if everything inherited is refused."""
    said = await refusal(redlock("z").acquire)
    if "fork" not in said:
        return said
    await try_everything(redlock, lease)
    return ""


async def _main(number: int, guard: bool, urls: list[str]) -> None:
    async with Redlock(
        urls, ttl=TTL_S, node_timeout=NODE_TIMEOUT_S, restart_guard=guard
    ) as redlock:
        await Worker(number, redlock).run()


if __name__ == "__main__":
    number_given, log, guard_given, *urls_given = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the suite, which ends this
    warnings.simplefilter("always", ResourceWarning)
    logging.basicConfig(
        handlers=[logging.handlers.RotatingFileHandler(log, maxBytes=1_000_000, backupCount=1)],
        format="%(asctime)s %(message)s",
    )
    asyncio.run(_main(int(number_given), guard_given == "on", urls_given))
