"""Clients and pools of redis.asyncio as nodes: their settings are copied, they stay the user's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aioredlock2 import ConfigurationError, Redlock
from aioredlock2.embedded import Server
from tests.support.acl import NAME, PASSWORD, acl_user
from tests.support.clients import patient
from tests.support.connected import connected
from tests.support.facts import all_up, deleted, heard, works
from tests.support.fleet import Look
from tests.support.polling import until
from tests.support.proxy import forget
from tests.support.relay import Relays
from tests.support.view import Address

KEY = b"redlock:job"
EAGER: dict[str, Any] = {
    "retry": Retry(ConstantBackoff(0.001), 3),
    "retry_on_error": [RedisConnectionError, RedisTimeoutError],
    "health_check_interval": 1,
    "socket_timeout": 0.5,
    "client_name": "users-own",
}
"""Settings that would break a lock, were they taken over."""


def client_of(server: Address, **options: Any) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(host=server.host, port=server.port, **(EAGER | options))


@pytest.fixture
async def opened() -> AsyncGenerator[list[redis.asyncio.Redis]]:
    """Clients put in here are closed after the test."""
    clients: list[redis.asyncio.Redis] = []
    yield clients
    for client in clients:
        await client.aclose()


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoded"])
@pytest.mark.parametrize("protocol", [2, 3])
async def test_f064_f119_responses_decoded_or_not(
    any_servers3: Sequence[Server],
    view: Look,
    opened: list[redis.asyncio.Redis],
    protocol: int,
    decode: bool,
) -> None:
    """RESP2 or RESP3, bytes or str: the token is stored, compared and removed the same."""
    opened += [
        client_of(server, protocol=protocol, decode_responses=decode) for server in any_servers3
    ]
    async with connected(opened) as redlock:
        lease = await redlock("job").acquire()
        await heard(lease)
        (token,) = {view(server).get(KEY) for server in any_servers3}
        assert token is not None
        assert 32 == len(token)
        assert lease.digest == (await redlock.inspect("job")).holder
        await lease.extend()
        await heard(lease)
        await deleted(await lease.release())
    assert [set()] * 3 == [view(server).keys() for server in any_servers3]


async def test_f119_the_client_stays_open_and_unused(
    servers3: Sequence[Server], view: Look, opened: list[redis.asyncio.Redis]
) -> None:
    """It keeps its very connection, before, during and after; ours is one of its own."""
    opened += [client_of(server, decode_responses=True) for server in servers3]
    ids = [await client.client_id() for client in opened]
    async with patient(opened) as redlock:
        await works(redlock)
        names = [sorted(c["name"] for c in view(s).client_list()) for s in servers3]
        assert [["", "users-own"]] * 3 == names
    assert ids == [await client.client_id() for client in opened]
    assert await opened[0].set("k", "v")
    assert "v" == await opened[0].get("k")


async def test_f119_h19_a_set_is_never_sent_twice(
    servers3: Sequence[Server], relays3: Relays, view: Look, opened: list[redis.asyncio.Redis]
) -> None:
    """The connection is cut between a SET and its reply: no client's retries send it again."""
    opened += [client_of(relay, decode_responses=True) for relay in relays3]
    first = view(servers3[0])
    with first.monitor() as monitor:

        def grants() -> int:
            return sum(words[0] == b"SET" and b"NX" in words for words in monitor.commands())

        async with connected(opened) as redlock:
            relays3[0].to_client.hold()
            lease = await redlock("job", ttl=20).acquire()
            await until(lambda: first.get(KEY))
            relays3[0].cut()
            relays3[0].to_client.release()
            await all_up(redlock)
            assert 1 == grants()
            await lease.release()
            # What the cut connection may have left behind goes with the delete on the new one.
            await until(lambda: not first.keys())
            assert 1 == grants()


async def test_a_client_with_database_user_and_password(
    servers3: Sequence[Server], view: Look, opened: list[redis.asyncio.Redis]
) -> None:
    """The lock lives in that client's database, under that client's user."""
    with acl_user(servers3, view, "~*", "+@all") as user:
        opened += [client_of(s, db=5, username=NAME, password=PASSWORD) for s in servers3]
        async with connected(opened) as redlock, redlock("job") as lease:
            await heard(lease)
            assert None not in [await client.get(KEY) for client in opened]
            assert {0} == {len(view(server).keys()) for server in servers3}
            assert all(c["db"] == "5" for each in user.connections() for c in each)


@pytest.mark.parametrize(
    "kind", [redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool]
)
async def test_a_pool_is_as_good(
    servers3: Sequence[Server], view: Look, kind: type[redis.asyncio.ConnectionPool]
) -> None:
    """A pool of one connection, in use: none is taken from it."""
    pools = [kind.from_url(f"{server.url}/2", max_connections=1) for server in servers3]
    users = [redis.asyncio.Redis(connection_pool=pool) for pool in pools]
    for each in users:
        await each.ping()
    async with connected(pools) as redlock, redlock("job") as lease:
        await heard(lease)
        held = [await pool.get_connection() for pool in pools]  # type: ignore[no-untyped-call]
        await works_on(redlock)
        for pool, connection in zip(pools, held, strict=True):
            await pool.release(connection)
        assert [{"db": "2"}] * 6 == [
            {"db": c["db"]} for server in servers3 for c in view(server).client_list()
        ]
    for user, pool in zip(users, pools, strict=True):
        assert await user.ping()
        await pool.disconnect()


async def works_on(redlock: Redlock) -> None:
    async with redlock("other") as lease:
        await heard(lease)


async def test_a_client_kept_by_nobody_else_works(servers3: Sequence[Server]) -> None:
    """Only the settings matter: the client may be collected."""
    nodes = [redis.asyncio.Redis(host=server.host, port=server.port) for server in servers3]
    redlock = patient(nodes)
    del nodes
    async with redlock:
        await works(redlock)


async def test_closing_the_client_changes_nothing(
    servers3: Sequence[Server], opened: list[redis.asyncio.Redis]
) -> None:
    """Its connections are the user's, ours are ours."""
    opened += [client_of(server) for server in servers3]
    async with connected(opened) as redlock, redlock("job") as lease:
        for client in opened:
            await client.aclose()
        await lease.extend()
        await works_on(redlock)


def test_one_server_by_client_and_by_url_is_one_node() -> None:
    """Equal addresses are refused however they are given."""
    client = redis.asyncio.Redis(host="10.0.0.1", port=6379)
    for other in ("redis://10.0.0.1", client, client.connection_pool, "redis://10.0.0.1/1"):
        with pytest.raises(ConfigurationError, match="same address"):
            Redlock([client, other])


# --- RESP ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [b"HELLO", b"CLIENT", b"INFO"])
async def test_f103_a_proxy_without_the_extras_is_spoken_to_in_resp2(
    any_servers3: Sequence[Server], view: Look, refused: bytes
) -> None:
    """HELLO, CLIENT or INFO as an unknown command costs nothing but what it would have told."""
    with Relays(any_servers3) as relays:
        for relay in relays:
            forget(relay, refused)
        async with patient(relays.urls) as redlock:
            await works(redlock)
            clients = [c for server in any_servers3 for c in view(server).client_list()]
            proto = "2" if refused == b"HELLO" else "3"
            assert {proto} >= {c["resp"] for c in clients if "resp" in c}
