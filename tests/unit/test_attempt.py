"""From the call of acquire to a lease or an error: rounds, pauses, budget, and the error's class."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

from aioredlock2 import (
    AcquiredTooLate,
    AcquireError,
    LockContended,
    QuorumUnreachable,
    RetryPolicy,
    Vote,
)
from aioredlock2._node import Verb
from tests.support.model_node import MUTE, Way, client, model_nodes, sent
from tests.support.scene import (
    KEY,
    NODE_TIMEOUT,
    ROUND_TRIP,
    SLACK,
    cut,
    free,
    hold_elsewhere,
    nearby,
    now,
    refused,
    restore,
    rounds_at,
)
from tests.support.virtual import in_virtual_time, settle, the_loop

# --- validity -----------------------------------------------------------------------------------


@in_virtual_time
async def test_h03_validity_counts_from_before_the_send() -> None:
    """The 30 ms that the round took are not given to the holder."""
    nodes = model_nodes(3)
    for node in nodes:
        node.way = Way(back=0.03)
    async with client(nodes) as redlock:
        started_at = now()
        lease = await redlock("x").acquire()
        assert now() == pytest.approx(started_at + 0.03)
        assert lease.valid_until == pytest.approx(started_at + 10 - 0.1 - 0.002)
        assert lease.remaining() == pytest.approx(10 - 0.102 - 0.03)
        await lease.release()


@in_virtual_time
async def test_f006_validity_begins_anew_with_each_round() -> None:
    nodes = nearby()
    hold_elsewhere(nodes)
    async with client(nodes) as redlock:
        the_loop().call_later(5, free, nodes)
        lease = await redlock("x", ttl=2).acquire()
        assert lease.remaining() > 2 - 0.022 - 2 * ROUND_TRIP
        await lease.release()


@in_virtual_time
async def test_f005_a_quorum_that_comes_after_the_validity_is_no_lock() -> None:
    """The machine slept between the SETs and their answers."""
    nodes = nearby()
    async with client(nodes) as redlock:
        the_loop().call_later(ROUND_TRIP / 2, the_loop().suspend, 10)
        error, _ = await refused(redlock("x").try_acquire())
        assert type(error) is AcquiredTooLate
        assert [outcome.vote for outcome in error.outcomes].count(Vote.GRANTED) >= 3
        assert "the round took 10.002 s of a ttl of 10 s" in str(error)
        await settle()
        await asyncio.sleep(ROUND_TRIP)
        assert [len(revokes) for revokes in sent(nodes, Verb.REVOKE)] == [1] * 5


@in_virtual_time
async def test_f054_after_a_round_that_came_too_late_the_next_one_is_tried() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        the_loop().call_later(ROUND_TRIP / 2, the_loop().suspend, 10)
        began_at = the_loop().time()
        lease = await redlock("x").acquire()
        assert lease.remaining() > 9.8
        # The sleep was this machine's own: no reason to think that rivals are as far away.
        assert the_loop().time() - began_at < 2 * NODE_TIMEOUT + 2 * ROUND_TRIP + SLACK
        assert len(rounds_at(nodes)) == 2
        await lease.release()


@pytest.mark.parametrize(("slept", "won"), [(9.895, True), (9.897, False)])
@in_virtual_time
async def test_a_round_counts_up_to_its_deadline(slept: float, won: bool) -> None:
    """Ttl 10: drift takes 0.102, the round trip 0.002."""
    nodes = nearby(1)
    async with client(nodes) as redlock:
        the_loop().call_later(ROUND_TRIP / 2, the_loop().suspend, slept)
        if won:
            lease = await redlock("x").acquire()
            assert 0 < lease.remaining() < 0.002
            await lease.release()
        else:
            await refused(redlock("x", wait=0).acquire())


# --- rounds and pauses --------------------------------------------------------------------------


@in_virtual_time
async def test_f020_a_free_lock_takes_one_round_trip_and_no_pause() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        started_at = now()
        lease = await redlock("x").acquire()
        assert now() - started_at == pytest.approx(ROUND_TRIP)
        assert rounds_at(nodes) == [started_at]
        await lease.release()


@in_virtual_time
async def test_f021_the_wait_is_used_up_and_the_last_thing_tried_is_a_round() -> None:
    nodes = nearby()
    hold_elsewhere(nodes)
    async with client(nodes) as redlock:
        started_at = now()
        error, took = await refused(redlock("x", wait=1.5).acquire())
        assert took == pytest.approx(1.5 + ROUND_TRIP)
        assert rounds_at(nodes)[-1] == pytest.approx(started_at + 1.5)
        assert error.rounds == len(rounds_at(nodes)) > 5
        assert error.elapsed == pytest.approx(took)


@in_virtual_time
async def test_f021_pauses_keep_to_the_policy() -> None:
    """Never below the floor, never above the cap, never all alike."""
    nodes = nearby()
    hold_elsewhere(nodes)
    policy = RetryPolicy(floor=0.02, cap=0.1)
    async with client(nodes, retry=policy) as redlock:
        await refused(redlock("x", wait=10).acquire())
        pauses = [
            after - before - ROUND_TRIP for before, after in itertools.pairwise(rounds_at(nodes))
        ]
        assert all(policy.floor - SLACK <= pause <= policy.cap + SLACK for pause in pauses[:-1])
        assert max(pauses) > 3 * min(pauses[:-1])
        assert len({round(pause, 4) for pause in pauses}) > len(pauses) / 2


@in_virtual_time
async def test_a_pause_outlasts_a_rivals_round() -> None:
    """Nodes that need 40 ms need them for the others too."""
    nodes = model_nodes(5)
    for node in nodes:
        node.way = Way(0.02, 0.02)
    hold_elsewhere(nodes)
    async with client(nodes) as redlock:
        await refused(redlock("x", wait=2).acquire())
        gaps = [after - before for before, after in itertools.pairwise(rounds_at(nodes))]
        assert all(gap >= 0.04 + 2 * 0.04 - SLACK for gap in gaps[:-1])


@in_virtual_time
async def test_h34_what_a_lost_round_won_is_given_back_before_the_pause() -> None:
    nodes = nearby()
    hold_elsewhere(nodes[:3])
    async with client(nodes) as redlock:
        started_at = now()
        await refused(redlock("x", wait=0.5).acquire())
        revokes = [asked for asked in nodes[4].asked if asked.verb is Verb.REVOKE]
        assert revokes[0].at - started_at == pytest.approx(ROUND_TRIP)
        await asyncio.sleep(ROUND_TRIP)
        assert nodes[4].server.get(KEY) is None
        assert not any(sent(nodes[:3], Verb.REVOKE))


@in_virtual_time
async def test_h14_every_round_has_a_fresh_token_and_is_taken_back() -> None:
    nodes = nearby()
    hold_elsewhere(nodes[:3])
    async with client(nodes) as redlock:
        await refused(redlock("x", wait=1).acquire())
        grants = [asked.token for asked in nodes[4].asked if asked.verb is Verb.GRANT]
        revokes = [asked.token for asked in nodes[4].asked if asked.verb is Verb.REVOKE]
        assert len(set(grants)) == len(grants) > 3
        assert revokes == grants


@in_virtual_time
async def test_f008_its_own_leftovers_never_stand_in_its_way() -> None:
    nodes = nearby(3)
    hold_elsewhere(nodes[:2])
    async with client(nodes) as redlock:
        the_loop().call_later(0.05, free, nodes[:2])
        started_at = now()
        lease = await redlock("x").acquire()
        assert now() - started_at < 0.05 + RetryPolicy().cap + 2 * ROUND_TRIP
        await lease.release()


# --- wait ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_f017_without_a_wait_there_is_one_round_and_one_clean_up() -> None:
    nodes = nearby()
    hold_elsewhere(nodes[:3])
    async with client(nodes) as redlock:
        error, took = await refused(redlock("x", wait=0).acquire())
        assert took == pytest.approx(ROUND_TRIP)
        assert error.rounds == 1
        assert [len(grants) for grants in sent(nodes, Verb.GRANT)] == [1] * 5
        assert [len(revokes) for revokes in sent(nodes, Verb.REVOKE)] == [0, 0, 0, 1, 1]
        assert not any(sent(nodes, Verb.INSPECT))


@in_virtual_time
async def test_f017_try_acquire_is_none_only_when_somebody_else_holds_it() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        hold_elsewhere(nodes[:2])
        assert await redlock("x").try_acquire() is None
        free(nodes)
        lease = await redlock("x").try_acquire()
        assert lease is not None
        await lease.release()
        for node in nodes[:2]:
            node.cut("connection refused")
        with pytest.raises(QuorumUnreachable):
            await redlock("x").try_acquire()


@in_virtual_time
async def test_f023_without_a_limit_it_waits_for_as_long_as_it_takes() -> None:
    nodes = nearby(3)
    hold_elsewhere(nodes, ttl=100)
    async with client(nodes) as redlock:
        started_at = now()
        lease = await redlock("x", wait=None).acquire()
        assert 100 <= now() - started_at <= 100 + RetryPolicy().cap + ROUND_TRIP
        await lease.release()


@pytest.mark.parametrize("wait", [0, 0.01, 0.5, 3])
@in_virtual_time
async def test_f019_with_every_node_frozen_the_wait_is_kept(wait: float) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        for node in nodes:
            node.server.freeze()
        error, took = await refused(redlock("x", wait=wait).acquire())
        assert type(error) is QuorumUnreachable
        assert wait <= took <= wait + NODE_TIMEOUT + SLACK


# --- first contact ------------------------------------------------------------------------------


@in_virtual_time
async def test_f015_the_first_call_waits_for_the_first_connections() -> None:
    nodes = model_nodes(5, dial=0.3)
    redlock = client(nodes)
    started_at = now()
    lease = await redlock("x", wait=0).acquire()
    assert now() - started_at == pytest.approx(0.3)
    await lease.release()
    await redlock.aclose()


@in_virtual_time
async def test_f015_a_quorum_of_connections_is_enough() -> None:
    nodes = model_nodes(5)
    for node, dial in zip(nodes, (0.1, 0.2, 0.3, 60, math.inf), strict=True):
        node.dial = dial
    redlock = client(nodes)
    started_at = now()
    lease = await redlock("x", wait=0).acquire()
    assert now() - started_at == pytest.approx(0.3)
    await lease.release()
    await redlock.aclose()


@in_virtual_time
async def test_f015_the_overrun_is_half_a_second_and_happens_once() -> None:
    nodes = model_nodes(3, dial=math.inf)
    redlock = client(nodes)
    error, took = await refused(redlock("x", wait=0).acquire())
    assert type(error) is QuorumUnreachable
    assert took == pytest.approx(0.5)
    assert "not connected yet" in str(error)
    error, took = await refused(redlock("x", wait=0).acquire())
    assert took < SLACK
    await redlock.aclose()


@in_virtual_time
async def test_f013_a_longer_wait_is_used_for_nodes_that_come_later() -> None:
    """As soon as a quorum is there, not at the end of some pause."""
    nodes = model_nodes(3, dial=2.0)
    redlock = client(nodes)
    started_at = now()
    lease = await redlock("x", wait=10).acquire()
    assert now() - started_at == pytest.approx(2.0)
    await lease.release()
    await redlock.aclose()


@in_virtual_time
async def test_f013_h32_a_node_that_comes_back_ends_the_pause() -> None:
    nodes = nearby(3)
    async with client(nodes, retry=RetryPolicy(floor=1, cap=5)) as redlock:
        for node in nodes[:2]:
            node.cut("connection refused")
        the_loop().call_later(0.3, nodes[0].restore)
        started_at = now()
        lease = await redlock("x").acquire()
        assert now() - started_at == pytest.approx(0.3 + ROUND_TRIP)
        assert nodes[1].hurried
        await lease.release()


# --- the class of the error ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "kind"),
    [
        ("held held held held held", LockContended),
        ("free free held held held", LockContended),
        ("down down down free free", QuorumUnreachable),
        ("mute mute mute free free", QuorumUnreachable),
        ("fault fault fault held free", QuorumUnreachable),
        ("fault fault mute held free", LockContended),
        ("down held held held held", LockContended),
        ("down mute held held free", LockContended),
        ("fault fault held free free", LockContended),
    ],
)
@in_virtual_time
async def test_f014_busy_and_down_are_told_apart(states: str, kind: type[AcquireError]) -> None:
    """Unreachable if so many are broken that the others make no quorum, else contended."""
    nodes = nearby()
    async with client(nodes) as redlock:
        for node, state in zip(nodes, states.split(), strict=True):
            match state:
                case "held":
                    hold_elsewhere([node])
                case "down":
                    node.cut("connection refused")
                case "mute":
                    node.way = MUTE
                case "fault":
                    node.way = Way(fault="LOADING Redis is loading")
        # What counts is the moment of decision: a node that keeps silent may come too late for it.
        error, _ = await refused(redlock("x", wait=0).acquire())
        assert type(error) is kind, str(error)


@in_virtual_time
async def test_the_class_is_that_of_the_last_round() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        hold_elsewhere(nodes)
        the_loop().call_later(0.5, cut, nodes)
        error, _ = await refused(redlock("x", wait=1).acquire())
        assert type(error) is QuorumUnreachable
        the_loop().call_later(0.5, restore, nodes)
        error, _ = await refused(redlock("x", wait=1).acquire())
        assert type(error) is LockContended


@in_virtual_time
async def test_f117_the_error_says_what_each_node_said() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        nodes[0].cut("connection refused")
        nodes[1].way = Way(fault="NOPERM no permissions")
        hold_elsewhere(nodes[2:4])
        error, _ = await refused(redlock("x", wait=0).acquire())
        assert str(error).startswith(
            "'x' is held by somebody else: not acquired after 0.002 s and 1 round: "
        )
        assert "n1: connection refused; n2: NOPERM no permissions" in str(error)
        tokens = {asked.token.decode() for node in nodes for asked in node.asked if asked.token}
        assert not any(token in str(error) for token in tokens)


@in_virtual_time
async def test_f074_after_a_wait_the_error_tells_of_a_key_that_is_no_lock() -> None:
    nodes = nearby(3)
    for node in nodes[:2]:
        node.server.put(KEY, b"the user's data", 3600)
    async with client(nodes) as redlock:
        error, _ = await refused(redlock("x", wait=0.5).acquire())
        assert error.hint == "the key holds a non-lock value on 2 of 3 nodes"
        hold_elsewhere(nodes)
        error, _ = await refused(redlock("x", wait=0.5).acquire())
        assert error.hint == ""
