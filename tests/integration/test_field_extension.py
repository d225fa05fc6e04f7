"""Extension, by hand and by the watchdog: what keeps a lease, and what doesn't end it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aioredlock2 import LeaseLost, NodeState
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up, states
from tests.support.fleet import Look, everywhere, key_of, plant, quorum_ttl, values, wipe
from tests.support.polling import until
from tests.support.relay import Relays

SHORT_S = 0.1
"""The node timeout beside ttls of about a second."""


@pytest.mark.loop
async def test_f038_an_extension_touches_only_its_own_token(
    servers3: Sequence[Server], view: Look
) -> None:
    """With another value on two of three nodes the extension fails and leaves their ttl alone."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await everywhere(view, servers3, "x")
        plant(view, servers3[1:], "x")
        with pytest.raises(LeaseLost):
            await lease.extend(30)
        assert lease.is_lost
        await lease.release()
    assert [None, b"foreign", b"foreign"] == values(view, servers3, "x")
    assert all(50_000 < view(server).pttl(key_of("x")) <= 60_000 for server in servers3[1:])


async def test_f040_an_extension_with_a_quorum_is_an_extension(
    servers3: Sequence[Server], view: Look
) -> None:
    """A key that is gone on one of three nodes costs nothing; on two of three it costs the lease."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await everywhere(view, servers3, "x")
        wipe(view, servers3[:1], "x")
        await lease.extend()
        assert lease.is_held
        await everywhere(view, servers3, "x")
        wipe(view, servers3[:2], "x")
        with pytest.raises(LeaseLost):
            await lease.extend()
        assert lease.is_lost


async def test_f040_validity_counts_from_the_start_of_the_extension(relays3: Relays) -> None:
    """Replies that take 0.3 s take 0.3 s off the validity."""
    async with connected(relays3.urls, node_timeout=1.0) as redlock:
        clock = redlock._runtime.clock
        lease = await redlock("x", ttl=10, renew=False).acquire()
        for relay in relays3:
            relay.to_client.delay_s = 0.3
        began = clock()
        await lease.extend(10)
        ended = clock()
        assert ended - began >= 0.3
        drift = 0.102
        assert began + 10 - drift <= lease.valid_until <= ended - 0.3 + 10 - drift


async def test_f040_a_round_without_a_quorum_is_tried_again(servers3: Sequence[Server]) -> None:
    """`extend` during an outage shorter than the validity returns when the nodes are back."""
    async with connected(urls_of(servers3), node_timeout=SHORT_S) as redlock:
        lease = await redlock("x", ttl=5, renew=False).acquire()
        for server in servers3:
            server.freeze()
        extension = asyncio.create_task(lease.extend(20))
        await asyncio.sleep(3 * SHORT_S)
        assert not extension.done()
        assert lease.is_held
        for server in servers3:
            server.thaw()
        await extension
        assert lease.remaining() > 10
        await lease.release()


async def test_f041_a_frozen_minority_never_costs_the_lease(
    servers3: Sequence[Server], view: Look
) -> None:
    """With one of three nodes frozen for three ttls the lease stays, and is fresh on the others."""
    async with connected(urls_of(servers3), node_timeout=SHORT_S) as redlock:
        async with redlock("x", ttl=0.9) as lease:
            token = await everywhere(view, servers3, "x")
            servers3[2].freeze()
            for _ in range(68):
                await asyncio.sleep(0.04)
                assert lease.is_held
                assert [token, token] == values(view, servers3[:2], "x")
                # Each is fresh: two thirds of the ttl are left when a renewal is due.
                assert all(view(server).pttl(key_of("x")) > 100 for server in servers3[:2])
            servers3[2].thaw()
        await until(lambda: not any(values(view, servers3, "x")))


async def test_f041_an_error_of_one_node_releases_nothing(
    servers3: Sequence[Server], view: Look
) -> None:
    """One node answers renewals with an error: the keys on the other two are left in peace."""
    async with (
        connected(urls_of(servers3), node_timeout=SHORT_S) as redlock,
        redlock("x", ttl=0.9) as lease,
    ):
        token = await everywhere(view, servers3, "x")
        view(servers3[0]).acl("SETUSER", "default", "-set", "-eval", "-evalsha")
        was_valid_until = lease.valid_until
        await until(lambda: lease.valid_until > was_valid_until + 0.5)
        assert lease.is_held
        assert [token, token] == values(view, servers3[1:], "x")


async def test_f042_rolling_restarts_are_survived(fresh_servers: StartServers, view: Look) -> None:
    """Nodes that come back empty one by one are planted again, so the lease outlives all three."""
    servers = fresh_servers(3)

    async def planted_again(index: int, token: bytes) -> None:
        await until(lambda: view(servers[index]).get(key_of("x")) == token)

    async with connected(servers.urls) as redlock, connected(servers.urls) as other:
        async with redlock("x", ttl=2.5) as lease:
            token = await everywhere(view, servers, "x")
            rival = asyncio.create_task(other("x", wait=None).acquire())
            for index, server in enumerate(servers):
                server.restart()
                await planted_again(index, token)
                assert lease.is_held
                assert not rival.done()
        await (await rival).release()


async def test_f042_planting_respects_whoever_is_there(
    servers: Sequence[Server], view: Look
) -> None:
    """An emptied node is planted with a ttl, and never over a rival's key."""
    async with connected(urls_of(servers)) as redlock:
        lease = await redlock("x", ttl=10, renew=False).acquire()
        token = await everywhere(view, servers, "x")
        plant(view, servers[:1], "x")
        wipe(view, servers[1:2], "x")
        await lease.extend()
        await until(lambda: view(servers[1]).get(key_of("x")) == token)
        assert 0 < view(servers[1]).pttl(key_of("x")) <= 10_000
        assert view(servers[0]).get(key_of("x")) == b"foreign"
        await lease.release()
        assert view(servers[0]).get(key_of("x")) == b"foreign"
        await until(lambda: not any(values(view, servers[1:], "x")))


