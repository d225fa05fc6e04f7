"""The ends of a lease: by the clock, by suspend, by max_hold, by release, or dropped by its user."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

import pytest

from aioredlock2 import LeaseLost, Removal
from aioredlock2._core.lease_state import LeaseState
from aioredlock2._node import Request, Verb
from tests.support.model_node import LOST, ModelNode, client, sent
from tests.support.scene import (
    ROUND_TRIP,
    SLACK,
    cut,
    free,
    holders,
    nearby,
    now,
    rounds_at,
)
from tests.support.virtual import in_virtual_time, settle, the_loop

DRIFT = 0.102


def freeze(nodes: Sequence[ModelNode]) -> None:
    for node in nodes:
        node.server.freeze()


def since(nodes: Sequence[ModelNode], instant: float) -> set[Verb]:
    """What kinds of request went out after `instant`."""
    return {asked.verb for node in nodes for asked in node.asked if asked.at > instant}


def losses(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "lost" in record.getMessage()]


# --- by the clock -------------------------------------------------------------------------------


@pytest.mark.parametrize("renew", [True, False])
@in_virtual_time
async def test_a_lease_is_lost_at_its_exact_deadline_though_every_node_hangs(renew: bool) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=renew).acquire()
        deadline = lease.valid_until
        await settle()
        freeze(nodes)
        assert await lease.lost()
        assert deadline <= now() <= deadline + SLACK
        assert lease.is_lost
        assert lease.remaining() == 0
        await lease.release()


@in_virtual_time
async def test_f115_between_the_deadline_and_the_timer_it_is_not_held_either() -> None:
    """What counts is the clock: a loop that was blocked doesn't make a lease longer."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        the_loop().block(11)
        assert not lease.is_held
        assert lease.is_lost
        assert not lease.is_released
        assert lease.remaining() == 0
        with pytest.raises(LeaseLost, match="validity ended"):
            await lease.extend()
        assert rounds_at(nodes, Verb.RENEW) == []
        await lease.release()


@in_virtual_time
async def test_f030_h30_after_a_blocked_loop_no_renewal_goes_out_first() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        before = now()
        the_loop().block(11)
        assert await lease.lost()
        assert since(nodes, before) == set()
        await lease.release()


@in_virtual_time
async def test_a_release_after_the_deadline_releases_a_lost_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if no timer has had the time to say so."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        the_loop().block(9.95)  # the nodes still have the key
        report = await lease.release()
        assert lease.is_lost
        assert not lease.is_released
        assert report.outcome == "lost"
        assert [node.removal for node in report.nodes].count(Removal.DELETED) >= 3
        assert len(losses(caplog)) == 1


@in_virtual_time
async def test_loss_is_told_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        free(nodes)
        waiters = [asyncio.create_task(lease.lost()) for _ in range(3)]
        assert await asyncio.gather(*waiters) == [True] * 3
        assert await lease.lost()
        with pytest.raises(LeaseLost, match="too many nodes no longer have its key"):
            await lease.extend()
        await asyncio.sleep(20)
        (told,) = losses(caplog)
        assert told.startswith(
            "lease of 'x' is lost: too many nodes no longer have its key: 0 of 5"
        )
        await lease.release()


class SlowToWrite(ModelNode):
    """Takes its time before the bytes leave."""

    def ask(self, request: Request) -> None:
        the_loop().block(0.01)
        super().ask(request)


@in_virtual_time
async def test_a_lease_may_be_lost_while_its_renewal_is_written() -> None:
    """Nobody is connected, and by the time that is clear the deadline is over."""
    nodes = [SlowToWrite(node.name, node.server) for node in nearby()]
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        cut(nodes)
        await asyncio.sleep(lease.remaining() - 0.02)
        with pytest.raises(LeaseLost):
            await lease.extend()
        (renewal,) = [asked for asked in nodes[0].asked if asked.verb is Verb.RENEW]
        assert renewal.ballot is not None
        assert renewal.ballot.withdrawn
        await lease.release()


