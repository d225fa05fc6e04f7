"""Many tasks, cancelled at any moment: replies stay with their requests, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Sequence

import pytest

from aioredlock2 import Lock, LockContended
from aioredlock2._engine import Round
from aioredlock2._runtime import digest
from aioredlock2.embedded import Server
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, all_keys, everywhere, values
from tests.support.polling import until
from tests.support.relay import Relays


@pytest.mark.loop
async def test_f047_h22_an_acquire_cancelled_at_any_step_leaves_no_key(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """Cut off at every half millisecond of a slow acquire: the keys are gone at once, and nothing
    renews them.
    """
    for relay in relays3:
        relay.to_server.delay_s = relay.to_client.delay_s = 0.005
    async with connected(relays3.urls) as redlock:
        for step in range(30):
            acquiring = asyncio.create_task(redlock(f"x{step}", ttl=60).acquire())
            await asyncio.sleep(step * 0.0005)
            if not acquiring.cancel():
                await (await acquiring).release()
            await asyncio.wait([acquiring])
        await redlock.inspect("x")  # answered behind all that was sent
        assert set() == all_keys(view, servers3)
        assert [] == redlock.session().watchdog.holds


async def test_f076_h20_replies_stay_with_their_requests_whoever_gives_up(
    servers3: Sequence[Server], relays3: Relays, view: Look, rng: random.Random
) -> None:
    """Among many acquires cut off at random, each survivor finds its own token on the servers."""
    for relay in relays3:
        relay.to_client.delay_s = 0.03
    checked = 0

    async def work(lock: Lock) -> None:
        nonlocal checked
        lease = await lock.acquire()
        name = lease.resource
        assert isinstance(name, str)
        held = [value for value in values(view, servers3, name) if value is not None]
        assert len(held) >= 2
        assert {lease.digest} == {digest(value) for value in held}
        checked += 1
        assert "clean" == (await lease.release()).outcome

    async with connected(relays3.urls, node_timeout=1.0) as redlock:
        tasks = []
        for n in range(300):
            tasks.append(asyncio.create_task(work(redlock(f"x{n}", ttl=60))))
            if n % 10 == 0:
                await asyncio.sleep(rng.uniform(0, 0.005))
                for task in rng.choices(tasks[-20:], k=4):
                    task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert any(task.cancelled() for task in tasks)
        assert checked > 100
        for relay in relays3:
            relay.to_client.delay_s = 0
        await redlock.inspect("x")
        assert set() == all_keys(view, servers3)


@pytest.mark.loop
@pytest.mark.parametrize("first", ["reply", "cancel"])
async def test_f078_h23_a_cancellation_beside_the_deciding_reply_is_never_swallowed(
    first: str, servers3: Sequence[Server], view: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the very turn in which the quorum's reply is read the task is cancelled: it ends cancelled,
    and its keys are gone.
    """
    decide = Round.on_verdict
    acquiring: asyncio.Task[object] | None = None

    def on_verdict(asked: Round) -> None:
        nonlocal acquiring
        if first == "reply":
            decide(asked)
        if acquiring is not None:
            acquiring.cancel()
            acquiring = None
        if first == "cancel":
            decide(asked)

    monkeypatch.setattr(Round, "on_verdict", on_verdict)
    async with connected(urls_of(servers3)) as redlock:
        for n in range(100):
            task = acquiring = asyncio.create_task(redlock(f"x{n % 3}", ttl=60).acquire())
            await asyncio.wait([task])
            assert task.cancelled()
        await redlock.inspect("x")
        assert set() == all_keys(view, servers3)


async def test_f082_one_lock_object_serves_many_tasks(servers3: Sequence[Server]) -> None:
    """Each acquisition has its own lease and token, and they never overlap."""
    inside, digests = 0, []

    async def work(lock: Lock) -> None:
        nonlocal inside
        async with lock as lease:
            inside += 1
            assert 1 == inside
            digests.append(lease.digest)
            await asyncio.sleep(0.001)
            inside -= 1

    async with connected(urls_of(servers3)) as redlock:
        lock = redlock("x", ttl=60)
        await asyncio.gather(*(work(lock) for _ in range(20)))
        for _ in range(50):
            await work(lock)
    assert 70 == len(set(digests))


