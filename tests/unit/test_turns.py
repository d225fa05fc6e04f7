"""The queue inside one client: first come, first served, and nobody's going leaves a hole."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2 import ConfigurationError, RedlockError
from aioredlock2._turns import Turn, TurnMissed, Turns
from tests.support.virtual import in_virtual_time, run, settle, the_loop

KEY = b"x"


def closed() -> RedlockError:
    return ConfigurationError("closed")


async def take(turns: Turns, limit: float | None = None) -> Turn:
    """The turn for KEY, at once or after waiting for it."""
    turn = turns.take_now(KEY)
    if turn is None:
        turn = turns.of(KEY)
        await turns.wait(turn, limit)
    return turn


async def test_a_free_turn_is_had_at_once_and_by_one() -> None:
    turns = Turns(asyncio.get_running_loop())
    turn = turns.take_now(KEY)
    assert turn is not None
    assert turn.key == KEY
    assert turns.take_now(KEY) is None
    assert turns.of(KEY) is turn
    turns.leave(turn)
    again = turns.take_now(KEY)
    assert again is not None
    assert again is not turn


async def test_names_have_nothing_to_do_with_each_other() -> None:
    turns = Turns(asyncio.get_running_loop())
    one, other = turns.take_now(b"a"), turns.take_now(b"b")
    assert one is not None
    assert other is not None
    turns.leave(one)
    assert turns.of(b"b") is other


@pytest.mark.loop
async def test_waiters_are_served_in_order_of_arrival() -> None:
    turns, served = Turns(asyncio.get_running_loop()), list[int]()
    first = await take(turns)

    async def one(number: int) -> None:
        turn = await take(turns)
        served.append(number)
        await asyncio.sleep(0)
        turns.leave(turn)

    tasks = [asyncio.create_task(one(number)) for number in range(5)]
    await settle()
    assert served == []
    turns.leave(first)
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]
    assert turns.take_now(KEY) is not None


@pytest.mark.loop
async def test_whoever_comes_during_the_hand_over_queues_behind() -> None:
    """Between `leave` and the waiter's next step the turn is not free."""
    turns = Turns(asyncio.get_running_loop())
    turn = await take(turns)
    waiter = asyncio.create_task(take(turns))
    await settle()
    turns.leave(turn)
    assert turns.take_now(KEY) is None
    assert await waiter is turn


async def test_a_turn_that_is_left_is_held_by_nobody() -> None:
    turns = Turns(asyncio.get_running_loop())
    turn = await take(turns)
    turn.holder = object()  # type: ignore[assignment]
    waiter = asyncio.create_task(take(turns))
    await settle()
    turns.leave(turn)
    assert turn.holder is None
    await waiter


@in_virtual_time
async def test_a_wait_ends_at_its_limit() -> None:
    turns, loop = Turns(the_loop()), the_loop()
    turn = await take(turns)
    began_at = loop.time()
    with pytest.raises(TurnMissed):
        await take(turns, 0.5)
    assert loop.time() - began_at == pytest.approx(0.5)
    turns.leave(turn)
    assert turns.take_now(KEY) is not None


@in_virtual_time
async def test_a_turn_that_comes_in_time_stays_after_the_limit() -> None:
    turns, loop = Turns(the_loop()), the_loop()
    turn = await take(turns)
    waiter = asyncio.create_task(take(turns, 0.5))
    await asyncio.sleep(0.4)
    turns.leave(turn)
    assert await waiter is turn
    assert loop.timers == 0
    await asyncio.sleep(1)
    assert turns.take_now(KEY) is None


@in_virtual_time
async def test_whoever_gave_up_is_passed_over() -> None:
    """Also when its limit and the turn come at the same instant."""
    turns = Turns(the_loop())
    turn = await take(turns)
    impatient = asyncio.create_task(take(turns, 0.5))
    patient = asyncio.create_task(take(turns))
    await settle()
    the_loop().call_later(0.5, turns.leave, turn)
    await patient
    with pytest.raises(TurnMissed):
        await impatient


@pytest.mark.loop
async def test_a_cancelled_waiter_is_passed_over() -> None:
    turns = Turns(asyncio.get_running_loop())
    turn = await take(turns)
    gone, stays = (asyncio.create_task(take(turns)) for _ in range(2))
    await settle()
    gone.cancel()
    turns.leave(turn)
    assert await stays is turn
    assert gone.cancelled()