async def test_f042_a_planted_key_counts_from_the_next_round_on(
    servers3: Sequence[Server], view: Look
) -> None:
    """A round in which two of three nodes were found empty is a loss, and plants nothing."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await everywhere(view, servers3, "x")
        wipe(view, servers3[:2], "x")
        with pytest.raises(LeaseLost):
            await lease.extend()
        await redlock.inspect("x")  # answered behind whatever the round may have sent
        assert [None, None] == values(view, servers3[:2], "x")


async def test_f042_nothing_is_planted_without_a_quorum(
    servers3: Sequence[Server], view: Look
) -> None:
    """One node was emptied, one answers with errors: no round has a quorum, so the emptied node
    stays as it is, and the lease is over when its validity is.
    """
    async with connected(urls_of(servers3), node_timeout=SHORT_S) as redlock:
        lease = await redlock("x", ttl=0.9).acquire()
        await everywhere(view, servers3, "x")
        wipe(view, servers3[:1], "x")
        view(servers3[1]).acl("SETUSER", "default", "-set", "-eval", "-evalsha")
        assert await lease.lost()
        assert redlock._runtime.clock() >= lease.valid_until
        assert view(servers3[0]).get(key_of("x")) is None


async def test_f044_a_restart_without_persistence_is_noticed_by_the_next_renewal(
    fresh_servers: StartServers,
) -> None:
    """The holder's second node forgets it and a rival takes two of three: both hold it until the
    holder's next renewal, not until its validity is over.
    """
    servers = fresh_servers(3)
    with Relays(servers) as relays:
        relays[2].refuse()
        async with patient(relays.urls) as redlock, connected(servers.urls) as other:
            await all_up(redlock, [0, 1])
            lease = await redlock("x", ttl=3).acquire()
            servers[1].restart()
            rival = await other("x").acquire()
            relays[2].accept()
            overlapped = lease.is_held
            assert await lease.lost()
            assert overlapped
            # By the clock alone it would have been the whole validity.
            assert other._runtime.clock() < lease.valid_until - 0.5
            assert rival.is_held
            await rival.release()


async def test_f044_h07_the_restart_guard_prevents_it(fresh_servers: StartServers) -> None:
    """A rival with the guard on doesn't count the node that has restarted: nobody gets the lock."""
    servers = fresh_servers(3)
    with Relays(servers) as relays:
        relays[2].refuse()
        guarded = patient(servers.urls, restart_guard=1.5)
        async with patient(relays.urls) as redlock, guarded as other:
            await all_up(redlock, [0, 1])
            await all_up(other)
            lease = await redlock("x", ttl=10).acquire()
            servers[1].restart()
            await until(lambda: states(other)[1] is NodeState.GUARDED)
            assert await other("x").try_acquire() is None
            assert lease.is_held
            await lease.release()


async def test_f123_without_renewal_the_clock_ends_a_lease(
    servers3: Sequence[Server], view: Look
) -> None:
    """A body that overruns its ttl is stopped when the validity ends, not first at its exit; with
    renewal, the default, it runs on.
    """
    async with connected(urls_of(servers3), node_timeout=SHORT_S) as redlock:
        clock = redlock._runtime.clock
        with pytest.raises(LeaseLost):
            async with redlock("x", ttl=0.5, renew=False) as lease:
                await asyncio.sleep(10)
        assert lease.valid_until <= clock() < lease.valid_until + 1
        async with redlock("x", ttl=1.0) as lease:
            await asyncio.sleep(1.4)
            assert quorum_ttl(view, servers3, "x") > 0
            assert await connected_rival_fails(servers3)


async def connected_rival_fails(servers: Sequence[Server]) -> bool:
    """Whether another client is kept out."""
    async with connected(urls_of(servers)) as other:
        return await other("x").try_acquire() is None