@in_virtual_time
async def test_a_loss_is_announced_from_the_loop_only() -> None:
    """Also one that a release finds: not from within the call."""
    nodes = nearby()
    async with client(nodes) as redlock:
        for release in (False, True):
            told = list[bool]()
            lease = await redlock("x", ttl=1, renew=False).acquire()
            lease._hold.on_loss = lambda: told.append(asyncio.current_task() is None)  # noqa: B023
            the_loop().block(2)
            if release:
                cut(nodes)
                await lease.release()
            assert told == []
            await settle()
            assert told == [True]
            await lease.release()


# --- suspend ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl", [0.5, 5, 60, 3600])
@pytest.mark.parametrize("renew", [True, False])
@in_virtual_time
async def test_f055_suspend_is_noticed_within_a_tenth_of_the_ttl_and_a_second(
    ttl: float, renew: bool
) -> None:
    """The loop's timers stood still meanwhile; nothing is sent for the lease before that."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", ttl=ttl, renew=renew, max_hold=None).acquire()
        await asyncio.sleep(ttl / 100)
        before = now()
        the_loop().suspend(ttl)
        woke_at = now()
        assert await lease.lost()
        assert now() - woke_at <= min(ttl / 10, 1) + SLACK
        assert since(nodes, before) == set()
        await lease.release()


@in_virtual_time
async def test_suspend_is_noticed_by_the_shortest_leases_tick() -> None:
    """A short lease that comes while the timer is set for a long one sets it anew."""
    nodes = nearby()
    async with client(nodes) as redlock:
        long = await redlock("long", ttl=60, renew=False).acquire()
        await asyncio.sleep(0.1)
        short = await redlock("x", ttl=2, renew=False).acquire()
        await asyncio.sleep(0.01)
        the_loop().suspend(5)
        woke_at = now()
        assert await short.lost()
        assert now() - woke_at <= 0.2 + SLACK
        assert long.is_held
        await long.release()
        await short.release()


@in_virtual_time
async def test_a_short_suspend_costs_nothing_but_the_time() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        for _ in range(20):
            await asyncio.sleep(1)
            the_loop().suspend(2)
        assert lease.is_held
        await lease.release()


@in_virtual_time
async def test_without_leases_nothing_ticks() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", ttl=1).acquire()
        await lease.release()
        await asyncio.sleep(10)
        assert the_loop().timers == 0


# --- max_hold -----------------------------------------------------------------------------------


@in_virtual_time
async def test_f049_at_max_hold_the_lease_is_lost_and_its_key_expires(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        started_at = now()
        lease = await redlock("x", ttl=0.5, max_hold=2).acquire()
        assert await lease.lost()
        assert now() == pytest.approx(started_at + 2)
        assert lease.is_lost
        warned, told = [record.getMessage() for record in caplog.records]
        assert warned.startswith("'x' reaches its max_hold in 0.")
        assert told == "lease of 'x' is lost: it was held for max_hold"
        before = now()
        await asyncio.sleep(0.5)
        assert holders(nodes) == [None] * 5
        assert since(nodes, before) == set()
        await lease.release()


@in_virtual_time
async def test_f049_it_bounds_extension_by_hand_too() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        started_at = now()
        lease = await redlock("x", ttl=2, renew=False, max_hold=3).acquire()
        await asyncio.sleep(1.5)
        await lease.extend()
        assert lease.valid_until == pytest.approx(started_at + 3)
        assert await lease.lost()
        assert now() == pytest.approx(started_at + 3)
        await lease.release()


class Slow(logging.Handler):
    """A log on a disk that hangs."""

    def emit(self, record: logging.LogRecord) -> None:
        the_loop().block(20)


@in_virtual_time
async def test_a_lease_that_expires_while_its_end_is_logged_is_lost_all_the_same() -> None:
    nodes = nearby()
    logger, slow = logging.getLogger("aioredlock2"), Slow()
    async with client(nodes) as redlock:
        lease = await redlock("x", max_hold=15).acquire()
        logger.addHandler(slow)
        try:
            assert await asyncio.wait_for(lease.lost(), 60)
        finally:
            logger.removeHandler(slow)
        await lease.release()


@in_virtual_time
async def test_f050_without_a_bound_it_is_renewed_for_ever() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lease = await redlock("x", ttl=100, max_hold=None).acquire()
        await asyncio.sleep(2 * 3600)
        assert lease.is_held
        assert len(rounds_at(nodes, Verb.RENEW)) > 200
        await lease.release()


# --- release ------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_deletes_are_written_before_the_first_await() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        releasing = lease.release()
        task = asyncio.create_task(releasing)
        await settle(1)
        task.cancel()
        await settle()
        assert task.cancelled()
        assert [len(revokes) for revokes in sent(nodes, Verb.REVOKE)] == [1] * 5
        assert lease.is_released
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 5


@in_virtual_time
async def test_after_a_release_nothing_but_its_deletes_carries_the_token() -> None:
    """Not even for stragglers of a renewal, or nodes found empty, or calls that wait."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        token = nodes[0].asked[0].token
        nodes[0].server.wipe()
        nodes[1].way = LOST
        await asyncio.sleep(3)
        extending = asyncio.gather(lease.extend(), lease.extend(), return_exceptions=True)
        await settle(1)
        released_at = now()
        await lease.release()
        await extending
        await asyncio.sleep(30)
        late = {
            asked.verb
            for node in nodes
            for asked in node.asked
            if asked.token == token and asked.at > released_at
        }
        assert late == set()
        revokes = [[asked.token for asked in each] for each in sent(nodes, Verb.REVOKE)]
        assert revokes == [[token]] * 5


