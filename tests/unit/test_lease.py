"""The handle: what it says by the clock, what its calls do, and the report of a release."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from datetime import timedelta
from typing import Any

import pytest

from aioredlock2 import (
    ConfigurationError,
    Lease,
    LeaseLost,
    LeaseReleased,
    NodeRelease,
    Removal,
    Vote,
)
from aioredlock2._core.ballot import revoke_rule
from aioredlock2._engine import NEVER_SENT, Round
from aioredlock2._lease import ReleaseReport
from aioredlock2._node import ABSENT, Request, Verb
from aioredlock2._runtime import digest
from tests.support.model_node import ModelNode, Way, client, sent
from tests.support.scene import (
    FOREIGN,
    KEY,
    NODE_TIMEOUT,
    ROUND_TRIP,
    SLACK,
    cut,
    free,
    hold_elsewhere,
    nearby,
    now,
)
from tests.support.virtual import in_virtual_time, settle, the_loop

G, D, F, M, P = Vote.GRANTED, Vote.DENIED, Vote.FAULTED, Vote.MISSING, Vote.PENDING


# --- by the clock -------------------------------------------------------------------------------


@in_virtual_time
async def test_what_it_says_while_it_is_held() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        assert (lease.is_held, lease.is_lost, lease.is_released) == (True, False, False)
        assert lease.resource == "x"
        assert lease.valid_until == pytest.approx(now() - ROUND_TRIP + 10 - 0.102)
        assert lease.remaining() == pytest.approx(lease.valid_until - now())
        assert repr(lease) == "<Lease 'x' held, 9.896 s left>"
        await lease.release()
        assert (lease.is_held, lease.is_lost, lease.is_released) == (False, False, True)
        assert lease.remaining() == 0
        assert repr(lease) == "<Lease 'x' released>"


@in_virtual_time
async def test_f115_it_is_computed_from_the_clock_at_each_read() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        lefts = []
        while lease.is_held:
            lefts.append(lease.remaining())
            for node in nodes:
                stored = node.server.get(KEY)
                assert stored is not None
                assert lease.remaining() < stored[1]
            the_loop().block(0.25)
        assert lefts == sorted(lefts, reverse=True)
        assert len(lefts) == 40
        assert repr(lease) == "<Lease 'x' lost>"
        await lease.release()


@in_virtual_time
async def test_f117_neither_repr_nor_digest_gives_the_token_away() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        token = nodes[0].asked[0].token
        assert lease.digest == digest(token)
        found = await redlock.inspect("x")
        assert found.holder == lease.digest
        report = await lease.release()
        for text in (repr(lease), lease.digest, repr(report), repr(lease.votes), repr(found)):
            assert token.decode() not in text


@in_virtual_time
async def test_votes_are_of_the_latest_round_that_counted_and_fill_in() -> None:
    nodes = nearby()
    nodes[1].way = Way(back=0.02)
    nodes[2].then(Verb.GRANT, Way(fault="LOADING"))
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        assert [vote.vote for vote in lease.votes] == [G, P, F, G, G]
        assert lease.votes[2].cause == "LOADING"
        await asyncio.sleep(0.02)
        assert [vote.vote for vote in lease.votes] == [G, G, F, G, G]
        await lease.extend()
        assert [vote.vote for vote in lease.votes] == [G, P, D, G, G]
        await lease.release()


# --- lost ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_f051_lost_waits_for_the_end_and_tells_which() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        waiters = [asyncio.create_task(lease.lost()) for _ in range(3)]
        await asyncio.sleep(30)
        assert not any(waiter.done() for waiter in waiters)
        waiters[0].cancel()
        await settle()
        await lease.release()
        assert await waiters[1] is False
        assert await waiters[2] is False
        assert await lease.lost() is False
        second = await redlock("x", renew=False).acquire()
        assert await second.lost() is True
        assert await second.lost() is True
        await second.release()
        assert await second.lost() is True


# --- extend -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [20, 20.0, timedelta(seconds=20)])
@in_virtual_time
async def test_f037_extend_sets_the_remaining_time(ttl: Any) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await lease.extend(ttl)
        assert lease.remaining() == pytest.approx(20 - 0.202 - ROUND_TRIP)
        await asyncio.sleep(5)
        await lease.extend()
        assert lease.remaining() == pytest.approx(20 - 0.202 - ROUND_TRIP)
        await lease.release()


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e300, 0.001, timedelta(0)])
@in_virtual_time
async def test_f034_an_extension_that_makes_no_sense_sends_nothing(ttl: Any) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        before = lease.valid_until
        with pytest.raises(ConfigurationError, match="ttl="):
            await lease.extend(ttl)
        assert not any(sent(nodes, Verb.RENEW))
        assert lease.is_held
        assert lease.valid_until == before
        await lease.release()


@pytest.mark.parametrize("ttl", [True, "10", [1]])
@in_virtual_time
async def test_f034_an_extension_of_a_wrong_type_sends_nothing(ttl: Any) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        with pytest.raises(TypeError, match="ttl"):
            await lease.extend(ttl)
        assert not any(sent(nodes, Verb.RENEW))
        await lease.release()


@in_virtual_time
async def test_an_extension_beyond_max_hold_is_refused() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", max_hold=60).acquire()
        await lease.extend(60)
        with pytest.raises(ConfigurationError, match="ttl=61: must be no longer than"):
            await lease.extend(61)
        await lease.release()


@in_virtual_time
async def test_a_longer_extension_lengthens_the_restart_guard() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await lease.extend(60)
        assert redlock.session().guard_period() == 61
        await lease.release()


@in_virtual_time
async def test_f062_a_call_without_a_ttl_does_not_undo_one_that_waits() -> None:
    """All three share two rounds; whoever asked for a minute and got no error has it."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await asyncio.gather(lease.extend(), lease.extend(60), lease.extend())
        assert lease.remaining() > 59
        await lease.release()


