"""Extension: when it is tried, when it counts, and what a failed one means (DESIGN 4.7)."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Sequence

import pytest

from aioredlock2 import Lease, LeaseLost, LeaseReleased, Vote
from aioredlock2._core.ballot import Ballot
from aioredlock2._gate import ROUNDS_MAX
from aioredlock2._hold import Hold
from aioredlock2._node import Verb
from tests.support.model_node import Asked, ModelNode, Way, client, sent
from tests.support.scene import (
    FOREIGN,
    KEY,
    ROUND_TRIP,
    SLACK,
    cut,
    free,
    hold_elsewhere,
    holders,
    nearby,
    now,
    restore,
    rounds_at,
)
from tests.support.virtual import in_virtual_time, settle, the_loop

DRIFT = 0.102
"""Of the default ttl of 10 s."""
SLOT = 10 / 64


def fail(nodes: Sequence[ModelNode], fault: str) -> None:
    for node in nodes:
        node.way = Way(ROUND_TRIP / 2, ROUND_TRIP / 2, fault)


def mend(nodes: Sequence[ModelNode]) -> None:
    fail(nodes, "")


def renewals(nodes: Sequence[ModelNode]) -> list[float]:
    return rounds_at(nodes, Verb.RENEW)


def of(node: ModelNode, verb: Verb) -> list[Asked]:
    return [asked for asked in node.asked if asked.verb is verb]


def ballot_of(asked: Asked) -> Ballot:
    assert asked.ballot is not None
    return asked.ballot


async def past_renewal() -> None:
    """Until the first renewal of a lease just acquired is over."""
    await asyncio.sleep(10 / 3 + 0.06)


# --- when ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_f035_a_lease_is_renewed_before_each_third_of_its_ttl_is_over() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await asyncio.sleep(300)
        assert lease.is_held
        assert len(rounds_at(nodes)) == 1
        times = [rounds_at(nodes)[0], *renewals(nodes)]
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert max(gaps) <= 10 / 3 + SLACK
        assert min(gaps) >= 10 / 3 - 5 * SLOT - SLACK
        await lease.release()


@in_virtual_time
async def test_f022_renewals_are_jittered() -> None:
    """Clients started together must not stay together: each renewal draws its slot afresh."""
    nodes = nearby(1)
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await asyncio.sleep(300)
        gaps = [after - before for before, after in itertools.pairwise(renewals(nodes))]
        assert len({round(gap / SLOT) for gap in gaps}) >= 4
        await lease.release()


@in_virtual_time
async def test_f059_renewals_of_many_leases_leave_in_few_batches() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        leases = []
        for number in range(200):
            leases.append(await redlock(f"job {number}").acquire())
            await asyncio.sleep(0.003)  # one second in all
        await asyncio.sleep(3.4)
        times = {round(at, 6) for at in renewals(nodes)}
        assert len(renewals(nodes)) >= 200
        assert len(times) <= 1 / SLOT + 4 + 3  # a second's worth of slots, and four of jitter
        for lease in leases:
            await lease.release()


@in_virtual_time
async def test_a_renewal_asks_all_nodes_for_the_whole_ttl() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await past_renewal()
        for node in nodes:
            (renewal,) = of(node, Verb.RENEW)
            assert (renewal.key, renewal.ttl_ms) == (KEY, 10_000)
            assert renewal.token == of(node, Verb.GRANT)[0].token
            stored = node.server.get(KEY)
            assert stored is not None
            assert stored[1] > 9
        await lease.release()


@in_virtual_time
async def test_a_lease_that_is_not_to_be_renewed_is_not() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await asyncio.sleep(9)
        assert renewals(nodes) == []
        await lease.extend()
        assert len(renewals(nodes)) == 1
        assert lease.remaining() == pytest.approx(10 - DRIFT - ROUND_TRIP)
        await lease.release()


# --- what counts --------------------------------------------------------------------------------


@in_virtual_time
async def test_an_extension_counts_from_before_its_send() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await asyncio.sleep(4)
        for node in nodes:
            node.way = Way(back=0.04)
        asked_at = now()
        await lease.extend()
        assert now() == pytest.approx(asked_at + 0.04)
        assert lease.valid_until == pytest.approx(asked_at + 10 - DRIFT)
        await lease.release()


@in_virtual_time
async def test_an_extension_counts_at_the_quorum_th_yes() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        for node, back in zip(nodes, (0.001, 0.04, 0.002, 0.04, 0.003), strict=True):
            node.way = Way(back=back)
        await settle()
        asked_at = now()
        await lease.extend()
        assert now() - asked_at == pytest.approx(0.003)
        assert [outcome.vote.name[0] for outcome in lease.votes] == list("GPGPG")
        await asyncio.sleep(0.05)
        assert [outcome.vote for outcome in lease.votes] == [Vote.GRANTED] * 5
        await lease.release()


@in_virtual_time
async def test_h26_an_extension_decided_after_the_deadline_it_replaces_does_not_count() -> None:
    """The nodes said yes, but for an instant the lease was not provable: that is final."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await asyncio.sleep(9)
        extending = asyncio.create_task(lease.extend())
        the_loop().call_later(ROUND_TRIP / 2, the_loop().suspend, 0.95)
        with pytest.raises(LeaseLost, match="validity ended"):
            await extending
        assert lease.is_lost
        await asyncio.sleep(ROUND_TRIP)
        assert [ballot_of(node.asked[-1]).granted for node in nodes] == [5] * 5
        await lease.release()


