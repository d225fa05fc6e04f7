"""The queue inside one client: of all tasks that want one name, only the first goes to the network.

While this client holds the name nobody asks the nodes at all; the turn passes on at release, loss or
the deadline. First come, first served. A client whose queue never runs empty would keep all others out,
so after a while (`Attempt`) the next in line lets them try first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioredlock2.errors import RedlockError

if TYPE_CHECKING:
    from aioredlock2._engine import Round
    from aioredlock2._hold import Hold

__all__ = ["Turn", "TurnMissed", "Turns"]


WAITERS_MAX = 20_000
"""Tasks of one client that wait for one name: a longer queue is a fault, and would only grow."""


class TurnMissed(Exception):
    """The wait ended before the turn came, or the queue is full."""


class Turn:
    """The right to go for one name, and those who wait for it."""

    __slots__ = ("holder", "kept_since", "key", "last_round", "waiters")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.holder: Hold | None = None
        """Set while this client holds the name."""
        self.kept_since: float | None = None
        """Since when this client has had the name, handed on from task to task without a break."""
        self.last_round: Round | None = None
        """The latest round of whoever had the turn: what those behind are told."""
        self.waiters: OrderedDict[asyncio.Future[None], None] | None = None
        """Made when somebody waits: most turns are taken and given back by one task."""


class Turns:
    """The turns of one client in one loop."""

    __slots__ = ("_loop", "_turns")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turns: dict[bytes, Turn] = {}

    def take_now(self, key: bytes) -> Turn | None:
        """The turn for `key` if nobody has it."""
        if key in self._turns:
            return None
        turn = self._turns[key] = Turn(key)
        return turn

    def of(self, key: bytes) -> Turn:
        """The turn that somebody has for `key`."""
        return self._turns[key]

    async def wait(self, turn: Turn, limit: float | None) -> None:
        """Wait to get `turn`, at most `limit` seconds; raises TurnMissed, at once if too many wait.

        Cancelled while the turn is being handed over, it goes to the next in line.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        if turn.waiters is None:
            turn.waiters = OrderedDict()
        waiters = turn.waiters
        if len(waiters) >= WAITERS_MAX:
            raise TurnMissed
        waiters[waiter] = None
        timer = None
        if limit is not None:
            timer = self._loop.call_later(limit, _miss, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.leave(turn)
            raise
        finally:
            waiters.pop(waiter, None)
            if timer is not None:
                timer.cancel()

    def leave(self, turn: Turn) -> None:
        """Give the turn to the next in line."""
        turn.holder = None
        while turn.waiters:
            waiter, _ = turn.waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
                return
        # Only the current turn of a name may be removed: after `close` there may be none.
        if self._turns.get(turn.key) is turn:
            del self._turns[turn.key]

    def close(self, error: Callable[[], RedlockError]) -> None:
        """Turn everybody away."""
        for turn in self._turns.values():
            for waiter in turn.waiters or ():
                if not waiter.done():
                    waiter.set_exception(error())
            turn.waiters = None


def _miss(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TurnMissed())
