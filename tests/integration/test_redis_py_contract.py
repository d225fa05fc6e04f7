"""What we rely on in redis-py beyond its documentation; a new release that changes it fails here."""

from __future__ import annotations

import ast
import asyncio
import gc
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
import redis.asyncio
from redis.asyncio.connection import AbstractConnection, ConnectionPool

from aioredlock2._redis import handshake
from aioredlock2._redis.handshake import Dialer
from aioredlock2.embedded import Server
from tests.support.fleet import Look
from tests.support.polling import until

OWNED = {"_transport", "_writer"}
"""The private attributes of redis-py's connections that handshake.py may touch."""


@pytest.fixture
async def connection(servers3: Sequence[Server]) -> AsyncGenerator[AbstractConnection]:
    """A connection as `Dialer` makes it, opened by redis-py."""
    made = Dialer(servers3[0].url)._connection()
    await made.connect()  # type: ignore[no-untyped-call]
    writer = made._writer
    assert writer is not None
    yield made
    made._writer = None  # or it complains that it was never closed
    writer.transport.abort()
    await asyncio.sleep(0)


async def test_an_open_connection_has_a_stream_writer(connection: AbstractConnection) -> None:
    """`_writer` is asyncio's StreamWriter, and its transport takes another protocol."""
    writer = connection._writer
    assert isinstance(writer, asyncio.StreamWriter)
    taken = _Taken()
    writer.transport.set_protocol(taken)
    writer.transport.write(b"PING\r\n")
    assert b"+PONG\r\n" == await asyncio.wait_for(taken.first, 5)


async def test_nothing_lies_in_the_buffer_after_connect(connection: AbstractConnection) -> None:
    """The handshake is answered to the last byte: nothing has to be carried over to us."""
    reader = connection._reader
    assert isinstance(reader, asyncio.StreamReader)
    assert b"" == bytes(reader._buffer)  # type: ignore[attr-defined]


async def test_a_transport_taken_over_is_closed_by_nobody(
    servers3: Sequence[Server], view: Look
) -> None:
    """The connection, the writer and the reader are collected; the transport lives on."""
    dialer = Dialer(servers3[0].url)
    link = await dialer.dial()
    del dialer
    gc.collect()
    await asyncio.sleep(0)
    answers = _Answers()
    link.attach(answers)
    link.send(b"PING\r\n", "slot")
    assert ("slot", b"PONG") == await asyncio.wait_for(answers.first, 5)
    link.attach(None)
    link.close()
    await until(lambda: not view(servers3[0]).client_list())


class _Answers:
    def __init__(self) -> None:
        self.first: asyncio.Future[tuple[object, object]] = asyncio.Future()

    def replied(self, slot: object, reply: object) -> None:
        self.first.set_result((slot, reply))

    def link_lost(self, cause: str, _unanswered: list[object]) -> None:
        self.first.set_exception(ConnectionError(cause))


class _Taken(asyncio.Protocol):
    def __init__(self) -> None:
        self.first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.first.done():
            self.first.set_result(data)


async def test_the_handshake_sends_no_more_than_it_has_to(
    servers3: Sequence[Server], connection: AbstractConnection
) -> None:
    """All extras are off: no retry, no health check, no CLIENT SETINFO, RESP2."""
    assert 0 == connection.health_check_interval
    assert 0 == connection.retry._retries
    assert 2 == int(connection.protocol)
    assert connection.client_name is None
    assert connection.driver_info is None


def test_every_setting_given_is_known_to_redis_py() -> None:
    """A renamed option would be refused by the constructor, and so at the first dial."""
    for given in (
        "redis://u:p@h:1/2",
        "rediss://h",
        "unix:///s",
        redis.asyncio.Redis(host="h"),
        ConnectionPool(),
    ):
        dialer = Dialer(given)
        assert "decode_responses" in dialer._kwargs
        assert isinstance(dialer._connection(), AbstractConnection)


def test_no_other_private_attribute_is_touched() -> None:
    """`_writer` of redis-py and `_transport` of that StreamWriter are all that is taken."""
    tree = ast.parse(Path(handshake.__file__).read_text())
    touched = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }
    assert OWNED == touched
    foreign = [
        path
        for path in Path(handshake.__file__).parents[1].rglob("*.py")
        if "_writer" in path.read_text() and path.name != "handshake.py"
    ]
    assert [] == foreign