@in_virtual_time
async def test_an_extension_that_outlives_its_own_new_deadline_does_not_count() -> None:
    """A short ttl whose answers came too late; the nodes may have dropped the keys already."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        extending = asyncio.create_task(lease.extend(0.5))
        the_loop().call_later(ROUND_TRIP / 2, the_loop().suspend, 0.6)
        with pytest.raises(LeaseLost):
            await extending
        await lease.release()


@in_virtual_time
async def test_f037_an_extension_sets_the_time_and_never_adds() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        for _ in range(20):
            await lease.extend()
        assert lease.remaining() <= 10 - DRIFT
        for node in nodes:
            stored = node.server.get(KEY)
            assert stored is not None
            assert stored[1] <= 10
        await lease.release()


@in_virtual_time
async def test_the_deadline_only_moves_forward() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        seen = []
        for _ in range(200):
            seen.append(lease.valid_until)
            await asyncio.sleep(0.1)
        assert seen == sorted(seen)
        await lease.release()


# --- a new ttl ----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_shorter_ttl_takes_effect_when_it_is_sent() -> None:
    """From then on the nodes may drop the keys early, whatever becomes of the round."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        fail(nodes, "LOADING")
        asked_at = now()
        extending = asyncio.create_task(lease.extend(2))
        await settle(1)
        assert lease.valid_until == pytest.approx(asked_at + 2 - 0.022)
        with pytest.raises(LeaseLost):
            await extending
        assert now() == pytest.approx(asked_at + 2 - 0.022)
        await lease.release()


@in_virtual_time
async def test_a_longer_ttl_takes_effect_when_a_quorum_has_confirmed_it() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        before = lease.valid_until
        fail(nodes, "LOADING")
        extending = asyncio.create_task(lease.extend(60))
        await asyncio.sleep(1)
        assert lease.valid_until == before
        mend(nodes)
        await extending
        assert lease.remaining() > 58
        await lease.release()


@in_virtual_time
async def test_a_new_ttl_holds_for_the_renewals_to_come() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        await lease.extend(60)
        await asyncio.sleep(50)
        assert [asked.ttl_ms for asked in of(nodes[0], Verb.RENEW)] == [60_000] * 3
        await lease.release()


# --- what a failed one means --------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["OOM", "BUSY", "LOADING", "NOPERM", "READONLY", "MISCONF"])
@in_virtual_time
async def test_f027_h29_errors_are_no_refusal(fault: str) -> None:
    """The lease lasts to its deadline, tried again meanwhile, and goes on if they end in time."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        deadline = lease.valid_until
        fail(nodes, fault)
        await asyncio.sleep(deadline - now() - 0.5)
        assert lease.is_held
        assert lease.valid_until == deadline
        mend(nodes)
        await asyncio.sleep(1)
        assert lease.is_held
        await lease.release()


@in_virtual_time
async def test_a_failed_extension_is_tried_again_soon_and_ever_sooner() -> None:
    """After an eighth of the validity left at most, jittered and in slots, not in a busy loop."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        fail(nodes, "LOADING")
        assert await lease.lost()
        tries = renewals(nodes)
        assert 15 < len(tries) < 100
        for before, after in itertools.pairwise(tries):
            decided_at = before + ROUND_TRIP
            longest = max((lease.valid_until - decided_at) / 8, 0.05)
            assert 0.5 * longest - SLOT - SLACK <= after - decided_at <= longest + SLACK
        await lease.release()


