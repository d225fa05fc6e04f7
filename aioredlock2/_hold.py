"""What is known of one acquired lease, between the handle that the user has and the watchdog.

The watchdog refers to this, never to the handle, so that a handle that was dropped is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aioredlock2._core.lease_state import HELD, LeaseEvent, after
from aioredlock2._core.terms import LockTerms
from aioredlock2._engine import Round
from aioredlock2._turns import Turn

__all__ = ["Extension", "Hold"]

Extension = tuple[LockTerms, asyncio.Future[None]]
"""A call to `extend`: what it asked for, and who waits for it."""


class Hold:
    """One token's tenure of one resource."""

    __slots__ = (
        "abandoned",
        "at_gate",
        "body",
        "due_at",
        "extensions",
        "fence",
        "held_since",
        "hold_until",
        "key",
        "latest",
        "longest_ttl_ms",
        "loss_waiters",
        "max_hold",
        "on_loss",
        "reason",
        "renew",
        "renewing",
        "resource",
        "revoked",
        "round",
        "sent_to",
        "state",
        "terms",
        "token",
        "turn",
        "valid_until",
        "warned",
    )

    def __init__(
        self,
        resource: str | bytes,
        won: Round,
        terms: LockTerms,
        valid_until: float,
        *,
        sent_to: int,
        turn: Turn,
        renew: bool,
        max_hold: float | None,
    ) -> None:
        self.resource = resource
        self.key = won.key
        self.token = won.token
        self.fence = won.fence
        """0 without one."""
        self.terms = terms
        self.longest_ttl_ms = terms.ttl_ms
        """No node keeps a key of this token for longer."""
        self.state = HELD
        self.reason = ""
        """What ended it, once it is lost."""
        self.held_since = won.started_at
        self.max_hold = max_hold
        self.hold_until = None if max_hold is None else won.started_at + max_hold
        self.valid_until = valid_until
        if self.hold_until is not None and self.hold_until < valid_until:
            self.valid_until = self.hold_until
        self.sent_to = sent_to
        """Nodes that may have this token's key, as a bit set."""
        self.round = won
        """The latest round that counted."""
        self.turn = turn
        self.renew = renew
        self.abandoned = False
        """True once nobody has the handle any more: it may run out."""
        self.due_at: float | None = None
        """Where the watchdog's schedule has it."""
        self.at_gate = False
        """True while a renewal waits for room."""
        self.renewing: Round | None = None
        """The renewal that is not decided yet."""
        self.latest = won
        """The round begun last, decided or not: stragglers of it may still answer."""
        self.revoked: Round | None = None
        """The release's round, once begun."""
        self.extensions: tuple[Extension, ...] = ()
        """Calls to `extend` that wait for a round of their own."""
        self.loss_waiters: tuple[asyncio.Future[bool], ...] = ()
        self.body: asyncio.Task[object] | None = None
        """The task inside `async with`, while there is one."""
        self.on_loss: Callable[[], None] | None = None
        self.warned = False

    def move(self, event: LeaseEvent, reason: str = "") -> bool:
        """Apply `event`; whether it changed the state."""
        following = after(self.state, event)
        if following is self.state:
            return False
        self.state, self.reason = following, reason
        return True

    def is_valid(self, now: float) -> bool:
        """Whether the holder may rely on it at `now`."""
        return self.state is HELD and now < self.valid_until

    def counts_until(self, until: float) -> None:
        """Move the deadline to `until`: never back, never past `hold_until`."""
        if self.hold_until is not None:
            until = min(until, self.hold_until)
        self.valid_until = max(self.valid_until, until)

    def tell(self, lost: bool) -> None:
        """Wake those who wait for the end."""
        for waiter in self.loss_waiters:
            if not waiter.done():
                waiter.set_result(lost)
        self.loss_waiters = ()
