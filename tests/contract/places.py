"""Kinds of node that keep the contract, each with the levers that the clauses need.

A kind that comes later adds one `Place` to `PLACES`, and the whole of `test_node_contract.py` runs over
it. Its `open` gives two connections to one server, as two clients have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from aioredlock2._core.ballot import Ballot, inspect_rule
from aioredlock2._node import Node, NodeState, Request, Sighting, Verb
from aioredlock2._nodes.redis import RedisNode
from aioredlock2._runtime import Runtime
from aioredlock2.outcomes import Vote
from tests.support import loops, virtual
from tests.support.model_node import LOST, LoneHost, ModelNode, ModelServer, Way
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.relay import Relays
from tests.support.servers import Kind
from tests.support.view import View
from tests.support.virtual import VirtualRuntime, the_loop

__all__ = ["PLACES", "Bench", "Body", "Host", "Place"]

KEY = b"redlock:job"
TTL_MS = 60_000
GUARD_S = 3600.0


class Host(LoneHost):
    """The client that a node believes it has."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.guard_s: float | None = None

    def guard_period(self) -> float | None:
        return self.guard_s


class Levers(Protocol):
    """What a test can do to the first connection, and to its server."""

    def hold(self) -> None:
        """What is asked from now on doesn't arrive."""

    def cut(self) -> None:
        """The connection breaks, and what was held is gone; no other one before `mend`."""

    def mend(self) -> None:
        """A connection can be made again."""

    def freeze(self) -> None:
        """The server stops, and what arrives waits."""

    def thaw(self) -> None:
        """It goes on."""

    def fill(self) -> None:
        """The server has no memory left for a grant."""

    def guard(self) -> None:
        """The server may have begun with an empty memory just now."""

    def foul(self, key: bytes) -> None:
        """Something that no lock put there lies under `key`, for good."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Two clients' connections to one server."""

    node: Node
    other: Node
    host: Host
    levers: Levers

    def put(
        self,
        verb: Verb,
        token: bytes = b"a" * 32,
        ttl_ms: int = TTL_MS,
        *,
        key: bytes = KEY,
        fence: int = 0,
        gap: int = 0,
        by: Node | None = None,
    ) -> Ballot:
        """Ask and don't wait."""
        ballot = Ballot(1, inspect_rule)
        request = Request(verb, key, token, ttl_ms)
        request.ballot, request.fence, request.gap = ballot, fence, gap
        if verb <= Verb.RENEW:
            request.until = math.inf
        (by or self.node).ask(request)
        return ballot

    async def ask(self, verb: Verb, *args: Any, **options: Any) -> Vote:
        """Ask and wait for the vote."""
        return await voted(self.put(verb, *args, **options))

    async def seen(self, key: bytes = KEY) -> Sighting | None:
        """What lies under `key`."""
        ballot = self.put(Verb.INSPECT, b"", key=key, by=self.other)
        await voted(ballot)
        (found,) = ballot.causes
        return found if isinstance(found, Sighting) else None

    async def is_up(self) -> None:
        """Wait until the first node votes."""
        await until(lambda: self.node.status.state is NodeState.UP)


Body = Callable[[Bench], Coroutine[Any, Any, None]]


async def voted(ballot: Ballot) -> Vote:
    """The vote, once it is in."""
    await until(lambda: not ballot.unheard)
    return ballot.votes[0]


@dataclass(frozen=True)
class Place:
    """One kind of node."""

    label: str
    kind: Kind | None = None
    """None: in memory."""

    def run(self, pool: ServerPool, body: Body) -> None:
        """Run one clause in a loop of its own."""
        if self.kind is None:
            virtual.run(_with_bench(_in_memory(), body), collect=True)
        else:
            with _served(pool, self.kind) as opened:
                loops.run(_with_bench(opened, body))


PLACES = [Place("memory"), *(Place(kind.label, kind) for kind in Kind)]


async def _with_bench(
    opened: contextlib.AbstractAsyncContextManager[Bench], body: Callable[[Bench], Awaitable[None]]
) -> None:
    async with opened as bench:
        await body(bench)


@contextlib.asynccontextmanager
async def _opened(node: Node, other: Node, host: Host, levers: Levers) -> AsyncIterator[Bench]:
    """Both connections made, and hung up at the end."""
    node.open(host, 0)
    other.open(Host(host.runtime), 0)
    try:
        await until(lambda: node.status.state is other.status.state is NodeState.UP)
        yield Bench(node, other, host, levers)
    finally:
        node.drop()
        other.drop()
        await asyncio.sleep(0.01)  # transports close in a later turn of the loop


# In memory.


class _MemoryLevers:
    def __init__(self, node: ModelNode) -> None:
        self._node = node
        self.freeze, self.thaw = node.server.freeze, node.server.thaw
        self.guard = node.guard

    def hold(self) -> None:
        self._node.way = LOST

    def cut(self) -> None:
        self._node.cut()

    def mend(self) -> None:
        self._node.way = Way()
        self._node.restore()

    def fill(self) -> None:
        self._node.way = Way(fault="OOM command not allowed when used memory > 'maxmemory'.")

    def foul(self, key: bytes) -> None:
        self._node.server.put(key, b"no lock", 1e6)


@contextlib.asynccontextmanager
async def _in_memory() -> AsyncIterator[Bench]:
    loop = the_loop()
    server = ModelServer(loop.boottime)
    node = ModelNode("n", server)
    host = Host(VirtualRuntime(loop))
    async with _opened(node, ModelNode("n", server), host, _MemoryLevers(node)) as bench:
        yield bench


# Real servers, through a relay.


class _ServerLevers:
    def __init__(self, relays: Relays, view: View, bench: Callable[[], tuple[Node, Host]]) -> None:
        self._relay, self._view, self._bench = relays[0], view, bench

    def hold(self) -> None:
        self._relay.to_server.hold()

    def cut(self) -> None:
        self._relay.refuse()
        self._relay.cut()
        self._relay.to_server.release()

    def mend(self) -> None:
        self._relay.accept()

    def freeze(self) -> None:
        self._relay.to_server.hold()

    def thaw(self) -> None:
        self._relay.to_server.release()

    def fill(self) -> None:
        self._view.config_set(maxmemory=1)

    def guard(self) -> None:
        node, host = self._bench()
        host.guard_s = GUARD_S
        node.regard()

    def foul(self, key: bytes) -> None:
        self._view.execute("RPUSH", key, "no lock")


@contextlib.contextmanager
def _served(
    pool: ServerPool, kind: Kind
) -> Iterator[contextlib.AbstractAsyncContextManager[Bench]]:
    (server,) = pool.take(kind, 1)
    with Relays([server]) as relays, View(server) as view:

        @contextlib.asynccontextmanager
        async def opened() -> AsyncIterator[Bench]:
            host = Host(Runtime())
            node: Node = RedisNode(relays[0].url, b"redlock:")
            levers = _ServerLevers(relays, view, lambda: (node, host))
            async with _opened(node, RedisNode(server.url, b"redlock:"), host, levers) as bench:
                yield bench

        try:
            yield opened()
        finally:
            view.config_set(maxmemory=0)
