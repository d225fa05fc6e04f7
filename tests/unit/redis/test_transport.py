"""One connection's shell around the mux, over a transport that only takes notes."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import types
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._redis.transport import (
    PENDING_MAX,
    SILENCE_TICK_S,
    SILENCE_TICKS_MAX,
    Link,
)
from tests.support.virtual import in_virtual_time, run, settle, the_loop

SILENCE_S = SILENCE_TICK_S * SILENCE_TICKS_MAX


class Notes(asyncio.WriteTransport):
    """A transport that only takes notes."""

    def __init__(self, family: int | None = None) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.protocol: asyncio.BaseProtocol | None = None
        self.high: int | None = None
        self.aborted = self.closed = self.buffered = 0
        self.refuses: Exception | None = None
        self.sock = None if family is None else NotedSocket(family)

    def write(self, data: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.writes.append(bytes(data))

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return self.sock if name == "socket" else default

    def is_closing(self) -> bool:
        return bool(self.aborted or self.closed)

    def abort(self) -> None:
        self.aborted += 1

    def close(self) -> None:
        self.closed += 1


class NotedSocket:
    def __init__(self, family: int) -> None:
        self.family = family
        self.options: list[tuple[object, ...]] = []

    def setsockopt(self, *option: object) -> None:
        self.options.append(option)


class Owner:
    """Notes what a link tells."""

    def __init__(self) -> None:
        self.replies: list[tuple[object, object]] = []
        self.lost: list[tuple[str, list[object]]] = []
        self.then: Callable[[object], None] | None = None

    def replied(self, slot: object, reply: object) -> None:
        self.replies.append((slot, reply))
        if self.then is not None:
            self.then(slot)

    def link_lost(self, cause: str, unanswered: list[object]) -> None:
        self.lost.append((cause, unanswered))


def linked(family: int | None = None) -> tuple[Link, Notes, Owner]:
    notes, owner = Notes(family), Owner()
    link = Link(notes, asyncio.get_running_loop())
    link.attach(owner)
    return link, notes, owner


# --- writing ------------------------------------------------------------------------------------


@in_virtual_time
async def test_it_takes_the_transport_over() -> None:
    link, notes, _ = linked()
    assert notes.protocol is link
    assert notes.high == 1 << 20
    assert link.is_open


@in_virtual_time
async def test_a_lone_request_is_written_at_once() -> None:
    link, notes, _ = linked()
    for number in range(3):
        link.send(b"PING%d" % number, number)
        assert notes.writes[number:] == [b"PING%d" % number]
        link.data_received(b"+OK\r\n")


@in_virtual_time
async def test_the_requests_of_one_turn_leave_in_one_write() -> None:
    """The first is on its way already; those after it wait for the end of the turn."""
    link, notes, _ = linked()
    for number in range(5):
        link.send(b"<%d>" % number, number)
    assert notes.writes == [b"<0>"]
    await settle(2)
    assert notes.writes == [b"<0>", b"<1><2><3><4>"]
    link.send(b"<5>", 5)
    link.send(b"<6>", 6)
    await settle(2)
    assert notes.writes[2:] == [b"<5><6>"]


@in_virtual_time
async def test_back_pressure_holds_everything_back_in_order() -> None:
    link, notes, _ = linked()
    link.pause_writing()
    for number in range(3):
        link.send(b"<%d>" % number, number)
        await settle(2)
    assert notes.writes == []
    link.resume_writing()
    assert notes.writes == [b"<0><1><2>"]
    link.pause_writing()
    link.resume_writing()
    assert notes.writes == [b"<0><1><2>"]


@given(
    st.lists(st.sampled_from(["send", "send", "turn", "answer", "pause", "resume"]), max_size=60)
)
def test_every_request_is_written_once_in_order_and_answered_in_order(steps: list[str]) -> None:
    async def main() -> None:
        link, notes, owner = linked()
        sent = answered = 0
        for step in [*steps, "resume", "turn"]:
            written = b"".join(notes.writes).count(b"<")
            if step == "send":
                link.send(b"<%d>" % sent, sent)
                sent += 1
            elif step == "turn":
                await settle(2)
            elif step == "pause":
                link.pause_writing()
            elif step == "resume":
                link.resume_writing()
            elif answered < written:
                link.data_received(b":%d\r\n" % answered)
                answered += 1
        assert b"".join(notes.writes) == b"".join(b"<%d>" % number for number in range(sent))
        assert owner.replies == [(number, number) for number in range(answered)]
        link.abort("end of the test")
        assert owner.lost == [("end of the test", list(range(answered, sent)))]

    run(main())


@in_virtual_time
async def test_a_server_that_does_not_keep_up_is_given_up() -> None:
    link, notes, owner = linked()
    for number in range(PENDING_MAX):
        link.send(b".", number)
    await settle()
    assert link.is_open
    link.send(b".", PENDING_MAX)
    await settle()
    assert notes.aborted == 1
    ((cause, unanswered),) = owner.lost
    assert cause == f"more than {PENDING_MAX} requests without a reply"
    assert len(unanswered) == PENDING_MAX + 1


@pytest.mark.parametrize(
    "error",
    [
        TypeError("data argument must be a bytes-like object, not None"),
        RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed"),
        OSError("broken pipe"),
    ],
)
@in_virtual_time
async def test_f121_a_write_to_a_closing_transport_loses_the_link_and_raises_nothing(
    error: Exception,
) -> None:
    link, notes, owner = linked()
    notes.refuses = error
    link.send(b"PING", "slot")
    assert owner.lost == [(f"write failed ({type(error).__name__})", ["slot"])]
    assert notes.aborted == 1
    assert not link.is_open


# --- replies ------------------------------------------------------------------------------------


@in_virtual_time
async def test_replies_go_to_the_owner_of_the_moment() -> None:
    """After the greeting the node takes the link over."""
    link, _, greeter = linked()
    node = Owner()
    link.send(b"HELLO", "hello")
    link.data_received(b"+OK\r\n")
    link.attach(node)
    link.send(b"SET", "set", 2)
    link.data_received(b"+OK\r\n:1\r\n")
    assert greeter.replies == [("hello", b"OK")]
    assert node.replies == [("set", [b"OK", 1])]


@in_virtual_time
async def test_without_an_owner_bytes_are_dropped() -> None:
    link, notes, owner = linked()
    link.attach(None)
    link.data_received(b"garbage")
    link.abort("unheard")
    assert (owner.replies, owner.lost) == ([], [])
    assert notes.aborted == 1


@in_virtual_time
async def test_f102_garbage_ends_the_connection_by_abort() -> None:
    """What came before it counts, what was open is told, and nothing is written any more."""
    link, notes, owner = linked()
    for number in range(3):
        link.send(b"<%d>" % number, number)
    link.data_received(b"+OK\r\nHTTP/1.1 400\r\n")
    await settle()
    assert owner.replies == [(0, b"OK")]
    ((cause, unanswered),) = owner.lost
    assert cause.startswith("not RESP")
    assert unanswered == [1, 2]
    assert (notes.aborted, notes.writes) == (1, [b"<0>"])


@in_virtual_time
async def test_an_owner_may_abort_on_a_reply() -> None:
    """READONLY: the master is another one now. The replies behind it are nobody's."""
    link, notes, owner = linked()
    owner.then = lambda slot: link.abort("READONLY") if slot == 1 else None
    for number in range(4):
        link.send(b".", number)
    link.data_received(b"+0\r\n+1\r\n+2\r\n")
    assert [slot for slot, _ in owner.replies] == [0, 1]
    assert owner.lost == [("READONLY", [2, 3])]
    assert notes.aborted == 1


