"""The handle of a lease: what the user holds."""

from __future__ import annotations

import asyncio
import warnings
from typing import NoReturn

import anyio

from aioredlock2._core.ballot import PENDING
from aioredlock2._core.lease_state import HELD, LOST, RELEASED
from aioredlock2._core.terms import wrong_value
from aioredlock2._engine import NEVER_SENT, Round
from aioredlock2._hold import Hold
from aioredlock2._node import ABSENT, Node
from aioredlock2._runtime import digest
from aioredlock2._session import Session
from aioredlock2.errors import ConfigurationError, shown
from aioredlock2.outcomes import NodeOutcome, NodeRelease, Removal, Vote

__all__ = ["Lease", "ReleaseReport"]


class ReleaseReport:
    """What a release found, node by node.

    It is live: nodes that had not answered when `release` returned read PENDING, and are final at the
    latest when the node timeout has passed.
    """

    __slots__ = ("_lost", "_nodes", "_round")

    def __init__(self, nodes: tuple[Node, ...], revoked: Round, *, lost: bool) -> None:
        self._nodes = nodes
        self._round = revoked
        self._lost = lost

    @property
    def nodes(self) -> tuple[NodeRelease, ...]:
        """Per node, in the order they were configured."""
        votes, causes = self._round.votes, self._round.causes
        return tuple(
            NodeRelease(
                node.name,
                removal := _removal(votes[index], causes[index]),
                str(causes[index]) if removal is Removal.UNREACHABLE else "",
            )
            for index, node in enumerate(self._nodes)
        )

    @property
    def outcome(self) -> str:
        """In one word: "clean", "expired", "lost" or "unknown".

        "clean": a quorum of nodes had the key and deleted it while the lease was held. "lost": the
        lease was lost before, or another owner is there now. "expired": a quorum answered, and the
        key was gone. "unknown": too few nodes answered; what they keep ends with the ttl.
        """
        removals = [node.removal for node in self.nodes]
        if self._lost or removals.count(Removal.OTHER_OWNER) >= self._round.blocking:
            return "lost"
        if removals.count(Removal.DELETED) >= self._round.quorum:
            return "clean"
        answers = (Removal.DELETED, Removal.ABSENT, Removal.OTHER_OWNER)
        answered = sum(removal in answers for removal in removals)
        return "expired" if answered >= self._round.quorum else "unknown"

    def __repr__(self) -> str:
        nodes = ", ".join(f"{node.node}: {node.removal.value}" for node in self.nodes)
        return f"<ReleaseReport {self.outcome}: {nodes}>"


def _removal(vote: Vote, cause: object) -> Removal:
    if vote is Vote.GRANTED:
        return Removal.DELETED
    if vote is Vote.DENIED:
        return Removal.ABSENT if cause == ABSENT else Removal.OTHER_OWNER
    if vote is Vote.PENDING:
        return Removal.PENDING
    return Removal.NEVER_SENT if cause == NEVER_SENT else Removal.UNREACHABLE


