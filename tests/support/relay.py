"""A TCP relay per node that delays, holds, cuts and rewrites what passes, in either direction.

    with Relays(servers) as relays:            # one relay per server
        Redlock(relays.urls, restart_guard=False)
        relays[0].to_client.delay_s = 0.4      # replies of node 0 come 0.4 s late
        relays[1].to_server.hold()             # nothing reaches node 1, not even a close, ...
        relays[1].to_server.release()          # ... until now, in order
        relays[2].cut()                        # reset all connections of node 2

The relays run in a thread and a loop of their own, so they go on while a test blocks its own. All
methods are synchronous, may be called from any thread, and have taken effect when they return.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, TypeVar, overload

from aioredlock2 import embedded
from tests.support.relay_link import Cut, Direction, End, HangUp, Link
from tests.support.stopping import Stopping

__all__ = ["Direction", "Relay", "Relays"]

HOST = "127.0.0.1"

T = TypeVar("T")


class Target(Protocol):
    """Anything with a TCP address, such as an embedded server."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Relay:
    """Forwards connections from its own port to a target. Made by `Relays`."""

    def __init__(self, relays: Relays, target: Target, tls: ssl.SSLContext | None) -> None:
        self.to_server = Direction(relays._call)
        """Requests."""
        self.to_client = Direction(relays._call)
        """Replies."""
        self.host = HOST
        (self.port,) = embedded._free_ports(1)
        """The port to connect to; kept while connections are refused."""
        self.accepts = 0
        """Connections accepted so far."""
        self._call = relays._call
        self._run = relays._run
        self._tls = tls
        self._target = (target.host, target.port)
        self._server: asyncio.Server | None = None
        self._hangs_up = False
        self._cut: Cut | None = None
        self._links: set[Link] = set()
        self._dials: set[asyncio.Task[None]] = set()
        self._run(self._listen)

    @property
    def url(self) -> str:
        """``redis://127.0.0.1:<port>``, or ``rediss://`` if the relay speaks TLS."""
        return f"redis{'s' if self._tls else ''}://{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """Connections open now."""
        return self._call(lambda: len(self._links))

    def hold(self) -> None:
        """Hold both directions: a partition."""
        self.to_server.hold()
        self.to_client.hold()

    def release(self) -> None:
        """Release both directions."""
        self.to_server.release()
        self.to_client.release()

    def cut(self) -> None:
        """Reset all connections now, on both sides; what was queued is lost."""
        self._call(lambda: self._end_links(End.RESET))

    def close(self) -> None:
        """Close all connections now in an orderly way; what was queued is lost."""
        self._call(lambda: self._end_links(End.CLOSED))

    def cut_after(self, *, replies: int = 0, keep_bytes: int = 0) -> None:
        """Let *replies* more replies and *keep_bytes* bytes of the next pass, then reset.

        Counts the replies of all connections from now on; pushes are let through uncounted.
        """
        cut = Cut(replies=replies, keep_bytes=keep_bytes)
        self._call(lambda: setattr(self, "_cut", cut))

    def refuse(self) -> None:
        """Refuse new connections; those that exist go on."""
        self._run(self._unlisten)

    def hang_up(self) -> None:
        """Accept new connections and close them at once; those that exist go on."""
        self._call(lambda: setattr(self, "_hangs_up", True))

    def accept(self) -> None:
        """Undo `refuse` and `hang_up`."""
        self._hangs_up = False
        self._run(self._listen)

    def retarget(self, target: Target) -> None:
        """New connections go to *target*; those that exist stay where they are."""
        self._target = (target.host, target.port)

    async def _listen(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._accepted, HOST, self.port, ssl=self._tls)

    async def _unlisten(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accepted(self) -> asyncio.Protocol:
        self.accepts += 1
        if self._hangs_up:
            return HangUp()
        return Link(self).accept()

    async def _aclose(self) -> None:
        await self._unlisten()
        for dial in list(self._dials):
            dial.cancel()
        self._end_links(End.RESET)
        await asyncio.sleep(0)

    def _end_links(self, how: End) -> None:
        for link in list(self._links):
            link.end(how)


class Relays(Sequence[Relay], Stopping):
    """One relay per target, in one thread."""

    def __init__(self, targets: Iterable[Target], *, tls: ssl.SSLContext | None = None) -> None:
        self._errors: list[Exception] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._note)
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()
        self._relays = [Relay(self, target, tls) for target in targets]

    @property
    def urls(self) -> list[str]:
        """The URL of every relay, in order."""
        return [relay.url for relay in self]

    def stop(self) -> None:
        """Reset all connections and end the thread; raises what went wrong in it. Idempotent."""
        if self._loop.is_closed():
            return
        for relay in self._relays:
            self._run(relay._aclose)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._errors:
            raise ExceptionGroup("the relays failed", self._errors)

    def __len__(self) -> int:
        return len(self._relays)

    @overload
    def __getitem__(self, index: int) -> Relay: ...
    @overload
    def __getitem__(self, index: slice) -> list[Relay]: ...
    def __getitem__(self, index: int | slice) -> Relay | list[Relay]:
        return self._relays[index]

    def _call(self, function: Callable[[], T]) -> T:
        """Call *function* in the relays' thread, from any thread."""

        async def call() -> T:
            return function()

        return self._run(call)

    def _run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result()

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._errors.append(
            error if isinstance(error, Exception) else RuntimeError(context["message"])
        )
