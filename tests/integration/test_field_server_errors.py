"""Field cases 1b: servers that answer with errors don't vote, and nothing worse comes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import pytest
import redis.asyncio
import redis.credentials

from aioredlock2 import AcquireError, NodeState, QuorumUnreachable, Redlock, Removal, Vote
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.ailments import (
    busy,
    fail_snapshots,
    heal_snapshots,
    is_loading,
    load_slowly,
    slow_loading,
)
from tests.support.clients import cut_off, granted, patient, until_up, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up
from tests.support.fleet import Look, all_keys, values
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.relay import Relays
from tests.support.servers import Kind
from tests.support.view import View

NAME = "invoice:42"


async def refusal(redlock: Redlock) -> QuorumUnreachable:
    """The error of one round for some other name."""
    with pytest.raises(QuorumUnreachable) as caught:
        await redlock("other", wait=0).acquire()
    return caught.value


def faults(error: AcquireError) -> list[str]:
    """Per node, the first word of what it answered instead of a vote; empty if it voted."""
    return [each.cause.partition(" ")[0] for each in error.outcomes]


# --- errors of state -----------------------------------------------------------------------------


async def test_f024_failed_snapshots_of_a_minority_are_invisible(
    fresh_servers: StartServers, view: Look
) -> None:
    """One of three refuses writes (MISCONF): acquire, extend and release go on without it."""
    with fresh_servers(3) as servers:
        async with connected(urls_of(servers)) as redlock:
            lease = await redlock(NAME).acquire()
            await fail_snapshots(view, servers[0])
            await lease.extend()
            async with redlock("other", wait=0) as other:
                assert granted(other) == {1, 2}
            report = await lease.release()
            await until(lambda: report.nodes[0].removal is not Removal.PENDING)
            assert "clean" == report.outcome
            assert Removal.UNREACHABLE is report.nodes[0].removal
            assert "MISCONF" in report.nodes[0].cause


async def test_f024_failed_snapshots_of_a_majority_are_told(
    fresh_servers: StartServers, view: Look
) -> None:
    """Two of three refuse writes: the error says MISCONF, the report tells who kept the key."""
    with fresh_servers(3) as servers:
        async with connected(urls_of(servers)) as redlock:
            lease = await redlock(NAME).acquire()
            for server in servers[:2]:
                await fail_snapshots(view, server)
            error = await refusal(redlock)
            assert ["MISCONF", "MISCONF", ""] == faults(error)
            assert "MISCONF" in str(error)
            report = await lease.release()
            await until(lambda: all(x.removal is not Removal.PENDING for x in report.nodes))
            kept = [Removal.UNREACHABLE, Removal.UNREACHABLE, Removal.DELETED]
            assert kept == [node.removal for node in report.nodes]
            assert ["MISCONF"] * 2 == [node.cause.split()[0] for node in report.nodes[:2]]
            assert "unknown" == report.outcome
            assert [True, True, False] == [bool(x) for x in values(view, servers, NAME)]
            for server in servers[:2]:
                heal_snapshots(view, server)
            async with redlock("other", wait=0):
                pass


async def test_f025_h29_at_maxmemory_leases_can_be_kept_and_given_back(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """OOM on a SET is no vote; extension and release get through, whatever the server's kind."""
    async with connected(urls_of(any_servers3)) as redlock:
        lease = await redlock(NAME).acquire()
        await until(lambda: all(values(view, any_servers3, NAME)))
        for server in any_servers3[:2]:
            view(server).config_set(maxmemory=1, maxmemory_policy="noeviction")
        error = await refusal(redlock)
        assert ["OOM", "OOM", ""] == faults(error)
        assert "OOM" in str(error)
        await lease.extend()
        await until(lambda: len(granted(lease)) == 3)
        report = await lease.release()
        await until(lambda: not all_keys(view, any_servers3))
        assert "clean" == report.outcome


async def test_f026_a_loading_server_does_not_vote_and_heals_alone(
    fresh_servers: StartServers, servers3: Sequence[Server], view: Look
) -> None:
    """Two of three load their data: one round says LOADING, a caller that waits is served."""
    with fresh_servers(2, options=slow_loading) as loading:
        servers = [*loading, servers3[2]]
        async with connected(urls_of(servers), ttl=20) as redlock:
            lease = await redlock(NAME).acquire()
            for server in loading:
                load_slowly(view, server, 600)
            waiter = asyncio.create_task(redlock("third", wait=20).acquire())
            errors = []
            while is_loading(view, loading[0]):
                try:
                    async with redlock("other", wait=0):
                        pass
                except QuorumUnreachable as error:
                    errors.append(faults(error))
                await asyncio.sleep(0.02)
            assert ["LOADING", "LOADING", ""] in errors
            await (await waiter).release()
            await lease.extend()
            assert lease.is_held
            await lease.release()


