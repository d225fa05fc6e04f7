"""Loss inside `async with`: the body is stopped by the rules of asyncio.timeout, or only told."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from aioredlock2 import (
    Lease,
    LeaseLost,
)
from aioredlock2._node import Verb
from tests.support.bodies import BodyError, long, under
from tests.support.model_node import client
from tests.support.scene import (
    ROUND_TRIP,
    cut,
    free,
    holders,
    nearby,
    now,
    rounds_at,
)
from tests.support.virtual import in_virtual_time, settle, the_loop

# --- loss: cancel -------------------------------------------------------------------------------


@in_virtual_time
async def test_f051_a_loss_stops_the_body_at_its_next_await() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        seen: list[BaseException] = []

        async def body(lease: Lease) -> None:
            try:
                await long(lease)
            except asyncio.CancelledError as error:
                assert lease.is_lost
                seen.append(error)
                raise

        the_loop().call_later(1, free, nodes)
        started_at = now()
        with pytest.raises(LeaseLost, match="too many nodes no longer have its key"):
            await under(redlock("x"), body)
        assert len(seen) == 1
        assert str(seen[0]) == "the lease of 'x' is lost"
        assert now() - started_at <= 10 / 3 + 2 * ROUND_TRIP
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)


@in_virtual_time
async def test_f123_without_renewal_the_body_is_stopped_at_the_end_of_the_validity() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        started_at = now()
        with pytest.raises(LeaseLost, match="validity ended"):
            await under(redlock("x", ttl=1, renew=False), long)
        assert now() - started_at == pytest.approx(1 - 0.012 + ROUND_TRIP)


@in_virtual_time
async def test_after_a_blocked_loop_the_body_is_stopped_within_two_turns() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        turns = 0

        async def body(_: Lease) -> None:
            nonlocal turns
            the_loop().block(11)
            while True:
                await asyncio.sleep(0)
                turns += 1

        with pytest.raises(LeaseLost):
            await under(redlock("x"), body)
        assert turns <= 2
        assert rounds_at(nodes, Verb.RENEW) == []


@in_virtual_time
async def test_f057_a_body_that_turns_the_cancellation_into_its_own_error_keeps_it() -> None:
    """With a note of the loss; nothing of our cancellation is left behind."""
    nodes = nearby()
    async with client(nodes) as redlock:

        async def body(lease: Lease) -> None:
            try:
                await long(lease)
            except asyncio.CancelledError:
                raise BodyError from None

        the_loop().call_later(1, free, nodes)
        with pytest.raises(BodyError) as caught:
            await under(redlock("x"), body)
        (note,) = caught.value.__notes__
        assert note.startswith("meanwhile the lease of 'x' was lost: too many nodes no longer have")
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_body_that_swallows_the_cancellation_gets_the_loss_at_the_exit() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:

        async def body(lease: Lease) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await long(lease)

        the_loop().call_later(1, free, nodes)
        with pytest.raises(LeaseLost):
            await under(redlock("x"), body)
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_body_that_ends_as_the_loss_is_told_leaves_no_stray_cancellation() -> None:
    """The cancellation was requested and did not arrive in the body: nor may it anywhere else."""
    nodes = nearby()
    async with client(nodes) as redlock:

        async def body(_: Lease) -> None:
            lock._entries[-1].cancel_body()

        lock = redlock("x")
        await under(lock, body)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_loss_found_by_release_cancels_nothing_after_the_exit() -> None:
    """The deadline is over, no timer has fired, and with no node there nothing is waited for."""
    nodes = nearby()
    async with client(nodes) as redlock:

        async def body(lease: Lease) -> None:
            cut(nodes)
            the_loop().block(2)
            await lease.release()

        with pytest.raises(LeaseLost):
            await under(redlock("x", ttl=1, renew=False), body)
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_loss_found_by_release_stops_a_body_that_goes_on() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:

        async def body(lease: Lease) -> None:
            cut(nodes)
            the_loop().block(2)
            await lease.release()
            await long(lease)

        began_at = now()
        with pytest.raises(LeaseLost):
            await under(redlock("x", ttl=1, renew=False), body)
        assert now() - began_at == pytest.approx(2 + ROUND_TRIP)


@pytest.mark.parametrize("first", ["loss", "outside"])
@in_virtual_time
async def test_a_cancellation_from_outside_wins(first: str) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        task = asyncio.create_task(under(redlock("x", ttl=1, renew=False), long))
        await asyncio.sleep(0.5)
        lose_it, cancel_it = (lambda: the_loop().block(0.6)), task.cancel
        for step in (lose_it, cancel_it) if first == "loss" else (cancel_it, lose_it):
            step()
        await asyncio.wait([task])
        assert task.cancelled()


@in_virtual_time
async def test_a_cancellation_from_outside_during_the_loss_is_delivered_once() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        outcome: list[str] = []

        async def outer() -> None:
            try:
                await under(redlock("x", ttl=1, renew=False), long)
            except asyncio.CancelledError:
                outcome.append("cancelled")
                await asyncio.sleep(0.1)
                outcome.append("went on")
                raise

        task = asyncio.create_task(outer())
        await settle(10)
        await asyncio.sleep(0.9)
        the_loop().call_later(1 - 0.9 - 0.012, task.cancel)
        await asyncio.wait([task])
        assert outcome == ["cancelled", "went on"]
        assert task.cancelled()


@in_virtual_time
async def test_a_timeout_around_the_body_keeps_its_rules() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await under(redlock("x"), long)
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(2):
                await under(redlock("y", ttl=1, renew=False), long)
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 5


@in_virtual_time
async def test_a_loss_after_the_exit_hurts_nobody() -> None:
    """Left in time; the deadline passes while the answers to the deletes are awaited."""
    nodes = nearby()
    async with client(nodes) as redlock:
        async with redlock("x", ttl=1, renew=False) as lease:
            await asyncio.sleep(lease.remaining() - ROUND_TRIP / 2)
        assert lease.is_released
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_loss_when_the_entering_task_is_done_cancels_nobody() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lock = redlock("x", ttl=1, renew=False)
        lease = await asyncio.create_task(lock.__aenter__())
        await asyncio.sleep(2)
        assert lease.is_lost
        with pytest.raises(LeaseLost):
            await lock.__aexit__(None, None, None)


@in_virtual_time
async def test_after_a_loss_another_task_may_leave_for_the_one_that_is_done() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lock = redlock("x", ttl=1, renew=False)
        entered = the_loop().create_future()

        async def enter() -> None:
            entered.set_result(await lock.__aenter__())
            await asyncio.sleep(100)

        task = asyncio.create_task(enter())
        lease = await entered
        await asyncio.wait([task])
        assert task.cancelled()
        assert lease.is_lost
        with pytest.raises(LeaseLost):
            await lock.__aexit__(None, None, None)


@in_virtual_time
async def test_after_a_loss_another_task_may_leave_for_the_one_that_goes_on() -> None:
    """Our cancellation of that one is taken back."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lock = redlock("x", ttl=1, renew=False)
        stopped = asyncio.Event()

        async def enter() -> int:
            await lock.__aenter__()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100)
            stopped.set()
            await asyncio.sleep(1)
            task = asyncio.current_task()
            assert task is not None
            return task.cancelling()

        task = asyncio.create_task(enter())
        await stopped.wait()
        with pytest.raises(LeaseLost):
            await lock.__aexit__(None, None, None)
        assert await task == 0


