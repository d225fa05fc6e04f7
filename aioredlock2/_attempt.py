"""One call's whole way to a lease: its turn in the local queue, then round after round.

While somebody else holds the name, or too few nodes answer, it pauses and asks again until `wait` is
over. What a failed round won is given back at once, before the pause: clients that sit on a minority
keep everybody from a quorum. The last thing tried is a round, never a pause.
"""

from __future__ import annotations

import math
import re

from aioredlock2._core.ballot import UNREACHABLE, WON
from aioredlock2._core.fence import seed
from aioredlock2._core.terms import LockTerms
from aioredlock2._core.validity import valid_until
from aioredlock2._engine import Round
from aioredlock2._hold import Hold
from aioredlock2._node import NON_LOCK, Sighting, Verb
from aioredlock2._session import Session
from aioredlock2._turns import WAITERS_MAX, Turn, TurnMissed
from aioredlock2.errors import (
    AcquiredTooLate,
    AcquireError,
    ConfigurationError,
    LockContended,
    QuorumUnreachable,
)

__all__ = ["Attempt"]

KEEP_SHARE = 0.2
"""A name may go from task to task of one client for this share of the ttl before others get a chance."""
TOKEN = re.compile(rb"[0-9a-f]{32}")


class Attempt:
    """One call of acquire."""

    __slots__ = (
        "_fenced",
        "_give_up_at",
        "_key",
        "_look",
        "_max_hold",
        "_renew",
        "_resource",
        "_rounds",
        "_session",
        "_started_at",
        "_terms",
    )

    def __init__(
        self,
        session: Session,
        resource: str | bytes,
        key: bytes,
        terms: LockTerms,
        wait: float | None,
        *,
        renew: bool,
        max_hold: float | None,
        fenced: bool,
    ) -> None:
        self._session = session
        self._resource = resource
        self._key = key
        self._terms = terms
        self._renew = renew
        self._max_hold = max_hold
        self._fenced = fenced
        self._started_at = session.runtime.clock()
        self._give_up_at = math.inf if wait is None else self._started_at + wait
        self._rounds = 0
        self._look: Round | None = None

    async def run(self) -> Hold:
        """A hold with a quorum behind it, under the watchdog's eye; or an AcquireError.

        Cancelled anywhere inside, nothing is kept: not the turn, and no key once the deletes that
        were written behind the SETs have arrived.
        """
        session = self._session
        turn = session.turns.take_now(self._key)
        if turn is None:
            turn = await self._queue()  # cancelled here: it hands the turn on
        try:
            # Cancelled at one of these, nothing is held; or the round itself takes back what it asked.
            if not session.met_quorum:
                await self._contact()
            if turn.kept_since is not None:
                await self._let_others_in(turn, turn.kept_since)
            while True:
                won = await session.engine.grant(self._key, self._terms, fence_seed=self._seed())
                if self._keeps(won):
                    break
                await self._pause(won, turn)
        except BaseException:
            session.turns.leave(turn)
            raise
        hold = Hold(
            self._resource,
            won,
            self._terms,
            valid_until(won.started_at, self._terms),
            sent_to=session.engine.sent_to(won),
            turn=turn,
            renew=self._renew,
            max_hold=self._max_hold,
        )
        turn.holder = hold
        turn.last_round = None
        if turn.kept_since is None:
            turn.kept_since = won.started_at
        session.watchdog.watch(hold)
        return hold

    async def _queue(self) -> Turn:
        """Wait behind the other tasks of this client."""
        session = self._session
        turn = session.turns.of(self._key)
        now = session.runtime.clock()
        left = self._give_up_at - now
        if left <= 0:
            if turn.holder is not None and turn.holder.is_valid(now):
                raise self._missed(turn)
            # Whoever is ahead has a round under way: what it finds out serves us as well.
            left = self._terms.node_timeout
        try:
            await session.turns.wait(turn, None if math.isinf(left) else left)
        except TurnMissed:
            raise self._missed(turn) from None
        if self._give_up_at <= now and turn.last_round is not None:
            session.turns.leave(turn)
            raise self._missed(turn)
        return turn

    async def _contact(self) -> None:
        """Wait for the nodes, as long as this client has never met a quorum of them."""
        await self._session.contact(self._give_up_at)
        self._session.check_open()

    def _seed(self) -> int:
        """What fences begin with now, where nodes have no counter; 0 for a lock without a fence."""
        if not self._fenced:
            return 0
        try:
            return seed(self._session.runtime.wall_clock())
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def _keeps(self, asked: Round) -> bool:
        """Whether `asked` is won, in time, and with a fence if it takes one."""
        self._rounds += 1
        if asked.verdict is not WON or self._session.closed or self._lacks_fence(asked):
            return False
        return self._session.runtime.clock() < valid_until(asked.started_at, self._terms)

    def _lacks_fence(self, asked: Round) -> bool:
        return asked.verb is Verb.GRANT_FENCED and not asked.fence

    async def _pause(self, asked: Round, turn: Turn) -> None:
        """Give back what a round has won in vain, and sleep; raises when the wait is over."""
        session, terms = self._session, self._terms
        session.engine.clean_up(asked)
        session.check_open()
        turn.last_round = asked
        now = session.runtime.clock()
        left = self._give_up_at - now
        if left <= 0:
            raise self._error(asked)
        turn.kept_since = None
        # A round ends with its node timeout: what is beyond was this process's own sleep.
        took = min(now - asked.started_at, terms.node_timeout)
        pause = session.retry.pause(self._rounds - 1, took, session.runtime.rng)
        down = asked.verdict is UNREACHABLE
        await session.sleep(min(pause, left), terms.ttl, for_nodes=down)
        session.check_open()
        if left - pause < terms.node_timeout and not down:
            # Perhaps the last round: look at what is in the way too, for the error's sake.
            self._look = session.engine.inspect(self._key, terms.node_timeout)

    async def _let_others_in(self, turn: Turn, kept_since: float) -> None:
        """After this client has had the name for long: pause until every rival has tried once."""
        session = self._session
        now = session.runtime.clock()
        if now - kept_since < KEEP_SHARE * self._terms.ttl:
            return
        turn.kept_since = None
        pause = min(session.retry.cap, self._give_up_at - now)
        if pause > 0:
            await session.sleep(pause, self._terms.ttl, for_nodes=False)
            session.check_open()

    def _error(self, asked: Round, hint: str = "") -> AcquireError:
        """The error for an attempt that ended with `asked`; its class is the round's outcome."""
        kinds = {
            WON: AcquiredTooLate,
            UNREACHABLE: QuorumUnreachable,
        }
        kind = kinds.get(asked.verdict, LockContended)
        if kind is AcquiredTooLate and self._lacks_fence(asked):
            kind, hint = QuorumUnreachable, "too few nodes confirmed its fence"
        elif kind is AcquiredTooLate:
            took = self._session.runtime.clock() - asked.started_at
            hint = f"the round took {took:.3f} s of a ttl of {self._terms.ttl:g} s"
        elif self._look is not None and (foreign := _foreign(self._look)):
            hint = f"the key holds a non-lock value on {foreign} of {asked.nodes} nodes"
        elapsed = self._session.runtime.clock() - self._started_at
        outcomes = self._session.engine.outcomes(asked.confirmation or asked)
        return kind(self._resource, elapsed, self._rounds, outcomes, hint)

    def _missed(self, turn: Turn) -> AcquireError:
        """The error of an attempt whose turn never came."""
        now = self._session.runtime.clock()
        holder = turn.holder
        if len(turn.waiters or ()) >= WAITERS_MAX:
            hint = f"{WAITERS_MAX} tasks of this client wait for it already"
        elif holder is not None:
            since = now - holder.held_since
            hint = (
                f"this client itself holds it, since {since:.3f} s; locks are not re-entrant: "
                "pass the lease down instead of locking again"
            )
        else:
            hint = "other tasks of this client are ahead in the queue for it"
            if turn.last_round is not None:
                return self._error(turn.last_round, hint=hint)
        return LockContended(self._resource, now - self._started_at, self._rounds, (), hint)


def _foreign(look: Round) -> int:
    """On how many nodes the key holds something that no lock of ours has put there."""
    count = 0
    for cause in look.causes:
        if isinstance(cause, Sighting):
            count += TOKEN.fullmatch(cause.token) is None
        else:
            count += cause == NON_LOCK
    return count
