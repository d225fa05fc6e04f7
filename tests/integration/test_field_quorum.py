"""Field cases 1a, first half: what makes a quorum, which nodes vote, when a lease is valid."""

from __future__ import annotations

import ast
import asyncio
import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import aioredlock2
from aioredlock2 import (
    AcquiredTooLate,
    ConfigurationError,
    Lease,
    LockContended,
    NodeState,
    QuorumUnreachable,
    Redlock,
    Vote,
)
from aioredlock2.embedded import Server
from tests.support.clients import cut_off, granted, patient, until_up, up, urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, values
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.relay import Relays
from tests.support.servers import Kind

NAME = "invoice:42"
CLOCK_CALLS = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}


# --- how many votes ------------------------------------------------------------------------------


async def test_f001_a_partitioned_client_counts_against_all_configured_nodes(
    servers: Sequence[Server], relays: Relays, rng: random.Random
) -> None:
    """Two clients that reach three of five nodes each, one in common, never win at once."""
    with Relays(servers) as relays_of_b:
        relays[3].hold()
        cut_off(relays[4])
        relays_of_b[0].hold()
        cut_off(relays_of_b[1])
        # The silent node costs the first round one node timeout.
        async with (
            patient(relays.urls, node_timeout=0.2) as a,
            patient(relays_of_b.urls, node_timeout=0.2) as b,
        ):
            wins = [0, 0]
            for _ in range(100):
                locks = [a(NAME), b(NAME)]
                order = rng.sample([0, 1], 2)
                leases = await asyncio.gather(
                    *(locks[index].try_acquire() for index in order), return_exceptions=True
                )
                won = [(i, x) for i, x in zip(order, leases, strict=True) if isinstance(x, Lease)]
                assert len(won) <= 1
                for index, lease in won:
                    wins[index] += 1
                    assert granted(lease) == ({0, 1, 2}, {2, 3, 4})[index]
                    await lease.release()
    assert sum(wins) >= 50


@pytest.mark.parametrize(("nodes", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4)])
async def test_f002_the_quorum_is_a_majority_of_the_configured_nodes(
    pool: ServerPool, nodes: int, quorum: int
) -> None:
    """Nodes go away one by one: it works as long as a majority of all is left, and not below."""
    with Relays(pool.take(Kind.VALKEY9, nodes)) as relays:
        async with connected(relays.urls) as redlock:
            for left in range(nodes, 0, -1):
                await until_up(redlock, left)
                if left >= quorum:
                    async with redlock(NAME) as lease:
                        assert len(granted(lease)) >= quorum
                else:
                    with pytest.raises(QuorumUnreachable) as caught:
                        await redlock(NAME, wait=0).acquire()
                    votes = [each.vote for each in caught.value.outcomes]
                    assert len(votes) == nodes
                    assert votes.count(Vote.FAULTED) >= nodes - quorum + 1
                cut_off(relays[left - 1])


