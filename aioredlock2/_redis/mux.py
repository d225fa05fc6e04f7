"""Sans-I/O: many requests over one connection, replies matched in order.

Feed it bytes (`feed`), tell it what was asked (append to `pending`). That FIFO is the whole
bookkeeping: a slot is taken when a request is written and given up when its reply has come, whoever
may have stopped caring meanwhile, so a cancelled caller can't shift the replies of the others.
Anything that doesn't fit (bytes that are no RESP, a reply nobody asked for) raises `Desync`: the
connection can't be trusted any more.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import hiredis

__all__ = ["Desync", "Mux"]

T = TypeVar("T")
AGGREGATES = (b"*", b"%", b"~", b">", b"|")
ABSURD = re.compile(rb"[*%~>|]\d{6}")
"""hiredis makes room for as many elements as a header promises: freeing 2**31 of them takes seconds.
Looked for only where a chunk begins a reply: elsewhere it may be part of somebody's value."""
PUSH = hiredis.PushNotification
_NOTHING = object()
_PART = object()
"""Holds the place of a reply that is only part of its request's answer."""


class Desync(Exception):
    """The byte stream and the requests no longer match."""


class Mux(Generic[T]):
    """The FIFO of one connection; `T` is whatever the caller wants back with the reply."""

    __slots__ = ("_parts", "_reader", "answered", "pending")

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._parts: list[object] = []
        self.pending: deque[T | object] = deque()
        """What was written and not answered, oldest first. Whoever writes appends its slot."""
        self.answered = 0
        """Replies ever received."""

    def expect_parts(self, replies: int) -> None:
        """The next `replies` replies are parts of one answer; its slot must follow in `pending`."""
        self.pending.extend([_PART] * replies)

    @property
    def expected(self) -> int:
        """Replies ever asked for."""
        return self.answered + len(self.pending)

    def feed(self, data: bytes, replied: Callable[[T, object], None]) -> None:
        """Tell `replied` each request that `data` completes, with its reply (a list if of several).

        Raises Desync.
        """
        pending, gets = self.pending, self._reader.gets
        if data[:1] in AGGREGATES and not self._reader.has_data() and ABSURD.match(data):
            raise Desync("a reply of absurd length")
        self._reader.feed(data)
        while True:
            try:
                reply = gets()
            except Exception as error:
                # ProtocolError, but also what a reply without a Python form makes hiredis raise.
                raise Desync(f"not RESP that can be read: {error}") from error
            if reply is _NOTHING:
                return
            if type(reply) is PUSH:
                continue
            if not pending:
                raise Desync("a reply that nobody asked for")
            slot = pending.popleft()
            self.answered += 1
            if slot is _PART:
                self._parts.append(reply)
                continue
            if self._parts:
                reply = [*self._parts, reply]
                self._parts.clear()
            replied(slot, reply)  # type: ignore[arg-type]  # it is no _PART

    def abandon(self) -> list[T]:
        """The requests without an answer, oldest first; none of them will get one."""
        slots = [cast("T", slot) for slot in self.pending if slot is not _PART]
        self.pending.clear()
        return slots