@in_virtual_time
async def test_release_withdraws_a_decided_renewal_with_stragglers() -> None:
    """A straggler that refuses the command must not be asked in other words any more."""
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        nodes[2].way = LOST
        await lease.extend()
        (renewal,) = [asked for asked in nodes[2].asked if asked.verb is Verb.RENEW]
        assert renewal.ballot is not None
        assert not renewal.ballot.withdrawn
        await lease.release()
        assert renewal.ballot.withdrawn


@in_virtual_time
async def test_f071_a_second_release_sends_nothing_and_reports_the_same() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        first = await lease.release()
        second = await lease.release()
        assert first.nodes == second.nodes
        assert [len(revokes) for revokes in sent(nodes, Verb.REVOKE)] == [1] * 5
        assert lease.is_released
        assert await lease.lost() is False


@in_virtual_time
async def test_f056_a_lost_lease_is_released_by_one_best_effort_round() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        freeze(nodes)
        assert await lease.lost()
        began_at = now()
        report = await lease.release()
        assert now() - began_at == pytest.approx(0.05)
        assert report.outcome == "lost"
        assert lease.is_lost
        assert not lease.is_released
        await lease.release()
        assert [len(revokes) for revokes in sent(nodes, Verb.REVOKE)] == [1] * 5


@in_virtual_time
async def test_f072_a_delete_for_a_node_that_is_away_is_sent_when_it_is_back() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await settle()
        cut(nodes[:2])
        report = await lease.release()
        assert report.outcome == "unknown"
        assert holders(nodes[:2]) != [None] * 2
        for node in nodes[:2]:
            node.restore()
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 3


@in_virtual_time
async def test_f072_a_delete_is_owed_for_the_longest_ttl_the_token_had() -> None:
    """The node never heard of the shorter one."""
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await settle()
        cut(nodes[:1])
        await lease.extend(1)
        await lease.release()
        await asyncio.sleep(5)
        assert holders(nodes[:1]) != [None]
        nodes[0].restore()
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 3