# --- overdue ------------------------------------------------------------------------------------


@in_virtual_time
async def test_overdue_means_what_was_open_at_the_deadline() -> None:
    link, _, _ = linked()
    link.send(b".", 0)
    link.send(b".", 1, 2)
    assert not link.overdue
    link.missed()
    link.send(b".", 2)
    assert link.overdue
    link.data_received(b"+0\r\n+1\r\n")
    assert link.overdue
    link.data_received(b"+1\r\n")
    assert not link.overdue


# --- silence ------------------------------------------------------------------------------------


@in_virtual_time
async def test_h25_two_seconds_of_silence_with_requests_open_are_the_end() -> None:
    link, notes, owner = linked()
    link.send(b".", 0)
    await asyncio.sleep(SILENCE_S - 0.01)
    assert link.is_open
    await asyncio.sleep(SILENCE_TICK_S)
    assert owner.lost == [("no reply for 2 s", [0])]
    assert notes.aborted == 1
    assert the_loop().timers == 0


@in_virtual_time
async def test_any_reply_breaks_the_silence() -> None:
    """A server that is slow but answers is kept, however long its queue."""
    link, _, owner = linked()
    for number in range(10):
        link.send(b".", number)
    for _ in range(9):
        await asyncio.sleep(SILENCE_S - 0.3)
        link.data_received(b"+OK\r\n")
    assert link.is_open
    assert len(owner.replies) == 9
    link.abort("end of the test")


@in_virtual_time
async def test_an_idle_connection_may_be_silent_and_sets_no_timer() -> None:
    link, _, _ = linked()
    link.send(b".", 0)
    link.data_received(b"+OK\r\n")
    await asyncio.sleep(3600)
    assert link.is_open
    assert the_loop().timers == 0
    link.send(b".", 1)
    await asyncio.sleep(SILENCE_S - 0.01)
    assert link.is_open
    await asyncio.sleep(SILENCE_TICK_S)
    assert not link.is_open