def test_f002_an_even_number_of_nodes_is_allowed_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One warning when it is built names the quorum; odd numbers, one included, have none."""
    urls = [f"redis://127.0.0.1:{port}" for port in range(1, 7)]
    for nodes in range(1, 7):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "aioredlock2"):
            Redlock(urls[:nodes])
        warnings = [record.getMessage() for record in caplog.records]
        if nodes % 2:
            assert warnings == []
        else:
            assert len(warnings) == 1
            assert f"{nodes} nodes need a quorum of {nodes // 2 + 1}" in warnings[0]


async def test_f002_an_even_split_is_resolved(pool: ServerPool) -> None:
    """Each of two clients is first at two of four nodes: both give way, and one wins soon."""
    servers = pool.take(Kind.VALKEY9, 4)
    with Relays(servers) as near_a, Relays(servers) as near_b:
        for far in (*near_a[2:], *near_b[:2]):
            far.to_server.delay_s = 0.01
        async with connected(near_a.urls) as a, connected(near_b.urls) as b:
            for _ in range(8):
                waits = await asyncio.gather(time_to_win(a), time_to_win(b))
                # Far below the ttl of ten seconds: nobody waited for a key to expire.
                assert max(waits) < 4


async def time_to_win(redlock: Redlock) -> float:
    """Seconds until this client had the lock."""
    started_at = time.monotonic()
    async with redlock(NAME, wait=None):
        return time.monotonic() - started_at


# --- one server, one vote ------------------------------------------------------------------------


def test_f003_equal_addresses_are_refused_when_built() -> None:
    """However the address is written: the same host and port twice is a wrong value."""
    twice = ["redis://127.0.0.1:7001", "redis://127.0.0.1:7002/3", "redis://:pw@127.0.0.1:7001/1"]
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:7001 .* same address") as caught:
        Redlock(twice)
    assert isinstance(caught.value, ValueError)
    assert "pw" not in str(caught.value)


async def test_f003_one_server_under_three_names_has_one_vote(
    servers3: Sequence[Server], relays3: Relays, caplog: pytest.LogCaptureFixture
) -> None:
    """Two more names of one server never vote: red in status, logged once, no quorum by them."""
    port = servers3[0].port
    urls = [f"redis://127.0.0.1:{port}", f"redis://localhost:{port}", relays3[0].url]
    with caplog.at_level(logging.ERROR, "aioredlock2"):
        async with patient(urls) as redlock:
            with pytest.raises(QuorumUnreachable, match="is the same server as") as caught:
                await redlock(NAME, wait=0.3).acquire()
            assert 2 == sum(each.vote is Vote.FAULTED for each in caught.value.outcomes)
            assert 1 == up(redlock)
            doubles = [node for node in redlock.nodes if node.state is not NodeState.UP]
            assert 2 == len(doubles)
            assert all("is the same server as" in node.cause for node in doubles)
    told = [record.getMessage() for record in caplog.records]
    assert all(1 == sum(f"node {node.name} " in text for text in told) for node in doubles)


async def test_f003_a_second_name_of_one_server_leaves_the_others_their_votes(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """Two servers under three names lock with both of them, and with neither alone."""
    urls = [servers3[0].url, relays3[0].url, relays3[1].url]
    async with patient(urls) as redlock:
        async with redlock(NAME) as lease:
            assert 2 == sum(value is not None for value in values(view, servers3, NAME))
            assert 2 == len(granted(lease))
        cut_off(relays3[1])
        with pytest.raises(QuorumUnreachable):
            await redlock(NAME, wait=0).acquire()


# --- validity ------------------------------------------------------------------------------------


@pytest.mark.loop
async def test_f005_a_quorum_that_comes_after_the_validity_is_no_lock(
    servers3: Sequence[Server], view: Look
) -> None:
    """All nodes say yes, but the round took longer than the ttl: raised, told so, keys removed."""
    async with connected(urls_of(servers3), node_timeout=0.1) as redlock:
        for server in servers3:
            view(server).reset_commandstats()
        attempt = asyncio.create_task(redlock(NAME, ttl=0.4, wait=0).acquire())
        await asyncio.sleep(0)  # the questions leave
        time.sleep(0.6)  # the answers lie in the sockets meanwhile
        with pytest.raises(AcquiredTooLate) as caught:
            await attempt
    text = str(caught.value)
    assert sum(each.vote is Vote.GRANTED for each in caught.value.outcomes) >= 2
    assert "too late" in text
    assert "of a ttl of 0.4 s" in text
    assert caught.value.elapsed >= 0.6
    for server in servers3:
        assert view(server).commandstats().get("delifeq") == 1


async def test_f005_answers_later_than_the_ttl_are_no_lock(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """Answers that take longer than the ttl are not waited for, and the keys are removed."""
    async with connected(relays3.urls, node_timeout=0.1) as redlock:
        for server in servers3:
            view(server).reset_commandstats()
        for relay in relays3:
            relay.to_client.delay_s = 0.4
        with pytest.raises(QuorumUnreachable) as caught:
            await redlock(NAME, ttl=0.3, wait=0).acquire()
        assert {Vote.MISSING} == {each.vote for each in caught.value.outcomes}
        for server in servers3:
            await until(lambda: view(server).commandstats().get("delifeq") == 1)  # noqa: B023
            assert view(server).commandstats()["set"] == 1


async def test_f006_validity_begins_with_the_round_that_won(servers3: Sequence[Server]) -> None:
    """A lease that was waited for longer than its ttl is as good as new, and can be kept."""
    ttl = 0.8
    async with (
        connected(urls_of(servers3), node_timeout=0.1) as a,
        connected(urls_of(servers3), node_timeout=0.1, ttl=ttl) as b,
    ):
        async with a(NAME, ttl=5):
            waiter = asyncio.create_task(b(NAME, wait=10).acquire())
            await asyncio.sleep(1.2 * ttl)
            assert not waiter.done()
        lease = await waiter
        assert lease.remaining() > ttl / 2
        born_until = lease.valid_until
        await until(lambda: lease.valid_until > born_until + ttl)
        assert lease.is_held
        await lease.release()


async def test_f007_steps_of_the_wall_clock_change_nothing(
    servers3: Sequence[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock jumps an hour forth and back: the lease stays, and waiters wait as long."""
    real, real_ns = time.time, time.time_ns
    async with (
        connected(urls_of(servers3)) as holder,
        connected(urls_of(servers3)) as waiter,
        holder(NAME, ttl=5) as lease,
    ):
        for hours in (1, -1):
            until_before, left_before = lease.valid_until, lease.remaining()
            step = hours * 3600
            monkeypatch.setattr(time, "time", lambda step=step: real() + step)
            monkeypatch.setattr(time, "time_ns", lambda step=step: real_ns() + step * 10**9)
            assert left_before - 2 < lease.remaining() <= left_before
            await lease.extend()
            assert until_before <= lease.valid_until < until_before + 5
            started_at = time.monotonic()
            with pytest.raises(LockContended):
                await waiter(NAME, wait=0.2).acquire()
            assert 0.19 < time.monotonic() - started_at < 2
        assert lease.is_held
        monkeypatch.undo()


def test_f007_nothing_in_the_library_reads_the_wall_clock() -> None:
    """No module that a lease depends on calls a function that tells the time of day."""
    package = Path(aioredlock2.__file__).parent
    modules = [*package.glob("*.py"), *(package / "_core").rglob("*.py")]
    modules += [*(package / "_nodes").rglob("*.py"), *(package / "_redis").rglob("*.py")]
    calls = {
        f"{module.name}: {node.func.attr}"
        for module in modules
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"time", "datetime", "date"}
        and node.func.attr in CLOCK_CALLS
    }
    assert len(modules) > 15
    assert set() == calls
