"""The client: checks what the user says, makes locks, and owns a session in the running loop."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Iterable
from datetime import timedelta
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from aioredlock2._core.ballot import quorum_of
from aioredlock2._core.retry import RetryPolicy
from aioredlock2._core.terms import (
    LockTerms,
    number,
    resource_bytes,
    seconds,
    utf8,
    wrong_type,
    wrong_value,
)
from aioredlock2._engine import Round, closed_error
from aioredlock2._inspection import Inspection, inspection, is_locked
from aioredlock2._lock import Lock, OnLost
from aioredlock2._node import Node, NodeStatus
from aioredlock2._runtime import Runtime
from aioredlock2._session import Options, Session
from aioredlock2.errors import ConfigurationError, QuorumUnreachable

if TYPE_CHECKING:
    import redis.asyncio

    NodeLike = str | redis.asyncio.Redis | redis.asyncio.ConnectionPool | Node

__all__ = ["Redlock"]

logger = logging.getLogger("aioredlock2")
Seconds = float | timedelta
CONTACT_S = 2.0
MAX_HOLD_S = 3600.0
ON_LOST = "'cancel', 'notify' or 'ignore'"
RETRY_DEFAULT = RetryPolicy()


class Redlock:
    """A client for locks over N independent Redis or Valkey masters.

    Building it does no I/O; it connects at first use, in the running asyncio loop, and keeps one
    connection per node for any number of locks. Close it with `aclose` or use it as an async context
    manager. It serves one loop at a time and one process: not usable after a fork.

    nodes: URLs (redis://, rediss://, unix://, with all that redis-py's `from_url` takes),
        `redis.asyncio.Redis` or `ConnectionPool` objects (their connection settings are copied,
        they are never used or closed), or `Node` objects. One per independent master.
    ttl: seconds a lock lives if its holder dies; each lock may say otherwise.
    wait: seconds to wait for a lock; 0 tries one round, None waits for ever.
    node_timeout: seconds a round listens to one node; by default 0.5 % of the ttl, from 5 to
        50 ms.
    retry: pauses between rounds.
    drift_factor: share of the ttl set aside for clocks that run at different rates, from 0 to
        below 1. The default suits clocks kept by NTP; daemons that slew faster want more.
    prefix: put before every resource's name; lock keys are exactly prefix + resource.
    restart_guard: keep a node that may have forgotten a lock from voting until the largest ttl
        has passed since its start. True takes the larger of `ttl` and the largest one asked for;
        clients that share names with longer ttls give that ttl; False switches it off. A second
        is added: servers tell their age in whole seconds.

    Raises TypeError for a wrong type, ConfigurationError for a wrong value, before any I/O.
    """

    def __init__(
        self,
        nodes: Iterable[NodeLike],
        *,
        ttl: Seconds = 10.0,
        wait: Seconds | None = 30.0,
        node_timeout: Seconds | None = None,
        retry: RetryPolicy = RETRY_DEFAULT,
        drift_factor: float = 0.01,
        prefix: str = "redlock:",
        restart_guard: bool | Seconds = True,
    ) -> None:
        self._session: Session | None = None
        self._closed = False
        if not isinstance(prefix, str):
            raise wrong_type("prefix", prefix, "a str")
        self._prefix = utf8("prefix", prefix)
        if not 0 <= number("drift_factor", drift_factor) < 1:
            raise wrong_value("drift_factor", drift_factor, "from 0 to below 1")
        if not isinstance(retry, RetryPolicy):
            raise wrong_type("retry", retry, "a RetryPolicy")
        timeout = None if node_timeout is None else seconds("node_timeout", node_timeout)
        guard: float | bool = (
            restart_guard
            if isinstance(restart_guard, bool)
            else seconds("restart_guard", restart_guard, instead=", True, or False for none")
        )
        self._wait = _wait_of(wait)
        self._options = Options(
            terms=LockTerms.of(ttl, drift_factor=drift_factor, node_timeout=timeout),
            retry=retry,
            drift_factor=float(drift_factor),
            node_timeout=timeout,
            restart_guard=guard,
            probe_key=self._prefix,
        )
        # Of the ttl asked for last: mostly it is the same literal each time.
        self._terms_of: tuple[object, LockTerms] = (..., self._options.terms)
        self._runtime = Runtime()
        self._nodes = _nodes_of(nodes, self._prefix)

    def __call__(
        self,
        resource: str | bytes,
        *,
        ttl: Seconds | EllipsisType = ...,
        wait: Seconds | EllipsisType | None = ...,
        renew: bool = True,
        max_hold: Seconds | None = MAX_HOLD_S,
        fenced: bool = False,
        on_lost: OnLost = "cancel",
    ) -> Lock:
        """A request for `resource`; nothing is sent yet.

        resource: what to protect: a non-empty str (UTF-8) or bytes, of at most 64 KiB.
        ttl: seconds the lock lives if its holder dies; the client's by default.
        wait: seconds to wait for it; 0 tries one round, None waits for ever; the client's by default.
        renew: extend in the background while it is held.
        max_hold: seconds it may be held in all, renewals included, at least `ttl`; None lifts the
            bound.
        fenced: give each lease a `Lease.fence`, a number that grows from holder to holder. Takes one
            more key per resource on each node, and a second round trip where nodes disagree.
        on_lost: "cancel" stops the body of `async with` at its next await and raises LeaseLost,
            "notify" only raises at the exit, "ignore" leaves quietly; `Lease.is_lost` and
            `Lease.lost()` tell in each case.

        Raises TypeError for a wrong type, ConfigurationError for a wrong value.
        """
        terms = self._options.terms
        if ttl is not ...:
            if ttl is not self._terms_of[0]:
                self._terms_of = (ttl, self._options.terms_of(ttl))
            terms = self._terms_of[1]
        if not isinstance(renew, bool):
            raise wrong_type("renew", renew, "True or False")
        if not isinstance(fenced, bool):
            raise wrong_type("fenced", fenced, "True or False")
        no_bound = ", or None for no bound"
        if max_hold == MAX_HOLD_S:
            hold: float | None = max(MAX_HOLD_S, terms.ttl)  # the default gives way to the ttl
        else:
            hold = None if max_hold is None else seconds("max_hold", max_hold, instead=no_bound)
        if hold is not None and hold < terms.ttl:
            raise wrong_value("max_hold", max_hold, f"at least ttl={terms.ttl:g}{no_bound}")
        if not isinstance(on_lost, str):
            raise wrong_type("on_lost", on_lost, ON_LOST)
        if on_lost not in ("cancel", "notify", "ignore"):
            raise wrong_value("on_lost", on_lost, ON_LOST)
        return Lock(
            self,
            resource,
            self._prefix + resource_bytes(resource),
            terms,
            self._wait if wait is ... else _wait_of(wait),
            renew=renew,
            max_hold=hold,
            fenced=fenced,
            on_lost=on_lost,
        )

    def session(self) -> Session:
        """The session in the running loop, made at first use.

        Raises ConfigurationError if the client is closed, in use in another loop, or the parent's.
        """
        if self._closed:
            raise closed_error()
        session = self._session
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if session is not None and session.loop is loop:
            return session  # a forked child has no running loop, so this is also the process
        if session is not None and not session.is_here:
            raise ConfigurationError(
                "this Redlock was used before the fork and belongs to the parent process: "
                "make a new one in the child"
            )
        if loop is None:
            raise ConfigurationError(
                "a Redlock works in a running asyncio loop only (not under trio, not outside one)"
            )
        if session is not None:
            if not session.loop.is_closed():
                raise ConfigurationError(
                    "this Redlock is in use in another event loop that still lives: make one Redlock "
                    "per loop, or aclose() it there first"
                )
            session.drop()
        self._session = session = Session(self._nodes, self._runtime, self._options)
        return session

    @property
    def nodes(self) -> tuple[NodeStatus, ...]:
        """How each node stands now, in the order they were given."""
        return tuple(node.status for node in self._nodes)

    async def inspect(self, resource: str | bytes) -> Inspection:
        """Ask all nodes who holds `resource`; takes at most one node timeout."""
        looked = await self._look(resource)
        return inspection(resource, self._nodes, looked)

    async def is_locked(self, resource: str | bytes) -> bool:
        """Whether anybody, this client included, holds `resource`: asks the nodes.

        Raises QuorumUnreachable if too few nodes answer to tell.
        """
        looked = await self._look(resource)
        locked = is_locked(looked)
        if locked is not None:
            return locked
        session = self.session()
        elapsed = session.runtime.clock() - looked.started_at
        raise QuorumUnreachable(
            resource, elapsed, 1, session.engine.outcomes(looked), "can't tell whether it is locked"
        )

    async def _look(self, resource: str | bytes) -> Round:
        key = self._prefix + resource_bytes(resource)
        session = self.session()
        await session.contact(session.runtime.clock())
        looked = session.engine.inspect(key, self._options.terms.node_timeout)
        await looked.decided(session.loop)
        return looked

    async def __aenter__(self) -> Self:
        """Connect to all nodes; waits up to two seconds until a quorum can vote."""
        session = self.session()
        await session.contact(session.runtime.clock() + CONTACT_S)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release all leases, turn waiters away, close the connections: about two node timeouts.

        Idempotent. Afterwards everything that is asked of this client raises ConfigurationError.
        """
        session = self._session
        if self._closed or session is None:
            self._closed = True
            return
        if not session.is_here or session.loop.is_closed():
            session.drop()
        else:
            session.check_here("close the client")
            self._closed = True
            await session.close(self._options.terms.node_timeout)
        self._closed = True
        self._session = None

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is None or self._closed or not session.is_here:
            return
        if session.loop.is_closed():
            session.drop()
        else:
            # Whatever thread collects this, the connections belong to the loop's.
            session.loop.call_soon_threadsafe(session.drop)
        warnings.warn(
            f"{self!r} was never closed: use 'async with', or 'await redlock.aclose()'",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __repr__(self) -> str:
        return f"<Redlock {', '.join(node.name for node in self._nodes)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Redlock can't be pickled: make one in each process, from the URLs")


def _wait_of(wait: object) -> float | None:
    if wait is None:
        return None
    return seconds("wait", wait, zero=True, instead=", or None to wait for ever")


def _nodes_of(given: Iterable[NodeLike], prefix: bytes) -> tuple[Node, ...]:
    """The nodes as voters; loads the kind of node at call time, so that others can be added."""
    from aioredlock2._nodes.redis import RedisNode  # noqa: PLC0415

    if isinstance(given, (str, bytes)):
        # Without the value: it may hold a password.
        raise TypeError("nodes: must be a list of nodes, not a single URL: write [url]")
    try:
        listed = list(given)
    except TypeError:
        raise wrong_type("nodes", given, "a list of nodes") from None
    nodes: list[Node] = []
    for index, one in enumerate(listed):
        node = one if isinstance(one, Node) else RedisNode(one, prefix, f"nodes[{index}]")
        for other in nodes:
            if other.address == node.address:
                raise ConfigurationError(
                    f"nodes {other.name} and {node.name} are the same address: one server may never "
                    "have two votes"
                )
        nodes.append(node)
    if not nodes:
        raise wrong_value("nodes", nodes, "at least one node")
    if len(nodes) % 2 == 0:
        logger.warning(
            "%d nodes need a quorum of %d, like %d nodes would, and survive no more failures: "
            "an odd number is better",
            len(nodes),
            quorum_of(len(nodes)),
            len(nodes) + 1,
        )
    return tuple(nodes)
