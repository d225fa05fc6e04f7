"""Everything of a client that belongs to one event loop and one process: it is made at first use.

Also what nodes may ask of their client (`NodeHost`): how long a restarted one stays out, how urgent
the next dial is, and whether its server is there under another address already.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from aioredlock2._core.ballot import quorum_of
from aioredlock2._core.retry import RetryPolicy
from aioredlock2._core.terms import LockTerms
from aioredlock2._engine import Engine, closed_error
from aioredlock2._node import Node, NodeState
from aioredlock2._runtime import Runtime
from aioredlock2._turns import Turns
from aioredlock2._watchdog import Watchdog
from aioredlock2.errors import ConfigurationError, shown

__all__ = ["Options", "Session"]

logger = logging.getLogger("aioredlock2")

FIRST_CONTACT_S = 0.5
"""A client that was never connected may overrun a `wait` by so much, once."""
REDIAL_S_MIN = 0.05
REDIAL_SHARE = 0.1
SLEEP_S_MAX = 3600.0
CLOSING_TURNS = 3
GUARD_S_EXTRA = 1.0
"""Uptime comes in whole seconds."""


@dataclass(frozen=True, slots=True)
class Options:
    """A client's settings, validated."""

    terms: LockTerms
    """Of the client's default ttl."""
    retry: RetryPolicy
    drift_factor: float
    node_timeout: float | None
    restart_guard: float | bool
    """Seconds, True for "by the largest ttl", False for none."""
    probe_key: bytes
    """A key that no lock can have, within the prefix."""

    def terms_of(self, ttl: object) -> LockTerms:
        """Terms for another ttl by these settings; raises as `LockTerms.of`."""
        return LockTerms.of(ttl, drift_factor=self.drift_factor, node_timeout=self.node_timeout)


