"""A lost lease stops its body by the rules of asyncio.timeout: exactly its own request is taken back,
and a cancellation from outside wins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from aioredlock2 import Lease, LeaseLost, Lock, Redlock
from aioredlock2.embedded import Server
from tests.support.clients import urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, all_keys, everywhere, wipe
from tests.support.polling import until

pytestmark = pytest.mark.loop


@pytest.fixture
async def redlock3(servers3: Sequence[Server]) -> AsyncGenerator[Redlock]:
    async with connected(urls_of(servers3)) as redlock:
        yield redlock


class Robber:
    """Takes a lease's keys away and has the client notice it."""

    def __init__(self, view: Look, servers: Sequence[Server]) -> None:
        self._view = view
        self._servers = servers
        self._tasks: set[asyncio.Task[None]] = set()

    async def rob(self, lease: Lease) -> None:
        """The lease will be lost within a round trip; returns before."""
        resource = lease.resource
        assert isinstance(resource, str)
        await everywhere(self._view, self._servers, resource)
        wipe(self._view, self._servers, resource)
        task = asyncio.create_task(self._notice(lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notice(self, lease: Lease) -> None:
        with contextlib.suppress(LeaseLost):
            await lease.extend()


@pytest.fixture
def robber(view: Look, servers3: Sequence[Server]) -> Robber:
    return Robber(view, servers3)


async def stays_calm() -> None:
    """The running task has no cancellation left over, neither counted nor under way."""
    task = asyncio.current_task()
    assert task is not None
    assert 0 == task.cancelling()
    for _ in range(3):
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await asyncio.sleep(0.001)


async def test_a_stopped_body_leaves_no_cancellation_behind(
    redlock3: Redlock, robber: Robber
) -> None:
    """LeaseLost comes out, `cancelling()` is as before, and the task goes on as if nothing was."""

    async def work(lock: Lock) -> None:
        async with lock as lease:
            await robber.rob(lease)
            await asyncio.sleep(10)

    for _ in range(3):
        with pytest.raises(LeaseLost):
            await work(redlock3("x"))
        await stays_calm()


async def test_a_body_that_swallows_its_cancellation_still_ends_in_lease_lost(
    redlock3: Redlock, robber: Robber
) -> None:
    """It may do some last things first; nothing of the request is left after it."""
    last_things = []

    async def work(lock: Lock) -> None:
        async with lock as lease:
            await robber.rob(lease)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
            await asyncio.sleep(0.001)
            last_things.append("done")

    with pytest.raises(LeaseLost):
        await work(redlock3("x"))
    assert ["done"] == last_things
    await stays_calm()


async def test_the_body_s_own_exception_leaves_no_cancellation_behind_either(
    redlock3: Redlock, robber: Robber
) -> None:
    """It comes out with a note about the loss."""

    async def work(lock: Lock) -> None:
        async with lock as lease:
            await robber.rob(lease)
            try:
                await asyncio.sleep(10)
            finally:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await work(redlock3("x"))
    assert "was lost" in caught.value.__notes__[0]
    await stays_calm()


async def test_a_cancellation_from_outside_wins_when_both_come_at_once(
    redlock3: Redlock, robber: Robber
) -> None:
    """The task ends cancelled, with exactly the outer request still counted at the exit."""
    counted = []

    async def work(lock: Lock) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with lock as lease:
                told = asyncio.ensure_future(lease.lost())
                told.add_done_callback(lambda _: task.cancel("from outside"))
                await robber.rob(lease)
                await asyncio.sleep(10)
        finally:
            counted.append(task.cancelling())

    working = asyncio.create_task(work(redlock3("x")))
    await asyncio.wait([working])
    assert working.cancelled()
    assert [1] == counted


async def test_a_cancellation_from_outside_wins_when_it_came_first(
    redlock3: Redlock, robber: Robber
) -> None:
    """The lease is lost while the body cleans up after the outer request."""
    held, counted = asyncio.Event(), []

    async def work(lock: Lock) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with lock as lease:
                held.set()
                try:
                    await asyncio.sleep(10)
                finally:
                    await robber.rob(lease)
                    await asyncio.sleep(10)
        finally:
            counted.append(task.cancelling())

    working = asyncio.create_task(work(redlock3("x")))
    await held.wait()
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    assert [1] == counted


async def test_a_timeout_around_the_lock_is_a_timeout(
    redlock3: Redlock, servers3: Sequence[Server], view: Look
) -> None:
    """The lease is held throughout and released; TimeoutError comes out as usual."""

    async def work(lock: Lock) -> None:
        async with asyncio.timeout(0.05), lock:
            await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        await work(redlock3("x", ttl=60))
    await stays_calm()
    await until(lambda: not all_keys(view, servers3))


async def test_a_timeout_around_the_lock_beats_a_loss_at_the_same_moment(
    redlock3: Redlock, robber: Robber
) -> None:
    """It is a cancellation from outside as far as the lock is concerned."""

    async def work(lock: Lock) -> None:
        async with asyncio.timeout(None) as timeout, lock as lease:
            told = asyncio.ensure_future(lease.lost())
            told.add_done_callback(lambda _: timeout.reschedule(0))
            await robber.rob(lease)
            try:
                await asyncio.sleep(10)
            finally:
                # Stopped by the loss; cleaning up, it is overtaken by the timeout.
                await asyncio.sleep(10)

    with pytest.raises(TimeoutError):
        await work(redlock3("x"))
    await stays_calm()


async def test_a_timeout_inside_the_body_is_not_confused_by_the_loss(
    redlock3: Redlock, robber: Robber
) -> None:
    """`asyncio.timeout` in the body sees a foreign cancellation and lets it pass."""

    async def work(lock: Lock) -> None:
        async with lock as lease:
            await robber.rob(lease)
            async with asyncio.timeout(10):
                await asyncio.sleep(10)

    with pytest.raises(LeaseLost):
        await work(redlock3("x"))
    await stays_calm()


async def test_a_task_group_in_the_body_is_stopped_whole(redlock3: Redlock, robber: Robber) -> None:
    """Its tasks are cancelled, and LeaseLost comes out bare, not in a group."""
    stopped = []

    async def part() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            stopped.append(1)

    async def work(lock: Lock) -> None:
        async with lock as lease, asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(part())
            await robber.rob(lease)

    with pytest.raises(LeaseLost):
        await work(redlock3("x"))
    assert [1, 1, 1] == stopped
    await stays_calm()


@pytest.mark.parametrize("robbed", ["outer", "inner", "both"])
async def test_of_nested_locks_the_lost_one_speaks(
    robbed: str, redlock3: Redlock, servers3: Sequence[Server], robber: Robber, view: Look
) -> None:
    """Whichever is lost, its own `async with` raises; if both are, the outer one; both are freed."""
    seen: list[str] = []

    async def within(lock: Lock, outer: Lease) -> None:
        async with lock as inner:
            for name, lease in (("inner", inner), ("outer", outer)):
                if robbed in {name, "both"}:
                    await robber.rob(lease)
            await asyncio.sleep(10)

    async def work() -> None:
        try:
            async with redlock3("outer", ttl=60) as outer:
                try:
                    await within(redlock3("inner", ttl=60), outer)
                except LeaseLost as error:
                    seen.append(f"inside {error.resource!r}")
        except LeaseLost as error:
            seen.append(f"outside {error.resource!r}")

    await work()
    await stays_calm()
    wanted = {
        "outer": [["outside 'outer'"]],
        "inner": [["inside 'inner'"]],
        "both": [["outside 'outer'"], ["inside 'inner'", "outside 'outer'"]],
    }
    assert seen in wanted[robbed]
    await until(lambda: not all_keys(view, servers3))


async def test_a_lease_by_hand_cancels_nobody(redlock3: Redlock, robber: Robber) -> None:
    """`acquire()` only tells: by the flag, by `lost()`, by the next `extend`."""
    lease = await redlock3("x").acquire()
    await robber.rob(lease)
    assert await lease.lost()
    assert lease.is_lost
    await stays_calm()
    with pytest.raises(LeaseLost):
        await lease.extend()


@pytest.mark.parametrize(
    ("on_lost", "stopped", "raises"),
    [("cancel", True, True), ("notify", False, True), ("ignore", False, False)],
)
async def test_f069_what_a_loss_does_is_the_lock_s_choice(
    on_lost: Any, stopped: bool, raises: bool, redlock3: Redlock, robber: Robber
) -> None:
    """Stopped and raised at the exit; only raised at the exit; neither. The flags tell in any case."""
    reached_the_end = []
    leases: list[Lease] = []

    async def work(lock: Lock) -> None:
        async with lock as lease:
            leases.append(lease)
            await robber.rob(lease)
            assert await lease.lost()
            for _ in range(3):
                await asyncio.sleep(0)
            reached_the_end.append(True)

    with pytest.raises(LeaseLost) if raises else contextlib.nullcontext():
        await work(redlock3("x", on_lost=on_lost))
    assert stopped is (not reached_the_end)
    assert leases[0].is_lost
    await stays_calm()


@pytest.mark.parametrize("on_lost", ["notify", "ignore"])
async def test_f069_an_overrun_without_renewal_is_told_or_not(
    on_lost: Any, redlock3: Redlock
) -> None:
    """The body outlives a ttl of its own choice: an error or silence at the exit."""

    async def work(lock: Lock) -> None:
        async with lock as lease:
            assert await lease.lost()

    told = pytest.raises(LeaseLost) if on_lost == "notify" else contextlib.nullcontext()
    with told:
        await work(redlock3("x", ttl=1.2, renew=False, on_lost=on_lost))