@pytest.mark.loop
async def test_cancelled_during_the_hand_over_it_passes_the_turn_on() -> None:
    turns = Turns(asyncio.get_running_loop())
    turn = await take(turns)
    gone, stays = (asyncio.create_task(take(turns)) for _ in range(2))
    await settle()
    turns.leave(turn)
    gone.cancel()
    assert await stays is turn
    assert gone.cancelled()


@in_virtual_time
async def test_cancelled_as_its_limit_passes_it_has_no_turn_to_pass_on() -> None:
    turns = Turns(the_loop())
    turn = await take(turns)
    gone = asyncio.create_task(take(turns, 0.5))
    stays = asyncio.create_task(take(turns))
    await settle()
    the_loop().call_later(0.5, lambda: the_loop().call_soon(gone.cancel))
    await asyncio.sleep(0.6)
    assert gone.done()
    assert not stays.done()
    turns.leave(turn)
    await stays


@pytest.mark.loop
async def test_closing_turns_everybody_away() -> None:
    turns = Turns(asyncio.get_running_loop())
    turn = await take(turns)
    waiters = [asyncio.create_task(take(turns)) for _ in range(3)]
    await settle()
    turns.close(closed)
    ends = await asyncio.gather(*waiters, return_exceptions=True)
    assert [str(end) for end in ends] == ["closed"] * 3
    assert len({id(end) for end in ends}) == 3
    turns.leave(turn)
    assert turns.take_now(KEY) is not None


@pytest.mark.loop
async def test_closing_during_a_hand_over_hands_over() -> None:
    turns = Turns(asyncio.get_running_loop())
    turn = await take(turns)
    waiter = asyncio.create_task(take(turns))
    await settle()
    turns.leave(turn)
    turns.close(closed)
    assert await waiter is turn


@in_virtual_time
async def test_a_turn_that_comes_at_the_very_limit_is_had() -> None:
    turns = Turns(the_loop())
    turn = await take(turns)
    the_loop().call_later(0.5, turns.leave, turn)
    waiter = asyncio.create_task(take(turns, 0.5))
    assert await waiter is turn


async def test_leaving_twice_takes_nobodys_turn() -> None:
    turns = Turns(asyncio.get_running_loop())
    old = await take(turns)
    turns.leave(old)
    new = await take(turns)
    turns.leave(old)
    assert turns.of(KEY) is new
    turns.leave(new)
    turns.leave(new)
    assert turns.take_now(KEY) is not None


async def test_closing_is_no_news_for_whoever_has_gone_already() -> None:
    turns = Turns(asyncio.get_running_loop())
    await take(turns)
    gone = asyncio.create_task(take(turns))
    await settle()
    gone.cancel()
    turns.close(closed)
    await settle()
    assert gone.cancelled()


class Queue:
    """Tasks that want one name, and what they must see."""

    def __init__(self, rng: random.Random) -> None:
        self.turns = Turns(the_loop())
        self.rng = rng
        self.waiting: deque[asyncio.Task[Turn]] = deque()
        self.having: list[Turn] = []

    async def come(self) -> None:
        limit = self.rng.choice([None, 0.0, 0.01, 0.02])
        self.waiting.append(asyncio.create_task(take(self.turns, limit)))

    async def leave(self) -> None:
        if self.having:
            self.turns.leave(self.having.pop())

    async def cancel(self) -> None:
        if self.waiting:
            self.rng.choice(self.waiting).cancel()

    async def time(self) -> None:
        await asyncio.sleep(0.01)

    async def turn(self) -> None:
        """Let everything settle: one has the turn, and it is the eldest of those who stayed."""
        await settle(5)
        while self.waiting and self.waiting[0].done():
            task = self.waiting.popleft()
            if not task.cancelled() and task.exception() is None:
                self.having.append(task.result())
        got = [task for task in self.waiting if task.done() and not task.cancelled()]
        assert all(task.exception() is not None for task in got), "a younger one was served first"
        assert len(self.having) <= 1
        if not all(task.done() for task in self.waiting):
            assert self.having, "somebody waits, and nobody has the turn"


@given(
    st.lists(st.sampled_from(["come", "leave", "cancel", "time", "turn"]), max_size=60),
    st.integers(),
)
def test_one_has_the_turn_and_it_is_never_lost(steps: list[str], seed: int) -> None:
    """Whatever the order of arrivals, departures, cancellations and ended waits."""

    async def main() -> None:
        queue = Queue(random.Random(seed))
        for step in [*steps, *["turn", "leave"] * (len(steps) + 1)]:
            await getattr(queue, step)()
        await queue.turn()
        assert not queue.waiting
        assert not queue.having
        assert queue.turns.take_now(KEY) is not None

    run(main())