class Session:
    """A client's nodes, engine, queue and watchdog, at work in one loop."""

    def __init__(self, nodes: Sequence[Node], runtime: Runtime, options: Options) -> None:
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.runtime = runtime
        self.nodes = nodes
        self.retry = options.retry
        self.engine = Engine(nodes, runtime, self.loop)
        self.turns = Turns(self.loop)
        self.watchdog = Watchdog(self.engine, self.turns)
        self.closed = False
        """True once nothing may be acquired any more."""
        self._options = options
        self._guard = options.restart_guard
        self._longest_ttl = options.terms.ttl
        self._warned = False
        self._servers: dict[str, Node] = {}
        self.met_quorum = False
        self._first_contact_until = runtime.clock() + FIRST_CONTACT_S
        self._sleepers: dict[asyncio.Future[None], tuple[float, bool]] = {}
        for index, node in enumerate(nodes):
            node.open(self, index)

    # What the nodes ask (NodeHost).

    def guard_period(self) -> float | None:
        """Seconds a restarted node stays out: no lock older than the largest ttl can be alive."""
        if self._guard is False:
            return None
        longest = self._longest_ttl if self._guard is True else self._guard
        return longest + GUARD_S_EXTRA

    def redial_cap(self) -> float:
        """Soon if a lease or a caller depends on it, at leisure otherwise."""
        shortest = min((ttl for ttl, _ in self._sleepers.values()), default=math.inf)
        return max(REDIAL_S_MIN, min(self.watchdog.tick, shortest * REDIAL_SHARE))

    def claim(self, node: Node, identity: str) -> str | None:
        """One server votes once: whoever of two addresses comes first has it."""
        for known, other in list(self._servers.items()):
            if other is node:
                del self._servers[known]
        other = self._servers.setdefault(identity, node)
        return None if other is node else other.name

    def changed(self, node: Node) -> None:
        """A node went up, or was tried for the first time: whoever waits for nodes looks again."""
        if not self.met_quorum:
            self.met_quorum = self._count(NodeState.UP) >= quorum_of(len(self.nodes))
        if node.status.state is NodeState.UP or not self.met_quorum:
            for sleeper, (_, for_nodes) in self._sleepers.items():
                if for_nodes:
                    _wake(sleeper)

    def _count(self, state: NodeState) -> int:
        return sum(node.status.state is state for node in self.nodes)

    # What the client asks.

    def terms(self, ttl: object) -> LockTerms:
        """Terms for a ttl by this client's settings; raises as `LockTerms.of`."""
        return self._options.terms_of(ttl)

    @property
    def is_here(self) -> bool:
        """False in a forked child."""
        return self.pid == os.getpid()

    def check_here(self, what: str, whose: str | bytes | None = None) -> asyncio.AbstractEventLoop:
        """The loop, if this is its process and it is running here; else a ConfigurationError.

        The error says that `what` can't be done, to the lease of `whose` if that is given.
        """
        if self.is_here:
            try:
                if asyncio.get_running_loop() is self.loop:
                    return self.loop
            except RuntimeError:
                pass
            why = "from another thread or event loop than the one it is used in"
        else:
            why = "after a fork: it belongs to the parent process"
        lease = "" if whose is None else f" the lease of {shown(whose)}"
        raise ConfigurationError(f"can't {what}{lease} {why}")

    def note_ttl(self, ttl: float) -> None:
        """A lock with this ttl was asked for: the restart guard covers the largest one."""
        if ttl <= self._longest_ttl:
            return
        self._longest_ttl = ttl
        if self._guard is True:
            for node in self.nodes:
                node.regard()
        elif self._guard is not False and ttl > self._guard and not self._warned:
            self._warned = True
            logger.warning(
                "a lock with ttl %g s is longer than the restart guard of %g s: a node that "
                "restarts may vote although it has forgotten that lock",
                ttl,
                self._guard,
            )

    def check_open(self) -> None:
        """Raise ConfigurationError if the client was closed."""
        if self.closed:
            raise closed_error()

    async def contact(self, give_up_at: float) -> None:
        """On first use: wait until a quorum can vote, or every node was tried, or until `give_up_at`.

        Whatever the caller's patience, the first half second of a client is granted. May be
        cancelled: nothing is held across it.
        """
        until = max(give_up_at, self._first_contact_until)
        while not self.met_quorum and self._count(NodeState.CONNECTING) and not self.closed:
            left = until - self.runtime.clock()
            if left <= 0:
                return
            await self.sleep(left, math.inf, for_nodes=True)

    async def sleep(self, delay: float, ttl: float, *, for_nodes: bool) -> None:
        """Sleep, woken early if the client closes or (`for_nodes`) when a node comes or goes.

        While anybody sleeps here, nodes that are away are dialled as often as `ttl` demands.
        May be cancelled: nothing is held across it.
        """
        sleeper: asyncio.Future[None] = self.loop.create_future()
        timer = self.loop.call_later(max(0.0, min(delay, SLEEP_S_MAX)), _wake, sleeper)
        self._sleepers[sleeper] = (ttl, for_nodes)
        if for_nodes:
            for node in self.nodes:
                node.hurry()
        try:
            await sleeper
        finally:
            timer.cancel()
            del self._sleepers[sleeper]

    async def close(self, node_timeout: float) -> None:
        """Release what is held, turn waiters away, let deletes out, hang up. About two node timeouts.

        Cancelled half-way, it hangs up at once; everything was written before the first await.
        """
        self.closed = True
        self.turns.close(closed_error)
        for sleeper in self._sleepers:
            _wake(sleeper)
        self.engine.close()
        self.watchdog.close()
        try:
            # Answers come in order: when a question asked now is answered, all before it were.
            await self.engine.inspect(self._options.probe_key, node_timeout).decided(self.loop)
            # Attempts that had just won clean up behind themselves in this turn.
            await asyncio.sleep(0)
            await self.engine.inspect(self._options.probe_key, node_timeout).decided(self.loop)
        finally:
            self.drop()
        # Dials that were cancelled, and connections that were closed, end in these turns.
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)

    def drop(self) -> None:
        """Let go of everything at once, also if the loop is closed or this is a forked child."""
        self.closed = True
        self.watchdog.drop()
        self.engine.drop(wake=self.is_here and not self.loop.is_closed())
        for node in self.nodes:
            node.drop()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
