"""The bound on rounds in flight, and the timer that ends them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._core.ballot import Ballot, grant_rule
from aioredlock2._gate import LATE_S, ROUNDS_MAX, Deadlines, Gate
from aioredlock2.outcomes import Vote
from tests.support.virtual import in_virtual_time, run, settle, the_loop

# --- Gate ---------------------------------------------------------------------------------------


def full_gate() -> Gate:
    gate = Gate()
    for _ in range(ROUNDS_MAX):
        assert gate.enter_now()
    return gate


def taking(log: list[int], number: int, answer: bool = True) -> Callable[[], bool]:
    def take() -> bool:
        log.append(number)
        return answer

    return take


def test_so_many_get_in_and_no_more() -> None:
    gate = full_gate()
    assert not gate.enter_now()
    gate.leave()
    assert gate.enter_now()
    assert not gate.enter_now()


def test_whoever_comes_while_there_is_room_is_called_at_once() -> None:
    gate, log = Gate(), list[int]()
    gate.enter(taking(log, 1))
    assert log == [1]


def test_the_rest_come_in_order_of_arrival() -> None:
    gate, log = full_gate(), list[int]()
    for number in range(5):
        gate.enter(taking(log, number))
    assert log == []
    for expected in range(5):
        gate.leave()
        assert log == list(range(expected + 1))
    assert not gate.enter_now()


def test_a_place_that_is_declined_goes_to_the_next() -> None:
    gate, log = full_gate(), list[int]()
    gate.enter(taking(log, 1, answer=False))
    gate.enter(taking(log, 2))
    gate.leave()
    assert log == [1, 2]
    assert not gate.enter_now()


def test_a_place_that_nobody_takes_is_free_again() -> None:
    gate, log = full_gate(), list[int]()
    gate.enter(taking(log, 1, answer=False))
    gate.leave()
    assert gate.enter_now()
    roomy = Gate()
    for _ in range(2 * ROUNDS_MAX):
        roomy.enter(taking(log, 2, answer=False))
    assert roomy.enter_now()


def test_nobody_overtakes_those_who_wait() -> None:
    """Not even between a place that was given up and the one who is let in for it."""
    gate, overtook = full_gate(), list[bool]()

    def take() -> bool:
        overtook.append(gate.enter_now())
        return True

    for _ in range(3):
        gate.enter(take)
    for _ in range(2):
        gate.leave()
    assert overtook == [False, False]


def test_any_number_of_rounds_that_end_at_once_may_follow_each_other() -> None:
    """With no node there each round is decided on the spot, and lets the next one in from within."""
    gate, log = full_gate(), list[int]()

    def passing(number: int) -> Callable[[], bool]:
        def take() -> bool:
            log.append(number)
            gate.leave()
            return True

        return take

    for number in range(10_000):
        gate.enter(passing(number))
    gate.leave()
    assert log == list(range(10_000))
    assert gate.enter_now()
    assert not gate.enter_now()


@pytest.mark.loop
async def test_waiting_tasks_get_places_in_order() -> None:
    gate, got = full_gate(), list[int]()
    loop = asyncio.get_running_loop()

    async def wait(number: int) -> None:
        await gate.wait(loop)
        got.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(4)]
    await settle()
    assert got == []
    for _ in tasks:
        gate.leave()
    await asyncio.gather(*tasks)
    assert got == [0, 1, 2, 3]


@pytest.mark.loop
async def test_a_cancelled_waiter_is_passed_over() -> None:
    gate = full_gate()
    loop = asyncio.get_running_loop()
    gone, stays = (asyncio.create_task(gate.wait(loop)) for _ in range(2))
    await settle()
    gone.cancel()
    await settle()
    gate.leave()
    await stays
    assert gone.cancelled()
    gate.leave()
    assert gate.enter_now()


@pytest.mark.loop
async def test_a_waiter_cancelled_just_as_it_gets_its_place_hands_it_on() -> None:
    gate = full_gate()
    loop = asyncio.get_running_loop()
    gone, stays = (asyncio.create_task(gate.wait(loop)) for _ in range(2))
    await settle()
    gate.leave()
    gone.cancel()
    await stays
    assert gone.cancelled()


class Crowd:
    """Tasks in front of a gate with two places left."""

    PLACES = 2

    def __init__(self, rng: random.Random) -> None:
        self.gate = full_gate()
        for _ in range(self.PLACES):
            self.gate.leave()
        self.rng = rng
        self.waiting: deque[asyncio.Task[None]] = deque()
        self.inside: list[asyncio.Task[None]] = []

    async def come(self) -> None:
        self.waiting.append(asyncio.create_task(self.gate.wait(the_loop())))

    async def leave(self) -> None:
        if self.inside:
            self.inside.pop(self.rng.randrange(len(self.inside)))
            self.gate.leave()

    async def cancel(self) -> None:
        if self.waiting:
            self.rng.choice(self.waiting).cancel()

    async def turn(self) -> None:
        """Let everything settle: who got in are the eldest of those who stayed."""
        await settle(4)
        while self.waiting and self.waiting[0].done():
            task = self.waiting.popleft()
            if not task.cancelled():
                self.inside.append(task)
        assert not any(task.done() and not task.cancelled() for task in self.waiting)
        assert len(self.inside) <= self.PLACES
        if not all(task.done() for task in self.waiting):
            assert len(self.inside) == self.PLACES, "somebody waits while a place is free"


@given(st.lists(st.sampled_from(["come", "leave", "cancel", "turn"]), max_size=60), st.integers())
def test_no_place_is_lost_or_given_twice(steps: list[str], seed: int) -> None:
    """Whatever the order of arrivals, departures and cancellations, two places stay two."""

    async def main() -> None:
        crowd = Crowd(random.Random(seed))
        for step in [*steps, *["turn", "leave"] * (len(steps) + crowd.PLACES)]:
            await getattr(crowd, step)()
        await crowd.turn()
        assert not crowd.waiting
        assert not crowd.inside
        for _ in range(crowd.PLACES):
            assert crowd.gate.enter_now()
        assert not crowd.gate.enter_now()

    run(main())


# --- Deadlines ----------------------------------------------------------------------------------


class Expiries:
    """Deadlines that note which ballot ended when."""

    def __init__(self) -> None:
        self.loop = the_loop()
        self.deadlines = Deadlines(self.loop, self._end)
        self.ended: list[tuple[Ballot, float]] = []
        self._began_at = self.loop.time()

    def watch(self, timeout: float, nodes: int = 1) -> Ballot:
        ballot = Ballot(nodes, grant_rule)
        self.deadlines.watch(ballot, timeout)
        return ballot

    def _end(self, ballot: Ballot) -> None:
        self.ended.append((ballot, self.loop.time() - self._began_at))
        ballot.expire()

    @property
    def times(self) -> list[float]:
        return [at for _, at in self.ended]


@in_virtual_time
async def test_a_round_that_is_not_heard_out_ends_at_its_deadline() -> None:
    expiries = Expiries()
    ballot = expiries.watch(0.05, nodes=2)
    ballot.cast(0, Vote.GRANTED)
    await asyncio.sleep(0.049)
    assert not expiries.ended
    await asyncio.sleep(0.002)
    assert expiries.times == [pytest.approx(0.05)]
    assert ballot.votes == [Vote.GRANTED, Vote.MISSING]


@in_virtual_time
async def test_a_round_that_was_heard_out_is_left_alone() -> None:
    expiries = Expiries()
    ballot = expiries.watch(0.05)
    ballot.cast(0, Vote.DENIED)
    await asyncio.sleep(1)
    assert expiries.ended == []
    assert the_loop().timers == 0


@in_virtual_time
async def test_rounds_with_equal_timeouts_share_one_timer() -> None:
    expiries = Expiries()
    ballots = []
    for _ in range(100):
        ballots.append(expiries.watch(0.05))
        await asyncio.sleep(0.0001)
    assert the_loop().timers == 1
    for ballot in ballots[::2]:
        ballot.cast(0, Vote.GRANTED)
    await asyncio.sleep(1)
    assert [ballot for ballot, _ in expiries.ended] == ballots[1::2]
    assert expiries.times == pytest.approx([0.0501 + 0.0002 * n for n in range(50)])
    assert the_loop().timers == 0


@in_virtual_time
async def test_each_timeout_has_its_own_timer() -> None:
    """A short one that begins later ends first."""
    expiries = Expiries()
    expiries.watch(1.0)
    await asyncio.sleep(0.1)
    expiries.watch(0.05)
    await asyncio.sleep(0)  # the time begins at the end of the turn
    assert the_loop().timers == 2
    await asyncio.sleep(2)
    assert expiries.times == pytest.approx([0.15, 1.0])


@in_virtual_time
async def test_a_burst_does_not_time_itself_out() -> None:
    """A round's time begins when its turn's requests are written, however long that turn took."""
    expiries, loop = Expiries(), the_loop()
    ballots = []
    for _ in range(100):
        ballots.append(expiries.watch(0.05))
        loop.block(0.001)  # 0.1 s in all: the first is made twice its timeout before it is written
    for ballot in ballots:
        loop.call_later(0.04, ballot.cast, 0, Vote.GRANTED)
    silent = expiries.watch(0.05)
    await asyncio.sleep(1)
    assert [ballot for ballot, _ in expiries.ended] == [silent]
    assert expiries.times == pytest.approx([0.15])


@in_virtual_time
async def test_replies_read_in_the_turn_after_the_timer_still_count() -> None:
    """Uvloop runs timers before I/O: what lies in the socket by then must be seen first."""
    expiries, loop = Expiries(), the_loop()
    ballot = expiries.watch(0.05)
    loop.call_later(0.05, lambda: loop.call_soon(ballot.cast, 0, Vote.GRANTED))
    await asyncio.sleep(1)
    assert ballot.votes == [Vote.GRANTED]
    assert expiries.ended == []


@in_virtual_time
async def test_after_a_blocked_loop_replies_get_a_short_grace() -> None:
    """The loop was busy over the deadline: silence would be its own fault."""
    expiries, loop = Expiries(), the_loop()
    heard, silent = expiries.watch(0.05), expiries.watch(0.05)
    loop.call_later(0.04, loop.block, 0.5)
    loop.call_later(0.54 + LATE_S / 2, heard.cast, 0, Vote.GRANTED)
    await asyncio.sleep(1)
    assert heard.votes == [Vote.GRANTED]
    assert silent.votes == [Vote.MISSING]
    assert expiries.times == [pytest.approx(0.54 + LATE_S)]


@in_virtual_time
async def test_the_grace_is_for_rounds_that_were_due_already() -> None:
    """One that became due during the grace gets its own."""
    expiries, loop = Expiries(), the_loop()
    expiries.watch(0.05)
    await asyncio.sleep(0.02)
    expiries.watch(0.05)
    loop.call_later(0.02, loop.block, 0.028)  # until 0.068: the second is due at 0.07
    await asyncio.sleep(1)
    assert expiries.times == pytest.approx([0.068 + LATE_S, 0.068 + LATE_S])


@in_virtual_time
async def test_a_round_begun_by_the_end_of_another_is_watched_too() -> None:
    loop = the_loop()
    ended: list[float] = []

    def end(ballot: Ballot) -> None:
        ended.append(loop.time())
        ballot.expire()
        if len(ended) < 3:
            deadlines.watch(Ballot(1, grant_rule), 0.05)

    deadlines = Deadlines(loop, end)
    began_at = loop.time()
    deadlines.watch(Ballot(1, grant_rule), 0.05)
    await asyncio.sleep(1)
    assert ended == pytest.approx([began_at + 0.05 * n for n in (1, 2, 3)])


def test_later_rounds_keep_their_deadline_whatever_one_raises() -> None:
    async def main() -> None:
        loop = the_loop()
        ended: list[float] = []

        def end(ballot: Ballot) -> None:
            ended.append(loop.time())
            ballot.expire()
            if len(ended) == 1:
                raise ValueError("in a callback")

        deadlines = Deadlines(loop, end)
        began_at = loop.time()
        for delay in (0, 0.01):
            loop.call_later(delay, deadlines.watch, Ballot(1, grant_rule), 0.05)
        await asyncio.sleep(1)
        assert ended == pytest.approx([began_at + 0.05, began_at + 0.06])

    with pytest.raises(AssertionError, match="in a callback"):
        run(main())


@in_virtual_time
async def test_what_is_watched_can_be_listed_and_let_go() -> None:
    expiries = Expiries()
    first, second, third = expiries.watch(0.05), expiries.watch(0.05), expiries.watch(1.0)
    second.cast(0, Vote.GRANTED)
    assert expiries.deadlines.watched() == [first, third]
    expiries.deadlines.cancel()
    assert expiries.deadlines.watched() == []
    assert the_loop().timers == 0
    await asyncio.sleep(2)
    assert expiries.ended == []


@in_virtual_time
async def test_letting_go_from_within_an_expiry_is_harmless() -> None:
    """The end of one round may close the client."""
    loop = the_loop()
    ended: list[Ballot] = []

    def end(ballot: Ballot) -> None:
        ended.append(ballot)
        ballot.expire()
        deadlines.cancel()

    deadlines = Deadlines(loop, end)
    for _ in range(2):
        deadlines.watch(Ballot(1, grant_rule), 0.05)
    await asyncio.sleep(1)
    assert ended
    assert loop.timers == 0
