"""The queue inside one client, as its callers see it: order, patience, and going away."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2 import (
    Lease,
    LockContended,
    QuorumUnreachable,
    Redlock,
    RetryPolicy,
    Vote,
)
from aioredlock2._node import Verb
from aioredlock2._turns import WAITERS_MAX
from tests.support.model_node import client
from tests.support.scene import (
    ROUND_TRIP,
    SLACK,
    free,
    hold_elsewhere,
    holders,
    nearby,
    now,
    refused,
    rounds_at,
)
from tests.support.virtual import in_virtual_time, run, settle


async def in_line(redlock: Redlock, names: str) -> list[asyncio.Task[Lease]]:
    tasks = [asyncio.create_task(redlock("x").acquire(), name=name) for name in names]
    await settle()
    return tasks


@in_virtual_time
async def test_h33_behind_a_lease_of_this_client_nothing_is_sent() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        first = await redlock("x", renew=False).acquire()
        (second,) = await in_line(redlock, "b")
        await asyncio.sleep(1.5)
        assert len(rounds_at(nodes)) == 1
        released_at = now()
        await first.release()
        lease = await second
        assert rounds_at(nodes)[1:] == [pytest.approx(released_at)]
        await lease.release()


@in_virtual_time
async def test_waiters_are_served_in_order() -> None:
    nodes, served = nearby(3), list[str]()
    async with client(nodes) as redlock:
        first = await redlock("x").acquire()

        async def one(name: str) -> None:
            async with redlock("x"):
                served.append(name)
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(one(name)) for name in "abcdef"]
        await settle()
        await first.release()
        await asyncio.gather(*tasks)
        assert served == list("abcdef")


@in_virtual_time
async def test_the_next_in_line_queues_its_set_behind_the_delete() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        first = await redlock("x").acquire()
        (second,) = await in_line(redlock, "b")
        await first.release()
        await (await second).release()
        for node in nodes:
            verbs = [asked.verb for asked in node.asked[:4]]
            assert verbs == [Verb.GRANT, Verb.REVOKE, Verb.GRANT, Verb.REVOKE]


@in_virtual_time
async def test_f095_without_a_wait_a_name_that_this_client_holds_is_contended_at_once() -> None:
    nodes = nearby()
    async with client(nodes) as redlock, redlock("x"):
        await asyncio.sleep(1)
        error, took = await refused(redlock("x", wait=0).acquire())
        assert took < SLACK
        assert type(error) is LockContended
        assert (error.rounds, error.outcomes) == (0, ())
        assert error.hint == (
            "this client itself holds it, since 1.002 s; locks are not re-entrant: "
            "pass the lease down instead of locking again"
        )
        assert await redlock("x").try_acquire() is None


@in_virtual_time
async def test_f095_the_wait_of_a_nested_call_ends_and_the_outer_lease_stays() -> None:
    nodes = nearby()
    async with client(nodes) as redlock, redlock("x", ttl=2) as outer:
        error, took = await refused(redlock("x", wait=5).acquire())
        assert took == pytest.approx(5)
        assert "this client itself holds it" in str(error)
        assert outer.is_held


@in_virtual_time
async def test_a_waiter_gets_its_turn_when_the_lease_ahead_is_lost() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        first = await redlock("x", ttl=1, renew=False).acquire()
        (second,) = await in_line(redlock, "b")
        started_at = first.valid_until
        lease = await second
        assert first.is_lost
        # The keys stay for drift's time; then the first retry gets them.
        assert started_at <= now() <= started_at + 0.012 + RetryPolicy().cap + 2 * ROUND_TRIP
        await lease.release()


@in_virtual_time
async def test_whoever_waited_in_vain_is_told_what_the_head_found() -> None:
    nodes = nearby(3)
    hold_elsewhere(nodes)
    async with client(nodes) as redlock:
        head = asyncio.create_task(redlock("x", wait=5).acquire())
        await settle()
        error, took = await refused(redlock("x", wait=1).acquire())
        assert took == pytest.approx(1)
        assert error.rounds == 0
        assert [outcome.vote for outcome in error.outcomes] == [Vote.DENIED] * 3
        assert error.hint == "other tasks of this client are ahead in the queue for it"
        await refused(head)


@in_virtual_time
async def test_f016_a_head_that_finds_nodes_down_tells_those_behind() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        for node in nodes:
            node.server.freeze()
        head = asyncio.create_task(redlock("x", wait=5).acquire())
        await settle()
        error, _ = await refused(redlock("x", wait=1).acquire())
        assert type(error) is QuorumUnreachable
        await refused(head)


@in_virtual_time
async def test_without_a_wait_the_round_under_way_serves_both() -> None:
    """A thousand tasks that try once don't make a thousand rounds."""
    nodes = nearby(3)
    hold_elsewhere(nodes)
    async with client(nodes) as redlock:
        tries = [asyncio.create_task(redlock("x").try_acquire()) for _ in range(100)]
        assert await asyncio.gather(*tries) == [None] * 100
        assert len(rounds_at(nodes)) == 1


