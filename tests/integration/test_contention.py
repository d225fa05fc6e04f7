"""Processes full of tasks that want one name: nobody overlaps, and somebody always gets on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence

from aioredlock2.embedded import Server
from tests.support import crowd
from tests.support.child import Child
from tests.support.clients import urls_of
from tests.support.connected import connected

PROCESSES = 4
TASKS = 5
SECTIONS = 8


async def test_a_crowd_of_processes_makes_steady_progress(servers: Sequence[Server]) -> None:
    """Twenty tasks in four processes on one name: no overlap, and no gap as long as half a ttl.

    A vote that stays split, or a minority that isn't given back, would last until the keys expire.
    """
    urls = urls_of(servers)
    with contextlib.ExitStack() as stack:
        async with connected(urls) as redlock:
            # All of them are there and wait before the first one may begin.
            lease = await redlock(crowd.NAME, ttl=60).acquire()
            children = [
                stack.enter_context(Child("tests.support.crowd", TASKS, SECTIONS, *urls))
                for _ in range(PROCESSES)
            ]
            assert ["ready"] * PROCESSES == [child.line() for child in children]
            await lease.release()
        finished = [child.finish() for child in children]
    assert [0] * PROCESSES == [each.status for each in finished], finished
    sections = sorted(tuple(map(float, line.split())) for each in finished for line in each.lines)
    assert PROCESSES * TASKS * SECTIONS == len(sections)
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(sections)]
    assert min(gaps) >= 0
    assert max(gaps) < crowd.TTL_S / 2


async def test_a_client_whose_queue_never_empties_lets_others_in(
    servers: Sequence[Server],
) -> None:
    """Four tasks of one client lock again at once, for ever: a rival is not shut out."""
    ttl = 1.2
    async with (
        connected(urls_of(servers), ttl=ttl) as crowded,
        connected(urls_of(servers), ttl=ttl) as rival,
    ):
        done = asyncio.Event()

        async def work() -> None:
            while not done.is_set():
                async with crowded(crowd.NAME, wait=None):
                    await asyncio.sleep(0)

        tasks = [asyncio.create_task(work()) for _ in range(4)]
        for _ in range(3):
            async with rival(crowd.NAME, wait=10 * ttl):
                pass
        done.set()
        await asyncio.gather(*tasks)