@in_virtual_time
async def test_a_cancellation_from_outside_that_had_not_arrived_either_is_delivered() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lock = redlock("x")

        async def body(_: Lease) -> None:
            task = asyncio.current_task()
            assert task is not None
            lock._entries[-1].cancel_body()
            task.cancel()

        task = asyncio.create_task(under(lock, body))
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 5


@in_virtual_time
async def test_a_cancellation_from_outside_during_the_exit_is_delivered() -> None:
    """It comes in the very turn in which ours is taken back."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lock = redlock("x")

        async def body(_: Lease) -> None:
            task = asyncio.current_task()
            assert task is not None
            lock._entries[-1].cancel_body()
            the_loop().call_soon(task.cancel)

        task = asyncio.create_task(under(lock, body))
        await asyncio.wait([task])
        assert task.cancelled()


@in_virtual_time
async def test_a_loss_by_hand_cancels_nobody() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", ttl=1, renew=False).acquire()
        await asyncio.sleep(2)
        assert lease.is_lost
        await lease.release()


# --- loss: notify, ignore -----------------------------------------------------------------------


@in_virtual_time
async def test_f069_notify_lets_the_body_finish_and_raises_at_the_exit() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        finished = False

        async def body(lease: Lease) -> None:
            nonlocal finished
            assert await lease.lost()
            await asyncio.sleep(5)
            finished = True

        with pytest.raises(LeaseLost):
            await under(redlock("x", ttl=1, renew=False, on_lost="notify"), body)
        assert finished


@in_virtual_time
async def test_f069_ignore_leaves_quietly() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        async with redlock("x", ttl=1, renew=False, on_lost="ignore") as lease:
            await asyncio.sleep(5)
        assert lease.is_lost


@pytest.mark.parametrize(("on_lost", "notes"), [("notify", 1), ("ignore", 0)])
@in_virtual_time
async def test_f057_the_bodys_own_error_is_never_replaced(on_lost: Any, notes: int) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:

        async def body(_: Lease) -> None:
            await asyncio.sleep(5)
            raise BodyError

        with pytest.raises(BodyError) as caught:
            await under(redlock("x", ttl=1, renew=False, on_lost=on_lost), body)
        assert len(getattr(caught.value, "__notes__", [])) == notes
