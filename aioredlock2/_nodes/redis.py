"""A Redis or Valkey master as a node: one connection, kept up, and what the server said over it.

Decides whether this server votes now. Knows nothing of rounds and quorums.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from typing import NamedTuple, cast

from aioredlock2._node import NodeHost, NodeState, NodeStatus, Request, Verb
from aioredlock2._redis import dialect
from aioredlock2._redis.debts import Debts
from aioredlock2._redis.dialect import Dialect, Form, Refusal
from aioredlock2._redis.dialling import Dialling
from aioredlock2._redis.greeting import Greeting
from aioredlock2._redis.handshake import Dialer
from aioredlock2._redis.transport import Link
from aioredlock2.outcomes import Vote

__all__ = ["RedisNode"]

logger = logging.getLogger("aioredlock2")

STABLE_S = 1.0
"""A link that lived shorter counts as a failed dial: no tight loop with a server that hangs up."""
PAY_S = 0.02
PAID_AT_ONCE = 200
"""Deletes owed go out in so many at a time, so that a pile of them doesn't hold up the loop."""
REPAY_S = 0.2
"""A delete that met a server which was loading or busy is sent again after so long."""

# Looking up a member of an enum takes a while, and these are needed for every request.
CONFIRM, RENEW, REVOKE, UP, GRANTED = (
    Verb.CONFIRM,
    Verb.RENEW,
    Verb.REVOKE,
    NodeState.UP,
    Vote.GRANTED,
)


class Refused(NamedTuple):
    """The first refusal of a request that was put in another form."""

    first: Form
    """The form it was asked in."""
    cause: str
    for_good: bool
    """Whether it, or a later one, was for good."""


Slot = Request | tuple[Form, Request, Refused | None]
"""What was asked: a request in the form it is packed in, or another form of it."""


