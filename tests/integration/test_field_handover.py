"""A lease in other hands: left, extended or released elsewhere than it was obtained; or dropped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from aioredlock2 import ConfigurationError, Lease, LeaseLost, Lock, Redlock
from aioredlock2.embedded import Server
from tests.support.clients import urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, all_keys, everywhere, key_of, values, wipe
from tests.support.polling import until


async def enter(stack: contextlib.AsyncExitStack, lock: Lock) -> Lease:
    """Enter the lock on behalf of whoever closes the stack; as a task of its own, it is done then."""
    return await stack.enter_async_context(lock)


async def test_the_exit_may_come_from_another_task(servers3: Sequence[Server], view: Look) -> None:
    """The key is gone, the lease released, whichever task entered."""
    async with connected(urls_of(servers3)) as redlock:
        stack = contextlib.AsyncExitStack()
        lease = await asyncio.create_task(enter(stack, redlock("x", ttl=60)))
        assert lease.is_held
        await asyncio.create_task(stack.aclose())
        assert lease.is_released
        await until(lambda: not all_keys(view, servers3))


async def test_a_loss_after_the_entering_task_is_done_stops_nobody(
    servers3: Sequence[Server], view: Look
) -> None:
    """The exit tells it: LeaseLost, in the task that leaves, which is not cancelled."""
    async with connected(urls_of(servers3)) as redlock:
        stack = contextlib.AsyncExitStack()
        lease = await asyncio.create_task(enter(stack, redlock("x", ttl=1.5)))
        await everywhere(view, servers3, "x")
        wipe(view, servers3, "x")
        assert await lease.lost()
        with pytest.raises(LeaseLost):
            await stack.aclose()
        task = asyncio.current_task()
        assert task is not None
        assert 0 == task.cancelling()
        await asyncio.sleep(0.001)


async def test_a_loss_stops_the_entering_task_wherever_the_exit_will_be(
    servers3: Sequence[Server], view: Look
) -> None:
    """It lives, so it is the body; the exit from another task then raises and cancels nobody."""
    stack = contextlib.AsyncExitStack()
    leases = []

    async def body(lock: Lock) -> None:
        leases.append(await enter(stack, lock))
        await asyncio.sleep(30)

    async with connected(urls_of(servers3)) as redlock:
        task = asyncio.create_task(body(redlock("x", ttl=1.5)))
        await everywhere(view, servers3, "x")
        wipe(view, servers3, "x")
        await asyncio.wait([task])
        assert task.cancelled()
        assert leases[0].is_lost
        with pytest.raises(LeaseLost):
            await stack.aclose()
        await asyncio.sleep(0.001)


async def test_an_exit_takes_the_entry_of_its_own_task(
    servers3: Sequence[Server], view: Look
) -> None:
    """One Lock, entered again after its first lease was lost: each task leaves its own lease."""
    stack = contextlib.AsyncExitStack()
    async with connected(urls_of(servers3)) as redlock:
        lock = redlock("x", ttl=60)
        first = await asyncio.create_task(enter(stack, lock))
        await everywhere(view, servers3, "x")
        wipe(view, servers3, "x")
        with pytest.raises(LeaseLost):
            await first.extend()
        async with lock as second:
            token = await everywhere(view, servers3, "x")
            with pytest.raises(LeaseLost):
                await asyncio.create_task(stack.aclose())
            assert second.is_held
            assert [token] * 3 == values(view, servers3, "x")
        assert second.is_released
        assert first.is_lost


async def test_an_exit_without_an_entry_takes_that_of_a_task_that_is_done(
    servers3: Sequence[Server], view: Look
) -> None:
    """A task still in its body keeps its own entry, although it is the older one."""
    leases: list[Lease] = []
    go_on = asyncio.Event()

    async def work(lock: Lock) -> None:
        async with lock as lease:
            leases.append(lease)
            await go_on.wait()

    async with connected(urls_of(servers3)) as redlock:
        lock = redlock("x", ttl=60, on_lost="notify")
        working = asyncio.create_task(work(lock))
        await everywhere(view, servers3, "x")
        wipe(view, servers3, "x")
        with pytest.raises(LeaseLost):
            await leases[0].extend()
        stack = contextlib.AsyncExitStack()
        second = await asyncio.create_task(enter(stack, lock))
        await asyncio.create_task(stack.aclose())
        assert second.is_released
        go_on.set()
        with pytest.raises(LeaseLost):
            await working


async def test_leaving_a_lock_that_nobody_entered_is_an_error(servers3: Sequence[Server]) -> None:
    """Nothing is sent for it."""
    async with connected(urls_of(servers3)) as redlock:
        with pytest.raises(ConfigurationError, match="without having been entered"):
            await redlock("x").__aexit__(None, None, None)


# --- F080, F085: acquired here, released there ---------------------------------------------------


async def by_wait_for(lock: Lock) -> Lease:
    return await asyncio.wait_for(lock.acquire(), 5)


async def by_child_task(lock: Lock) -> Lease:
    return await asyncio.create_task(lock.acquire())


async def by_another_thread(lock: Lock) -> Lease:
    loop = asyncio.get_running_loop()

    def ask() -> Lease:
        return asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result()

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize(
    "acquires",
    [by_wait_for, by_child_task, by_another_thread],
    ids=lambda function: function.__name__,
)
async def test_f080_a_lease_belongs_to_its_handle_not_to_a_task(
    acquires: Callable[[Lock], Coroutine[Any, Any, Lease]], servers3: Sequence[Server], view: Look
) -> None:
    """Whatever task acquired it, others extend and release it."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await acquires(redlock("x", ttl=60))
        await asyncio.create_task(lease.extend())
        report = await asyncio.wait_for(lease.release(), 5)
        assert "clean" == report.outcome
        await until(lambda: not all_keys(view, servers3))