@in_virtual_time
async def test_f124_each_call_in_each_state_has_its_result() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        released = await redlock("x").acquire()
        await released.release()
        with pytest.raises(LeaseReleased, match="lease of 'x': it was released"):
            await released.extend()
        assert (await released.release()).outcome == "clean"
        lost = await redlock("x").acquire()
        free(nodes)
        assert await lost.lost()
        with pytest.raises(LeaseLost, match="too many nodes no longer have its key"):
            await lost.extend()
        assert (await lost.release()).outcome == "lost"
        with pytest.raises(LeaseLost):
            await lost.extend()
        assert lost.is_lost
        assert not lost.is_released


# --- release ------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_release_returns_at_the_quorum_and_its_report_fills_in() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await settle()
        nodes[3].way = Way(back=0.02)
        nodes[4].server.freeze()
        began_at = now()
        report = await lease.release()
        assert now() - began_at == pytest.approx(ROUND_TRIP)
        removals = [node.removal.value for node in report.nodes]
        assert removals == ["deleted", "deleted", "deleted", "pending", "pending"]
        assert report.outcome == "clean"
        assert repr(report) == (
            "<ReleaseReport clean: n1: deleted, n2: deleted, n3: deleted, n4: pending, n5: pending>"
        )
        await asyncio.sleep(NODE_TIMEOUT)
        assert report.nodes[3:] == (
            NodeRelease("n4", Removal.DELETED),
            NodeRelease("n5", Removal.UNREACHABLE, "no answer in time"),
        )


@in_virtual_time
async def test_f072_a_release_takes_one_node_timeout_at_most_and_never_raises() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await settle()
        cut(nodes[:1])
        for node in nodes[1:]:
            node.server.freeze()
        began_at = now()
        report = await lease.release()
        assert now() - began_at <= NODE_TIMEOUT + SLACK
        assert report.outcome == "unknown"
        assert [node.cause for node in report.nodes] == ["reset"] + ["no answer in time"] * 2


