"""Everything the public API offers, in any order, by two clients, while their world is harmed.

Hypothesis draws the calls, the harm and the pauses; what is drawn never depends on what came of it
before, so that a world of real servers can be driven as well. After each step the leases are compared
with what was seen of them before; each call that has ended is judged by how it may end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aioredlock2 import (
    AcquiredTooLate,
    AcquireError,
    Lease,
    LeaseLost,
    LeaseReleased,
    LockContended,
    QuorumUnreachable,
    Redlock,
)

__all__ = ["CLIENTS", "Operations", "Seen", "World"]

CLIENTS = (0, 1)
CLIENT = st.sampled_from(CLIENTS)
SOME = st.integers(0, 7)
"""One of those there are, counted round."""
ON_LOST = st.sampled_from(["cancel", "notify", "ignore"])
OUTCOMES = {"clean", "expired", "lost", "unknown"}
FORGETTING = {"wipe", "overwrite"}
STALLING = {"block", "suspend"}
HARM = [
    "freeze",
    "thaw",
    "cut",
    "cut late",
    "restore",
    "slow",
    "error",
    "others",
    *FORGETTING,
    *STALLING,
]
LATE_S = 0.6
"""A first contact may overrun the wait by 0.5 s, a round by its node timeout."""


class World(Protocol):
    """Where it happens."""

    clients: list[Redlock]
    ttls: tuple[float, ...]
    waits: tuple[float, ...]
    pauses: tuple[float, ...]
    punctual: bool
    """Whether nothing outside the test can hold it up."""
    heard: list[dict[str, Any]]
    """What reached the loop's exception handler."""

    def run(self, main: Coroutine[Any, Any, Any]) -> Any: ...

    def clock(self) -> float:
        """What leases go by."""

    def harm(self, how: str, number: int, node: int) -> None:
        """One of `HARM`, if this world has it; called in the running loop."""

    def end(self) -> set[bytes]:
        """Heal, release all, wait until nothing can be left; the keys that are left all the same."""


@dataclass(eq=False)
class Seen:
    """A lease and what was last seen of it."""

    lease: Lease
    token: bytes
    state: str = "held"
    ended_at: float | None = None


@dataclass(eq=False)
class Call:
    """A call under way, and who judges how it ended."""

    task: asyncio.Task[Any]
    judge: Callable[[Call, Any, BaseException | None], None]
    began: float
    stalls: int
    wait: float = 0.0
    ended: float = 0.0
    cancelled: bool = False


def state_of(lease: Lease) -> str:
    """The one state that it says it is in."""
    said = {"held": lease.is_held, "lost": lease.is_lost, "released": lease.is_released}
    (state,) = (name for name, true in said.items() if true)
    assert (lease.remaining() > 0) == (state == "held")
    assert repr(lease).startswith(f"<Lease 'x' {state}")
    return state