@in_virtual_time
async def test_a_blocked_loop_is_not_taken_for_a_dead_server() -> None:
    """Ticks are counted, not seconds: a minute without reading is one tick."""
    link, _, _ = linked()
    link.send(b".", 0)
    await asyncio.sleep(SILENCE_TICK_S / 2)
    the_loop().block(60)
    await asyncio.sleep(SILENCE_TICK_S)
    assert link.is_open
    link.abort("end of the test")


# --- the ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, "connection closed by the server"),
        (ConnectionResetError(104, "reset"), "connection lost ([Errno 104] reset)"),
    ],
)
@in_virtual_time
async def test_the_end_is_told_once(error: Exception | None, cause: str) -> None:
    link, notes, owner = linked()
    link.send(b".", 0)
    link.connection_lost(error)
    link.connection_lost(error)
    link.abort("again")
    link.close()
    assert owner.lost == [(cause, [0])]
    assert (notes.aborted, notes.closed) == (0, 0)
    assert the_loop().timers == 0


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@in_virtual_time
async def test_h18_an_abort_does_not_deliver_what_lies_in_the_send_buffer(family: int) -> None:
    link, notes, _ = linked(family)
    link.abort("doubt")
    assert notes.sock is not None
    linger = struct.pack("ii", 1, 0)
    assert notes.sock.options == [(socket.SOL_SOCKET, socket.SO_LINGER, linger)]
    assert notes.aborted == 1


@in_virtual_time
async def test_an_abort_leaves_a_unix_socket_as_it_is() -> None:
    link, notes, _ = linked(socket.AF_UNIX)
    link.abort("doubt")
    assert notes.sock is not None
    assert notes.sock.options == []
    assert notes.aborted == 1


@pytest.mark.parametrize(("buffered", "lingers"), [(0, 0), (1, 1)])
@in_virtual_time
async def test_hanging_up_delivers_what_the_kernel_has_or_as_little_as_possible(
    buffered: int, lingers: int
) -> None:
    """All deletes are with the kernel, or part of them would go and part would not."""
    link, notes, owner = linked(socket.AF_INET)
    notes.buffered = buffered
    link.close()
    assert notes.sock is not None
    assert len(notes.sock.options) == lingers
    assert notes.aborted == 1
    assert owner.lost == [("closed", [])]


@in_virtual_time
async def test_letting_go_closes_the_orphan_and_tells_nobody() -> None:
    """The loop is closed and will never do it."""
    link, notes, owner = linked(socket.AF_INET)
    link.send(b".", 0)
    link.discard()
    link.discard()
    assert owner.lost == []
    assert notes.sock is not None
    assert notes.sock.options == []
    assert not link.is_open
    assert the_loop().timers == 0


class ClosingSocket:
    closed = 0

    def close(self) -> None:
        self.closed += 1


class Orphan(Notes):
    """A transport as asyncio has it, whose closed loop can't be told of an abort."""

    def __init__(self) -> None:
        super().__init__()
        self._sock: ClosingSocket | None = ClosingSocket()

    def abort(self) -> None:
        super().abort()
        raise RuntimeError("Event loop is closed")


class Tls(Notes):
    """A TLS transport as asyncio has it: the socket is with the one below."""

    def __init__(self, below: Notes) -> None:
        super().__init__()
        self._ssl_protocol: object = types.SimpleNamespace(_transport=below)


@pytest.mark.parametrize("tls", [False, True])
@in_virtual_time
async def test_the_socket_of_an_orphan_is_closed_below_any_tls(tls: bool) -> None:
    orphan = Orphan()
    sock = orphan._sock
    assert sock is not None
    link = Link(Tls(orphan) if tls else orphan, the_loop())
    link.discard()
    link.discard()
    assert (sock.closed, orphan._sock, orphan.aborted) == (1, None, 1)


@in_virtual_time
async def test_the_orphan_of_a_parent_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = Orphan()
    link = Link(orphan, the_loop())
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    link.discard()
    assert orphan.aborted == 0
    assert orphan._sock is not None
    assert orphan._sock.closed == 0


@in_virtual_time
async def test_a_link_that_has_ended_writes_nothing() -> None:
    link, notes, owner = linked()
    link.abort("over")
    link.send(b"late", 1)
    await settle()
    link.resume_writing()
    link.data_received(b"+late\r\n")
    assert notes.writes == []
    assert owner.replies == []
    assert len(owner.lost) == 1


@in_virtual_time
async def test_what_was_queued_when_it_ended_is_not_written() -> None:
    link, notes, _ = linked()
    link.send(b"<0>", 0)
    link.send(b"<1>", 1)
    link.abort("over")
    await settle()
    assert notes.writes == [b"<0>"]


@in_virtual_time
async def test_a_forked_child_neither_writes_to_the_socket_nor_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the parent's: shut down here, it would be shut down there."""
    link, notes, _ = linked(socket.AF_INET)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    link.send(b"child", 0)
    link.abort("doubt")
    link.close()
    assert notes.writes == []
    assert (notes.aborted, notes.closed) == (0, 0)
    assert notes.sock is not None
    assert notes.sock.options == []