async def test_f085_a_lease_can_be_handed_to_another_task(servers3: Sequence[Server]) -> None:
    """Through a queue, say, to a worker that extends and releases it; who acquired it is done."""
    queue: asyncio.Queue[Lease] = asyncio.Queue()

    async def produce(lock: Lock) -> None:
        await queue.put(await lock.acquire())

    async def consume() -> str:
        lease = await queue.get()
        await lease.extend(30)
        return (await lease.release()).outcome

    async with connected(urls_of(servers3)) as redlock:
        await asyncio.create_task(produce(redlock("x")))
        assert "clean" == await asyncio.create_task(consume())


@pytest.mark.parametrize("call", [Lease.release, Lease.extend, Lease.lost])
async def test_f085_from_another_thread_it_is_a_clear_error(
    call: Callable[[Lease], Coroutine[Any, Any, object]], servers3: Sequence[Server], view: Look
) -> None:
    """Nothing is sent, and the lease stays held."""
    errors: list[BaseException] = []

    def in_thread() -> None:
        try:
            asyncio.run(call(lease))
        except ConfigurationError as error:
            errors.append(error)

    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("x").acquire()
        token = await everywhere(view, servers3, "x")
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        assert re.search("another thread or event loop", str(errors[0]))
        assert lease.is_held
        assert [token] * 3 == values(view, servers3, "x")
        await lease.release()


# --- dropped --------------------------------------------------------------------------------------


async def test_a_dropped_lease_runs_out_with_one_warning(
    servers3: Sequence[Server], view: Look
) -> None:
    """Nobody can release it any more, so it is not renewed; the name is free a ttl later."""
    async with connected(urls_of(servers3), node_timeout=0.1) as redlock:
        kept = [await redlock("x", ttl=0.8).acquire()]
        await everywhere(view, servers3, "x")
        with pytest.warns(ResourceWarning, match="'x' was dropped while held") as warned:
            kept.clear()
        assert 1 == len(warned)
        await until(lambda: not any(values(view, servers3, "x")), within=0.8 + 1)
        await (await redlock("x", wait=1).acquire()).release()


async def test_a_lease_dropped_after_its_end_is_no_warning(
    servers3: Sequence[Server], view: Look
) -> None:
    """Released or lost: there is nothing left to warn of. (Warnings are errors here.)"""
    async with connected(urls_of(servers3)) as redlock:
        released: Lease | None = await redlock("x").acquire()
        assert released is not None
        await released.release()
        lost: Lease | None = await redlock("y", ttl=2).acquire()
        assert lost is not None
        await everywhere(view, servers3, "y")
        wipe(view, servers3, "y")
        assert await lost.lost()
        released = lost = None
        gc.collect()
    assert released is lost is None


async def test_a_dropped_lock_or_client_doesn_t_end_a_lease_that_is_kept(
    servers3: Sequence[Server], view: Look
) -> None:
    """`await Redlock(...)(...).acquire()` works: the lease keeps what it needs."""

    async def acquire() -> Lease:
        redlock = Redlock(urls_of(servers3), node_timeout=0.1, restart_guard=False)
        clients.append(redlock)
        return await redlock("x", ttl=0.8).acquire()

    clients: list[Redlock] = []
    lease = await acquire()
    redlock = clients.pop()
    del redlock
    gc.collect()
    was_valid_until = lease.valid_until
    await until(lambda: lease.valid_until > was_valid_until)
    assert 0 < view(servers3[0]).pttl(key_of("x"))
    await lease.release()
    client = lease._client
    assert isinstance(client, Redlock)
    await client.aclose()