# --- dropped ------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_lease_whose_handle_was_dropped_runs_out(caplog: pytest.LogCaptureFixture) -> None:
    """One ResourceWarning, no renewal any more, and the next in line gets its turn."""
    nodes = nearby()
    async with client(nodes) as redlock:
        handles = [await redlock("x").acquire()]
        deadline = handles[0].valid_until
        waiting = asyncio.create_task(redlock("x", wait=None).acquire())
        await settle()
        with pytest.warns(ResourceWarning, match="lease of 'x' was dropped while held"):
            handles.clear()
        before = now()
        next_lease = await waiting
        assert Verb.RENEW not in since(nodes, before)
        assert deadline <= now() < deadline + DRIFT + 0.25 + 2 * ROUND_TRIP
        assert losses(caplog) == []
        await next_lease.release()


@in_virtual_time
async def test_a_handle_dropped_during_a_renewal_is_noticed_after_it() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        handles = [await redlock("x").acquire()]
        while not rounds_at(nodes, Verb.RENEW):
            await asyncio.sleep(0.001)
        with pytest.warns(ResourceWarning):
            handles.clear()
        await asyncio.sleep(30)
        assert len(rounds_at(nodes, Verb.RENEW)) == 1
        assert holders(nodes) == [None] * 5


@in_virtual_time
async def test_a_handle_dropped_after_its_end_is_nobodys_business() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        await (await redlock("x").acquire()).release()
        handles = [await redlock("x", renew=False).acquire()]
        assert await handles[0].lost()
        handles.clear()


# --- the watchdog itself ------------------------------------------------------------------------


@in_virtual_time
async def test_it_knows_what_is_held_and_how_soon_things_must_be_noticed() -> None:
    """A tenth of the shortest ttl, a second at most."""
    nodes = nearby(3)
    async with client(nodes) as redlock:
        watchdog = redlock.session().watchdog
        assert watchdog.tick == 1.0
        leases = [await redlock(f"x{ttl}", ttl=ttl).acquire() for ttl in (30, 5, 8)]
        assert watchdog.tick == pytest.approx(0.5)
        assert [hold.terms.ttl for hold in watchdog.holds] == [30, 5, 8]
        for lease in leases:
            await lease.release()
        assert watchdog.holds == []
        await asyncio.sleep(1)
        assert watchdog.tick == 1.0


@in_virtual_time
async def test_in_a_forked_child_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leases are the parent's: to renew or revoke them here would be to meddle."""
    nodes = nearby(3)
    redlock = client(nodes)
    lease = await redlock("x").acquire()
    parent, before = os.getpid(), now()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: parent + 1)
        assert lease.is_lost
        assert lease.remaining() == 0
        await asyncio.sleep(30)
        assert since(nodes, before) == set()
    await lease.release()
    await redlock.aclose()


@in_virtual_time
async def test_closing_releases_what_is_held_and_tells_who_waits() -> None:
    nodes = nearby(3)
    redlock = client(nodes)
    leases = [await redlock(f"x{number}").acquire() for number in range(3)]
    waiters = [asyncio.create_task(lease.lost()) for lease in leases]
    await settle()
    await redlock.aclose()
    assert await asyncio.gather(*waiters) == [False] * 3
    assert all(lease.is_released for lease in leases)
    assert [len(revokes) for revokes in sent(nodes, Verb.REVOKE)] == [3] * 3


@in_virtual_time
async def test_dropping_loses_what_is_held_and_sends_nothing() -> None:
    nodes = nearby(3)
    redlock = client(nodes)
    lease = await redlock("x").acquire()
    session = redlock.session()
    session.drop()
    assert lease.is_lost
    assert lease._hold.state is LeaseState.LOST
    assert lease._hold.reason == "the client was closed"
    assert not any(sent(nodes, Verb.REVOKE))
    await asyncio.sleep(20)
    await redlock.aclose()


@in_virtual_time
async def test_f058_a_failed_extension_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """At debug level only: the lease is still held."""
    nodes = nearby(3)
    with caplog.at_level(logging.DEBUG, "aioredlock2"):
        async with client(nodes) as redlock:
            lease = await redlock("x").acquire()
            freeze(nodes)
            await asyncio.sleep(5)
            for node in nodes:
                node.server.thaw()
            await asyncio.sleep(5)
            assert lease.is_held
            await lease.release()
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
