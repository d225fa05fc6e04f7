"""How a fenced lock comes by its fence, in virtual time: who is asked again, and what then counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from aioredlock2 import ConfigurationError, LockContended, QuorumUnreachable, Redlock
from aioredlock2._node import Verb
from tests.support.model_node import LOST, ModelNode, Way, client, sent
from tests.support.scene import KEY, ROUND_TRIP, SLACK, hold_elsewhere, holders, nearby, now
from tests.support.virtual import VirtualRuntime, in_virtual_time, settle, the_loop

COUNTERS = 1000
"""What the nodes have counted to before, where a test says so."""


def counted(nodes: Sequence[ModelNode], *counters: int) -> None:
    """The nodes' counters stand there."""
    for node, counter in zip(nodes, counters, strict=True):
        node.server.counters[KEY] = counter


@asynccontextmanager
async def two_that_disagree() -> AsyncGenerator[tuple[list[ModelNode], Redlock]]:
    """Three nodes of which the third is away: the first has to confirm what the second gives."""
    nodes = nearby(3)
    counted(nodes, 1, 5, 1)
    async with client(nodes) as redlock:
        nodes[2].cut()
        yield nodes, redlock


def confirmations(nodes: Sequence[ModelNode]) -> list[int]:
    """How many each node was asked for."""
    return [len(each) for each in sent(nodes, Verb.CONFIRM)]


@in_virtual_time
async def test_one_round_trip_where_the_nodes_agree() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        began_at = now()
        fences = []
        for _ in range(3):
            async with redlock("x", fenced=True) as lease:
                fences.append(lease.fence)
        assert fences == [fences[0], fences[0] + 1, fences[0] + 2]
        assert now() - began_at <= 6 * ROUND_TRIP + SLACK
    assert confirmations(nodes) == [0] * 5
    assert [len(each) for each in sent(nodes, Verb.GRANT)] == [0] * 5


@in_virtual_time
async def test_a_fence_begins_at_the_wall_clock() -> None:
    """So that a counter which was forgotten starts above what it ever was."""
    nodes = nearby()
    runtime = VirtualRuntime(the_loop())
    async with client(nodes, runtime) as redlock:
        before = runtime.wall_clock()
        async with redlock("x", fenced=True) as lease:
            assert before * 1e6 <= lease.fence <= runtime.wall_clock() * 1e6 + 1


@in_virtual_time
async def test_two_round_trips_where_they_differ_and_only_those_behind_are_asked() -> None:
    nodes = nearby()
    counted(nodes, COUNTERS, COUNTERS + 4, COUNTERS, COUNTERS + 4, COUNTERS)
    async with client(nodes) as redlock:
        began_at = now()
        async with redlock("x", fenced=True) as lease:
            assert lease.fence == COUNTERS + 5
            assert now() - began_at == pytest.approx(2 * ROUND_TRIP, abs=SLACK)
        await settle(10)
    assert sum(confirmations(nodes)) >= 1
    assert confirmations([nodes[1], nodes[3]]) == [0, 0]
    level = [node for node in nodes if node.server.counters[KEY] == COUNTERS + 5]
    assert len(level) >= 3, "a quorum remembers it"


@in_virtual_time
async def test_h36_the_next_fence_is_larger_whatever_quorum_grants() -> None:
    """Every pair of quorums of three nodes, with counters far apart: no fence is given twice."""
    for apart in (COUNTERS, 1, 10**12):
        for one in range(3):
            for other in range(3):
                nodes = nearby(3)
                counted(nodes, 1, 1, apart)
                async with client(nodes) as redlock:
                    fences = []
                    for silent in (one, other):
                        nodes[silent].cut()
                        async with redlock("x", fenced=True) as lease:
                            fences.append(lease.fence)
                        await settle(10)
                        nodes[silent].restore()
                    assert fences[0] < fences[1]


@in_virtual_time
async def test_h36_a_node_that_lost_the_key_meanwhile_does_not_count() -> None:
    """It may have granted somebody else: without it there is no quorum for this fence."""
    async with two_that_disagree() as (nodes, redlock):
        nodes[0].then(Verb.CONFIRM, Way(there=0.01))
        attempt = asyncio.create_task(redlock("x", fenced=True, wait=0).acquire())
        await asyncio.sleep(2 * ROUND_TRIP)
        nodes[0].server.take(KEY)
        with pytest.raises(QuorumUnreachable, match="too few nodes confirmed its fence"):
            await attempt
        await asyncio.sleep(0.1)
        assert holders(nodes) == [None] * 3


@in_virtual_time
async def test_h36_a_stragglers_larger_counter_is_not_overlooked() -> None:
    """It comes while the confirmation is under way, which then fails: the fence is the straggler's."""
    nodes = nearby(3)
    counted(nodes, 1, 5, 100)
    async with client(nodes) as redlock:
        nodes[2].then(Verb.GRANT_FENCED, Way(there=0.01))
        nodes[0].then(Verb.CONFIRM, Way(there=0.02, fault="BUSY"))
        lease = await redlock("x", fenced=True).acquire()
        assert lease.fence == 101
        await lease.release()


@in_virtual_time
async def test_silence_is_no_confirmation() -> None:
    async with two_that_disagree() as (nodes, redlock):
        nodes[0].then(Verb.CONFIRM, LOST)
        began_at = now()
        with pytest.raises(QuorumUnreachable, match="too few nodes confirmed its fence"):
            await redlock("x", fenced=True, wait=0).acquire()
        assert now() - began_at <= 0.05 + 2 * ROUND_TRIP + SLACK
        nodes[0].cut()
        await asyncio.sleep(0.1)
        assert nodes[1].server.get(KEY) is None


