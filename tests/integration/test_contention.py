"""Processes full of tasks that want one name: nobody overlaps, and somebody always gets on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence

from aioredlock2 import Redlock
from aioredlock2.embedded import Server
from tests.support import crowd
from tests.support.child import Child
from tests.support.clients import urls_of
from tests.support.connected import connected
from tests.support.polling import until

PROCESSES = 4
TASKS = 5
SECTIONS = 8


async def test_h34_a_crowd_of_processes_makes_steady_progress(servers: Sequence[Server]) -> None:
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
    """Four tasks of one client lock again at once, for ever: a rival has its turn all the same."""
    ttl, section, wins = 1.2, 0.01, 6
    sections = 0
    done = asyncio.Event()

    async def work(redlock: Redlock) -> None:
        nonlocal sections
        while not done.is_set():
            async with redlock(crowd.NAME, wait=None):
                sections += 1
                await asyncio.sleep(section)

    async with (
        connected(urls_of(servers), ttl=ttl) as crowded,
        connected(urls_of(servers), ttl=ttl) as rival,
    ):
        tasks = [asyncio.create_task(work(crowded)) for _ in range(4)]
        waited_for = 0
        for _ in range(wins):
            begun_at = sections
            await until(lambda: sections > begun_at + 5)  # noqa: B023
            begun_at = sections
            async with rival(crowd.NAME, wait=30):
                waited_for += sections - begun_at
        done.set()
        await asyncio.gather(*tasks)
    # As long as the name may go from hand to hand (a fifth of the ttl), with some room.
    assert waited_for / wins < 0.25 * ttl / section
