"""Leaving `async with`: every way out releases, and nothing of the body's is lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

import anyio
import pytest

from aioredlock2 import LeaseLost, Lock, Redlock
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.clients import urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, all_keys, everywhere, values, wipe
from tests.support.polling import until
from tests.support.relay import Relays


@pytest.mark.loop
async def test_f066_h24_a_release_that_is_cancelled_anywhere_still_deletes(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """The deletes are on the wire before the exit can be cancelled; the cancellation comes out."""
    leave = asyncio.Event()

    async def work(redlock: Redlock, name: str) -> None:
        async with redlock(name, ttl=30):
            await leave.wait()

    async def cancel(task: asyncio.Task[None], turns: int, pause: float) -> bool:
        for _ in range(turns):
            await asyncio.sleep(0)
        if pause:
            await asyncio.sleep(pause)
        return task.cancel()

    async with connected(relays3.urls) as redlock:
        cuts = [(turns, 0.0) for turns in range(6)] + [(0, n / 1000) for n in range(0, 60, 3)]
        tasks = [asyncio.create_task(work(redlock, f"x{n}")) for n in range(len(cuts))]
        await until(lambda: len(cuts) == len(all_keys(view, servers3)))
        for relay in relays3:
            relay.to_server.delay_s = relay.to_client.delay_s = 0.02
        leave.set()
        in_time = await asyncio.gather(*(map(cancel, tasks, *zip(*cuts, strict=True))))
        await asyncio.wait(tasks)
        assert any(in_time)
        assert in_time == [task.cancelled() for task in tasks]
        await until(lambda: not all_keys(view, servers3))


@pytest.mark.parametrize("raised", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
async def test_f068_trouble_at_the_exit_never_replaces_what_the_body_raised(
    raised: type[BaseException], fresh_servers: StartServers
) -> None:
    """With all nodes dead the body's own exception comes out, and is the very same object."""
    servers = fresh_servers(3)
    error = raised("mine")

    async def work(lock: Lock) -> None:
        async with lock:
            for server in servers:
                server.kill()
            raise error

    async with connected(servers.urls) as redlock:
        with pytest.raises(raised) as caught:
            await work(redlock("x"))
        assert error is caught.value
        assert error.__context__ is None
        assert not hasattr(error, "__notes__")


async def test_f068_a_cancelled_body_with_dead_nodes_is_cancelled(
    fresh_servers: StartServers,
) -> None:
    """And in time: nothing is waited for that can't come."""
    servers = fresh_servers(3)
    held = asyncio.Event()

    async def work(lock: Lock) -> None:
        async with lock:
            held.set()
            await asyncio.sleep(30)

    async with connected(servers.urls) as redlock:
        task = asyncio.create_task(work(redlock("x")))
        await held.wait()
        for server in servers:
            server.kill()
        task.cancel()
        await asyncio.wait([task], timeout=3)
        assert task.cancelled()


# --- F075: every way out ------------------------------------------------------------------------


async def by_return(lock: Lock) -> None:
    async with lock:
        return


async def by_break(lock: Lock) -> None:
    for _ in range(2):
        async with lock:
            break


async def by_continue(lock: Lock) -> None:
    for _ in range(2):
        async with lock:
            continue


async def by_raise(lock: Lock) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with lock:
            raise ZeroDivisionError


async def _numbers(lock: Lock) -> AsyncGenerator[int]:
    async with lock:
        yield 1


async def by_closed_generator(lock: Lock) -> None:
    generator = _numbers(lock)
    assert 1 == await anext(generator)
    await generator.aclose()


async def by_dropped_generator(lock: Lock) -> None:
    assert 1 == await anext(_numbers(lock))


@pytest.mark.parametrize(
    "leaves",
    [by_return, by_break, by_continue, by_raise, by_closed_generator, by_dropped_generator],
    ids=lambda function: function.__name__,
)
async def test_f075_every_way_out_of_the_body_releases(
    leaves: Callable[[Lock], Coroutine[Any, Any, None]], servers3: Sequence[Server], view: Look
) -> None:
    """The key is gone long before its ttl, however the body was left."""
    async with connected(urls_of(servers3)) as redlock:
        await leaves(redlock("x", ttl=60))
        await until(lambda: not all_keys(view, servers3))


@pytest.mark.loop
async def test_f075_bodies_without_an_await_never_hang(
    servers3: Sequence[Server], view: Look
) -> None:
    """500 empty bodies, one after the other and side by side."""
    async with connected(urls_of(servers3)) as redlock:
        for _ in range(300):
            async with redlock("x"):
                pass
        await asyncio.gather(*(by_return(redlock(f"x{n}")) for n in range(200)))
        await until(lambda: not all_keys(view, servers3))