@in_virtual_time
async def test_f041_a_minority_that_errs_or_forgot_releases_nothing() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        nodes[0].server.freeze()
        fail(nodes[1:2], "LOADING")
        await asyncio.sleep(100)
        assert lease.is_held
        assert not any(sent(nodes, Verb.REVOKE))
        await lease.release()


@in_virtual_time
async def test_f051_refusals_of_a_blocking_set_are_a_loss_at_once() -> None:
    """No quorum can confirm any more: nobody waits for the deadline, nor for the slow nodes."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        hold_elsewhere(nodes[:2])
        free(nodes[2:3])
        for node in nodes[3:]:
            node.way = Way(back=0.04)
        asked_at = now()
        with pytest.raises(LeaseLost) as caught:
            await lease.extend()
        assert now() - asked_at == pytest.approx(ROUND_TRIP)
        assert lease.is_lost
        assert "too many nodes no longer have its key: 0 of 5 granted, 3 denied" in str(
            caught.value
        )
        await lease.release()
        assert holders(nodes[:2]) == [FOREIGN] * 2


@in_virtual_time
async def test_f040_two_refusals_of_five_are_no_loss() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        hold_elsewhere(nodes[:2])
        await lease.extend()
        assert lease.is_held
        await lease.release()


@in_virtual_time
async def test_refusals_and_errors_together_are_no_loss() -> None:
    """Two say no, three say nothing: a quorum may still have it."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        free(nodes[:2])
        fail(nodes[2:], "LOADING")
        await asyncio.sleep(9)
        assert lease.is_held
        mend(nodes)
        await asyncio.sleep(2)
        assert lease.is_held
        await lease.release()


# --- planting again -----------------------------------------------------------------------------


@in_virtual_time
async def test_f042_nodes_found_empty_in_a_won_round_are_planted_again() -> None:
    """With the same token, the full ttl, and never over what is there."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        nodes[0].server.wipe()
        hold_elsewhere(nodes[1:2])
        await past_renewal()
        token = of(nodes[4], Verb.GRANT)[0].token
        assert holders(nodes) == [token, FOREIGN, token, token, token]
        assert [len(grants) for grants in sent(nodes, Verb.GRANT)] == [2, 2, 1, 1, 1]
        stored = nodes[0].server.get(KEY)
        assert stored is not None
        assert stored[1] > 9
        await lease.release()
        await settle()
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None, FOREIGN, None, None, None]


@in_virtual_time
async def test_f042_rolling_restarts_are_survived() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        for node in nodes:
            node.server.wipe()
            await past_renewal()
        assert lease.is_held
        assert len(set(holders(nodes))) == 1
        await lease.release()


@in_virtual_time
async def test_f060_a_round_without_a_quorum_plants_nothing() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        for node in nodes[:2]:
            node.server.wipe()
        fail(nodes[2:3], "LOADING")
        await asyncio.sleep(9)
        assert lease.is_held
        assert [len(grants) for grants in sent(nodes, Verb.GRANT)] == [1] * 5
        await lease.release()


@in_virtual_time
async def test_a_planted_key_counts_from_the_next_round_on() -> None:
    """Two are empty; after they were planted, the loss of one that had voted is survived."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        for node in nodes[:2]:
            node.server.wipe()
        await lease.extend()
        assert [outcome.vote for outcome in lease.votes[:2]] == [Vote.DENIED] * 2
        await settle()
        await asyncio.sleep(ROUND_TRIP)
        nodes[4].server.wipe()
        await lease.extend()
        assert [outcome.vote for outcome in lease.votes[:2]] == [Vote.GRANTED] * 2
        await lease.release()


@in_virtual_time
async def test_a_node_that_was_away_at_the_grant_is_planted_and_freed_at_the_release() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        cut(nodes[:1])
        lease = await redlock("x").acquire()
        nodes[0].restore()
        await past_renewal()
        assert len(set(holders(nodes))) == 1
        await lease.release()
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 5