class Lease:
    """A resource held until `valid_until`, by this handle alone.

    Made by `Lock.acquire`, `Lock.try_acquire` and `async with`. Keep the handle: when it is dropped
    while the lease is held, renewal stops and the lease runs out, with one ResourceWarning. It may be
    released and extended from any task of its loop.
    """

    __slots__ = ("__weakref__", "_client", "_hold", "_session")

    def __init__(self, hold: Hold, session: Session, client: object) -> None:
        self._hold = hold
        self._session = session
        # Kept alive: a client that is dropped lets go of its connections.
        self._client = client

    @property
    def resource(self) -> str | bytes:
        """The resource, as it was asked for."""
        return self._hold.resource

    @property
    def valid_until(self) -> float:
        """The instant until which it may be relied on, by the runtime's clock (on Linux
        CLOCK_BOOTTIME, which counts suspend); moves forward with each extension that counts.
        """
        return self._hold.valid_until

    def remaining(self) -> float:
        """Seconds of validity left, read from the clock now; 0.0 when it is lost or released."""
        now = self._session.runtime.clock()
        if not (self._hold.is_valid(now) and self._session.is_here):
            return 0.0
        return self._hold.valid_until - now

    @property
    def is_held(self) -> bool:
        """True while it is held, neither lost nor released, by the clock as it is now."""
        return self.remaining() > 0

    @property
    def is_lost(self) -> bool:
        """True once it was lost, by vote or by the clock as it is now. Never turns back.

        In a forked child the parent's leases are lost.
        """
        if self._hold.state is HELD:
            return not self.is_held
        return self._hold.state is LOST

    @property
    def is_released(self) -> bool:
        """True once it was given back while it was held."""
        return self._hold.state is RELEASED

    @property
    def fence(self) -> int:
        """Larger than the fence of every earlier lease of this resource; below 2**53.

        Hand it on with each write that the lease protects, and let what is written refuse a smaller
        one than it has seen: then a holder that was paused past its validity can do no harm.
        Stays the same as long as the lease lives, and may be read after it.

        Raises ConfigurationError unless the lock was asked for with `fenced=True`.
        """
        if not self._hold.fence:
            raise ConfigurationError(
                f"the lease of {shown(self.resource)} has no fence: lock with fenced=True"
            )
        return self._hold.fence

    @property
    def digest(self) -> str:
        """A short name of this one lease for logs; the same that `inspect` shows as holder."""
        return digest(self._hold.token)

    @property
    def votes(self) -> tuple[NodeOutcome, ...]:
        """Per node, its vote in the latest round that counted; late answers still fill in."""
        return self._session.engine.outcomes(self._hold.round)

    async def lost(self) -> bool:
        """Wait for the end: True when the lease is lost, False when it is released."""
        hold = self._hold
        if hold.state is HELD:
            waiter: asyncio.Future[bool] = self._loop("wait for the loss of").create_future()
            hold.loss_waiters += (waiter,)
            try:
                return await waiter
            finally:
                hold.loss_waiters = tuple(w for w in hold.loss_waiters if w is not waiter)
        return hold.state is LOST

    async def extend(self, ttl: object = None) -> None:
        """Set the remaining time to `ttl` (seconds or timedelta; the lease's own if None), now.

        Sets, never adds, and never beyond max_hold. Tried again while the validity lasts; returns when
        a quorum has confirmed.
        A new `ttl` also holds for the renewals to come; a shorter one takes effect when it is sent.
        Raises LeaseLost if the lease is lost, before or meanwhile, LeaseReleased if it was released,
        TypeError or ConfigurationError for a `ttl` that can't work. Cancelling gives up the wait,
        not the extension.
        """
        self._loop("extend")
        waiting = self._hold.extensions
        terms = waiting[-1][0] if waiting else self._hold.terms
        if ttl is not None:
            terms = self._session.terms(ttl)
            max_hold = self._hold.max_hold
            if max_hold is not None and terms.ttl > max_hold:
                raise wrong_value("ttl", ttl, f"no longer than the lease's max_hold={max_hold:g}")
            self._session.note_ttl(terms.ttl)
        await self._session.watchdog.extend(self._hold, terms)

    async def release(self) -> ReleaseReport:
        """Give the lease back; returns when a quorum has answered, at most after one node timeout.

        The deletes are on the wire before the first await: a cancellation only gives up the wait.
        Never raises because of the nodes: read the report. Releasing again sends nothing and reports
        the same; releasing a lost lease makes one best-effort round.
        """
        self._loop("release")
        revoked = self._session.watchdog.release(self._hold)
        await released(self._session, self._hold, shield=False)
        lost = self._hold.state is LOST
        return ReleaseReport(tuple(self._session.nodes), revoked, lost=lost)

    def _loop(self, what: str) -> asyncio.AbstractEventLoop:
        """The loop of this lease, if it is the running one."""
        return self._session.check_here(what, self._hold.resource)

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else self._hold.state.value
        left = f", {self.remaining():.3f} s left" if self.is_held else ""
        return f"<Lease {shown(self.resource)} {state}{left}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Lease can't be pickled: it belongs to its process; pass the result instead"
        )

    def __del__(self) -> None:
        hold = getattr(self, "_hold", None)
        if hold is None or hold.state is not HELD or not self._session.is_here:
            return
        hold.abandoned = True
        warnings.warn(
            f"the lease of {shown(hold.resource)} was dropped while held: it is no longer renewed; "
            "keep the Lease, release it, or use 'async with'",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


async def released(session: Session, hold: Hold, *, shield: bool) -> None:
    """Wait until a quorum has answered the release of `hold`, at most one node timeout.

    `shield` keeps a cancelled anyio scope from cutting the wait short; a native cancellation still
    ends it, which loses nothing but the wait.
    """
    revoked = hold.revoked
    if revoked is None or revoked.verdict is not PENDING or session.closed:
        return
    if shield:
        with anyio.CancelScope(shield=True):
            await revoked.decided(session.loop)
    else:
        await revoked.decided(session.loop)
