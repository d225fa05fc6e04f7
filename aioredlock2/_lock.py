"""The stateless request: what to lock and how, and the ways to do it.

A Lock holds no token. Each acquisition makes its own lease, so one Lock may be shared between tasks
and used again and again; what it keeps is only which task has entered it with which lease.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, ParamSpec, TypeVar

from aioredlock2._attempt import Attempt
from aioredlock2._core.lease_state import LOST
from aioredlock2._core.terms import LockTerms
from aioredlock2._hold import Hold
from aioredlock2._lease import Lease, released
from aioredlock2._session import Session
from aioredlock2.errors import ConfigurationError, LeaseLost, LockContended, shown

if TYPE_CHECKING:
    from aioredlock2._client import Redlock

__all__ = ["Lock", "OnLost"]

OnLost = Literal["cancel", "notify", "ignore"]
P = ParamSpec("P")
R = TypeVar("R")


class _Entry:
    """One `async with` under way: its lease, and the cancellation that a loss sends to its task.

    The rules are those of asyncio.timeout: exactly our own request is taken back with `uncancel`,
    and a cancellation from outside wins.
    """

    __slots__ = ("_cancelling", "cancelled", "hold", "lease", "left", "session", "task")

    def __init__(
        self, lease: Lease, hold: Hold, session: Session, task: asyncio.Task[object]
    ) -> None:
        self.lease = lease
        """Kept here: the user may have dropped it (`async with ... :` without `as`)."""
        self.hold = hold
        self.session = session
        self.task = task
        self._cancelling = task.cancelling()
        self.cancelled = False
        self.left = False

    def cancel_body(self) -> None:
        """The lease is lost: stop the body at its next await. Called from the loop only."""
        if not (self.left or self.task.done()):
            self.cancelled = True
            self.task.cancel(f"the lease of {shown(self.hold.resource)} is lost")

    async def settle(self, exc: BaseException | None) -> bool:
        """Take our cancellation back; whether `exc` is nothing but that.

        Raises CancelledError if the task was cancelled from outside as well.
        """
        self.cancelled = False
        if self.task.done():
            return False
        outside = self.task.uncancel() > self._cancelling
        if self.task is not asyncio.current_task():
            return False
        if isinstance(exc, asyncio.CancelledError):
            return not outside
        # The body ended before the cancellation arrived. On Python 3.11 and 3.12 it would still hit
        # the next await, whatever `uncancel` says: here it hits one that expects it.
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            # Counted anew: one from outside may have come in this very turn.
            if self.task.cancelling() > self._cancelling:
                raise
        return False


class Lock:
    """A request for one resource: reusable, shareable between tasks, without state of its own.

    Made by calling a `Redlock`. Use it as an async context manager, as a decorator for an async
    function, or by hand with `acquire` and `try_acquire`. Locks are not re-entrant.
    """

    def __init__(
        self,
        client: Redlock,
        resource: str | bytes,
        key: bytes,
        terms: LockTerms,
        wait: float | None,
        *,
        renew: bool,
        max_hold: float | None,
        fenced: bool,
        on_lost: OnLost,
    ) -> None:
        self._client = client
        self._resource = resource
        self._key = key
        self._terms = terms
        self._wait = wait
        self._renew = renew
        self._max_hold = max_hold
        self._fenced = fenced
        self._on_lost = on_lost
        self._entries: tuple[_Entry, ...] = ()

    @property
    def resource(self) -> str | bytes:
        """The resource, as it was asked for."""
        return self._resource

    async def acquire(self) -> Lease:
        """A lease, within `wait` seconds.

        Raises LockContended, QuorumUnreachable or AcquiredTooLate, by the outcome of the last round.
        Cancelled, it leaves no key behind: the deletes are written before the CancelledError leaves.
        """
        session = self._client.session()
        return Lease(await self._attempt(session, self._wait).run(), session, self._client)

    async def try_acquire(self) -> Lease | None:
        """A lease by one round, or None if somebody else holds the resource.

        Raises QuorumUnreachable or AcquiredTooLate: None never means that the nodes are down.
        """
        session = self._client.session()
        try:
            return Lease(await self._attempt(session, 0.0).run(), session, self._client)
        except LockContended:
            return None

    def _attempt(self, session: Session, wait: float | None) -> Attempt:
        session.note_ttl(self._terms.ttl)
        return Attempt(
            session,
            self._resource,
            self._key,
            self._terms,
            wait,
            renew=self._renew,
            max_hold=self._max_hold,
            fenced=self._fenced,
        )

    async def __aenter__(self) -> Lease:
        session = self._client.session()
        task = asyncio.current_task()
        if task is None:
            raise ConfigurationError("'async with' on a lock needs a running asyncio task")
        # No await after this one: a cancellation can't come between the grant and the entry.
        hold = await self._attempt(session, self._wait).run()
        lease = Lease(hold, session, self._client)
        entry = _Entry(lease, hold, session, task)
        self._entries += (entry,)
        hold.body = task
        if self._on_lost == "cancel":
            hold.on_loss = entry.cancel_body
        return lease

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entry = self._leaving()
        hold, session = entry.hold, entry.session
        entry.left = True
        hold.on_loss = None
        if not session.is_here:
            return  # a forked child: the lease is the parent's, and so are the sockets
        session.watchdog.release(hold)
        # The deletes are written: an await that is cut short from here on only gives up waiting.
        ours = entry.cancelled and await entry.settle(exc)
        await released(session, hold, shield=exc is not None)
        if hold.state is not LOST or self._on_lost == "ignore":
            return
        if exc is None or ours:
            raise LeaseLost(self._resource, hold.reason) from exc
        exc.add_note(f"meanwhile the lease of {shown(self._resource)} was lost: {hold.reason}")

    def _leaving(self) -> _Entry:
        """The entry that this exit belongs to: this task's newest, else the oldest of a done task."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no running loop: after a fork, or in a loop of another kind
            task = None
        entries = self._entries
        if len(entries) == 1 and entries[0].task is task:
            self._entries = ()
            return entries[0]
        entry = next((entry for entry in reversed(entries) if entry.task is task), None)
        entry = entry or next((entry for entry in entries if entry.task.done()), None)
        if entry is None and len(entries) == 1:
            entry = entries[0]  # an exit stack that is closed elsewhere
        if entry is None:
            raise ConfigurationError(
                f"lock of {shown(self._resource)} left without having been entered"
            )
        self._entries = tuple(other for other in entries if other is not entry)
        return entry

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """Decorate an async function: each call runs under a lease of its own."""
        if not inspect.iscoroutinefunction(function):
            raise TypeError(
                f"a lock decorates async functions only, not {getattr(function, '__name__', function)!r}"
            )

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await function(*args, **kwargs)

        return locked

    def __repr__(self) -> str:
        return f"<Lock {shown(self._resource)} ttl={self._terms.ttl:g} s>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lock can't be pickled: give the other process the URLs and the name")
