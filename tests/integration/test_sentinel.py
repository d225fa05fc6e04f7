"""Nodes behind Sentinel: each is the master of a service, whoever that is at the time of the dial."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence

import pytest
from redis.asyncio.sentinel import Sentinel

from aioredlock2 import ConfigurationError, NodeState, Redlock
from aioredlock2.embedded import Server
from tests.support.clients import patient
from tests.support.connected import connected
from tests.support.facts import all_up, heard, works
from tests.support.fleet import Look
from tests.support.polling import until
from tests.support.sentinel import SentinelServer, sentinel
from tests.support.view import Address

SERVICES = ["orders", "stock", "users"]


class Nowhere:
    """Where nobody listens."""

    host = "127.0.0.1"
    port = 1


def sentinel_of(*running: Address | type[Nowhere]) -> Sentinel:
    """The user's object for these Sentinels, in that order."""
    return Sentinel([(each.host, each.port) for each in running])  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def watch() -> Generator[SentinelServer]:
    with sentinel() as running:
        yield running


@pytest.fixture
async def known(watch: SentinelServer, servers3: Sequence[Server]) -> AsyncGenerator[Sentinel]:
    """The user's Sentinel object; each of three servers is the master of a service."""
    for service, server in zip(SERVICES, servers3, strict=True):
        watch.monitor(service, server)
    user = sentinel_of(watch)
    yield user
    await user.aclose()
    for service in SERVICES:
        watch.forget(service)


async def test_masters_by_sentinel(known: Sentinel) -> None:
    """Three services of one Sentinel are three nodes, named after their services."""
    async with patient([known.master_for(service) for service in SERVICES]) as redlock:
        await works(redlock)
        assert [f"sentinel:{service}" for service in SERVICES] == [n.name for n in redlock.nodes]


async def test_a_failover_is_followed(
    known: Sentinel, watch: SentinelServer, servers: Sequence[Server], view: Look
) -> None:
    """The old master turns read-only; the node is found again at the new one, the lease kept."""
    old, new = servers[0], servers[3]
    async with (
        connected([known.master_for(service) for service in SERVICES], node_timeout=0.2) as redlock,
        redlock("job", ttl=2) as lease,
    ):
        await heard(lease)
        watch.monitor(SERVICES[0], new)
        view(old).execute("REPLICAOF", new.host, new.port)
        await until(lambda: view(new).keys() == {b"redlock:job"})
        await lease.extend()
        await heard(lease)
        assert lease.is_held


async def test_a_service_without_a_master_is_a_node_down(
    known: Sentinel, watch: SentinelServer, servers3: Sequence[Server]
) -> None:
    """A minority of unknown services is no matter, and they join when they are known."""
    watch.forget(SERVICES[2])
    async with patient([known.master_for(service) for service in SERVICES]) as redlock:
        await all_up(redlock, [0, 1])
        await until(lambda: redlock.nodes[2].state is NodeState.DOWN)
        assert "No master found for 'users'" in redlock.nodes[2].cause
        async with redlock("job"):
            pass
        watch.monitor(SERVICES[2], servers3[2])
        await works(redlock)


async def test_a_dead_sentinel_is_passed_over(watch: SentinelServer, known: Sentinel) -> None:
    """The first of two Sentinels is gone: the second is asked, within one dial."""
    user = sentinel_of(Nowhere, watch)
    async with patient([user.master_for(service) for service in SERVICES]) as redlock:
        await works(redlock)
    await user.aclose()


async def test_a_sentinel_itself_is_no_node(
    watch: SentinelServer, servers3: Sequence[Server]
) -> None:
    """Its port given in place of a master's: down, with that reason, however well it answers."""
    urls = [f"redis://{watch.host}:{watch.port}", *(server.url for server in servers3[:2])]
    async with patient(urls) as redlock:
        await all_up(redlock, [1, 2])
        await until(lambda: redlock.nodes[0].state is NodeState.DOWN)
        assert "entinel" in redlock.nodes[0].cause
        async with redlock("job", wait=0) as lease:
            await heard(lease, 2)


def test_replicas_of_a_service_are_refused() -> None:
    """`slave_for` can never lead to a node: that is said when the client is built."""
    user = sentinel_of(Nowhere)
    with pytest.raises(ConfigurationError, match=r"sentinel:orders.*master_for"):
        Redlock([user.slave_for("orders")])


def test_one_service_twice_is_one_node() -> None:
    """Equal services of one Sentinel are refused when the client is built."""
    user = sentinel_of(Nowhere)
    with pytest.raises(ConfigurationError, match="same address"):
        Redlock([user.master_for("orders"), user.master_for("orders")])
