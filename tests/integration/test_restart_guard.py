"""A node that may have forgotten a lock stays out until the largest ttl is over."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from aioredlock2 import NodeState, QuorumUnreachable, Redlock, Vote
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up, deleted, heard, states
from tests.support.fleet import Look, all_keys
from tests.support.logs import ours
from tests.support.polling import until
from tests.support.relay import Relays

GUARDED = NodeState.GUARDED


async def uptime(view: Look, servers: Sequence[Server], seconds: int) -> None:
    """Wait until all servers have been up for so long by their own word."""
    await until(
        lambda: all(int(view(s).info("server")["uptime_in_seconds"]) >= seconds for s in servers)
    )


async def test_a_young_server_does_not_vote(fresh_servers: StartServers, view: Look) -> None:
    """By its uptime at connect: nothing is asked of it that could lock, and the error says why."""
    servers = fresh_servers(3)
    async with patient(servers.urls, restart_guard=True) as redlock:
        await until(lambda: states(redlock) == [GUARDED] * 3)
        assert all(8 < node.guard_left <= 11 for node in redlock.nodes)
        with pytest.raises(QuorumUnreachable, match=r"in its restart guard for \d") as caught:
            await redlock("job", wait=0.1).acquire()
        assert caught.value.elapsed >= 0.1
        assert [Vote.FAULTED] * 2 == [outcome.vote for outcome in caught.value.outcomes[:2]]
        with pytest.raises(QuorumUnreachable, match="restart guard"):
            await redlock("job").try_acquire()
        assert "in its restart guard" in redlock.nodes[0].cause
        assert not view(servers[0]).keys()
        with view(servers[0]).monitor() as monitor:
            with pytest.raises(QuorumUnreachable):
                await redlock("job").try_acquire()
            assert [] == monitor.commands()
        assert not await redlock.is_locked("job")


async def test_who_waits_gets_the_lock_when_the_guard_ends(
    fresh_servers: StartServers, view: Look
) -> None:
    """No vote before so many seconds after the start, though uptime may read 1 at once."""
    await until(lambda: 0.7 < time.time() % 1 < 0.75)  # a second ticks over soon
    started_at = time.monotonic()
    servers = fresh_servers(3)
    await uptime(view, servers, 1)
    async with patient(servers.urls, restart_guard=0.8) as redlock:
        async with redlock("job", wait=20):
            assert time.monotonic() - started_at >= 0.8
        await all_up(redlock)
        assert 0 == redlock.nodes[0].guard_left


async def test_the_guard_can_be_switched_off(fresh_servers: StartServers) -> None:
    """`restart_guard=False`: the first answer counts, after a restart as well."""
    servers = fresh_servers(3)
    async with patient(servers.urls, restart_guard=False) as redlock:
        async with redlock("job", wait=0):
            pass
        servers[0].kill()
        await until(lambda: redlock.nodes[0].state is NodeState.DOWN)
        servers[0].restart()
        await until(lambda: redlock.nodes[0].state is not NodeState.DOWN)
        assert NodeState.UP is redlock.nodes[0].state


async def test_h08_a_power_cut_that_took_the_last_writes_is_a_restart_as_well(
    fresh_servers: StartServers, view: Look
) -> None:
    """An append-only file without its end: older keys are there, and the newest lock is not."""
    servers = fresh_servers(3, options=["--appendonly", "yes", "--appendfsync", "no"])
    cut = servers[1]
    with Relays(servers) as relays:
        relays[2].refuse()
        guarded = patient(servers.urls, restart_guard=1.5)
        async with patient(relays.urls) as redlock, guarded as other:
            await all_up(redlock, [0, 1])
            await all_up(other)
            old = await redlock("old", ttl=60).acquire()
            await heard(old, 2)
            (log,) = append_only_files(view, cut)
            size = log.stat().st_size
            lease = await redlock("job", ttl=60).acquire()
            await heard(lease, 2)
            cut.kill()
            os.truncate(log, size)
            cut.restart()
            await until(lambda: view(cut).info("persistence")["loading"] == "0")
            assert {b"redlock:old"} == view(cut).keys()
            await until(lambda: states(other)[1] is GUARDED)
            assert await other("job").try_acquire() is None
            await lease.release()
            await old.release()


def append_only_files(view: Look, server: Server) -> list[Path]:
    """Where it writes what it does."""
    _, directory = view(server).execute("CONFIG", "GET", "dir")
    return list(Path(directory.decode()).glob("appendonlydir/*.incr.aof"))


async def test_h07_a_restarted_node_sits_out_while_the_others_go_on(
    servers3: Sequence[Server], view: Look
) -> None:
    """Locks go on with the majority; the node takes back what it has, and votes after its guard."""
    async with patient(urls_of(servers3), restart_guard=0.4) as redlock:
        await all_up(redlock)
        kept = await redlock("kept", ttl=20).acquire()
        await heard(kept)
        servers3[0].kill()
        await until(lambda: redlock.nodes[0].state is NodeState.DOWN)
        servers3[0].restart()
        await until(lambda: redlock.nodes[0].state is GUARDED)
        lease = await redlock("job", wait=0).acquire()
        await heard(lease, 2)
        assert "restart guard" in lease.votes[0].cause
        await kept.extend()
        await heard(kept, 2)
        assert set() == view(servers3[0]).keys()
        await all_up(redlock)
        for each in (lease, kept):
            await each.extend()  # finds it empty: planted there again
            await until(lambda: view(servers3[0]).execute("DBSIZE"))
        for each in (lease, kept):
            await each.extend()
            await heard(each)
            await deleted(await each.release())


async def test_h09_another_server_at_the_address_is_new_whatever_its_uptime(
    servers: Sequence[Server], view: Look
) -> None:
    """A promoted or swapped server: the run id has changed, so it counts from first sight."""
    await uptime(view, servers[:4], 2)
    with Relays(servers[:3]) as relays:
        async with patient(relays.urls, restart_guard=0.2) as redlock:
            await until(lambda: states(redlock) == [NodeState.UP] * 3)
            relays[0].retarget(servers[3])
            relays[0].cut()
            await until(lambda: redlock.nodes[0].state is GUARDED)
            async with redlock("job", wait=0) as lease:
                await heard(lease, 2)
                assert not view(servers[3]).keys()
            await all_up(redlock)


async def test_the_same_server_again_is_not_guarded(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """A lost connection is no restart: the run id is the same."""
    await uptime(view, servers3, 2)
    async with patient(relays3.urls, restart_guard=0.2) as redlock:
        await until(lambda: states(redlock) == [NodeState.UP] * 3)
        for relay in relays3:
            relay.cut()
        await until(lambda: all(relay.accepts == 2 for relay in relays3))
        await until(lambda: NodeState.DOWN not in states(redlock))
        assert [NodeState.UP] * 3 == states(redlock)


@pytest.mark.parametrize("lie", [b"-3600", b"xx"])
async def test_an_uptime_that_makes_no_sense_counts_from_first_sight(
    servers3: Sequence[Server], relays3: Relays, view: Look, lie: bytes
) -> None:
    """Uptime follows the server's wall clock and may be anything: then it is not believed."""

    def rewrite(data: bytes) -> bytes:
        head, found, tail = data.partition(b"uptime_in_seconds:")
        number, _, rest = tail.partition(b"\r\n")
        if not found:
            return data
        assert rest.startswith(b"uptime_in_days")
        room = len(number) + len(b"\r\nuptime_in_days")
        told = lie + b"\r\n"
        return head + found + told + b"#" * (room - len(told)) + rest[len(b"uptime_in_days") :]

    await uptime(view, servers3, 2)
    relays3[0].to_client.rewrite = rewrite
    async with patient(relays3.urls, restart_guard=0.1) as redlock:
        await until(lambda: states(redlock) == [GUARDED, NodeState.UP, NodeState.UP])
        await all_up(redlock)