async def test_f083_many_tasks_before_the_first_connection_share_one(
    servers3: Sequence[Server], relays3: Relays
) -> None:
    """500 acquires as the very first use: one dial per node, and all are served."""

    async def work(lock: Lock) -> None:
        async with lock:
            await asyncio.sleep(0)

    async with contextlib.AsyncExitStack() as stack:
        redlock = patient(relays3.urls, node_timeout=2.0)
        stack.push_async_callback(redlock.aclose)
        await asyncio.gather(*(work(redlock(f"x{n}", ttl=60)) for n in range(500)))
        assert [1, 1, 1] == [relay.accepts for relay in relays3]


async def test_f091_waiting_blocks_nobody_and_starts_no_thread(
    servers3: Sequence[Server],
) -> None:
    """While 100 names are waited for, other tasks of the loop are served in time."""
    pauses = []

    async def probe() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            pauses.append(time.monotonic() - began)

    async with connected(urls_of(servers3)) as redlock, connected(urls_of(servers3)) as other:
        names = [f"x{n}" for n in range(100)]
        held = await asyncio.gather(*(other(name, ttl=60).acquire() for name in names))
        threads = threading.active_count()
        probing = asyncio.create_task(probe())
        waits = [redlock(name, wait=1.0).acquire() for name in names]
        results = await asyncio.gather(*waits, return_exceptions=True)
        probing.cancel()
        assert {LockContended} == {type(result) for result in results}
        assert threads == threading.active_count()
        # Pauses are 10 to 250 ms for each waiter; slept in the loop's thread they would add up.
        assert sorted(pauses)[len(pauses) // 2] < 0.1
        await asyncio.gather(*(lease.release() for lease in held))


@pytest.mark.loop
async def test_f095_h42_a_lock_is_not_reentrant_and_says_so(
    servers3: Sequence[Server], view: Look
) -> None:
    """The inner one times out like any contender, the error tells who holds it, and the outer one
    is still held, renewed and released.
    """
    async with connected(urls_of(servers3)) as redlock:
        async with redlock("x", ttl=5) as outer:
            token = await everywhere(view, servers3, "x")
            began = time.monotonic()
            with pytest.raises(LockContended, match=r"this client itself holds it.*not re-entrant"):
                await redlock("x", wait=0.3).acquire()
            assert 0.3 <= time.monotonic() - began < 2
            assert await redlock("x").try_acquire() is None
            assert outer.is_held
            assert [token] * 3 == values(view, servers3, "x")
        await until(lambda: not all_keys(view, servers3))


@pytest.mark.loop
async def test_f062_cancelling_an_extension_gives_up_only_the_wait(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """The lease stays consistent: extended or not, never lost, and further extensions work."""
    for relay in relays3:
        relay.to_client.delay_s = 0.01
    async with connected(relays3.urls) as redlock:
        lease = await redlock("x", ttl=60).acquire()
        for step in range(12):
            extension = asyncio.create_task(lease.extend(60 + step))
            await asyncio.sleep(step * 0.002)
            extension.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await extension
            assert lease.is_held
        await lease.extend(90)
        assert lease.remaining() > 85
        await lease.release()
        await until(lambda: not all_keys(view, servers3))


@pytest.mark.loop
async def test_waiting_for_the_loss_can_be_cancelled(servers3: Sequence[Server]) -> None:
    """And leaves no trace: the other waiters are told as before."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("x").acquire()
        waiters = [asyncio.create_task(lease.lost()) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[1].cancel()
        await lease.release()
        assert [False, False] == [await waiters[0], await waiters[2]]
        assert waiters[1].cancelled()
        assert not await lease.lost()
        assert () == lease._hold.loss_waiters
