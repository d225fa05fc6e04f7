"""Holds without a client behind them, for tests of what keeps or orders them."""

from __future__ import annotations

from aioredlock2._core.ballot import grant_rule
from aioredlock2._core.terms import LockTerms
from aioredlock2._core.validity import valid_until
from aioredlock2._engine import Round
from aioredlock2._hold import Hold
from aioredlock2._node import Request, Verb
from aioredlock2._turns import Turn

__all__ = ["make_hold", "terms_of"]


def terms_of(ttl: float = 10.0, node_timeout: float | None = None) -> LockTerms:
    """Terms by the default settings."""
    return LockTerms.of(ttl, drift_factor=0.01, node_timeout=node_timeout)


def make_hold(
    ttl: float = 10.0, *, started_at: float = 1000.0, max_hold: float | None = None
) -> Hold:
    """A hold of "x", won at one node by a round that began at `started_at`."""
    terms = terms_of(ttl)
    won = Round(1, grant_rule, Request(Verb.GRANT, b"x", b"token", terms.ttl_ms), started_at)
    return Hold(
        "x",
        won,
        terms,
        valid_until(started_at, terms),
        sent_to=0b1,
        turn=Turn(b"x"),
        renew=True,
        max_hold=max_hold,
    )