@in_virtual_time
async def test_f070_the_report_tells_what_was_found_on_each_node() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await asyncio.sleep(ROUND_TRIP)
        free(nodes[:1])
        hold_elsewhere(nodes[1:2])
        cut(nodes[2:3])
        report = await lease.release()
        await asyncio.sleep(ROUND_TRIP)
        assert [node.removal.value for node in report.nodes] == [
            "absent",
            "other owner",
            "unreachable",
            "deleted",
            "deleted",
        ]
        stored = nodes[1].server.get(KEY)
        assert stored is not None
        assert stored[0] == FOREIGN


@in_virtual_time
async def test_where_the_token_never_went_nothing_is_deleted() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        cut(nodes[:1])
        lease = await redlock("x").acquire()
        nodes[0].restore()
        report = await lease.release()
        await asyncio.sleep(ROUND_TRIP)
        assert report.nodes[0] == NodeRelease("n1", Removal.NEVER_SENT)
        assert report.outcome == "clean"
        assert sent(nodes, Verb.REVOKE)[0] == []


GONE, FOREIGN_ONE, UNSENT = (D, ABSENT), (D, "another value"), (D, NEVER_SENT)


@pytest.mark.parametrize(
    ("votes", "outcome"),
    [
        ([G, G, G, P, P], "clean"),
        ([G, G, G, GONE, FOREIGN_ONE], "clean"),
        ([G, G, UNSENT, UNSENT, G], "clean"),
        ([GONE, GONE, GONE, P, P], "expired"),
        ([G, G, GONE, P, P], "expired"),
        ([G, UNSENT, GONE, (F, "reset"), P], "expired"),
        ([G, G, FOREIGN_ONE, P, P], "expired"),
        ([FOREIGN_ONE, FOREIGN_ONE, FOREIGN_ONE, P, P], "lost"),
        ([G, G, P, P, P], "unknown"),
        ([G, G, (M, "no answer in time"), (F, "reset"), (F, "reset")], "unknown"),
        ([P, P, P, P, P], "unknown"),
    ],
)
@pytest.mark.parametrize("lost", [False, True])
def test_f070_in_one_word(votes: list[Any], outcome: str, lost: bool) -> None:
    nodes: Any = tuple(ModelNode(f"n{number}", object()) for number in range(5))  # type: ignore[arg-type]
    revoked = Round(5, revoke_rule, Request(Verb.REVOKE, KEY, b"t"), 0.0)
    for index, vote in enumerate(votes):
        if vote is not P:
            revoked.cast(index, *(vote if isinstance(vote, tuple) else (vote,)))
    report = ReleaseReport(nodes, revoked, lost=lost)
    assert report.outcome == ("lost" if lost else outcome)


# --- the handle itself --------------------------------------------------------------------------


@in_virtual_time
async def test_f090_a_lease_cannot_be_pickled() -> None:
    nodes = nearby(1)
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        with pytest.raises(TypeError, match="a Lease can't be pickled"):
            pickle.dumps(lease)
        await lease.release()


@in_virtual_time
async def test_f085_it_may_be_used_from_any_task_of_its_loop() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await asyncio.create_task(redlock("x").acquire())
        await asyncio.create_task(lease.extend())
        report = await asyncio.create_task(lease.release())
        assert report.outcome == "clean"


@in_virtual_time
async def test_f048_the_handle_keeps_the_client_alive() -> None:
    nodes = nearby()

    async def acquire() -> tuple[Lease, weakref.ref[object]]:
        redlock = client(nodes)
        return await redlock("x").acquire(), weakref.ref(redlock)

    lease, redlock = await acquire()
    for _ in range(10):
        gc.collect()
        await asyncio.sleep(5)
    assert lease.is_held
    await lease.release()
    alive: Any = redlock()
    await alive.aclose()
