"""Rounds: ask every node at once, count, decide, clean up behind.

Knows nodes only by their contract (`_node.py`). Time is the runtime's clock throughout, except for the
loop's own timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from aioredlock2._core.ballot import (
    PENDING,
    WON,
    Ballot,
    Rule,
    grant_rule,
    inspect_rule,
    renew_rule,
    revoke_rule,
)
from aioredlock2._core.fence import Candidate, candidate
from aioredlock2._core.terms import LockTerms
from aioredlock2._core.validity import valid_until
from aioredlock2._gate import Deadlines, Gate
from aioredlock2._node import Node, NodeState, Request, Verb
from aioredlock2._runtime import Runtime
from aioredlock2.errors import ConfigurationError
from aioredlock2.outcomes import NodeOutcome, Vote

__all__ = ["NEVER_SENT", "Engine", "Round", "closed_error"]

NEVER_SENT = "never sent"
GRANT, GRANT_FENCED, CONFIRM, REVOKE = Verb.GRANT, Verb.GRANT_FENCED, Verb.CONFIRM, Verb.REVOKE


def closed_error() -> ConfigurationError:
    """What everybody gets who still wants something of a closed client."""
    return ConfigurationError("this Redlock was closed by aclose(): make a new one")


class Round(Ballot):
    """One question to all nodes, its votes, and who is told when it is decided."""

    __slots__ = (
        "confirmation",
        "fence",
        "holds_place",
        "key",
        "on_closed",
        "on_decided",
        "started_at",
        "token",
        "ttl_ms",
        "verb",
        "waiters",
    )

    def __init__(self, nodes: int, rule: Rule, request: Request, started_at: float) -> None:
        super().__init__(nodes, rule)
        # What was asked, and not the request itself: that refers to its ballot already, and garbage
        # in circles waits for a collection.
        request.ballot = self
        self.verb = request.verb
        self.key = request.key
        self.token = request.token
        self.ttl_ms = request.ttl_ms
        self.fence = 0
        """What a fenced grant's counters came to, once that is certain."""
        self.confirmation: Round | None = None
        """The round in which the nodes behind were last asked to confirm the fence."""
        self.started_at = started_at
        """Read just before the first byte left."""
        self.on_decided: Callable[[Round], None] | None = None
        self.on_closed: Callable[[Round], None] | None = None
        self.holds_place: Gate | None = None
        self.waiters: list[asyncio.Future[None]] | None = None
        """Who waits for the verdict."""

    async def decided(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the verdict: at most one node timeout. May be cancelled; the round goes on."""
        if self.verdict is PENDING:
            waiter: asyncio.Future[None] = loop.create_future()
            if self.waiters is None:
                self.waiters = []
            self.waiters.append(waiter)
            await waiter

    @property
    def counters(self) -> dict[int, int]:
        """The grant counters known so far, by node."""
        return {
            index: counter
            for index, (vote, counter) in enumerate(zip(self.votes, self.causes, strict=True))
            if vote is Vote.GRANTED and isinstance(counter, int)
        }

    def on_verdict(self) -> None:
        """Free the place, wake whoever waits."""
        if self.holds_place is not None:
            self.holds_place.leave()
            self.holds_place = None
        for waiter in self.waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        # Let go of what is told: it may refer to this round, and circles wait for a collection.
        told, self.on_decided = self.on_decided, None
        if told is not None:
            told(self)

    def on_last_vote(self) -> None:
        """Every node was heard, or the deadline has passed."""
        told, self.on_closed = self.on_closed, None
        if told is not None:
            told(self)


class Engine:
    """The rounds of one client in one loop."""

    def __init__(
        self, nodes: Sequence[Node], runtime: Runtime, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.nodes = nodes
        self.runtime = runtime
        self.loop = loop
        self.gate = Gate()
        self._deadlines = Deadlines(loop, self._expire)
        self._closed = False

    async def grant(self, key: bytes, terms: LockTerms, *, fence_seed: int = 0) -> Round:
        """One round to obtain `key` under a fresh token; returns when it is decided.

        With a `fence_seed` it is asked with a fence, and returns when that stands, or can't.
        Whoever calls it judges the result (verdict, fence *and* time) and calls `clean_up` unless it
        keeps the lock. Cancelled at an await, the round cleans up behind itself before it raises.
        """
        if not self.gate.enter_now():
            await self.gate.wait(self.loop)  # cancelled here: nothing was sent yet
        if self._closed:
            self.gate.leave()
            raise closed_error()
        verb = GRANT_FENCED if fence_seed else GRANT
        request = Request(verb, key, self.runtime.new_token(), terms.ttl_ms)
        request.fence = fence_seed
        asked = Round(len(self.nodes), grant_rule, request, self.runtime.clock())
        request.until = valid_until(asked.started_at, terms)
        asked.holds_place = self.gate
        for index, node in enumerate(self.nodes):
            if asked.verdict is PENDING:
                node.ask(request)
            elif (status := node.status).state is NodeState.UP:
                asked.unsent |= 1 << index  # decided by those before it: it stays out of this
            else:
                asked.skip(index, Vote.FAULTED, status.cause)
        if asked.verdict is PENDING or any(self._unanswered(asked)):
            self._deadlines.watch(asked, terms.node_timeout)
        try:
            if asked.verdict is PENDING:
                asked.waiters = [waiter := self.loop.create_future()]
                await waiter
            if fence_seed and asked.verdict is WON:
                await self._find_fence(asked, terms)
        except asyncio.CancelledError:
            self.clean_up(asked)
            raise
        return asked

    async def _find_fence(self, won: Round, terms: LockTerms) -> None:
        """Find the fence of a round that was won: at once where a quorum agrees, else by confirmation.

        Leaves it at 0 if too few nodes confirm. Stragglers' counters are taken into account as long as
        they bring something new. See `_core/fence.py`.
        """
        known: dict[int, int] = {}
        while (counters := won.counters) != known and not self._closed:
            known = counters
            wanted = candidate(counters)
            if len(wanted.level) >= won.quorum:
                won.fence = wanted.fence
                return
            confirmed = won.confirmation = self._confirm(won, wanted, terms)
            try:
                await confirmed.decided(self.loop)  # cancelled here: `grant` takes everything back
            finally:
                confirmed.withdrawn = True
            if confirmed.verdict is WON:
                won.fence = wanted.fence
                return

    def _confirm(self, won: Round, wanted: Candidate, terms: LockTerms) -> Round:
        """A round that counts the nodes which stand by a fence; only those behind are asked."""
        request = Request(CONFIRM, won.key, won.token, won.ttl_ms)
        asked = Round(len(self.nodes), renew_rule, request, self.runtime.clock())
        for index, node in enumerate(self.nodes):
            if index in wanted.level:
                asked.cast(index, Vote.GRANTED)
            elif index in wanted.behind:
                request = Request(CONFIRM, won.key, won.token, won.ttl_ms)
                request.fence, request.gap = wanted.fence, wanted.behind[index]
                request.until = valid_until(won.started_at, terms)
                request.ballot = asked
                node.ask(request)
            else:
                asked.skip(index, Vote.FAULTED, "its grant counter isn't known")
        if asked.unheard:
            self._deadlines.watch(asked, terms.node_timeout)
        return asked

    def renew(
        self,
        request: Request,
        *,
        on_decided: Callable[[Round], None],
        on_closed: Callable[[Round], None],
    ) -> Round:
        """A round that extends, not sent yet (`send`).

        The caller has taken a place at the gate; the round gives it up.
        """
        asked = Round(len(self.nodes), renew_rule, request, self.runtime.clock())
        asked.holds_place = self.gate
        asked.on_decided, asked.on_closed = on_decided, on_closed
        return asked

    def send(self, request: Request, node_timeout: float) -> None:
        """Ask all nodes; callbacks may be called before this returns."""
        for node in self.nodes:
            node.ask(request)
        if request.ballot is not None and request.ballot.unheard:
            self._deadlines.watch(request.ballot, node_timeout)

    def revoke(
        self, key: bytes, token: bytes, terms: LockTerms, lives_ms: int, sent_to: int
    ) -> Round:
        """Delete `key` if it is `token`'s, on the nodes in the bit set `sent_to`. Written at once.

        `lives_ms` is how long a key of this token can live at most.
        """
        request = Request(REVOKE, key, token, lives_ms)
        asked = Round(len(self.nodes), revoke_rule, request, self.runtime.clock())
        for index, node in enumerate(self.nodes):
            if sent_to >> index & 1:
                node.ask(request)
            else:
                asked.skip(index, Vote.FAULTED, NEVER_SENT)  # no answer, and none is needed
        if asked.unheard:
            self._deadlines.watch(asked, terms.node_timeout)
        return asked

    def inspect(self, key: bytes, node_timeout: float) -> Round:
        """Ask every node what it has under `key`."""
        request = Request(Verb.INSPECT, key)
        asked = Round(len(self.nodes), inspect_rule, request, self.runtime.clock())
        self.send(request, node_timeout)
        return asked

    def clean_up(self, failed: Round) -> None:
        """Take back a round that is not kept: a delete behind its SET, wherever that may have gone.

        Without an await, so that nothing can come between: it runs whole, also while a cancellation
        is being delivered. Nobody waits for the answers. Once is enough.
        """
        if failed.withdrawn:
            return
        failed.withdrawn = True
        request = Request(REVOKE, failed.key, failed.token, failed.ttl_ms)
        for index, node in enumerate(self.nodes):
            if not failed.unsent >> index & 1 and failed.votes[index] is not Vote.DENIED:
                node.ask(request)

    def sent_to(self, asked: Round) -> int:
        """The nodes that may have seen this round's request, as a bit set."""
        return ~asked.unsent & (1 << len(self.nodes)) - 1

    def outcomes(self, asked: Round) -> tuple[NodeOutcome, ...]:
        """The votes so far, for people."""
        return tuple(
            NodeOutcome(node.name, vote, cause if isinstance(cause, str) else "")
            for node, vote, cause in zip(self.nodes, asked.votes, asked.causes, strict=True)
        )

    def close(self) -> None:
        """Take back what is being asked for, now, and let nothing more in.

        The rounds end undecided or unreachable at once: whoever waits for them wakes.
        """
        self._closed = True
        for ballot in self._deadlines.watched():
            if isinstance(ballot, Round) and ballot.verdict is PENDING:
                if ballot.verb is GRANT or ballot.verb is GRANT_FENCED:
                    self.clean_up(ballot)
                ballot.expire()

    def drop(self, *, wake: bool) -> None:
        """Stop the timers; nothing is sent. `wake` ends all rounds, for whoever waits for them."""
        self._closed = True
        ballots = self._deadlines.watched()
        self._deadlines.cancel()
        if wake:
            for ballot in ballots:
                ballot.expire()

    def _expire(self, ballot: Ballot) -> None:
        for node in list(self._unanswered(ballot)):
            node.missed()
        ballot.expire()

    def _unanswered(self, ballot: Ballot) -> Iterator[Node]:
        """The nodes that were asked and have not answered yet."""
        for index, vote in enumerate(ballot.votes):
            if vote is Vote.PENDING and not ballot.unsent >> index & 1:
                yield self.nodes[index]
