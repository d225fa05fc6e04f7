"""Field cases 1a: a minority of nodes that is down, silent or late costs nobody anything."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

import pytest

from aioredlock2 import NodeState, QuorumUnreachable, Redlock, Removal
from aioredlock2.embedded import Server
from tests.support.clients import granted, patient, until_up, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up
from tests.support.fleet import Look, all_keys, values
from tests.support.polling import until
from tests.support.relay import Relays

NAME = "invoice:42"


@pytest.mark.parametrize("trouble", ["refuses", "has no address", "accepts and closes", "resets"])
async def test_f011_a_dead_minority_is_normal(
    servers3: Sequence[Server], relays3: Relays, trouble: str
) -> None:
    """With one of three nodes down, all locks succeed; the cause is in the status, not raised."""
    urls = relays3.urls
    if trouble == "has no address":
        urls[0] = "redis://no-such-host.invalid:6379"
    elif trouble == "refuses":
        relays3[0].refuse()
    elif trouble == "accepts and closes":
        relays3[0].hang_up()
    async with patient(urls) as redlock:
        await all_up(redlock, [1, 2])
        for turn in range(50):
            if trouble == "resets":
                relays3[0].cut()
            async with redlock(f"{NAME}:{turn}", wait=0) as lease:
                assert lease.is_held
        assert all(node.state is NodeState.UP for node in redlock.nodes[1:])
        if trouble != "resets":
            await until(lambda: redlock.nodes[0].state is NodeState.DOWN)
            assert redlock.nodes[0].cause not in ("", "not connected yet")


@pytest.mark.loop
async def test_f012_a_frozen_minority_costs_no_time(servers3: Sequence[Server], view: Look) -> None:
    """A silent node isn't waited for; what it grants when it wakes up is deleted behind that."""
    silence = 2.0
    async with connected(urls_of(servers3), node_timeout=silence, ttl=60) as redlock:
        healthy = await median_pair_s(redlock)
        servers3[2].freeze()
        first = await median_pair_s(redlock, pairs=1)
        assert first < silence / 2
        frozen = await median_pair_s(redlock)
        assert frozen < silence / 20 + 3 * healthy
        async with redlock(NAME):
            assert 2 == sum(map(bool, values(view, servers3[:2], NAME)))
        servers3[2].thaw()
        # When it votes again on the same connection, all that was queued there is done.
        await until_heard_by_all(redlock)
        assert set() == all_keys(view, servers3)


async def until_heard_by_all(redlock: Redlock) -> None:
    """Lock and release until all nodes took part in both."""
    for _ in range(50):
        lease = await redlock("again").acquire()
        await asyncio.sleep(0.02)
        report = await lease.release()
        await until(lambda: all(node.removal is not Removal.PENDING for node in report.nodes))  # noqa: B023
        if {Removal.DELETED} == {node.removal for node in report.nodes}:
            return
    raise AssertionError(f"not all nodes took part: {report}")


async def median_pair_s(redlock: Redlock, pairs: int = 20) -> float:
    """The median duration of an uncontended acquire and release."""
    took = []
    for _ in range(pairs):
        started_at = time.perf_counter()
        async with redlock(NAME):
            pass
        took.append(time.perf_counter() - started_at)
    return statistics.median(took)


async def test_f012_a_slow_minority_costs_no_time(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """A node that answers in time, but late, isn't waited for either, and takes part all the same."""
    async with connected(relays3.urls, ttl=60) as redlock:
        relays3[2].to_client.delay_s = late = 0.3
        started_at = time.monotonic()
        for _ in range(10):
            async with redlock(NAME):
                pass
        assert time.monotonic() - started_at < 10 * late / 2
        lease = await redlock(NAME).acquire()
        await until(lambda: len(granted(lease)) == 3)
        await lease.release()


async def test_f012_the_default_node_timeout_is_short(relays3: Relays) -> None:
    """Silent nodes are listened to for 50 ms at most, however long the ttl: never for seconds."""
    async with Redlock(relays3.urls, ttl=3600, restart_guard=False) as redlock:
        await until_up(redlock, 3)
        for relay in relays3:
            relay.to_client.hold()
        with pytest.raises(QuorumUnreachable) as caught:
            await redlock(NAME, wait=0).acquire()
        assert 0.04 < caught.value.elapsed < 0.5
        for relay in relays3:
            relay.to_client.release()


async def test_f013_a_client_may_be_built_before_its_servers_are_up(
    servers3: Sequence[Server], relays3: Relays
) -> None:
    """One of three up: unreachable; a second comes up: the same client locks; a third joins."""
    for relay in relays3:
        relay.refuse()
    redlock = patient(relays3.urls)
    relays3[0].accept()
    async with redlock:
        with pytest.raises(QuorumUnreachable) as caught:
            await redlock(NAME, wait=0).acquire()
        assert 3 == len(caught.value.outcomes)
        relays3[1].accept()
        async with redlock(NAME, wait=10):
            pass
        relays3[2].accept()
        await until_up(redlock, 3)
        async with redlock(NAME) as lease:
            await until(lambda: len(granted(lease)) == 3)


@pytest.mark.loop
async def test_f013_a_waiting_caller_gets_the_lock_when_the_servers_come_up(
    relays3: Relays,
) -> None:
    """Nobody has to ask again: a caller that waits goes on as soon as a majority is there."""
    for relay in relays3:
        relay.refuse()
    async with patient(relays3.urls) as redlock:
        waiter = asyncio.create_task(redlock(NAME, wait=20).acquire())
        await until(lambda: all(node.state is NodeState.DOWN for node in redlock.nodes))
        assert not waiter.done()
        for relay in relays3[1:]:
            relay.accept()
        lease = await waiter
        assert lease.is_held
        await lease.release()
