"""Keeps leases alive, and notices when they no longer are: one scheduler for all leases of a client.

At each due time a lease is looked at once. Past its validity it is lost, whatever the network does;
otherwise it is renewed, and looked at again after a third of the ttl, or soon if the round brought no
quorum. Whether a round counts is decided here, by the rules of `_core`: a quorum of "still yours",
before the deadline it replaces and before its own.

The loop's timers stand still while the machine sleeps, and the clock that leases are judged by goes
on. So while leases are held the timer never sleeps longer than `TICK_S_MAX` or a tenth of the ttl.

Everything here runs in loop callbacks: nothing is awaited, nothing can be cancelled half-way.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextvars import Context

from aioredlock2._core.ballot import Verdict
from aioredlock2._core.lease_state import HELD, LOST, RELEASED, LeaseEvent
from aioredlock2._core.terms import LockTerms
from aioredlock2._core.validity import valid_until
from aioredlock2._engine import Engine, Round
from aioredlock2._hold import Extension, Hold
from aioredlock2._node import Request, Verb
from aioredlock2._schedule import Schedule
from aioredlock2._turns import Turns
from aioredlock2.errors import LeaseError, LeaseLost, LeaseReleased, shown
from aioredlock2.outcomes import Vote, describe

__all__ = ["Watchdog"]

logger = logging.getLogger("aioredlock2")

TICK_S_MAX = 1.0
TICK_SHARE = 0.1
JITTER_SLOTS = 4
"""A renewal is due up to so many slots early, drawn afresh each time."""
RETRY_SHARE = 0.125
"""After a round without a quorum the next one follows after this share of the validity left."""
EXPIRED = "its validity ended before it was extended or released"
REFUSED = "too many nodes no longer have its key"
MAX_HOLD = "it was held for max_hold"
CLOSED = "the client was closed"


class Watchdog:
    """The leases held by one client in one loop."""

    def __init__(self, engine: Engine, turns: Turns) -> None:
        self._engine = engine
        self._turns = turns
        self._clock = engine.runtime.clock
        self._rng = engine.runtime.rng
        self._loop = engine.loop
        self._pid = os.getpid()
        self._context = Context()  # not that of the request which happens to be the first
        self._everywhere = (1 << len(engine.nodes)) - 1
        self._schedule = Schedule()
        self._holds: dict[Hold, None] = {}
        self._fresh: dict[Hold, None] = {}
        """Leases that are not planned yet. Most are released before the next tick: no need then."""
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._tick = TICK_S_MAX

    @property
    def holds(self) -> list[Hold]:
        """All leases held, oldest first."""
        return list(self._holds)

    @property
    def tick(self) -> float:
        """A tenth of the shortest ttl held, at most `TICK_S_MAX`: how soon things must be noticed."""
        return self._tick if self._holds else TICK_S_MAX

    def watch(self, hold: Hold) -> None:
        """Look after `hold` from now on."""
        now = self._clock()
        self._holds[hold] = None
        self._tick = min(self._tick, hold.terms.ttl * TICK_SHARE)
        if hold.valid_until - now <= self._tick:
            self._plan(hold, now)
        else:
            self._fresh[hold] = None
            if self._timer is None or now + self._tick < self._wakes_at:
                self._arm(now)
        if hold.sent_to != self._everywhere:
            for node in self._engine.nodes:
                node.hurry()  # some were away: from now on a lease waits for them

    def release(self, hold: Hold) -> Round:
        """End `hold` and put its deletes on the wire, now. Repeats the first call's round."""
        if hold.revoked is None:
            if hold.state is HELD and self._clock() >= hold.valid_until:
                # The timer has not fired yet, but what counts is the clock. The body is told from
                # the loop, as always: a task that cancels itself half-way through a call is lost.
                on_loss, hold.on_loss = hold.on_loss, None
                self._lose(hold, _why_over(hold, self._clock()))
                if on_loss is not None:
                    self._loop.call_soon(on_loss)
            hold.move(LeaseEvent.RELEASED)
            self._forget(hold)
            hold.revoked = self._engine.revoke(
                hold.key, hold.token, hold.terms, hold.longest_ttl_ms, hold.sent_to
            )
            hold.tell(lost=hold.state is LOST)
            # Only now: the next in line must queue its SET behind these deletes.
            self._leave_turn(hold)
        return hold.revoked

    def extend(self, hold: Hold, terms: LockTerms) -> asyncio.Future[None]:
        """Extend soon; the future is done when a round counted, or fails with a LeaseError.

        Calls that come while a round is under way share the next one; the last ttl wins.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        now = self._clock()
        if not hold.is_valid(now):
            future.set_exception(_error_of(hold, _why_over(hold, now)))
            self._plan(hold, now)
            return future
        hold.extensions += ((terms, future),)
        if hold.renewing is None:
            self._renew(hold)
        return future

    def close(self) -> None:
        """Release everything.

        Whoever is still inside `async with`, but for the caller itself, loses the lease and is told.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        me = asyncio.current_task()
        for hold in self.holds:
            if hold.body is not None and hold.body is not me:
                self._lose(hold, CLOSED)
            self.release(hold)

    def drop(self) -> None:
        """The loop is gone, and with it every lease: nothing can be sent any more."""
        # Timers of a closed loop never fire, and at the interpreter's end they can't be cancelled.
        if self._timer is not None and not self._loop.is_closed():
            self._timer.cancel()
        self._timer = None
        for hold in self.holds:
            hold.move(LeaseEvent.LOST, CLOSED)
        self._holds.clear()
        self._fresh.clear()

    # The schedule.

    def _plan(self, hold: Hold, now: float, retry_in: float | None = None) -> None:
        """When to look at `hold` again."""
        if hold.state is not HELD:
            return
        self._fresh.pop(hold, None)
        due_at = hold.valid_until
        if retry_in is not None:
            due_at = min(due_at, now + retry_in)
        elif hold.renew and not (hold.abandoned or hold.at_gate or hold.renewing is not None):
            early = self._rng.random() * JITTER_SLOTS * hold.terms.slot
            due_at = min(due_at, hold.round.started_at + hold.terms.renew_every - early)
        self._schedule.put(hold, max(due_at, now), now)
        self._tick = min(self._tick, hold.terms.ttl * TICK_SHARE)
        soonest = min(hold.due_at or now, now + self._tick)
        if self._timer is None or soonest < self._wakes_at:
            self._arm(now)

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._holds:
            self._tick = TICK_S_MAX
            return
        self._wakes_at = now + self._tick
        due_at = self._schedule.next_due_at()
        if due_at is not None:
            self._wakes_at = min(self._wakes_at, due_at)
        self._timer = self._loop.call_later(
            max(0.0, self._wakes_at - now), self._wake, context=self._context
        )

    def _wake(self) -> None:
        self._timer = None
        if os.getpid() != self._pid:
            return
        now = self._clock()
        for hold in list(self._fresh):
            self._plan(hold, now)
        for hold in list(self._schedule.due(now)):
            self._attend(hold)
        self._arm(self._clock())

    def _attend(self, hold: Hold) -> None:
        """One look at one lease whose time has come."""
        if hold.state is not HELD:
            return
        now = self._clock()
        if now >= hold.valid_until:
            self._lose(hold, _why_over(hold, now))
        elif hold.renewing is None and (hold.extensions or self._is_time(hold, now)):
            self._renew(hold)
        else:
            self._plan(hold, now)

    def _is_time(self, hold: Hold, now: float) -> bool:
        """Whether a renewal is due: by the schedule, jitter included, or after a failed one."""
        if not hold.renew or hold.abandoned:
            return False
        earliest = hold.terms.renew_every - (JITTER_SLOTS + 1) * hold.terms.slot
        return now >= hold.round.started_at + earliest

    # Extension.

    def _renew(self, hold: Hold) -> None:
        """Start a round for `hold` when there is room for one."""
        self._warn_before_max_hold(hold)
        if not hold.at_gate:
            hold.at_gate = True
            self._engine.gate.enter(lambda: self._start_round(hold))
        if hold.at_gate:
            self._plan(hold, self._clock())

    def _start_round(self, hold: Hold) -> bool:
        hold.at_gate = False
        now = self._clock()
        if hold.renewing is not None or not hold.is_valid(now):
            self._plan(hold, now)  # it was taken out of the schedule: its end must still be seen
            return False
        terms = hold.extensions[-1][0] if hold.extensions else hold.terms
        if terms.ttl < hold.terms.ttl:
            # The nodes may shorten the key from now on, whether or not the round is won.
            hold.valid_until = min(hold.valid_until, valid_until(now, terms))
        hold.terms = terms
        hold.longest_ttl_ms = max(hold.longest_ttl_ms, terms.ttl_ms)
        served, hold.extensions = hold.extensions, ()
        request = Request(Verb.RENEW, hold.key, hold.token, terms.ttl_ms)
        request.until = hold.valid_until
        asked = self._engine.renew(
            request,
            on_decided=lambda asked: self._decided(hold, served, asked),
            on_closed=lambda asked: self._closed(hold, asked),
        )
        # What was asked before, in whatever form it may still be put, must not undo this.
        hold.latest.withdrawn = True
        hold.latest = hold.renewing = asked
        self._plan(hold, now)
        self._engine.send(request, terms.node_timeout)
        return True

    def _decided(self, hold: Hold, served: tuple[Extension, ...], asked: Round) -> None:
        """A renewal's outcome is certain; `served` are the calls that wait for it."""
        hold.renewing = None
        if hold.state is not HELD:
            self._answer(served, _error_of(hold))
            return
        now = self._clock()
        until = valid_until(asked.started_at, hold.terms)
        if now >= hold.valid_until:
            hold.extensions += served
            self._lose(hold, _why_over(hold, now))
        elif asked.verdict is Verdict.REFUSED:
            hold.extensions += served
            self._lose(hold, f"{REFUSED}: {describe(self._engine.outcomes(asked))}")
        elif asked.verdict is Verdict.WON and now < until:
            hold.round = asked
            hold.counts_until(until)
            self._answer(served, None)
            if hold.extensions:
                self._renew(hold)
            else:
                self._plan(hold, now)
        else:
            hold.extensions = served + hold.extensions
            logger.debug("extension of %s brought no quorum, tried again", shown(hold.resource))
            self._plan(hold, now, retry_in=self._retry_pause(hold, now))

    def _retry_pause(self, hold: Hold, now: float) -> float:
        share = (hold.valid_until - now) * RETRY_SHARE
        return max(share, hold.terms.node_timeout) * (0.5 + self._rng.random() / 2)

    def _closed(self, hold: Hold, asked: Round) -> None:
        """All votes of a renewal are in: plant the key again where it was found missing.

        Only in a round that has its quorum, only while the lease stands; the planted keys are votes
        from the next round on, and NX leaves alone whatever else is there.
        """
        if asked.verdict is not Verdict.WON or asked.withdrawn or not hold.is_valid(self._clock()):
            return
        request = Request(Verb.GRANT, hold.key, hold.token, hold.terms.ttl_ms)
        for index, vote in enumerate(asked.votes):
            if vote is Vote.DENIED:
                hold.sent_to |= 1 << index
                self._engine.nodes[index].ask(request)

    def _answer(self, served: tuple[Extension, ...], error: LeaseError | None) -> None:
        for _, future in served:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _warn_before_max_hold(self, hold: Hold) -> None:
        if hold.hold_until is None or hold.warned:
            return
        left = hold.hold_until - self._clock()
        if left <= hold.terms.ttl:
            hold.warned = True
            logger.warning(
                "%s reaches its max_hold in %.3f s: it will be lost then",
                shown(hold.resource),
                left,
            )

    # The end.

    def _lose(self, hold: Hold, reason: str) -> None:
        """Announce the loss, once; the turn passes on, the keys are left to release and ttl."""
        if not hold.move(LeaseEvent.LOST, reason):
            return
        self._forget(hold)
        if not hold.abandoned:
            logger.warning("lease of %s is lost: %s", shown(hold.resource), reason)
        self._leave_turn(hold)
        hold.tell(lost=True)
        if hold.on_loss is not None:
            hold.on_loss()

    def _forget(self, hold: Hold) -> None:
        self._holds.pop(hold, None)
        self._fresh.pop(hold, None)
        self._schedule.remove(hold)
        hold.latest.withdrawn = True
        served, hold.extensions = hold.extensions, ()
        if served:
            self._answer(served, _error_of(hold))

    def _leave_turn(self, hold: Hold) -> None:
        if hold.turn.holder is hold:
            self._turns.leave(hold.turn)


def _why_over(hold: Hold, now: float) -> str:
    """What ended a lease whose validity is over."""
    return MAX_HOLD if hold.hold_until is not None and now >= hold.hold_until else EXPIRED


def _error_of(hold: Hold, otherwise: str = EXPIRED) -> LeaseError:
    if hold.state is RELEASED:
        return LeaseReleased(hold.resource, "it was released")
    return LeaseLost(hold.resource, hold.reason or otherwise)
