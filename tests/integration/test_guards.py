"""What a server is, is looked at once per connection: some must not vote, whatever they answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from aioredlock2 import LockContended, NodeState, QuorumUnreachable
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.acl import acl_user
from tests.support.clients import patient, urls_of
from tests.support.facts import all_up, deleted, heard
from tests.support.fleet import Look, all_keys
from tests.support.logs import ours
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.proxy import forget
from tests.support.relay import Relays
from tests.support.servers import Kind

UP, DOWN = NodeState.UP, NodeState.DOWN
CLUSTER = "cluster node given as independent node"


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in ours(caplog) if r.levelno == level]


def by_name(server: Server) -> str:
    return f"redis://localhost:{server.port}"


async def test_f003_h10_a_second_address_of_one_server_never_votes(
    servers: Sequence[Server], view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """One error log, red in the status, and a quorum needs two other servers."""
    one, two = servers[:2]
    async with patient([one.url, by_name(one), two.url]) as redlock:
        await until(lambda: sorted(n.state.value for n in redlock.nodes) == ["down", "up", "up"])
        (double,) = [node for node in redlock.nodes if node.state is DOWN]
        assert "is the same server as" in double.cause
        async with redlock("job", wait=0) as lease:
            await heard(lease, 2)
        # It is looked at again and again; said once.
        await asyncio.sleep(1.5)
        assert 1 == len(logged(caplog, logging.ERROR))
        two.kill()
        await until(lambda: redlock.nodes[2].state is DOWN)
        with pytest.raises(QuorumUnreachable, match="is the same server as"):
            await redlock("job", wait=0).acquire()
    assert not view(one).keys()


async def test_f003_h10_three_relays_to_one_server_are_one_vote(
    pool: ServerPool, view: Look
) -> None:
    """Whoever comes first has the vote; nobody ever locks with it alone."""
    (server,) = pool.take(Kind.VALKEY9, 1)
    with Relays([server] * 3) as relays:
        async with patient(relays.urls) as redlock:
            for _ in range(3):
                await until(lambda: UP in [node.state for node in redlock.nodes])
                with pytest.raises(QuorumUnreachable):
                    await redlock("job").try_acquire()
                await until(lambda: not view(server).keys())
                for relay in relays:
                    relay.cut()


async def test_f003_an_address_moved_to_another_server_votes_again(
    servers: Sequence[Server],
) -> None:
    """The double is put right behind its address: no restart needed."""
    with Relays([servers[0], servers[0], servers[1]]) as relays:
        async with patient(relays.urls) as redlock:
            await until(
                lambda: sorted(n.state.value for n in redlock.nodes) == ["down", "up", "up"]
            )
            double = next(i for i, node in enumerate(redlock.nodes) if node.state is DOWN)
            relays[double].retarget(servers[2])
            await all_up(redlock)
            async with redlock("job", wait=0) as lease:
                await heard(lease)


async def test_f003_a_double_has_one_vote_even_where_info_is_refused(
    servers: Sequence[Server], view: Look
) -> None:
    """Nothing tells the two addresses apart: then its one key does, by saying no to the second."""
    one, two = servers[:2]
    with acl_user([one, two], view, "~*", "+@all", "-info") as user:
        urls = [*user.urls, user.urls[0].replace("127.0.0.1", "localhost")]
        async with patient(urls) as redlock:
            await all_up(redlock)
            lease = await redlock("job", wait=0).acquire()
            await heard(lease, 2)
            await lease.release()
            two.kill()
            await until(lambda: redlock.nodes[1].state is DOWN)
            with pytest.raises(LockContended):
                await redlock("job", wait=0).acquire()


async def test_a_replica_never_votes(servers: Sequence[Server], view: Look) -> None:
    """Known at connect: nothing that could lock is sent there, and its master has one vote."""
    replica, master = servers[3], servers[0]
    view(replica).execute("REPLICAOF", master.host, master.port)
    nodes = urls_of([*servers[:2], replica])
    with view(replica).monitor() as monitor:
        async with patient(nodes) as redlock:
            await all_up(redlock, [0, 1])
            await until(lambda: redlock.nodes[2].state is DOWN)
            assert "is a slave, only masters vote" == redlock.nodes[2].cause
            async with redlock("job", wait=0) as lease:
                await heard(lease, 2)
                assert "is a slave" in lease.votes[2].cause
        assert not any(b"NX" in words for words in monitor.commands())


async def test_f028_a_master_that_turns_read_only_is_left_and_found_again(
    servers: Sequence[Server], view: Look
) -> None:
    """READONLY at run time: no vote, the connection is closed, the role looked at anew."""
    away = servers[2]
    async with patient(urls_of(servers[:3])) as redlock:
        await all_up(redlock)
        held = await redlock("held", ttl=30).acquire()
        await heard(held)
        view(away).execute("REPLICAOF", "127.0.0.1", 1)
        async with redlock("job", wait=0) as lease:
            await heard(lease, 2)
            await until(lambda: redlock.nodes[2].cause.startswith("is a slave"))
        await held.extend()
        assert held.is_held
        view(away).execute("REPLICAOF", "NO", "ONE")
        await all_up(redlock)
        async with redlock("job", wait=0) as lease:
            await heard(lease)
        await deleted(await held.release())
    assert not all_keys(view, servers[:3])


async def test_a_replica_that_hides_its_role_floods_no_log(
    servers3: Sequence[Server], relays3: Relays, view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """HELLO and INFO unknown, every SET answered READONLY, under load: a few lines, not thousands."""
    view(servers3[0]).execute("REPLICAOF", "127.0.0.1", 1)
    forget(relays3[0], b"HELLO", b"INFO")
    async with patient(relays3.urls) as redlock:
        await all_up(redlock, [1, 2])
        loop = asyncio.get_running_loop()
        end, rounds = loop.time() + 1.5, 0
        while loop.time() < end:
            await (await redlock("job").acquire()).release()
            rounds += 1
        assert rounds > 50
        assert redlock.nodes[0].cause.startswith("READONLY")
    assert 10 > len([r for r in ours(caplog) if r.levelno >= logging.WARNING])


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.label)
async def test_f029_a_cluster_node_never_votes(
    servers: Sequence[Server], fresh_servers: StartServers, view: Look, kind: Kind
) -> None:
    """Given as a plain node it is down, with that very text; the other two lock."""
    (clustered,) = fresh_servers(1, kind, ["--cluster-enabled", "yes"])
    with view(clustered).monitor() as monitor:
        async with patient([clustered.url, *urls_of(servers[:2])]) as redlock:
            await all_up(redlock, [1, 2])
            await until(lambda: redlock.nodes[0].state is DOWN)
            assert CLUSTER == redlock.nodes[0].cause
            async with redlock("job", wait=0) as lease:
                await heard(lease, 2)
        assert not any(b"NX" in words for words in monitor.commands())


async def test_f029_a_redirection_is_a_fault_and_is_not_followed(
    servers: Sequence[Server], fresh_servers: StartServers, view: Look
) -> None:
    """A cluster node behind a proxy without INFO and HELLO is told by its first answer."""
    (clustered,) = fresh_servers(1, options=["--cluster-enabled", "yes"])
    with Relays([clustered]) as relays:
        forget(relays[0], b"HELLO", b"INFO")
        async with patient([relays.urls[0], *urls_of(servers[:2])]) as redlock:
            await all_up(redlock, [1, 2])
            async with redlock("job") as lease:
                await until(lambda: CLUSTER in lease.votes[0].cause)
            servers[0].kill()
            with pytest.raises(QuorumUnreachable, match=CLUSTER):
                await redlock("job", wait=0.2).acquire()


async def test_f061_a_policy_that_evicts_is_warned_about_once(
    any_servers3: Sequence[Server], view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per node and client, also over reconnects; without a memory limit it doesn't matter."""
    first, second, third = (view(server) for server in any_servers3)
    first.config_set(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    second.config_set(maxmemory="100mb", maxmemory_policy="noeviction")
    third.config_set(maxmemory=0, maxmemory_policy="volatile-ttl")
    with Relays(any_servers3) as relays:
        async with patient(relays.urls) as redlock:
            for _ in range(3):
                await all_up(redlock)
                async with redlock("job", wait=0) as lease:
                    await heard(lease)
                accepts = [relay.accepts for relay in relays]
                for relay in relays:
                    relay.cut()
                await until(lambda: [r.accepts - 1 for r in relays] == accepts)  # noqa: B023
            await all_up(redlock)
    evicting = [text for text in logged(caplog, logging.WARNING) if "evicts" in text]
    assert 1 == len(evicting)
    assert "allkeys-lru" in evicting[0]


async def test_f061_where_info_is_refused_nothing_is_said(
    servers3: Sequence[Server], view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """No warning about what can't be known."""
    view(servers3[0]).config_set(maxmemory="100mb", maxmemory_policy="allkeys-lru")
    with acl_user(servers3, view, "~*", "+@all", "-info", "-config") as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
    assert [] == logged(caplog, logging.WARNING)


async def test_f114_h09_a_promoted_replica_takes_its_masters_place(
    servers: Sequence[Server], view: Look
) -> None:
    """Nothing is assumed about replication: what the new master lacks is planted there again."""
    master, replica = servers[0], servers[3]
    view(master).config_set(repl_diskless_sync_delay=0)
    with Relays(servers[:3]) as relays, Relays([master]) as between:
        view(replica).execute("REPLICAOF", between[0].host, between[0].port)
        await until(lambda: view(replica).info("replication")["master_link_status"] == "up")
        async with patient(relays.urls) as redlock:
            await all_up(redlock)
            between[0].hold()  # the replica lags from now on
            async with redlock("job", ttl=20) as lease:
                await heard(lease)
                relays[0].retarget(replica)
                master.kill()
                view(replica).execute("REPLICAOF", "NO", "ONE")
                assert not view(replica).keys()
                await until(lambda: redlock.nodes[0].state is DOWN)
                await all_up(redlock)
                await lease.extend()
                await until(lambda: view(replica).keys())
                await lease.extend()
                await heard(lease)
            await until(lambda: not all_keys(view, servers[1:4]))
