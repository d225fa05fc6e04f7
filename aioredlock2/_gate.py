"""Two things every round of a client shares: a bound on how many are in flight, and one timer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context

from aioredlock2._core.ballot import Ballot

__all__ = ["Deadlines", "Gate"]

ROUNDS_MAX = 512
"""Rounds in flight per client; a bigger burst would only time itself out."""
LATE_S = 0.005
"""A deadline that fires later than this was held up by a busy loop."""

Batches = deque[tuple[float, list[Ballot]]]
"""For each loop turn when its rounds are due, and these, the last one first."""


class Gate:
    """Lets so many rounds in at a time, the rest in order of arrival."""

    __slots__ = ("_draining", "_inside", "_queue")

    def __init__(self) -> None:
        self._inside = 0
        self._queue: deque[Callable[[], bool]] = deque()
        self._draining = False

    def enter_now(self) -> bool:
        """Take a place if there is one free and nobody waits for it."""
        if self._inside < ROUNDS_MAX and not self._queue:
            self._inside += 1
            return True
        return False

    def enter(self, then: Callable[[], bool]) -> None:
        """Call `then` when there is room, perhaps at once; it returns False to decline its place."""
        self._queue.append(then)
        self._drain()

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a place. Cancelled: the place goes to the next."""
        future: asyncio.Future[None] = loop.create_future()

        def take() -> bool:
            if future.done():
                return False
            future.set_result(None)
            return True

        self.enter(take)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place up."""
        self._inside -= 1
        if self._queue:
            self._drain()

    def _drain(self) -> None:
        """Let in whoever there is room for.

        A loop and no recursion: a round that is decided on the spot leaves from within `then`.
        """
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue and self._inside < ROUNDS_MAX:
                self._inside += 1
                if not self._queue.popleft()():
                    self._inside -= 1
        finally:
            self._draining = False


class Deadlines:
    """Ends rounds when their time is over, with one loop timer for each node timeout in use.

    The time of a round begins when the loop turn that made it is over and its requests are written: in
    a burst of many rounds the first would otherwise be overdue before its bytes have left. So all
    rounds of a turn are due together, and those with equal timeouts in the order of their turns: a
    queue is enough. Rounds that were heard by all nodes are dropped when they have come to its head.

    A deadline never fires on the spot. It lets two more loop turns pass (uvloop runs timers before
    I/O), or a short grace if the loop was busy, so that replies that already lie in the sockets are
    read first: a blocked loop must not make healthy nodes look silent.
    """

    __slots__ = ("_context", "_fresh", "_loop", "_on_expiry", "_queues", "_timers")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_expiry: Callable[[Ballot], None]
    ) -> None:
        self._loop = loop
        self._on_expiry = on_expiry
        self._context = Context()  # not that of the request which happens to be the first
        self._fresh: dict[float, list[Ballot]] = {}
        """By timeout, the rounds of this loop turn."""
        self._queues: dict[float, Batches] = {}
        self._timers: dict[float, asyncio.Handle] = {}

    def watch(self, ballot: Ballot, timeout: float) -> None:
        """End `ballot` by `on_expiry` if it is not complete `timeout` seconds after this loop turn."""
        fresh = self._fresh.get(timeout)
        if fresh is None:
            fresh = self._fresh[timeout] = []
            # Behind the flushes of the links, which the round's requests have scheduled.
            self._loop.call_soon(self._start, timeout, context=self._context)
        fresh.append(ballot)

    def _start(self, timeout: float) -> None:
        ballots = self._fresh.pop(timeout, None)
        if ballots is None:
            return  # cancelled meanwhile
        due_at = self._loop.time() + timeout
        queue = self._queues.setdefault(timeout, deque())
        # Now, and not when they are due: what is kept costs garbage collection.
        _drop_complete(queue)
        ballots.reverse()
        queue.append((due_at, ballots))
        if timeout not in self._timers:
            self._timers[timeout] = self._loop.call_at(
                due_at, self._due, timeout, context=self._context
            )

    def watched(self) -> list[Ballot]:
        """The rounds that are not complete yet."""
        batches = [ballots for queue in self._queues.values() for _, ballots in queue]
        batches += self._fresh.values()
        return [ballot for ballots in batches for ballot in ballots if ballot.unheard]

    def cancel(self) -> None:
        """Stop all timers."""
        if not self._loop.is_closed():
            for timer in self._timers.values():
                timer.cancel()
        self._timers.clear()
        self._queues.clear()
        self._fresh.clear()

    def _due(self, timeout: float) -> None:
        due_at = self._queues[timeout][0][0]
        now = self._loop.time()
        if not self._prune(timeout):
            return
        if self._queues[timeout][0][0] > now:
            self._again(timeout)
        elif now - due_at > LATE_S:
            self._timers[timeout] = self._loop.call_later(LATE_S, self._after_io, timeout, now)
        else:
            self._timers[timeout] = self._loop.call_soon(self._after_io, timeout, now)

    def _after_io(self, timeout: float, until: float) -> None:
        self._timers[timeout] = self._loop.call_soon(self._expire, timeout, until)

    def _expire(self, timeout: float, until: float) -> None:
        queue = self._queues.get(timeout)
        try:
            while queue and queue[0][0] <= until:
                _, ballots = queue[0]
                while ballots:
                    ballot = ballots.pop()
                    if ballot.unheard:
                        self._on_expiry(ballot)
                queue.popleft()
        finally:
            # Whatever a callback raised: later rounds must not lose their deadline.
            if self._prune(timeout):
                self._again(timeout)

    def _again(self, timeout: float) -> None:
        due_at = self._queues[timeout][0][0]
        self._timers[timeout] = self._loop.call_at(
            due_at, self._due, timeout, context=self._context
        )

    def _prune(self, timeout: float) -> bool:
        """Drop complete rounds from the head; whether any is left. Without one, the timer rests."""
        queue = self._queues.get(timeout)
        if queue and _drop_complete(queue):
            return True
        self._queues.pop(timeout, None)
        self._timers.pop(timeout, None)
        return False


def _drop_complete(queue: Batches) -> bool:
    """Drop complete rounds from the head of `queue`; whether any round is left."""
    while queue:
        ballots = queue[0][1]
        while ballots and not ballots[-1].unheard:
            ballots.pop()
        if ballots:
            return True
        queue.popleft()
    return False
