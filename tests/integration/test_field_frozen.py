"""Frozen nodes and thousands of calls cut off: nobody waits, nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from aioredlock2 import ConfigurationError, Lease, LeaseLost, Redlock
from aioredlock2.embedded import Server
from tests.support.clients import NODE_TIMEOUT_S, urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, all_keys, everywhere
from tests.support.polling import until
from tests.support.relay import Relays

SOON_S = 1.0
"""What a loaded machine may add to what takes no time."""


async def all_gone(view: Look, servers: Sequence[Server], within: float) -> None:
    await until(lambda: not all_keys(view, servers), within=within)


async def test_a_minority_frozen_amid_many_locks_delays_nobody(
    servers: Sequence[Server], view: Look
) -> None:
    """Two of five nodes are frozen while 1000 tasks lock, work and release: every acquire that is
    under way or begins then ends within a node timeout, no lease is lost, and half a ttl after the
    nodes go on there is no key left.
    """
    ttl, node_timeout, workers = 12.0, 3.0, 1000
    waits: list[float] = []
    leases: list[Lease] = []
    stop = asyncio.Event()

    async def work(redlock: Redlock, n: int) -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            began = time.monotonic()
            async with redlock(f"x{n}-{turn % 2}", ttl=ttl, wait=30) as lease:
                waits.append(time.monotonic() - began)
                leases.append(lease)
                await asyncio.sleep(0.02)
                assert lease.is_held

    async with connected(urls_of(servers), node_timeout=node_timeout) as redlock:
        tasks = [asyncio.create_task(work(redlock, n)) for n in range(workers)]
        await until(lambda: len(waits) > 2 * workers)
        for server in servers[:2]:
            server.freeze()
        frozen_since = len(waits)
        await until(lambda: len(waits) > frozen_since + 5 * workers)
        stop.set()
        await asyncio.gather(*tasks)
        assert max(waits) < node_timeout
        assert not any(lease.is_lost for lease in leases)
        for server in servers[:2]:
            server.thaw()
        await all_gone(view, servers, within=ttl / 2)


async def test_leases_held_through_a_frozen_minority_stay_held(
    servers: Sequence[Server], view: Look
) -> None:
    """300 leases, two of five nodes frozen past a renewal: all are extended by the other three."""
    async with connected(urls_of(servers), node_timeout=0.3) as redlock:
        locks = [redlock(f"x{n}", ttl=2) for n in range(300)]
        leases = await asyncio.gather(*(lock.acquire() for lock in locks))
        for server in servers[:2]:
            server.freeze()
        was_valid_until = max(lease.valid_until for lease in leases)
        await until(lambda: all(lease.valid_until > was_valid_until for lease in leases))
        for server in servers[:2]:
            server.thaw()
        assert not any(lease.is_lost for lease in leases)
        reports = await asyncio.gather(*(lease.release() for lease in leases))
        assert {"clean"} == {report.outcome for report in reports}
        await all_gone(view, servers, within=5)


@pytest.mark.loop
async def test_f077_cancelling_is_immediate_even_with_every_node_frozen(
    servers3: Sequence[Server], view: Look
) -> None:
    """300 acquires that nobody answers, cancelled together: control is back within a few loop
    turns, and what had been sent is deleted when the nodes go on.
    """
    async with connected(urls_of(servers3), node_timeout=5.0, ttl=60) as redlock:
        for server in servers3:
            server.freeze()
        tasks = [asyncio.create_task(redlock(f"x{n}", wait=None).acquire()) for n in range(300)]
        await asyncio.sleep(0.05)
        began = time.monotonic()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert time.monotonic() - began < SOON_S
        assert all(task.cancelled() for task in tasks)
        for server in servers3:
            server.thaw()
        await redlock.inspect("x")  # answered behind all that was sent
        assert set() == all_keys(view, servers3)


async def test_cancelled_acquires_leave_no_key_no_task_and_no_memory(
    servers3: Sequence[Server], view: Look
) -> None:
    """Ten thousand of them, on names of their own and on one that is held; counted are all objects."""
    files = Path("/proc/self/fd")

    async def cut_off(redlock: Redlock, times: int) -> None:
        for batch in range(times):
            names = [f"x{batch}-{n}" for n in range(50)] + ["held"] * 50
            tasks = [asyncio.create_task(redlock(name, wait=None).acquire()) for name in names]
            for _ in range(batch % 4):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    await task.result().release()

    def counted() -> tuple[int, int, int]:
        gc.collect()
        open_files = len(list(files.iterdir())) if files.is_dir() else 0
        return len(gc.get_objects()), len(asyncio.all_tasks()), open_files

    async with connected(urls_of(servers3), ttl=60) as redlock:
        holder = await redlock("held").acquire()
        await cut_off(redlock, 4)
        await asyncio.sleep(2 * NODE_TIMEOUT_S)  # rounds are kept until their deadline has passed
        objects, tasks, open_files = counted()
        await cut_off(redlock, 96)
        await until(lambda: counted()[0] - objects < 250)  # a tenth of an object per call
        assert (tasks, open_files) == counted()[1:]
        await until(lambda: {b"redlock:held"} == all_keys(view, servers3))
        await holder.release()


async def test_f084_closing_amid_a_crowd_leaves_nothing(
    servers3: Sequence[Server], view: Look
) -> None:
    """1000 tasks on one name and on names of their own, and `aclose` at once: whoever is inside is
    told, the rest get a clear error, and no key, task or warning remains.
    """
    tasks_before = len(asyncio.all_tasks())

    async def work(redlock: Redlock, name: str) -> None:
        async with redlock(name, ttl=60, wait=None):
            await asyncio.sleep(0.001)

    async with connected(urls_of(servers3)) as redlock:
        names = [f"x{n}" for n in range(500)] + ["x"] * 500
        tasks = [asyncio.create_task(work(redlock, name)) for name in names]
        for _ in range(5):
            await asyncio.sleep(0)
        await redlock.aclose()
        await asyncio.wait(tasks)
        errors = [task.exception() for task in tasks]
        assert any(errors)
        allowed = {ConfigurationError, LeaseLost}
        assert allowed >= {type(error) for error in errors if error is not None}
    assert tasks_before == len(asyncio.all_tasks())
    await all_gone(view, servers3, within=5)


@pytest.mark.loop
async def test_a_node_that_owes_answers_is_sent_nothing_that_could_lock(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """No queue of SETs grows in front of it, and no deletes for what it was never sent; as soon as
    it has answered it votes again.
    """
    async with connected(relays3.urls, node_timeout=0.1, ttl=60) as redlock:
        relays3[0].to_client.hold()
        async with redlock("first"):
            await asyncio.sleep(0.2)
        await until(lambda: not all_keys(view, servers3))
        for server in servers3:
            view(server).reset_commandstats()
        for n in range(50):
            async with redlock(f"x{n}"):
                pass
        assert view(servers3[1]).commandstats()["set"] >= 50
        assert not {"set", "delifeq"} & set(view(servers3[0]).commandstats())
        relays3[0].to_client.release()
        await redlock.inspect("x")  # its answer comes behind those it owes
        async with redlock("x"):
            await everywhere(view, servers3, "x")
        await all_gone(view, servers3, within=5)
