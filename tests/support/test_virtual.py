"""The virtual loop: what it promises to the tests that run in it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support import virtual
from tests.support.virtual import (
    Stuck,
    VirtualLoop,
    VirtualRuntime,
    in_virtual_time,
    run,
    settle,
    the_loop,
)


@in_virtual_time
async def test_time_passes_only_while_everybody_waits() -> None:
    loop = the_loop()
    began_at = loop.time()
    await settle(100)
    assert loop.time() == began_at
    await asyncio.sleep(3600)
    assert loop.time() == began_at + 3600


@in_virtual_time
async def test_timers_fire_in_order_at_their_exact_times() -> None:
    loop, fired = the_loop(), list[tuple[str, float]]()
    began_at = loop.time()

    def fire(name: str) -> None:
        fired.append((name, loop.time()))

    for name, delay in (("c", 0.3), ("a", 0.1), ("b", 0.2)):
        loop.call_later(delay, fire, name)
    loop.call_later(0.15, fired.clear).cancel()
    assert loop.timers == 3
    await asyncio.sleep(1)
    assert fired == [("a", began_at + 0.1), ("b", began_at + 0.2), ("c", began_at + 0.3)]
    assert loop.timers == 0


@in_virtual_time
async def test_boottime_goes_on_during_suspend_and_timers_do_not() -> None:
    loop = the_loop()
    began_at, booted_at = loop.time(), loop.boottime()
    sleeping = asyncio.create_task(asyncio.sleep(10))
    await settle()
    loop.suspend(100)
    assert loop.time() == began_at
    assert loop.boottime() == pytest.approx(booted_at + 100)
    await sleeping
    assert loop.time() == began_at + 10
    assert loop.boottime() == pytest.approx(booted_at + 110)


@in_virtual_time
async def test_a_blocked_loop_runs_its_timers_late() -> None:
    loop, fired = the_loop(), list[float]()
    began_at = loop.time()
    loop.call_later(0.1, lambda: fired.append(loop.time() - began_at))
    loop.block(5)
    await settle()
    assert fired == [pytest.approx(5)]


def test_a_test_that_would_hang_is_told_so() -> None:
    async def hang() -> None:
        await the_loop().create_future()

    with pytest.raises(Stuck, match="nothing is ready, nothing is scheduled"):
        run(hang())


def test_a_loop_that_spins_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "TURNS_MAX", 100)

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="100 loop turns"):
        run(spin())


def test_a_task_left_over_is_an_error() -> None:
    kept = []

    async def leave() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(60), name="forgotten"))

    with pytest.raises(AssertionError, match=r"tasks left over: .*forgotten"):
        run(leave())


def test_an_exception_that_reaches_the_loop_is_an_error() -> None:
    def fail() -> None:
        raise ValueError("in a callback")

    async def main() -> None:
        the_loop().call_soon(fail)

    with pytest.raises(AssertionError, match="in a callback"):
        run(main())


def test_an_exception_nobody_retrieved_is_an_error() -> None:
    async def main() -> None:
        the_loop().create_future().set_exception(ValueError("unheard"))

    with pytest.raises(AssertionError, match="never retrieved"):
        run(main(), collect=True)


def test_results_and_errors_come_out() -> None:
    async def give() -> int:
        return 42

    async def fail() -> None:
        raise ValueError("from within")

    assert run(give()) == 42
    with pytest.raises(ValueError, match="from within"):
        run(fail())


def test_two_runs_are_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> tuple[float, bytes, float]:
        assert isinstance(the_loop(), VirtualLoop)
        runtime = VirtualRuntime(the_loop(), "seed")
        await asyncio.sleep(runtime.rng.random())
        return runtime.clock(), runtime.new_token(), runtime.rng.random()

    with caplog.at_level(logging.WARNING):
        assert run(main()) == run(main())
    assert not caplog.records
    other = run(_token("other seed"))
    assert other != run(_token("seed"))
    assert len(other) == 32


async def _token(seed: str) -> bytes:
    return VirtualRuntime(the_loop(), seed).new_token()
