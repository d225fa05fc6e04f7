"""The limit: what this machine can do when nothing is left out of the way.

A hand-written quorum lock without any abstraction: one `asyncio.Protocol` and one `hiredis.Reader` per
node, SET NX PX pipelined to all of them, decided at the quorum's vote; then a compare-and-delete to all
of them, decided at the quorum's reply. All requests of one loop turn leave in one write per node, a lone
one at once. It is no lock to use: no deadlines, no clean-up, no validity, no renewal, no reconnect. All
other figures are given as ratios to this one, in the same run.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

import hiredis
import redis

__all__ = ["Floor"]

NOT_YET = object()
TTL_MS = b"10000"
KEY_AND_TOKEN = b"$%d\r\n%b\r\n$32\r\n%b\r\n"
DELIFEQ = b"*3\r\n$7\r\nDELIFEQ\r\n" + KEY_AND_TOKEN
DELEX = b"*4\r\n$5\r\nDELEX\r\n$%d\r\n%b\r\n$4\r\nIFEQ\r\n$32\r\n%b\r\n"
SCRIPT = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"


def delete_of(url: str) -> bytes:
    """The fastest compare-and-delete that the server has, to be filled with key and token."""
    with redis.Redis.from_url(url) as server:
        for form, words in ((DELIFEQ, ("DELIFEQ", "x", "y")), (DELEX, ("DELEX", "x", "IFEQ", "y"))):
            try:
                server.execute_command(*words)
            except redis.ResponseError:
                continue
            return form
        sha = server.script_load(SCRIPT)
    return b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % sha.encode() + KEY_AND_TOKEN


class Round:
    """A request to all nodes and the future that its quorum completes."""

    __slots__ = ("done", "votes", "yes")

    def __init__(self, yes: object, done: asyncio.Future[None]) -> None:
        self.yes = yes
        self.votes = 0
        self.done = done


class Connection(asyncio.Protocol):
    """One node."""

    def __init__(self, quorum: int) -> None:
        self.quorum = quorum
        self.loop = asyncio.get_running_loop()
        self.reader = hiredis.Reader(notEnoughData=NOT_YET)
        self.pending: deque[Round] = deque()
        self.out: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)
        self.write = self.transport.write

    def send(self, data: bytes, asked: Round) -> None:
        if self.pending:
            if not self.out:
                self.loop.call_soon(self.flush)
            self.out.append(data)
        else:
            self.write(data)
        self.pending.append(asked)

    def flush(self) -> None:
        self.write(b"".join(self.out))
        self.out.clear()

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        gets = self.reader.gets
        answered = self.pending.popleft
        while (reply := gets()) is not NOT_YET:
            asked = answered()
            if reply == asked.yes:
                asked.votes += 1
                if asked.votes == self.quorum and not asked.done.done():
                    asked.done.set_result(None)


class Floor:
    """The limit for locks over `urls`."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls
        self.connections: list[Connection] = []

    async def connect(self) -> None:
        self.loop = asyncio.get_running_loop()
        quorum = len(self.urls) // 2 + 1
        self.delete, *_ = [delete_of(url) for url in self.urls]
        for url in self.urls:
            parts = urlsplit(url)
            _, connection = await self.loop.create_connection(
                lambda: Connection(quorum), parts.hostname or "localhost", parts.port or 6379
            )
            self.connections.append(connection)

    async def acquire(self, key: bytes) -> bytes:
        """The token, once a quorum has granted `key`. Waits for ever if it never does."""
        token = os.urandom(16).hex().encode()
        data = (
            b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$32\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n"
            % (
                len(key),
                key,
                token,
                len(TTL_MS),
                TTL_MS,
            )
        )
        asked = Round(b"OK", self.loop.create_future())
        for connection in self.connections:
            connection.send(data, asked)
        await asked.done
        return token

    async def release(self, key: bytes, token: bytes) -> None:
        """Delete `key` everywhere; done when a quorum has."""
        data = self.delete % (len(key), key, token)
        asked = Round(1, self.loop.create_future())
        for connection in self.connections:
            connection.send(data, asked)
        await asked.done

    def close(self) -> None:
        for connection in self.connections:
            connection.transport.abort()
        self.connections.clear()