# --- under anyio's level cancellation -----------------------------------------------------------


@pytest.mark.loop
async def test_leaving_a_cancelled_anyio_scope_waits_for_the_release(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """Every await in such a scope is cancelled again, but not the one of the exit: a quorum has
    deleted the key when the scope is left.
    """
    async with connected(relays3.urls) as redlock:
        with anyio.CancelScope() as scope:
            async with redlock("x", ttl=60):
                await everywhere(view, servers3, "x")
                for relay in relays3:
                    relay.to_server.delay_s = 0.05
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert values(view, servers3, "x").count(None) >= 2


async def test_leaving_a_cancelled_anyio_scope_takes_one_node_timeout_at_most(
    servers3: Sequence[Server],
) -> None:
    """The shield is bounded: with all nodes frozen the scope is left all the same."""
    async with connected(urls_of(servers3), node_timeout=0.1) as redlock:
        with anyio.CancelScope() as scope:
            async with redlock("x"):
                for server in servers3:
                    server.freeze()
                scope.cancel()
                began = asyncio.get_running_loop().time()
                await anyio.sleep_forever()
        assert asyncio.get_running_loop().time() - began < 1
        for server in servers3:
            server.thaw()


@pytest.mark.loop
async def test_an_anyio_timeout_around_a_waiting_acquire_leaves_nothing(
    servers3: Sequence[Server], view: Look
) -> None:
    """`move_on_after` ends the wait; the holder is not disturbed, and the lock can be had later."""
    async with connected(urls_of(servers3)) as redlock, connected(urls_of(servers3)) as other:
        holder = await other("x", ttl=60).acquire()
        token = await everywhere(view, servers3, "x")
        with anyio.move_on_after(0.1) as scope:
            await redlock("x", wait=None).acquire()
        assert scope.cancelled_caught
        assert [token] * 3 == values(view, servers3, "x")
        await holder.release()
        async with redlock("x", wait=5):
            pass
        await until(lambda: not all_keys(view, servers3))


@pytest.mark.loop
async def test_acquiring_in_a_cancelled_anyio_scope_leaves_nothing(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """The deletes go out although not one await succeeds any more."""
    async with connected(relays3.urls) as redlock:
        for relay in relays3:
            relay.to_client.delay_s = 0.02
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with redlock("x", ttl=60):
                pytest.fail("acquired in a cancelled scope")
        assert scope.cancelled_caught
        await redlock.inspect("x")  # answered behind all that was sent
        assert set() == all_keys(view, servers3)


async def test_releasing_by_hand_in_a_cancelled_anyio_scope_deletes(
    servers3: Sequence[Server], view: Look
) -> None:
    """Only the wait is given up."""
    async with connected(urls_of(servers3)) as redlock:
        with anyio.CancelScope() as scope:
            lease = await redlock("x", ttl=60).acquire()
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                await lease.release()
        assert lease.is_released
        await until(lambda: not all_keys(view, servers3))


async def test_a_failing_sibling_in_an_anyio_task_group_frees_the_lock(
    servers3: Sequence[Server], view: Look
) -> None:
    """Its error comes out, and the key of the cancelled holder is gone."""
    held = anyio.Event()

    async def hold(lock: Lock) -> None:
        async with lock:
            held.set()
            await anyio.sleep_forever()

    async def fail() -> None:
        await held.wait()
        raise ZeroDivisionError

    async def both(redlock: Redlock) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(hold, redlock("x", ttl=60))
            group.start_soon(fail)

    async with connected(urls_of(servers3)) as redlock:
        with pytest.raises(ExceptionGroup) as caught:
            await both(redlock)
        assert [ZeroDivisionError] == [type(error) for error in caught.value.exceptions]
        await until(lambda: not all_keys(view, servers3))


async def test_a_loss_in_an_anyio_scope_is_a_loss(servers3: Sequence[Server], view: Look) -> None:
    """The scope that was not cancelled itself lets LeaseLost pass."""

    async def work(lock: Lock) -> None:
        with anyio.move_on_after(10):
            async with lock, anyio.create_task_group() as group:
                await everywhere(view, servers3, "x")
                wipe(view, servers3, "x")
                group.start_soon(anyio.sleep_forever)

    async with connected(urls_of(servers3)) as redlock:
        with pytest.raises(LeaseLost):
            await work(redlock("x", ttl=1.5))