class Operations(RuleBasedStateMachine):
    """The machine; a subclass says in which world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.leases: list[Seen] = []
        self.calls: list[Call] = []
        self.fences: list[tuple[float, int]] = []
        """When each was had, and the fence."""
        self.forgot = False
        """True once a node lost a key: from then on nobody promises exclusion."""
        self.stalls = 0

    # Calls.

    @rule(number=CLIENT, how=SOME, fenced=st.booleans(), renew=st.booleans(), at_once=st.booleans())
    def acquire(self, number: int, how: int, fenced: bool, renew: bool, at_once: bool) -> None:
        ttl, wait = self.of(self.world.ttls, how), self.of(self.world.waits, how // 2)
        lock = self.world.clients[number]("x", ttl=ttl, wait=wait, renew=renew, fenced=fenced)
        self.call(lock.acquire(), self.judge_acquire, at_once=at_once, wait=wait)

    @rule(number=CLIENT, how=SOME, fenced=st.booleans())
    def try_acquire(self, number: int, how: int, fenced: bool) -> None:
        lock = self.world.clients[number]("x", ttl=self.of(self.world.ttls, how), fenced=fenced)
        self.call(lock.try_acquire(), self.judge_acquire, at_once=True)

    @rule(number=CLIENT, how=SOME, on_lost=ON_LOST, pause=SOME)
    def enter(self, number: int, how: int, on_lost: Any, pause: int) -> None:
        ttl, wait = self.of(self.world.ttls, how), self.of(self.world.waits, how)
        lock = self.world.clients[number]("x", ttl=ttl, wait=wait, on_lost=on_lost)

        async def body() -> None:
            async with lock as lease:
                self.leases.append(Seen(lease, lease._hold.token))
                await asyncio.sleep(self.of(self.world.pauses, pause))

        quiet = on_lost == "ignore"
        self.call(body(), self.judge_quiet_body if quiet else self.judge_body, at_once=False)

    @rule(which=SOME, how=SOME, at_once=st.booleans())
    def extend(self, which: int, how: int, at_once: bool) -> None:
        if self.leases:
            lease = self.of(self.leases, which).lease
            before = state_of(lease)

            def judge(_: Call, __: None, error: BaseException | None) -> None:
                assert isinstance(error, LeaseLost | LeaseReleased | None)
                if isinstance(error, LeaseLost):
                    assert lease.is_lost
                elif isinstance(error, LeaseReleased):
                    assert lease.is_released
                else:
                    assert before == "held"

            ttl = self.of((None, *self.world.ttls), how)
            self.call(lease.extend(ttl), judge, at_once=at_once)

    @rule(which=SOME, at_once=st.booleans())
    def release(self, which: int, at_once: bool) -> None:
        if self.leases:
            lease = self.of(self.leases, which).lease
            before = state_of(lease)

            def judge(_: Call, report: Any, error: BaseException | None) -> None:
                assert error is None
                assert report.outcome in OUTCOMES
                assert not lease.is_held
                assert before != "lost" or lease.is_lost

            self.call(lease.release(), judge, at_once=at_once)

    @rule(which=SOME)
    def await_the_end(self, which: int) -> None:
        if self.leases:
            lease = self.of(self.leases, which).lease

            def judge(_: Call, lost: Any, error: BaseException | None) -> None:
                assert error is None
                assert state_of(lease) == ("lost" if lost else "released")

            self.call(lease.lost(), judge, at_once=False)

    @rule(which=SOME)
    def cancel(self, which: int) -> None:
        if self.calls:
            call = self.of(self.calls, which)

            async def cancel() -> None:
                call.cancelled = call.task.cancel()  # not if it has ended in this very turn
                await asyncio.wait([call.task])

            self.world.run(cancel())

    @rule(number=CLIENT)
    def inspect(self, number: int) -> None:
        def judge(_: Call, __: Any, error: BaseException | None) -> None:
            assert isinstance(error, QuorumUnreachable | None)

        self.call(self.world.clients[number].inspect("x"), judge, at_once=True)

    # Time, and harm.

    @rule(which=SOME)
    def pause(self, which: int) -> None:
        self.world.run(asyncio.sleep(self.of(self.world.pauses, which)))

    @rule(which=SOME, beyond=st.sampled_from([-0.02, 0.0, 0.001, 0.02]))
    def pause_to_the_end(self, which: int, beyond: float) -> None:
        """Until just before or after a lease's validity ends, as it stands now."""
        if self.leases:
            left = self.of(self.leases, which).lease.remaining()
            self.world.run(asyncio.sleep(max(0.0, left + beyond)))

    @rule(how=st.sampled_from(HARM), number=CLIENT, node=SOME)
    def harm(self, how: str, number: int, node: int) -> None:
        self.forgot = self.forgot or how in FORGETTING
        self.stalls += how in STALLING

        async def harm() -> None:
            self.world.harm(how, number, node)
            await asyncio.sleep(0)

        self.world.run(harm())

    # How calls are made and judged.

    @staticmethod
    def of(things: Any, which: int) -> Any:
        return things[which % len(things)]

    def call(
        self, main: Coroutine[Any, Any, Any], judge: Any, *, at_once: bool, wait: float = 0.0
    ) -> None:
        """Start a call; with `at_once` wait until it has ended."""

        async def start() -> None:
            task = asyncio.get_running_loop().create_task(main)
            call = Call(task, judge, self.world.clock(), self.stalls, wait)
            task.add_done_callback(lambda _: setattr(call, "ended", self.world.clock()))
            self.calls.append(call)
            if at_once:
                await asyncio.wait([task])
            else:
                await asyncio.sleep(0)

        self.world.run(start())

    def judge_acquire(self, call: Call, lease: Lease | None, error: BaseException | None) -> None:
        assert isinstance(error, LockContended | QuorumUnreachable | AcquiredTooLate | None)
        if lease is not None:
            self.leases.append(Seen(lease, lease._hold.token))
            if lease._hold.fence:
                self.note_fence(call, lease.fence)
        if self.world.punctual and call.stalls == self.stalls:
            assert call.ended - call.began <= call.wait + LATE_S

    def judge_body(self, _: Call, __: None, error: BaseException | None) -> None:
        assert isinstance(error, AcquireError | LeaseLost | None)

    def judge_quiet_body(self, _: Call, __: None, error: BaseException | None) -> None:
        assert isinstance(error, AcquireError | None)

    def note_fence(self, call: Call, fence: int) -> None:
        """It is larger than all that were had before this one was asked for."""
        for had_at, earlier in self.fences:
            assert fence != earlier
            assert fence > earlier or had_at >= call.began
            assert fence > earlier or self.forgot
        self.fences.append((self.world.clock(), fence))

    # What must always be so.

    @invariant()
    def calls_end_as_they_may(self) -> None:
        for call in [call for call in self.calls if call.task.done()]:
            self.calls.remove(call)
            if call.cancelled:
                assert call.task.cancelled()
                continue
            assert not call.task.cancelled()
            error = call.task.exception()
            call.judge(call, None if error else call.task.result(), error)

    @invariant()
    def nothing_comes_back(self) -> None:
        for seen in self.leases:
            state = state_of(seen.lease)
            if seen.state != "held":
                assert state == seen.state
            elif state != "held":
                seen.ended_at = self.world.clock()
            seen.state = state

    @invariant()
    def one_at_most_is_held(self) -> None:
        held = [seen.lease for seen in self.leases if seen.lease.is_held]
        assert self.forgot or len(held) <= 1

    @invariant()
    def nothing_reaches_the_loop(self) -> None:
        assert not self.world.heard

    def teardown(self) -> None:
        async def give_back() -> None:
            for call in self.calls:
                call.cancelled = call.task.cancel()
            if self.calls:
                await asyncio.wait([call.task for call in self.calls])
            for seen in self.leases:
                await seen.lease.release()

        self.world.run(give_back())
        self.calls_end_as_they_may()
        left = self.world.end()
        assert not left
        self.nothing_comes_back()
        self.nothing_reaches_the_loop()
