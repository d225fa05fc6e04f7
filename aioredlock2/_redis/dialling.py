"""Keeps trying until a server is there that may vote: one task, jittered pauses, no pile of dials."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Protocol

from aioredlock2._node import NodeHost
from aioredlock2._redis.contact import connect
from aioredlock2._redis.greeting import Greeting
from aioredlock2._redis.handshake import Dialer, DialError
from aioredlock2._redis.transport import Link

__all__ = ["Dialling"]

REDIAL_S_FIRST = 0.02
REDIAL_S_UNFIT = 1.0


class Caller(Protocol):
    """For whom is dialled."""

    name: str

    def unfit(self, greeting: Greeting) -> str:
        """Why the server that answered must not vote; empty if it may."""

    def failed(self, cause: str, *, unfit: bool) -> None:
        """One dial brought nothing."""

    def rose(self, link: Link, greeting: Greeting) -> None:
        """Connected; the dialling is over until it is started again."""


class Dialling:
    """The dials of one node in one loop."""

    __slots__ = (
        "_alarm",
        "_caller",
        "_dialer",
        "_host",
        "_loop",
        "_number",
        "_pause",
        "_probe_key",
        "_task",
    )

    def __init__(self, dialer: Dialer, probe_key: bytes, caller: Caller, host: NodeHost) -> None:
        self._dialer = dialer
        self._probe_key = probe_key
        self._caller = caller
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._alarm = asyncio.Event()
        self._pause = REDIAL_S_FIRST
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, *, at_once: bool) -> None:
        """Dial until connected; not `at_once`, it pauses before the first dial, and on from the last."""
        if at_once:
            self._pause = REDIAL_S_FIRST
        self._number += 1
        self._task = self._loop.create_task(
            self._dial_until_up(self._number, at_once=at_once),
            name=f"aioredlock2 dials {self._caller.name}",
            context=Context(),  # not that of the request which happens to be the first
        )

    def hurry(self) -> None:
        """Somebody waits: no longer pause than the host allows now."""
        self._alarm.set()

    def stop(self) -> None:
        """Dial no more, and hang up if a connection still comes of it. The loop must be open."""
        self._number += 1
        if self._task is not None:
            self._task.cancel()

    async def _dial_until_up(self, number: int, *, at_once: bool) -> None:
        """Cancelled only by `stop` or the loop's end.

        On Python 3.11 a cancellation may be swallowed below (asyncio.wait_for, which redis-py uses),
        so after each await `number` tells whether this dialling is still wanted.
        """
        unfit = ""
        while number == self._number:
            if not at_once:
                await self._rest(REDIAL_S_UNFIT if unfit else None)
                if number != self._number:
                    return
            at_once, unfit = False, ""
            try:
                token = self._host.runtime.new_token()
                link, greeting = await connect(self._dialer, self._probe_key, token)
            except DialError as error:
                if number == self._number:
                    self._caller.failed(str(error), unfit=False)
                continue
            if number != self._number:
                link.close()
                return
            if unfit := self._caller.unfit(greeting):
                link.close()
                self._caller.failed(unfit, unfit=True)
            else:
                self._task = None
                self._caller.rose(link, greeting)
                return

    async def _rest(self, longest: float | None) -> None:
        """Sleep between dials: jittered, and cut short when somebody comes to wait."""
        host, alarm = self._host, self._alarm
        started_at = host.runtime.clock()
        drawn = self._pause * (0.5 + host.runtime.rng.random() / 2)
        self._pause = min(self._pause * 2, REDIAL_S_UNFIT)
        while True:
            cap = host.redial_cap() if longest is None else longest
            left = started_at + min(drawn, cap) - host.runtime.clock()
            if left <= 0:
                return
            alarm.clear()
            try:
                async with asyncio.timeout(left):
                    await alarm.wait()
            except TimeoutError:
                return