@in_virtual_time
async def test_a_failed_confirmation_is_tried_again_while_there_is_time() -> None:
    async with two_that_disagree() as (nodes, redlock):
        nodes[0].then(Verb.CONFIRM, Way(fault="BUSY"))
        async with redlock("x", fenced=True, wait=5) as lease:
            assert lease.fence > 6


@in_virtual_time
async def test_h22_cancelled_while_the_fence_is_settled_nothing_is_kept() -> None:
    for step in range(8):
        nodes = nearby(3)
        counted(nodes, 1, 5, 9)
        async with client(nodes) as redlock:
            attempt = asyncio.create_task(redlock("x", fenced=True).acquire())
            await asyncio.sleep(step * ROUND_TRIP / 4 + SLACK)
            attempt.cancel()
            done = await asyncio.gather(attempt, return_exceptions=True)
            if not isinstance(done[0], BaseException):
                await done[0].release()
            await asyncio.sleep(0.1)
            assert holders(nodes) == [None] * 3


@in_virtual_time
async def test_extension_and_planting_leave_the_fence_alone() -> None:
    nodes = nearby(3)
    counted(nodes, 1, 5, 9)
    async with client(nodes, ttl=1) as redlock, redlock("x", fenced=True) as lease:
        fence, counters = lease.fence, [node.server.counters[KEY] for node in nodes]
        await lease.extend()
        nodes[0].server.take(KEY)
        await asyncio.sleep(2)
        assert holders(nodes)[0] is not None, "planted again"
        assert lease.fence == fence
        assert [node.server.counters[KEY] for node in nodes] == counters


@in_virtual_time
async def test_losers_raise_counters_and_harm_nobody() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        async with redlock("x", fenced=True) as first:
            fence = first.fence
            async with client(
                [ModelNode(n.name, n.server) for n in nodes], VirtualRuntime(the_loop(), "rival")
            ) as rival:
                with pytest.raises(LockContended):
                    await rival("x", fenced=True, wait=0.5).acquire()
        async with redlock("x", fenced=True) as second:
            assert second.fence > fence


@in_virtual_time
async def test_h37_a_minority_that_forgot_does_not_pull_the_fence_back() -> None:
    """Its counter begins again at the clock, which is ahead of all that was counted."""
    nodes = nearby(3)
    async with client(nodes) as redlock:
        fence = 0
        for number in range(30):
            async with redlock("x", fenced=True) as lease:
                assert lease.fence > fence
                fence = lease.fence
            await asyncio.sleep(0.001)
            nodes[number % 3].server.wipe()


@in_virtual_time
async def test_a_lease_without_a_fence_says_how_to_get_one() -> None:
    async with client(nearby(3)) as redlock, redlock("x") as lease:
        with pytest.raises(ConfigurationError, match=r"'x' has no fence: lock with fenced=True"):
            _ = lease.fence


@in_virtual_time
async def test_the_fence_can_be_read_after_the_end() -> None:
    """A write that was under way when the lease ended still needs it."""
    async with client(nearby(3)) as redlock:
        async with redlock("x", fenced=True) as lease:
            fence = lease.fence
        assert lease.is_released
        assert lease.fence == fence


@in_virtual_time
async def test_h38_an_unset_clock_is_refused_before_anything_is_sent() -> None:
    nodes = nearby(3)
    runtime = VirtualRuntime(the_loop())
    runtime.wall_clock = lambda: 3600.0
    async with client(nodes, runtime) as redlock:
        with pytest.raises(ConfigurationError, match="it must be set"):
            await redlock("x", fenced=True).acquire()
        assert not any(node.asked for node in nodes)
        async with redlock("x") as lease:
            assert lease.is_held, "only fences need it, and the name is free"


@in_virtual_time
async def test_a_fenced_and_a_plain_lock_exclude_each_other() -> None:
    nodes = nearby(3)
    hold_elsewhere(nodes)
    async with client(nodes) as redlock:
        with pytest.raises(LockContended):
            await redlock("x", fenced=True, wait=0).acquire()


@in_virtual_time
async def test_a_counter_forgotten_between_grant_and_confirmation_does_not_run_ahead() -> None:
    """It comes to just the fence: ahead of the clock, it would be ahead of later seeds as well."""
    nodes = nearby(3)
    counted(nodes, 1, 10**9, 1)
    async with client(nodes) as redlock:
        nodes[2].cut()
        nodes[0].then(Verb.CONFIRM, Way(there=0.01))
        attempt = asyncio.create_task(redlock("x", fenced=True).acquire())
        await asyncio.sleep(2 * ROUND_TRIP)
        nodes[0].server.counters.clear()
        lease = await attempt
        assert nodes[0].server.counters[KEY] == lease.fence
        await lease.release()


@in_virtual_time
async def test_a_waiter_is_told_of_the_round_it_waited_for_in_its_words() -> None:
    """An unfenced task behind a fenced one whose fence was not confirmed: not "too late"."""
    async with two_that_disagree() as (nodes, redlock):
        nodes[0].then(Verb.CONFIRM, Way(there=0.01, fault="BUSY running a script"))
        first = asyncio.create_task(redlock("x", fenced=True, wait=0).acquire())
        await asyncio.sleep(ROUND_TRIP / 4)
        second = asyncio.create_task(redlock("x").try_acquire())
        for task in (first, second):
            with pytest.raises(QuorumUnreachable, match="too few nodes confirmed its fence") as e:
                await task
            assert "BUSY running a script" in str(e.value)