@pytest.mark.parametrize("end", ["none", "release", "deadline", "loss"])
@in_virtual_time
async def test_nothing_is_planted_for_a_lease_that_is_over(end: str) -> None:
    """A straggler says "not mine" after the end: it is left alone."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        nodes[4].server.wipe()
        nodes[4].way = Way(back=0.04)
        await lease.extend()
        if end == "release":
            await lease.release()
        elif end == "deadline":
            the_loop().suspend(9.9)  # the others' keys are still there
        elif end == "loss":
            free(nodes[:3])
            with pytest.raises(LeaseLost):
                await lease.extend()
        await asyncio.sleep(0.06)
        assert ballot_of(of(nodes[4], Verb.RENEW)[0]).votes[4] is Vote.DENIED
        assert len(of(nodes[4], Verb.GRANT)) == (2 if end == "none" else 1)
        await lease.release()


# --- extension by hand --------------------------------------------------------------------------


@in_virtual_time
async def test_f062_calls_made_during_a_round_share_the_next_one() -> None:
    """A hundred calls are two rounds; the last ttl asked for wins."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        calls = [lease.extend(10 + number) for number in range(100)]
        await asyncio.gather(*calls)
        assert [asked.ttl_ms for asked in of(nodes[0], Verb.RENEW)] == [10_000, 109_000]
        assert lease.remaining() > 107
        await lease.release()


@in_virtual_time
async def test_f062_a_call_during_a_renewal_gets_a_round_of_its_own() -> None:
    """The renewal began before the call: it may have been answered before the ttl was meant."""
    nodes = nearby()
    for node in nodes:
        node.way = Way(0.01, 0.01)
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        while not renewals(nodes):
            await asyncio.sleep(0.005)
        asked_at = now()
        await lease.extend()
        assert len(renewals(nodes)) == 2
        assert renewals(nodes)[1] >= asked_at
        await lease.release()


@in_virtual_time
async def test_an_extension_by_hand_is_tried_again_until_it_counts() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        cut(nodes[:3])
        the_loop().call_later(5, restore, nodes)
        asked_at = now()
        await lease.extend()
        assert 5 <= now() - asked_at < 7
        await lease.release()


@in_virtual_time
async def test_a_cancelled_call_gives_up_the_wait_not_the_extension() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await asyncio.sleep(5)
        extending = asyncio.create_task(lease.extend())
        await settle(1)
        extending.cancel()
        await asyncio.sleep(ROUND_TRIP + SLACK)
        assert extending.cancelled()
        assert lease.remaining() > 9.8
        await lease.release()


@in_virtual_time
async def test_calls_that_wait_when_the_lease_is_released_are_told_so() -> None:
    """Those whose round is under way, and those that wait for the next."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        calls = [asyncio.create_task(lease.extend()) for _ in range(2)]
        await settle(1)
        await lease.release()
        for end in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(end, LeaseReleased)
        with pytest.raises(LeaseReleased):
            await lease.extend()
        assert len(renewals(nodes)) == 1


@in_virtual_time
async def test_with_the_gate_full_a_renewal_waits_its_turn() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        gate = redlock.session().engine.gate
        while gate.enter_now():
            pass
        await asyncio.sleep(5)
        assert renewals(nodes) == []
        extending = asyncio.create_task(lease.extend())
        await settle()
        gate.leave()
        await extending
        assert len(renewals(nodes)) == 1
        for _ in range(ROUNDS_MAX - 1):
            gate.leave()
        await lease.release()


@in_virtual_time
async def test_a_lease_that_is_lost_at_the_gate_is_not_renewed() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        lease: Lease = await redlock("x").acquire()
        gate = redlock.session().engine.gate
        while gate.enter_now():
            pass
        deadline = lease.valid_until
        assert await lease.lost()
        assert now() == pytest.approx(deadline)
        for _ in range(ROUNDS_MAX):
            gate.leave()
        assert gate.enter_now()
        await asyncio.sleep(1)
        assert renewals(nodes) == []
        await lease.release()


@in_virtual_time
async def test_a_lease_that_was_renewed_is_gone_without_a_collection() -> None:
    """What refers to itself in a circle waits for the collector, and makes it slow."""
    nodes = nearby(3)
    async with client(nodes) as redlock:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                async with redlock("x") as lease:
                    await lease.extend()
            del lease
            await asyncio.sleep(1)  # rounds are kept until their deadline has passed
            for node in nodes:
                node.asked.clear()
            assert not [each for each in gc.get_objects() if isinstance(each, (Hold, Ballot))]
        finally:
            gc.enable()