async def test_the_guard_grows_with_the_largest_ttl(fresh_servers: StartServers) -> None:
    """True means the largest ttl asked for so far: nodes that voted are judged again."""
    servers = fresh_servers(3)
    async with Redlock(servers.urls, ttl=0.5, node_timeout=0.1) as redlock:
        async with redlock("job", wait=20):
            pass
        with pytest.raises(QuorumUnreachable, match="restart guard"):
            await redlock("job", ttl=60, wait=0).acquire()
        assert [GUARDED] * 3 == states(redlock)
        assert all(50 < node.guard_left <= 61 for node in redlock.nodes)


async def test_h44_seconds_stay_as_given_and_a_longer_ttl_warns_once(
    servers3: Sequence[Server], caplog: pytest.LogCaptureFixture
) -> None:
    """The user has said what is shared with other clients; a longer ttl of ours is told."""
    async with patient(urls_of(servers3), restart_guard=1) as redlock:
        await all_up(redlock)
        caplog.clear()
        for ttl in (20, 15, 20, 20):
            async with redlock("job", ttl=ttl, wait=0):
                pass
        assert [NodeState.UP] * 3 == states(redlock)
    texts = [r.getMessage() for r in ours(caplog) if r.levelno == logging.WARNING]
    assert ["ttl 20 s is longer than the restart guard of 1 s" in text for text in texts] == [True]


async def test_h09_a_node_that_was_a_replica_meanwhile_is_guarded(
    servers: Sequence[Server], view: Look
) -> None:
    """Demoted, emptied by the new master, promoted again: same run id, but it has forgotten."""
    away, other = servers[0], servers[3]
    await uptime(view, servers[:3], 2)
    view(other).config_set(repl_diskless_sync_delay=0)
    async with patient(urls_of(servers[:3]), restart_guard=0.2) as redlock:
        await until(lambda: states(redlock) == [NodeState.UP] * 3)
        lease = await redlock("job", ttl=30).acquire()
        await heard(lease)
        view(away).execute("REPLICAOF", other.host, other.port)
        await until(lambda: not view(away).keys())  # it has taken over the empty state
        async with redlock("other", wait=0):  # READONLY: noticed
            await until(lambda: redlock.nodes[0].state is NodeState.DOWN)
        view(away).execute("REPLICAOF", "NO", "ONE")
        await until(lambda: redlock.nodes[0].state is not NodeState.DOWN)
        assert redlock.nodes[0].state is GUARDED
        await all_up(redlock)
        await lease.release()
        await until(lambda: not all_keys(view, servers[:3]))


async def test_each_client_decides_for_itself(servers3: Sequence[Server]) -> None:
    """Two clients of young servers, one with the guard and one without."""
    servers3[0].restart()
    servers3[1].restart()
    async with (
        patient(urls_of(servers3), restart_guard=True) as careful,
        connected(urls_of(servers3)) as bold,
        bold("job", wait=0) as lease,
    ):
        await heard(lease)
        with pytest.raises(QuorumUnreachable, match="restart guard"):
            await careful("job").try_acquire()
