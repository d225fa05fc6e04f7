"""The watchdog over many renewals: no cap, no orphan, no pile of tasks, and its own bound."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import AsyncGenerator, Sequence

import pytest

from aioredlock2 import LeaseLost, Redlock
from aioredlock2.embedded import Server
from tests.support.clients import urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, everywhere, plant, quorum_ttl, values
from tests.support.polling import until
from tests.support.relay import Relays

SHORT_S = 0.1
"""The node timeout beside ttls of about half a second."""


@pytest.fixture
async def redlock3(servers3: Sequence[Server]) -> AsyncGenerator[Redlock]:
    async with connected(urls_of(servers3), node_timeout=SHORT_S) as redlock:
        yield redlock


@pytest.mark.parametrize("kept", ["the lease", "nothing"])
async def test_f048_garbage_collection_does_not_stop_renewal(
    kept: str, redlock3: Redlock, servers3: Sequence[Server], view: Look
) -> None:
    """Whoever keeps only the lease, or only sits inside `async with`, is renewed all the same."""

    async def hold_by_hand() -> None:
        lease = await redlock3("x", ttl=0.9).acquire()
        await collect_for(1.5)
        await lease.release()

    async def hold_in_body() -> None:
        async with redlock3("x", ttl=0.9):
            await collect_for(1.5)

    async def collect_for(seconds: float) -> None:
        token = await everywhere(view, servers3, "x")
        until_then = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until_then:
            gc.collect()
            assert [token] * 3 == values(view, servers3, "x")
            await asyncio.sleep(0.02)

    await (hold_by_hand() if kept == "the lease" else hold_in_body())


async def test_f049_h31_max_hold_ends_a_lease_that_nobody_gives_back(
    redlock3: Redlock, servers3: Sequence[Server], view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """A body that hangs beside a healthy loop: at `max_hold` the holder is told, renewal stops, and
    the keys are gone a ttl later; the bound was logged before.
    """
    clock = redlock3._runtime.clock
    began = clock()
    lease = await redlock3("x", ttl=0.8, max_hold=1.2).acquire()
    lost = asyncio.create_task(lease.lost())
    await until(lambda: "reaches its max_hold" in caplog.text)
    assert lease.is_held
    assert await lost
    assert 1.2 <= clock() - began < 1.7
    with pytest.raises(LeaseLost, match="max_hold"):
        await lease.extend()
    await until(lambda: not any(values(view, servers3, "x")), within=0.8 + 1)


async def test_f049_max_hold_cancels_the_body(redlock3: Redlock) -> None:
    """Inside `async with` the body is stopped at its next await and LeaseLost comes out."""
    with pytest.raises(LeaseLost, match="max_hold"):
        async with redlock3("x", ttl=0.5, max_hold=0.5):
            await asyncio.Event().wait()


async def test_f049_max_hold_is_the_reason_whoever_notices_first(redlock3: Redlock) -> None:
    """The exit, or an extension, of a body that has blocked the loop past the bound says so too."""

    async def blocks() -> None:
        async with redlock3("x", ttl=0.3, max_hold=0.3):
            time.sleep(0.35)

    with pytest.raises(LeaseLost, match="max_hold"):
        await blocks()
    lease = await redlock3("x", ttl=0.3, max_hold=0.3).acquire()
    time.sleep(0.35)
    with pytest.raises(LeaseLost, match="max_hold"):
        await lease.extend()
    await lease.release()


async def test_f050_there_is_no_cap_on_the_number_of_extensions(
    redlock3: Redlock, servers3: Sequence[Server], view: Look
) -> None:
    """200 extensions by hand, and more by the watchdog end with a fresh lease."""
    async with redlock3("x", ttl=0.9, max_hold=None) as lease:
        for _ in range(200):
            await lease.extend()
        await asyncio.sleep(1.3)
        assert lease.is_held
        assert quorum_ttl(view, servers3, "x") > 0.1


async def test_f059_many_leases_are_renewed_together(
    servers3: Sequence[Server], relays3: Relays, view: Look, rng: random.Random
) -> None:
    """400 leases on a busy loop: none is lost, renewals share their writes, no lease has a task."""
    locks, rounds = 400, 3

    async def noise() -> None:
        while True:
            busy_until = asyncio.get_running_loop().time() + 0.003
            while asyncio.get_running_loop().time() < busy_until:
                pass
            await asyncio.sleep(rng.uniform(0.004, 0.010))

    async with connected(relays3.urls, node_timeout=0.3) as redlock:
        leases = [await redlock(f"x{n}", ttl=1.5).acquire() for n in range(locks)]
        tasks = len(asyncio.all_tasks())
        noisy = asyncio.create_task(noise())
        writes = [relay.to_server.segments for relay in relays3]
        for server in servers3:
            view(server).reset_commandstats()
        first = [lease.valid_until for lease in leases]
        await asyncio.sleep(1.5 / 3 * rounds + 0.2)
        noisy.cancel()
        assert tasks + 1 == len(asyncio.all_tasks())
        assert all(lease.is_held for lease in leases)
        for lease, was_valid_until in zip(leases, first, strict=True):
            assert lease.valid_until > was_valid_until + 0.5
        for relay, written, server in zip(relays3, writes, servers3, strict=True):
            renewals = view(server).commandstats()["set"]
            assert renewals > locks * (rounds - 1)
            assert relay.to_server.segments - written < renewals / 5
        await asyncio.gather(*(lease.release() for lease in leases))


@pytest.mark.loop
async def test_f062_extensions_by_hand_and_by_the_watchdog_get_along(
    relays3: Relays, servers3: Sequence[Server], view: Look, rng: random.Random
) -> None:
    """Among renewals delayed by 20 ms a hundred extensions by hand all succeed; the last ttl wins,
    and what the lease says never exceeds what a quorum of servers has.
    """
    ttls = [rng.uniform(1.0, 3.0) for _ in range(100)]
    async with connected(relays3.urls, node_timeout=0.3) as redlock:
        clock = redlock._runtime.clock
        lease = await redlock("x", ttl=1.0).acquire()
        for relay in relays3:
            relay.to_client.delay_s = 0.02
        extensions = []
        for ttl in ttls:
            extensions.append(asyncio.create_task(lease.extend(ttl)))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, 0.01))
            claimed, then = lease.remaining(), clock()
            there = quorum_ttl(view, servers3, "x")
            assert 0 < claimed <= there + (clock() - then)
        await asyncio.gather(*extensions)
        await until(lambda: quorum_ttl(view, servers3, "x") <= ttls[-1])
        assert ttls[-1] - 0.5 < lease.remaining() < ttls[-1]
        await lease.release()


@pytest.mark.loop
async def test_f062_a_loss_is_told_once_to_everybody_who_waits(
    redlock3: Redlock, servers3: Sequence[Server], view: Look
) -> None:
    """Extensions, waiters and the body of one lease all learn of the same loss."""
    with contextlib.suppress(LeaseLost):
        async with redlock3("x", ttl=5) as lease:
            await everywhere(view, servers3, "x")
            plant(view, servers3, "x")
            told = [asyncio.create_task(lease.lost()) for _ in range(3)]
            by_hand = [asyncio.create_task(lease.extend()) for _ in range(3)]
            await asyncio.sleep(10)
    assert lease.is_lost
    assert [True] * 3 == await asyncio.gather(*told)
    errors = await asyncio.gather(*by_hand, return_exceptions=True)
    assert [LeaseLost] * 3 == [type(error) for error in errors]
    await asyncio.sleep(0)  # a second request to cancel would arrive here
    task = asyncio.current_task()
    assert task is not None
    assert 0 == task.cancelling()