async def test_f027_a_busy_minority_is_invisible(servers3: Sequence[Server], view: Look) -> None:
    """One of three runs a script without an end: locks go on without it, and with it after."""
    async with connected(urls_of(servers3), ttl=30) as redlock:
        with busy(view, servers3[0]):
            for turn in range(10):
                async with redlock(f"{NAME}:{turn}", wait=0) as lease:
                    assert granted(lease) == {1, 2}
        await until_votes_again(redlock, 0)
        assert set() == all_keys(view, servers3)


async def until_votes_again(redlock: Redlock, index: int) -> None:
    """Lock and release until a node takes part in both."""

    async def takes_part() -> bool:
        lease = await redlock("again").acquire()
        await asyncio.sleep(0.02)
        report = await lease.release()
        await asyncio.sleep(0.02)
        return report.nodes[index].removal is Removal.DELETED

    for _ in range(100):
        if await takes_part():
            return
    raise AssertionError(f"node {index} stays away: {redlock.nodes[index]}")


async def test_f027_h29_a_lease_outlives_a_busy_majority_within_its_validity(
    servers3: Sequence[Server], view: Look
) -> None:
    """Two of three answer BUSY when renewal is due: it is tried again, and the lease is kept."""
    ttl = 3.0
    async with (
        connected(urls_of(servers3), ttl=ttl, node_timeout=0.1) as redlock,
        redlock(NAME, on_lost="notify") as lease,
    ):
        born_until = lease.valid_until
        with busy(view, servers3[0]), busy(view, servers3[1]):
            await until(lambda: lease.remaining() < ttl / 2)
            assert lease.valid_until == born_until
            error = await refusal(redlock)
            assert "BUSY" in faults(error)
        await until(lambda: lease.valid_until > born_until)
        assert lease.is_held


# --- moved, cluster, passwords -------------------------------------------------------------------


async def test_f028_a_node_that_moved_is_found_again(
    pool: ServerPool, caplog: pytest.LogCaptureFixture
) -> None:
    """A master turned replica doesn't vote; when its address leads to a master it votes again."""
    *servers, successor = pool.take(Kind.VALKEY9, 4)
    with Relays(servers) as relays, View(servers[0]) as demoted:
        async with connected(relays.urls, ttl=30) as redlock:
            async with redlock(NAME):
                pass
            demoted.execute("REPLICAOF", servers[1].host, servers[1].port)
            async with redlock(NAME, wait=0) as lease:
                await until(lambda: redlock.nodes[0].state is NodeState.DOWN)
                assert 0 not in granted(lease)
            await until(lambda: "only masters vote" in redlock.nodes[0].cause)
            assert any("only masters vote" in record.getMessage() for record in caplog.records)
            for relay in relays[1:]:
                cut_off(relay)
            error = await refusal(redlock)
            assert not any(each.vote is Vote.GRANTED for each in error.outcomes)
            for relay in relays[1:]:
                relay.accept()
            relays[0].retarget(successor)
            await until_up(redlock, 3)
            async with redlock(NAME, wait=0) as lease:
                await until(lambda: granted(lease) == {0, 1, 2})


async def test_f029_a_cluster_node_is_no_independent_node(
    fresh_servers: StartServers, servers3: Sequence[Server], view: Look
) -> None:
    """One of three is a cluster node: told by its status, not followed, and the others lock."""
    with fresh_servers(1, options=["--cluster-enabled", "yes"]) as cluster:
        async with patient([cluster[0].url, *urls_of(servers3[:2])]) as redlock:
            await all_up(redlock, [1, 2])
            for turn in range(10):
                async with redlock(f"{NAME}:{turn}", wait=0):
                    pass
            await until(lambda: redlock.nodes[0].state is NodeState.DOWN)
            assert "cluster node given as independent node" == redlock.nodes[0].cause
            asked = view(cluster[0]).commandstats()
            assert not [command for command in asked if command.startswith("cluster")]
            assert set() == view(cluster[0]).keys()


async def test_f029_a_redirect_is_not_followed(servers3: Sequence[Server], relays3: Relays) -> None:
    """A node that begins to answer MOVED has no vote, and the error says what it seems to be."""
    async with connected(relays3.urls) as redlock:
        moved = f"-MOVED 42 127.0.0.1:{servers3[2].port}".encode()
        for relay in relays3[:2]:
            relay.to_client.rewrite = lambda data: data.replace(b"+OK", moved)
        error = await refusal(redlock)
        assert "cluster node given as independent node (MOVED)" in str(error)