class RedisNode:
    """One server, by whatever redis-py can dial."""

    def __init__(self, given: object, probe_key: bytes, label: str = "node") -> None:
        self._dialer = Dialer(given, label)
        self.name = self._dialer.name
        self.address = self._dialer.address
        self._probe_key = probe_key
        self._reset()
        # What is known of the server outlives the connection.
        self._memory_id: str | None = None
        self._alive_since = -math.inf
        self._server = ""
        self._warned: set[str] = set()

    def _reset(self) -> None:
        self._host: NodeHost | None = None
        self._index = 0
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None
        self._up_at = 0.0
        self._dialect = Dialect()
        self._state = NodeState.CONNECTING
        self._cause = "not connected yet"
        self._dialling: Dialling | None = None
        self._guard: asyncio.TimerHandle | None = None
        self._guard_until = 0.0
        self._debts = Debts()
        self._paying: asyncio.TimerHandle | None = None

    # Asked by the engine.

    def open(self, host: NodeHost, index: int) -> None:
        """Start to connect and keep connected, in the running loop."""
        self._host, self._index = host, index
        self._state, self._cause = NodeState.CONNECTING, "not connected yet"
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._dialling = Dialling(self._dialer, self._probe_key, self, host)
        self._dialling.start(at_once=True)

    def ask(self, request: Request) -> None:
        """Put one request on its way; see `_node.py`."""
        link = self._link
        verb = request.verb
        if link is None or link.overdue or self._state is not UP:
            withheld = self._why_not(link, verb)
            if withheld is not None:
                if link is None and verb is REVOKE:
                    self._owe(request)
                if request.ballot is not None:
                    request.ballot.skip(self._index, *withheld)
                return
        form = self._dialect.preferred[verb]
        data = dialect.pack(form, request)
        slot: Slot = request if request.form is form else (form, request, None)
        link.send(data, slot, form.replies, verb is RENEW)  # type: ignore[union-attr]

    def _why_not(self, link: Link | None, verb: Verb) -> tuple[Vote, str] | None:
        """The broken vote of a request that must not be sent now, or None if it may."""
        if link is None:
            self.hurry()
            return Vote.FAULTED, self._cause
        if verb <= CONFIRM and self._state is not UP:
            # But extensions: what a node confirms to one, it can't have forgotten. Planting again is a
            # grant too: a planted key would count, although a rival's may have been forgotten.
            return Vote.FAULTED, self._guard_text()
        if link.overdue and verb <= RENEW:
            # Only deletes go to a server that is behind: nothing piles up that could lock.
            return Vote.MISSING, "still owes earlier answers"
        return None

    def missed(self) -> None:
        """A round's deadline has passed without this node's answer."""
        if self._link is not None:
            self._link.missed()

    def hurry(self) -> None:
        """Somebody waits for this node: dial soon if it is not connected."""
        if self._link is None and self._dialling is not None:
            self._dialling.hurry()

    def regard(self) -> None:
        """The guard period has changed: judge again whether this node votes."""
        if self._link is not None:
            self._judge()

    @property
    def status(self) -> NodeStatus:
        """How it stands now."""
        guarded = self._state is NodeState.GUARDED
        return NodeStatus(
            name=self.name,
            state=self._state,
            cause=self._guard_text() if guarded else self._cause,
            server=self._server,
            commands=self._dialect.commands if self._link is not None else None,
            guard_left=self._guard_left() if guarded else 0.0,
        )

    def drop(self) -> None:
        """Let go of everything at once, also when the loop it was opened in is closed."""
        link, dialling, loop = self._link, self._dialling, self._loop
        guard, paying = self._guard, self._paying
        forked = os.getpid() != self._pid
        self._reset()
        self._state, self._cause = NodeState.DOWN, "the client is closed"
        if loop is None or loop.is_closed() or forked:
            if link is not None:
                link.discard()
            return
        for timer in (guard, paying):
            if timer is not None:
                timer.cancel()
        if dialling is not None:
            dialling.stop()
        if link is not None:
            link.attach(None)
            link.close()

    @property
    def _the_host(self) -> NodeHost:
        return cast("NodeHost", self._host)

    @property
    def _the_loop(self) -> asyncio.AbstractEventLoop:
        return cast("asyncio.AbstractEventLoop", self._loop)

    # Told by the dialling.

    def unfit(self, greeting: Greeting) -> str:
        """Why the server that answered must not vote; empty if it may."""
        if greeting.unfit or greeting.run_id is None:
            return greeting.unfit
        other = self._the_host.claim(self, greeting.run_id)
        return f"is the same server as {other}" if other else ""

    def failed(self, cause: str, *, unfit: bool) -> None:
        """One dial brought nothing."""
        news = self._state is not NodeState.DOWN or (unfit and self._cause != cause)
        self._state, self._cause = NodeState.DOWN, cause
        if news:
            logger.log(
                logging.ERROR if unfit else logging.WARNING, "node %s is down: %s", self.name, cause
            )
            self._the_host.changed(self)
        else:
            logger.debug("node %s is still down: %s", self.name, cause)

    def rose(self, link: Link, greeting: Greeting) -> None:
        """Connected: judge what is there."""
        host = self._the_host
        now = host.runtime.clock()
        self._alive_since = self._start_of(greeting, now)
        self._memory_id = greeting.memory_id or self._memory_id
        self._server = greeting.server
        self._dialect = greeting.dialect
        self._link = link
        self._up_at = now
        link.attach(self)
        if greeting.evicts:
            self._warn_once(f"evicts keys at maxmemory ({greeting.evicts}): locks can vanish")
        self._pay()
        logger.info("node %s is up: %s", self.name, greeting.server)
        self._judge()

    def _start_of(self, greeting: Greeting, now: float) -> float:
        """When this server may have begun with an empty memory, as far as can be told."""
        if greeting.memory_id is None:
            if self._the_host.guard_period() is not None:
                self._warn_once("INFO is refused: the restart guard can't work here")
            return self._alive_since
        if greeting.memory_id == self._memory_id:
            return self._alive_since
        # Uptime follows the server's wall clock, and a promotion doesn't reset it: it is believed
        # only at first sight, and only if it makes sense.
        if self._memory_id is not None or greeting.uptime is None or greeting.uptime < 0:
            return now
        return now - greeting.uptime

    # Guarded, lost.

    def _judge(self) -> None:
        """Whether this node votes now; looks again when the guard ends."""
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None
        period = self._the_host.guard_period()
        self._guard_until = self._alive_since + period if period is not None else -math.inf
        left = self._guard_left()
        if left > 0:
            if self._state is not NodeState.GUARDED:
                logger.warning("node %s grants no locks yet: %s", self.name, self._guard_text())
            self._state = NodeState.GUARDED
            self._guard = self._the_loop.call_later(left, self._judge)
        else:
            self._state, self._cause = NodeState.UP, ""
        self._the_host.changed(self)

    def _guard_left(self) -> float:
        return max(0.0, self._guard_until - self._the_host.runtime.clock())

    def _guard_text(self) -> str:
        return f"in its restart guard for {self._guard_left():.1f} s more"

    def link_lost(self, cause: str, unanswered: list[Slot]) -> None:
        """The connection is gone: no votes for what was in flight, dial again."""
        self._link = None
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None
        self._state, self._cause = NodeState.DOWN, cause
        logger.warning("node %s is down: %s", self.name, cause)
        lived = self._the_host.runtime.clock() - self._up_at
        cast("Dialling", self._dialling).start(at_once=lived >= STABLE_S)
        for slot in unanswered:
            request = slot[1] if isinstance(slot, tuple) else slot
            if request.verb is REVOKE:
                self._owe(request)
            if request.ballot is not None:
                request.ballot.cast(self._index, Vote.FAULTED, cause)
        self._the_host.changed(self)

    def _owe(self, request: Request) -> None:
        """Keep a delete for the next connection."""
        if self._host is not None:
            self._debts.owe(request, self._host.runtime.clock())

    def _pay(self, left: int | None = None) -> None:
        """Send the deletes owed by now, or the `left` oldest: those that fail again come next time."""
        self._stop_paying()
        if self._link is None:
            return  # paid when it rises
        left = len(self._debts) if left is None else left
        now = self._the_host.runtime.clock()
        for request in self._debts.due(now, min(left, PAID_AT_ONCE)):
            self.ask(request)
        if left > PAID_AT_ONCE and self._paying is None:
            self._paying = self._the_loop.call_later(PAY_S, self._pay, left - PAID_AT_ONCE)

    def _stop_paying(self) -> None:
        if self._paying is not None:
            self._paying.cancel()
            self._paying = None

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("node %s %s", self.name, text)

    # Replies.

    def replied(self, slot: Slot, reply: object) -> None:
        """One answer, in the order of the requests."""
        refused = None
        if isinstance(slot, tuple):
            form, request, refused = slot
        else:
            form, request = cast("Form", slot.form), slot
        ballot = request.ballot
        if reply == form.yes and refused is None and type(reply) is type(form.yes):
            if ballot is not None:
                ballot.cast(self._index, GRANTED)
            return
        answer = dialect.read(form, request, reply)
        if isinstance(answer, Refusal):
            self._ask_otherwise(form, request, refused, answer, dialect.error_in(reply))
            return
        vote, cause = answer
        verb = request.verb
        # Once its text has got through, the script is known by its name.
        learnt = form is dialect.FENCED_EVAL or (refused is not None and refused.for_good)
        if learnt and vote is not Vote.FAULTED:
            self._dialect.prefer(verb, form)
        if ballot is not None:
            if verb is REVOKE and answer is dialect.NO and ballot.awaits(self._index):
                self._send(dialect.WHOSE, request)
                return
            ballot.cast(self._index, vote, cause)
        if vote is Vote.FAULTED and self._link is not None:
            self._heed(self._link, request, cast("str", cause))

    def _heed(self, link: Link, request: Request, cause: str) -> None:
        """What an error says beyond this one vote."""
        if request.verb is REVOKE:
            self._owe(request)
            if dialect.is_passing(cause):
                self._stop_paying()
                self._paying = self._the_loop.call_later(REPAY_S, self._pay)
        if dialect.ends_the_link(cause):
            link.abort(cause)

    def _ask_otherwise(
        self, form: Form, request: Request, refused: Refused | None, refusal: Refusal, text: str
    ) -> None:
        """The server refused the command, not the question: put it in the next form, same token."""
        first = form if refused is None else refused.first
        if refused is None or (refusal is Refusal.FOR_GOOD and not refused.for_good):
            # The first clear word is what the user should hear.
            cause = dialect.cause_of(request, text)
            refused = Refused(first, cause, for_good=refusal is Refusal.FOR_GOOD)
        following = self._dialect.next_form(request.verb, form, first)
        if following is not None and self._is_wanted(request):
            self._send(following, request, refused)
            return
        if following is None:
            what = request.verb.name.lower().replace("grant_fenced", "grant and fence")
            self._warn_once(f"allows no command to {what} a lock: {refused.cause}")
        if request.ballot is not None:
            request.ballot.cast(self._index, Vote.FAULTED, refused.cause)

    def _is_wanted(self, request: Request) -> bool:
        """Whether to ask once more: nothing that sets a key may follow the deletes of its token."""
        if request.ballot is not None and request.ballot.withdrawn:
            return False
        return request.verb > RENEW or self._the_host.runtime.clock() < request.until

    def _send(self, form: Form, request: Request, refused: Refused | None = None) -> None:
        if self._link is not None:
            slot: Slot = (form, request, refused)
            self._link.send(dialect.pack(form, request), slot, form.replies)
