"""Field cases 1a: what a failed round leaves, which error it ends in, and that none is a success."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence

import pytest

from aioredlock2 import AcquireError, LockContended, QuorumUnreachable, RetryPolicy, Vote
from aioredlock2.embedded import Server
from tests.support.clients import cut_off, granted, until_up, urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, plant, values, wipe
from tests.support.polling import until
from tests.support.relay import Relays

NAME = "invoice:42"


async def test_f008_a_failed_round_never_stands_in_its_own_way(
    servers3: Sequence[Server], view: Look
) -> None:
    """With a minority of nodes free, a waiter wins soon after the others are, not a ttl later."""
    plant(view, servers3[:2], NAME)
    async with connected(urls_of(servers3), ttl=20) as redlock:
        waiter = asyncio.create_task(redlock(NAME).acquire())
        free = view(servers3[2])
        await until(lambda: free.commandstats().get("delifeq", 0) >= 3)  # three rounds were lost
        assert not waiter.done()
        wipe(view, servers3[:2], NAME)
        started_at = time.monotonic()
        lease = await waiter
        assert time.monotonic() - started_at < 5
        assert len(set(values(view, servers3, NAME))) == 1
        await lease.release()


async def test_f014_busy_and_down_are_different_errors(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """Contention, an outage, and a mixture of both: told apart by class, counted in the text."""
    async with connected(relays3.urls) as redlock, connected(relays3.urls) as other:
        lock = redlock(NAME, wait=0)
        async with other(NAME):
            with pytest.raises(LockContended):
                await lock.acquire()
            assert await lock.try_acquire() is None
        await until(lambda: not any(values(view, servers3, NAME)))

        plant(view, servers3[1:2], NAME)
        cut_off(relays3[0])
        relays3[1].to_client.delay_s = 0.05  # decides last
        await until_up(redlock, 2)
        with pytest.raises(
            LockContended, match="1 of 3 granted, 1 denied, 1 unreachable"
        ) as caught:
            await lock.acquire()
        assert [Vote.FAULTED, Vote.DENIED, Vote.GRANTED] == [
            each.vote for each in caught.value.outcomes
        ]
        assert await lock.try_acquire() is None

        cut_off(relays3[1])
        await until_up(redlock, 1)
        for attempt in (lock.acquire, lock.try_acquire):
            with pytest.raises(QuorumUnreachable) as unreachable:
                await attempt()
            assert isinstance(unreachable.value, AcquireError)
            assert not isinstance(unreachable.value, LockContended)
            assert relays3[0].url.removeprefix("redis://") in str(unreachable.value)


@pytest.mark.loop
async def test_f015_the_body_is_never_entered_without_a_quorum(
    servers: Sequence[Server], relays: Relays, view: Look, rng: random.Random
) -> None:
    """Connections break at random points: whoever gets into the body has a majority of the keys."""
    entered = failed = 0
    retry = RetryPolicy(floor=0.002, cap=0.02)
    async with connected(relays.urls, ttl=2, retry=retry) as redlock:
        for turn in range(20):
            name = f"{NAME}:{turn}"
            for relay in rng.sample(list(relays), rng.randint(1, 5)):
                relay.cut_after(replies=rng.randint(0, 1), keep_bytes=rng.randint(0, 4))
            try:
                async with redlock(name, wait=rng.choice([0, 0.1]), renew=False) as lease:
                    entered += 1
                    # A round that broke before may have left its token on a minority.
                    stored = Counter(filter(None, values(view, servers, name)))
                    assert max(stored.values()) >= 3
                    assert len(granted(lease)) >= 3
            except AcquireError:
                failed += 1
                async with redlock("heal", wait=20):
                    pass
    assert entered >= 3
    assert failed >= 3
