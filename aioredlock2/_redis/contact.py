"""From an address to a link whose server is known: dial, take over, greet."""

from __future__ import annotations

import asyncio

from aioredlock2._redis.greeting import (
    Greeting,
    greeting_commands,
    introductions,
    read_greeting,
)
from aioredlock2._redis.handshake import DIAL_S_MAX, Dialer, DialError
from aioredlock2._redis.transport import Link

__all__ = ["connect"]


class _Greeter:
    """Collects the replies to some commands."""

    def __init__(self, expected: int) -> None:
        self.done: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
        self._replies: list[object] = []
        self._expected = expected

    def replied(self, _slot: object, reply: object) -> None:
        self._replies.append(reply)
        if len(self._replies) == self._expected and not self.done.done():
            self.done.set_result(self._replies)

    def link_lost(self, cause: str, _unanswered: list[object]) -> None:
        if not self.done.done():
            # A server that has no room says so, and hangs up.
            said = next((str(r) for r in self._replies if isinstance(r, Exception)), cause)
            self.done.set_exception(DialError(said))


async def connect(dialer: Dialer, probe_key: bytes, token: bytes) -> tuple[Link, Greeting]:
    """A connection, and what is at its other end, within `DIAL_S_MAX`.

    Raises DialError. Cancelled at any point, it hangs up.
    """
    try:
        async with asyncio.timeout(DIAL_S_MAX):
            link = await dialer.dial()
            greeting = await _greet(link, probe_key, token)
    except TimeoutError:
        raise DialError(f"no connection within {DIAL_S_MAX:g} s") from None
    except DialError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the node must be dialled again
        # Only the type is told: the text may hold secrets.
        raise DialError(type(error).__name__) from None
    if greeting.refused:
        link.close()
        raise DialError(greeting.refused)
    if not link.is_open:
        raise DialError("the connection was lost right after the greeting")
    return link, greeting


async def _greet(link: Link, probe_key: bytes, token: bytes) -> Greeting:
    """Ask the server what it is. Cancellation or failure aborts the link."""
    try:
        greeting = read_greeting(await _replies(link, greeting_commands(probe_key, token)))
        scripts = introductions(greeting.dialect, probe_key, token)
        if scripts and not (greeting.refused or greeting.unfit):
            await _replies(link, scripts)
    except BaseException:
        link.abort("greeting failed")
        raise
    return greeting


async def _replies(link: Link, commands: list[bytes]) -> list[object]:
    """What the server says to these commands, errors included. Raises DialError if it hangs up."""
    if not link.is_open:
        raise DialError("the connection was lost right after the greeting")
    greeter = _Greeter(len(commands))
    link.attach(greeter)
    for command in commands:
        link.send(command, None, join=True)
    return await greeter.done