@pytest.mark.loop
async def test_f030_a_wrong_password_is_a_node_error(
    servers3: Sequence[Server], view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """A password changes under a client: one node less, dialled at leisure, and it comes back."""
    caplog.set_level(logging.DEBUG, "aioredlock2")
    server = view(servers3[0])
    server.config_set(requirepass="old-secret")
    urls = urls_of(servers3)
    urls[0] = f"redis://:old-secret@127.0.0.1:{servers3[0].port}"
    async with connected(urls) as redlock:
        server.config_set(requirepass="new-secret")
        dials_before = int(server.info("stats")["total_connections_received"])
        server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await until(lambda: redlock.nodes[0].cause.lower().find("password") >= 0)
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            async with redlock(NAME, wait=0) as lease:
                assert granted(lease) <= {1, 2}
            assert len(server.client_list()) <= 1
            await asyncio.sleep(0.02)
        dials = int(server.info("stats")["total_connections_received"]) - dials_before
        assert 1 <= dials <= 15
        shown = f"{redlock!r} {redlock.nodes} {[r.getMessage() for r in caplog.records]}"
        server.config_set(requirepass="old-secret")
        await until_up(redlock, 3)
    assert "secret" not in shown


async def test_f030_a_rotated_password_is_asked_for_again(
    servers3: Sequence[Server], view: Look
) -> None:
    """A credential provider is called for every dial: rotation needs no new client."""
    server = view(servers3[0])
    passwords = ["first-secret"]

    class Provider(redis.credentials.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            return (passwords[-1],)

    server.config_set(requirepass=passwords[-1])
    given = redis.asyncio.Redis(
        host=servers3[0].host, port=servers3[0].port, credential_provider=Provider()
    )
    async with connected([given, *urls_of(servers3[1:])]) as redlock:
        passwords.append("second-secret")
        server.config_set(requirepass=passwords[-1])
        server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await until(lambda: redlock.nodes[0].state is not NodeState.UP)
        await until_up(redlock, 3)
        async with redlock(NAME) as lease:
            await until(lambda: granted(lease) == {0, 1, 2})
    await given.aclose()


# --- answers that nobody expects -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "ERR wrong number of arguments for 'set' command",
        "ERR syntax error",
        "ERR unknown command 'SET', with args beginning with: 'redlock:other'",
        "NOPERM User app has no permissions to run the 'set' command",
        "WHATEVER something new",
    ],
)
async def test_f031_an_error_that_no_retry_helps_is_shown(relays3: Relays, text: str) -> None:
    """Whatever error a node answers to a SET stands in the error that is raised, per node."""
    async with connected(relays3.urls) as redlock:
        for relay in relays3[:2]:
            relay.to_client.rewrite = lambda data: data.replace(b"+OK", b"-" + text.encode())
        error = await refusal(redlock)
        shown = text.partition(",")[0]
        assert [Vote.FAULTED] * 2 == [each.vote for each in error.outcomes[:2]]
        assert all(each.cause.startswith(shown) for each in error.outcomes[:2])
        assert shown in str(error)


@pytest.mark.loop
async def test_f032_any_number_of_locks_shares_one_connection_per_node(
    servers3: Sequence[Server], view: Look
) -> None:
    """A thousand locks at once: one connection on each server, all the time."""
    async with connected(urls_of(servers3), node_timeout=5, ttl=60) as redlock:
        accepted = [int(view(s).info("stats")["total_connections_received"]) for s in servers3]
        leases = await asyncio.gather(*(redlock(f"{NAME}:{i}").acquire() for i in range(1000)))
        assert [1, 1, 1] == [len(view(server).client_list()) for server in servers3]
        await asyncio.gather(*(lease.release() for lease in leases))
        assert accepted == [
            int(view(s).info("stats")["total_connections_received"]) for s in servers3
        ]


@pytest.mark.loop
async def test_f032_a_server_with_no_room_is_a_node_error(
    servers3: Sequence[Server], view: Look
) -> None:
    """One of three turns new connections away: told, dialled at leisure, the others lock."""
    server = view(servers3[0])
    server.config_set(maxclients=1)
    refused_before = int(server.info("stats")["rejected_connections"])
    async with patient(urls_of(servers3)) as redlock:
        await all_up(redlock, [1, 2])
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            async with redlock(NAME, wait=0) as lease:
                assert granted(lease) <= {1, 2}
            await asyncio.sleep(0.02)
        assert "max number of clients reached" in redlock.nodes[0].cause
        refused = int(server.info("stats")["rejected_connections"]) - refused_before
        assert 1 <= refused <= 15
        server.config_set(maxclients=1000)
        await until_up(redlock, 3)
