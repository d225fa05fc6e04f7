"""The contract at the head of `aioredlock2/_node.py`, clause by clause, over every kind of node."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable

import pytest

from aioredlock2._core.ballot import Ballot
from aioredlock2._node import ABSENT, NON_LOCK, Node, NodeState, Request, Verb
from aioredlock2.outcomes import Vote
from tests.contract.places import KEY, Bench, Body, Place, voted
from tests.support.model_node import ModelServer
from tests.support.pool import ServerPool

A, B = b"a" * 32, b"b" * 32
G, D, F, M = Vote.GRANTED, Vote.DENIED, Vote.FAULTED, Vote.MISSING
SEED = 19 * 10**14
"""What a counter begins with: within what clocks of this century say."""


def clause(body: Body) -> Callable[[Place, ServerPool], None]:
    """A test over each kind of node, in a loop of its own."""

    @functools.wraps(body)
    def test(place: Place, pool: ServerPool) -> None:
        place.run(pool, body)

    del test.__wrapped__  # pytest would look for its parameters
    return test


def now() -> float:
    return asyncio.get_running_loop().time()


# 1. What is granted excludes everybody else.


@clause
async def test_1_a_grant_excludes_other_tokens_for_its_ttl(bench: Bench) -> None:
    asked_at = now()
    assert await bench.ask(Verb.GRANT, A, 300) is G
    while await bench.ask(Verb.GRANT, B, by=bench.other) is D:
        await asyncio.sleep(0.01)
        assert now() - asked_at < 10
    assert now() - asked_at >= 0.3


@clause
async def test_1_a_fenced_grant_excludes_as_well(bench: Bench) -> None:
    assert await bench.ask(Verb.GRANT_FENCED, A, fence=SEED) is G
    for verb in (Verb.GRANT, Verb.GRANT_FENCED):
        assert await bench.ask(verb, B, fence=SEED, by=bench.other) is D
    found = await bench.seen()
    assert found is not None
    assert found.token == A
    assert 0 < found.remaining <= 60


# 2. Renewals and revokes.


@clause
async def test_2_a_renewal_never_creates(bench: Bench) -> None:
    assert await bench.ask(Verb.RENEW, A) is D
    assert await bench.seen() is None


@clause
async def test_2_a_renewal_sets_the_time_and_never_adds(bench: Bench) -> None:
    await bench.ask(Verb.GRANT, A, 60_000)
    for ttl_ms in (50_000, 90_000, 40_000):
        assert await bench.ask(Verb.RENEW, A, ttl_ms) is G
        found = await bench.seen()
        assert found is not None
        assert ttl_ms - 10_000 < found.remaining_ms <= ttl_ms


@clause
async def test_2_a_renewal_leaves_a_foreign_key_alone(bench: Bench) -> None:
    await bench.ask(Verb.GRANT, B, by=bench.other)
    assert await bench.ask(Verb.RENEW, A, 600_000) is D
    found = await bench.seen()
    assert found is not None
    assert (found.token, found.remaining_ms <= 60_000) == (B, True)


@clause
async def test_2_a_revoke_removes_its_own_token_only_and_is_idempotent(bench: Bench) -> None:
    await bench.ask(Verb.GRANT, A)
    foreign = bench.put(Verb.REVOKE, B, by=bench.other)
    assert await voted(foreign) is D
    assert foreign.causes[0] == "another value"
    assert await bench.seen() is not None
    assert await bench.ask(Verb.REVOKE, A) is G
    again = bench.put(Verb.REVOKE, A)
    assert await voted(again) is D
    assert again.causes[0] == ABSENT


@clause
async def test_an_inspection_sees_token_and_time_left(bench: Bench) -> None:
    assert await bench.ask(Verb.INSPECT) is D
    await bench.ask(Verb.GRANT, A)
    found = await bench.seen()
    assert found is not None
    assert found.token == A
    assert 50 < found.remaining <= 60


# 3. The order of the calls.


@clause
async def test_3_requests_take_effect_in_the_order_of_the_calls(bench: Bench) -> None:
    """All in one turn of the loop: nothing is left, and each revoke has found its grant."""
    ballots = [
        bench.put(verb, token)
        for token in (b"%032d" % number for number in range(50))
        for verb in (Verb.GRANT, Verb.RENEW, Verb.REVOKE)
    ]
    assert [await voted(ballot) for ballot in ballots] == [G] * 150
    assert await bench.seen() is None


@clause
async def test_3_a_revoke_that_may_not_have_arrived_is_sent_again(bench: Bench) -> None:
    await bench.ask(Verb.GRANT, A)
    bench.levers.hold()
    revoked = bench.put(Verb.REVOKE, A)
    bench.levers.cut()
    assert await voted(revoked) is F
    assert not revoked.unsent
    bench.levers.mend()
    await bench.is_up()
    # Behind it on the new connection:
    assert await bench.ask(Verb.GRANT, B) is G


@clause
async def test_3_a_revoke_asked_while_the_node_is_away_is_sent_later(bench: Bench) -> None:
    await bench.ask(Verb.GRANT, A)
    bench.levers.cut()
    await _is_down(bench.node)
    assert bench.put(Verb.REVOKE, A).unsent
    bench.levers.mend()
    await bench.is_up()
    assert await bench.ask(Verb.GRANT, B) is G


# 4. Only a clear yes is a vote.


@pytest.mark.parametrize("verb", [Verb.GRANT, Verb.GRANT_FENCED, Verb.RENEW, Verb.CONFIRM])
def test_4_what_is_lost_is_a_fault_and_never_sent_again(
    verb: Verb, place: Place, pool: ServerPool
) -> None:
    async def body(bench: Bench) -> None:
        known = verb in (Verb.RENEW, Verb.CONFIRM)
        if known:
            await bench.ask(Verb.GRANT, A, 60_000)
        bench.levers.hold()
        lost = bench.put(verb, A, 600_000, fence=SEED)
        bench.levers.cut()
        assert await voted(lost) is F
        assert lost.causes[0]
        assert not lost.unsent
        bench.levers.mend()
        await bench.is_up()
        found = await bench.seen()
        assert (found is not None) == known
        assert found is None or found.remaining_ms <= 60_000

    place.run(pool, body)


@pytest.mark.parametrize("verb", [Verb.GRANT, Verb.GRANT_FENCED])
def test_4_trouble_is_a_fault_with_its_cause(verb: Verb, place: Place, pool: ServerPool) -> None:
    async def body(bench: Bench) -> None:
        bench.levers.fill()
        ballot = bench.put(verb, A, fence=SEED)
        assert await voted(ballot) is F
        assert "OOM" in str(ballot.causes[0])
        assert not ballot.unsent

    place.run(pool, body)


@clause
async def test_4_what_no_lock_has_put_there_is_no_yes(bench: Bench) -> None:
    bench.levers.foul(KEY)
    for verb in (Verb.GRANT, Verb.GRANT_FENCED, Verb.RENEW, Verb.CONFIRM, Verb.REVOKE):
        ballot = bench.put(verb, A, fence=SEED)
        assert await voted(ballot) is D, verb
        assert ballot.causes[0] in (None, NON_LOCK, "another value")


# 5. What is not sent is told.


@clause
async def test_5_a_node_that_is_away_is_skipped(bench: Bench) -> None:
    bench.levers.cut()
    await _is_down(bench.node)
    for verb in Verb:
        ballot = bench.put(verb, A)
        assert (ballot.votes, ballot.unsent) == ([F], 1), verb
        assert ballot.causes[0]


@clause
async def test_5_a_node_that_is_behind_gets_deletes_and_looks_only(bench: Bench) -> None:
    bench.levers.freeze()
    late = bench.put(Verb.INSPECT)
    bench.node.missed()
    for verb in (Verb.GRANT, Verb.GRANT_FENCED, Verb.CONFIRM, Verb.RENEW):
        ballot = bench.put(verb, A)
        assert (ballot.votes, ballot.unsent) == ([M], 1), verb
    revoked, looked = bench.put(Verb.REVOKE, A), bench.put(Verb.INSPECT)
    assert (revoked.unsent, looked.unsent) == (0, 0)
    bench.levers.thaw()
    assert [await voted(ballot) for ballot in (late, revoked, looked)] == [D, D, D]
    assert await bench.ask(Verb.GRANT, A) is G


@clause
async def test_5_a_guarded_node_grants_nothing_and_confirms_extensions(bench: Bench) -> None:
    """Nothing that it could have forgotten a rival for: no grant, no fence, no planted key."""
    await bench.ask(Verb.GRANT, A)
    bench.levers.guard()
    assert bench.node.status.state is NodeState.GUARDED
    for verb in (Verb.GRANT, Verb.GRANT_FENCED, Verb.CONFIRM):
        ballot = bench.put(verb, A)
        assert (ballot.votes, ballot.unsent) == ([F], 1), verb
        assert "guard" in str(ballot.causes[0])
    assert await bench.ask(Verb.RENEW, A) is G
    assert await bench.ask(Verb.INSPECT) is G
    assert await bench.ask(Verb.REVOKE, A) is G


# 6. Nobody needs to wait.


@clause
async def test_6_an_answer_that_nobody_waits_for_is_dropped(bench: Bench) -> None:
    for verb in Verb:
        request = Request(verb, b"redlock:else", A, 1000)
        request.fence = SEED
        bench.node.ask(request)
    ballot = bench.put(Verb.GRANT, A)
    bench.node.ask(Request(Verb.RENEW, b"redlock:else", A, 1000))
    assert await voted(ballot) is G
    assert await bench.ask(Verb.REVOKE, A) is G


# 7. Fences.


async def counter_of(bench: Bench, token: bytes, seed: int = SEED) -> int:
    """The grant counter of a fenced grant that must succeed."""
    ballot = bench.put(Verb.GRANT_FENCED, token, fence=seed)
    assert await voted(ballot) is G
    (counter,) = ballot.causes
    assert type(counter) is int
    return counter


@clause
async def test_7_grant_counters_grow_from_the_seed_on(bench: Bench) -> None:
    """Whatever the clocks of those who ask say, and whether or not they are refused."""
    counters = []
    for number, seed in enumerate([SEED, SEED, SEED + 1000, SEED - 1000, 1]):
        counters.append(await counter_of(bench, b"%032d" % number, seed))
        assert await bench.ask(Verb.GRANT_FENCED, B, fence=SEED, by=bench.other) is D
        assert await bench.ask(Verb.REVOKE, b"%032d" % number) is G
    assert counters == sorted(set(counters))
    assert counters[0] >= SEED


@clause
async def test_7_a_confirmation_raises_the_counter_where_the_key_is_mine(bench: Bench) -> None:
    counter = await counter_of(bench, A)
    wanted = counter + 5000
    assert await bench.ask(Verb.CONFIRM, A, fence=wanted, gap=5000) is G
    assert await bench.ask(Verb.REVOKE, A) is G
    assert await counter_of(bench, B) > wanted


@clause
async def test_7_a_counter_that_was_forgotten_comes_to_just_the_fence(bench: Bench) -> None:
    """Ahead of the clock, it would be ahead of later seeds as well."""
    assert await bench.ask(Verb.GRANT, A) is G
    assert await bench.ask(Verb.CONFIRM, A, fence=SEED + 5000, gap=5000) is G
    assert await bench.ask(Verb.REVOKE, A) is G
    assert await counter_of(bench, B, seed=1) == SEED + 5001


@pytest.mark.parametrize("owner", [None, B])
def test_7_a_confirmation_is_refused_where_the_key_is_not_mine(
    owner: bytes | None, place: Place, pool: ServerPool
) -> None:
    async def body(bench: Bench) -> None:
        counter = await counter_of(bench, A)
        assert await bench.ask(Verb.REVOKE, A) is G
        if owner is not None:
            assert await counter_of(bench, owner) > counter
        assert await bench.ask(Verb.CONFIRM, A, fence=counter + 5000, gap=5000) is D
        found = await bench.seen()
        assert (found.token if found else None) == owner
        if found is not None:
            assert await bench.ask(Verb.REVOKE, B) is G
        assert await counter_of(bench, A) > counter

    place.run(pool, body)


@clause
async def test_7_renewing_and_revoking_leave_the_counter_alone(bench: Bench) -> None:
    counter = await counter_of(bench, A)
    for _ in range(3):
        assert await bench.ask(Verb.RENEW, A) is G
    assert await bench.ask(Verb.REVOKE, A) is G
    assert counter < await counter_of(bench, B) <= max(counter, SEED) + 1


@clause
async def test_7_each_key_has_its_own_counter(bench: Bench) -> None:
    first = await counter_of(bench, A)
    ballot = bench.put(Verb.GRANT_FENCED, A, key=b"redlock:another", fence=SEED)
    assert await voted(ballot) is G
    assert ballot.causes[0] == first


# 8. Calls never raise.


@clause
async def test_8_no_call_raises_whatever_the_state(bench: Bench) -> None:
    def everything(node: Node) -> list[Ballot]:
        ballots = [bench.put(verb, A, by=node) for verb in Verb]
        for verb in Verb:
            node.ask(Request(verb, KEY, A, 1000))
        for call in (node.missed, node.hurry, node.regard):
            call()
        assert node.status.name == node.name
        return ballots

    everything(bench.node)
    bench.levers.cut()
    everything(bench.node)
    await _is_down(bench.node)
    everything(bench.node)
    bench.node.drop()
    bench.node.drop()
    for ballot in everything(bench.node):
        assert (ballot.votes, ballot.unsent) == ([F], 1)


# And everything at once.


@clause
async def test_random_requests_are_answered_as_the_reference_does(bench: Bench) -> None:
    """A thousand requests in one stream, over few keys and tokens; the reference is the node in memory.

    No fences: the encodings may count differently, and do.
    """
    rng = random.Random(20_261)
    reference = ModelServer(now)
    verbs = [Verb.GRANT, Verb.GRANT, Verb.RENEW, Verb.REVOKE]
    ballots, expected = list[Ballot](), list[Vote]()
    for _ in range(1000):
        verb, token = rng.choice(verbs), rng.choice([A, B, b"c" * 32])
        key = b"redlock:%d" % rng.randrange(4)
        ballots.append(bench.put(verb, token, key=key))
        expected.append(reference.act_on(Request(verb, key, token, 600_000))[0])
    assert [await voted(ballot) for ballot in ballots] == expected


async def _is_down(node: Node) -> None:
    while node.status.state is not NodeState.DOWN:
        await asyncio.sleep(0.001)
