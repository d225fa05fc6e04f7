"""The inside of `tests.support.relay`: what happens to the bytes of one relayed connection.

A `Link` is a client's connection with its counterpart to the server, and has one `Flow` per
direction. Everything here runs in the relays' own loop.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import hiredis

if TYPE_CHECKING:
    from tests.support.relay import Relay

__all__ = ["Cut", "Direction", "End", "HangUp", "Link"]

QUEUE_BYTES_MAX = 256 * 1024
"""Beyond this the relay stops reading: a held direction looks like a network, not like a sink."""


class End(enum.Enum):
    """How a stream ends; queued behind its bytes."""

    CLOSED = enum.auto()
    RESET = enum.auto()


class Direction:
    """One direction of a relay: what happens to the bytes of all its connections."""

    def __init__(self, call: Callable[[Callable[[], object]], object]) -> None:
        self.delay_s = 0.0
        """Every segment (and the end of the stream) is this late; read when it arrives."""
        self.split = False
        """Write single bytes, one per loop turn."""
        self.rewrite: Callable[[bytes], bytes] | None = None
        """Called with each segment, in the relay's thread; what it returns is sent instead."""
        self.bytes = 0
        """Bytes read from the sender."""
        self.segments = 0
        """Reads it took: how often the sender wrote, if it waited in between."""
        self._call = call
        self._held = False
        self._flows: set[Flow] = set()

    @property
    def is_held(self) -> bool:
        """True between `hold` and `release`."""
        return self._held

    def hold(self) -> None:
        """Forward nothing from now on, not even the end of a connection."""
        self._call(lambda: self._set_held(held=True))

    def release(self) -> None:
        """Forward what was held, in order; what came in one after the other leaves in one write."""
        self._call(lambda: self._set_held(held=False))

    def _set_held(self, *, held: bool) -> None:
        self._held = held
        for flow in list(self._flows):
            flow.pump()


class Flow:
    """One direction of one connection: a queue with due times."""

    def __init__(self, link: Link, direction: Direction) -> None:
        self.link = link
        self.direction = direction
        self.source: asyncio.Transport | None = None
        self.sink: asyncio.Transport | None = None
        self.queue: deque[tuple[float, bytes | End]] = deque()
        self.queued_bytes = 0
        self.timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        direction._flows.add(self)

    def feed(self, item: bytes | End) -> None:
        """Take a segment, or the end of the stream."""
        if isinstance(item, bytes):
            self.direction.bytes += len(item)
            self.direction.segments += 1
            if self.direction.rewrite is not None:
                item = self.direction.rewrite(item)
            self.queued_bytes += len(item)
        self.queue.append((self.loop.time() + self.direction.delay_s, item))
        self._throttle()
        self.pump()

    def pump(self) -> None:
        """Forward what is due, in one write."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.sink is None or self.direction._held:
            return
        due = bytearray()
        while self.queue and self.queue[0][0] <= self.loop.time():
            item = self.queue.popleft()[1]
            if isinstance(item, End):
                self.link.forward(self, due)
                self.link.end(item)
                return
            due += item
            self.queued_bytes -= len(item)
            if self.direction.split and len(due) > 1:
                self.queue.appendleft((0.0, bytes(due[1:])))
                self.queued_bytes += len(due) - 1
                del due[1:]
                break
        self.link.forward(self, due)
        self._throttle()
        if self.queue:
            self.timer = self.loop.call_at(self.queue[0][0], self.pump)

    def end(self) -> None:
        self.direction._flows.discard(self)
        self.queue.clear()
        if self.timer is not None:
            self.timer.cancel()

    def _throttle(self) -> None:
        if self.source is None or self.source.is_closing():
            return
        if self.queued_bytes > QUEUE_BYTES_MAX:
            self.source.pause_reading()
        elif not self.source.is_reading():
            self.source.resume_reading()


class Socket(asyncio.Protocol):
    """One socket of a connection: reads go to one flow, the other flow writes to it."""

    def __init__(self, link: Link, reads: Flow, writes: Flow) -> None:
        self.link = link
        self.reads = reads
        self.writes = writes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.reads.source = transport
        self.writes.sink = transport
        self.link.transports.append(transport)
        if self.link.has_ended:
            transport.abort()
        else:
            self.writes.pump()

    def data_received(self, data: bytes) -> None:
        self.reads.feed(data)

    def eof_received(self) -> bool:
        self.reads.feed(End.CLOSED)
        return self.link.relay._tls is None  # TLS has no half-closed streams

    def connection_lost(self, exc: Exception | None) -> None:
        self.reads.feed(End.CLOSED if exc is None else End.RESET)


class Link:
    """One client connection and its counterpart to the server."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.has_ended = False
        self.transports: list[asyncio.Transport] = []
        self.up = Flow(self, relay.to_server)
        self.down = Flow(self, relay.to_client)
        relay._links.add(self)

    def accept(self) -> Socket:
        dial = asyncio.get_running_loop().create_task(self._dial())
        self.relay._dials.add(dial)
        dial.add_done_callback(self.relay._dials.discard)
        return Socket(self, self.up, self.down)

    async def _dial(self) -> None:
        host, port = self.relay._target
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: Socket(self, self.down, self.up), host, port
            )
        except OSError:
            self.end(End.RESET)

    def forward(self, flow: Flow, data: bytearray) -> None:
        """Write *data* to the flow's sink, as far as an armed cut lets it pass."""
        if not data or flow.sink is None or flow.sink.is_closing():
            return
        cut = self.relay._cut if flow is self.down else None
        flow.sink.write(bytes(data[: cut.allow(data)] if cut else data))
        if cut and cut.is_due:
            self.relay._cut = None
            self.end(End.RESET)

    def end(self, how: End) -> None:
        """End both sockets now."""
        self.has_ended = True
        self.relay._links.discard(self)
        self.up.end()
        self.down.end()
        for transport in self.transports:
            if how is End.CLOSED:
                transport.close()
                continue
            sock = transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:  # TLS that is gone already has none
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()


class Cut:
    """Lets replies through until a point, then tells that the connection is to be reset."""

    def __init__(self, *, replies: int, keep_bytes: int) -> None:
        self.replies_left = replies
        self.bytes_left = keep_bytes
        self.is_due = False
        self._reader = hiredis.Reader()

    def allow(self, data: bytearray) -> int:
        """How many bytes of *data* may pass."""
        passed = 0
        while self.replies_left and passed < len(data):
            # Byte by byte: the reader does not tell where a reply ends.
            self._reader.feed(bytes(data[passed : passed + 1]))
            passed += 1
            reply = self._reader.gets()
            if reply is not False and not isinstance(reply, hiredis.PushNotification):
                self.replies_left -= 1
        if self.replies_left == 0:
            kept = min(self.bytes_left, len(data) - passed)
            passed += kept
            self.bytes_left -= kept
            self.is_due = self.bytes_left == 0
        return passed


class HangUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