@in_virtual_time
async def test_without_a_wait_one_of_many_gets_a_free_lock() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        tries = [asyncio.create_task(redlock("x").try_acquire()) for _ in range(100)]
        won = [lease for lease in await asyncio.gather(*tries) if lease is not None]
        assert len(won) == 1
        await won[0].release()


@in_virtual_time
async def test_a_client_whose_queue_never_empties_lets_others_try() -> None:
    """After a fifth of the ttl in one unbroken series the next in line pauses once."""
    nodes = nearby(3)
    async with client(nodes, ttl=1) as redlock:
        stop_at = now() + 1

        async def work() -> None:
            while now() < stop_at:
                async with redlock("x"):
                    await asyncio.sleep(0.005)

        await asyncio.gather(work(), work())
        ends = [asked.at for asked in nodes[0].asked if asked.verb is Verb.REVOKE]
        gaps = [start - max(end for end in ends if end <= start) for start in rounds_at(nodes)[1:]]
        pauses = [gap for gap in gaps if gap > SLACK]
        assert 2 <= len(pauses) <= 5
        assert pauses == [pytest.approx(RetryPolicy().cap)] * len(pauses)


# --- cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 0.0005, 0.0015, 0.0025, 0.5])
@in_virtual_time
async def test_f047_a_cancelled_head_leaves_no_key_and_passes_the_turn_on(after: float) -> None:
    """Cancelled before the send, in the round, or in a pause."""
    nodes = nearby()
    hold_elsewhere(nodes[:3])
    async with client(nodes) as redlock:
        head, second = await in_line(redlock, "ab")
        await asyncio.sleep(after)
        head.cancel()
        await settle()
        assert head.cancelled()
        free(nodes[:3])
        lease = await second
        assert lease.is_held
        await lease.release()
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 5


STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.001, 0.002, 0.003])), max_size=5
)


@given(STEPS, st.booleans())
def test_cancelling_any_waiter_at_any_time_stops_nobody_else(
    cancels: list[tuple[int, float]], contended: bool
) -> None:
    async def main() -> None:
        nodes = nearby(3)
        async with client(nodes) as redlock:
            if contended:
                hold_elsewhere(nodes[:2], ttl=0.02)
            served: list[int] = []

            async def one(number: int) -> None:
                async with redlock("x", wait=None):
                    served.append(number)
                    await asyncio.sleep(0.002)

            tasks = [asyncio.create_task(one(number)) for number in range(5)]
            for number, pause in cancels:
                await asyncio.sleep(pause)
                tasks[number].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert served == sorted(served)
            assert all(task.cancelled() or number in served for number, task in enumerate(tasks))
            await asyncio.sleep(0.1)
            assert holders(nodes) == [None] * 3
            async with redlock("x", wait=0):
                pass

    run(main())


@in_virtual_time
async def test_h25_a_queue_that_only_grows_has_an_end() -> None:
    """Whoever comes then is told at once; those in line stay, and other names are free."""
    nodes = nearby(1)
    async with client(nodes) as redlock:
        holder = await redlock("x").acquire()
        waiting = [asyncio.ensure_future(redlock("x").acquire()) for _ in range(WAITERS_MAX)]
        await settle()
        with pytest.raises(LockContended, match=f"{WAITERS_MAX} tasks of this client wait for it"):
            await redlock("x", wait=None).acquire()
        async with redlock("y"):
            pass
        await holder.release()
        first = await waiting[0]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await first.release()
