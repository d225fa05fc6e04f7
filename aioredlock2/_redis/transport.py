"""The asyncio shell around the mux: one connection from the handshake's end to its own.

Writing: a lone request goes out at once; while others are in flight, all requests of one loop turn
leave together, in one write. Doubt (garbage, silence, a full queue) ends the connection by abort, with
SO_LINGER 0: a plain close would still deliver what lies in the send buffer, minutes later perhaps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import Any, Protocol

from aioredlock2._redis.mux import Desync, Mux

__all__ = ["Link", "LinkOwner"]

SILENCE_TICK_S = 0.5
SILENCE_TICKS_MAX = 4
"""A connection with requests open is given up after so many ticks (2 s) without any reply."""
PENDING_MAX = 50_000
"""Requests open on one connection; beyond it the server is not keeping up and the link is in doubt."""
WRITE_HIGH_WATER = 1 << 20


class LinkOwner(Protocol):
    """Who gets the replies."""

    def replied(self, slot: Any, reply: object) -> None:
        """The reply to the request sent with `slot`."""

    def link_lost(self, cause: str, unanswered: list[Any]) -> None:
        """The link is gone; `unanswered` are the slots that will get no reply. Called once."""


class Link(asyncio.Protocol):
    """One taken-over connection."""

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport: asyncio.WriteTransport | None = transport
        self._loop = loop
        self._pid = os.getpid()
        self._owner: LinkOwner | None = None
        self._mux: Mux[object] = Mux()
        self._pending = self._mux.pending
        self._out: list[bytes] = []
        self._flush_due = False
        self._paused = False
        self._silence: asyncio.TimerHandle | None = None
        self._silent_ticks = 0
        self._answered_at_tick = 0
        self._catch_up_to = 0
        self.overdue = False
        """Whether requests that missed their deadline are still unanswered."""
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        transport.set_protocol(self)

    def attach(self, owner: LinkOwner | None) -> None:
        """Hand the replies to `owner` from now on; None: to nobody."""
        self._owner = owner

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return self._transport is not None and not self._transport.is_closing()

    def missed(self) -> None:
        """A deadline passed: all that was sent so far has to be answered before more is sent."""
        self._catch_up_to = self._mux.expected
        self.overdue = self._mux.answered < self._catch_up_to

    def send(self, data: bytes, slot: object, replies: int = 1, join: bool = False) -> None:
        """Put a request on the wire; its reply comes to the owner with `slot`.

        `join` waits for the end of the loop turn in any case: more of its kind will follow.
        """
        pending = self._pending
        lone = not (pending or join or self._paused)
        if replies > 1:
            self._mux.expect_parts(replies - 1)
        pending.append(slot)
        if lone:
            self._write(data)
            return
        self._out.append(data)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if len(self._pending) > PENDING_MAX:
            self.abort(f"more than {PENDING_MAX} requests without a reply")
        if self._out and not self._paused:
            data = b"".join(self._out)
            self._out.clear()
            self._write(data)

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or os.getpid() != self._pid:
            # After a fork the socket is the parent's: nothing may be written here.
            return
        if self._silence is None:
            self._watch_silence()
        try:
            transport.write(data)
        except Exception as error:  # noqa: BLE001 - loops raise many types for a closing transport
            self.abort(f"write failed ({type(error).__name__})")

    # The protocol's side, called by the loop.

    def data_received(self, data: bytes) -> None:
        """Replies have come."""
        owner = self._owner
        if owner is None:
            return
        try:
            self._mux.feed(data, owner.replied)
        except Desync as error:
            self.abort(str(error))
        if self.overdue:
            self.overdue = self._mux.answered < self._catch_up_to

    def pause_writing(self) -> None:
        """The transport holds enough: keep the rest here."""
        self._paused = True

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, by us or by the server."""
        self._gone(f"connection lost ({exc})" if exc else "connection closed by the server")

    # The ways out.

    def abort(self, cause: str) -> None:
        """End the connection in doubt: bytes not sent yet stay unsent as far as possible."""
        if self._transport is not None and self._is_ours():
            sock = self._transport.get_extra_info("socket")
            if sock is not None and sock.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        self._gone(cause)

    def close(self) -> None:
        """Hang up at once; what the kernel has of us, deletes behind their SETs, is still delivered."""
        if self._transport is not None and self._is_ours():
            if self._transport.get_write_buffer_size():
                # Part of it would go and part would not: then rather as little as possible.
                self.abort("closed")
                return
            self._transport.abort()
        self._gone("closed")

    def _is_ours(self) -> bool:
        """False after a fork, or when the loop is closed: then the socket must not be touched."""
        return os.getpid() == self._pid and not self._loop.is_closed()

    def discard(self) -> None:
        """Let go of a connection whose loop is closed and will never close it, or that is a parent's."""
        self._owner = None
        if self._transport is not None and os.getpid() == self._pid:
            _close_orphan(self._transport)
        self._gone("dropped")

    def _gone(self, cause: str) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._silence is not None and not self._loop.is_closed():
            self._silence.cancel()
        self._silence = None
        self._out.clear()
        unanswered = self._mux.abandon()
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.link_lost(cause, unanswered)

    # Silence: ticks are counted, not seconds, so that a blocked loop is not taken for a dead server.

    def _watch_silence(self) -> None:
        self._answered_at_tick = self._mux.answered
        self._silence = self._loop.call_later(SILENCE_TICK_S, self._silence_tick)

    def _silence_tick(self) -> None:
        self._silence = None
        if not self._mux.pending:
            self._silent_ticks = 0
            return
        moved = self._mux.answered != self._answered_at_tick
        self._silent_ticks = 0 if moved else self._silent_ticks + 1
        if self._silent_ticks >= SILENCE_TICKS_MAX:
            self.abort(f"no reply for {SILENCE_TICK_S * SILENCE_TICKS_MAX:g} s")
        else:
            self._watch_silence()


def _close_orphan(transport: asyncio.WriteTransport) -> None:
    """Close a transport of a closed loop: it would stay open, and complain when it is collected.

    There is no public way; an attribute that isn't there only leaves it to the collector.
    """
    inner: Any = transport
    while (tls := getattr(inner, "_ssl_protocol", None)) is not None:
        inner = tls._transport
    with contextlib.suppress(Exception):
        inner.abort()  # marks it as closing, then fails to tell the loop
    sock = getattr(inner, "_sock", None)
    if sock is not None:
        sock.close()
        inner._sock = None
