"""Loops that come and go, closing, forgetting to close, signals, pickling."""

from __future__ import annotations

import asyncio
import gc
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from aioredlock2 import (
    ConfigurationError,
    LeaseError,
    LeaseLost,
    LeaseReleased,
    Lock,
    Redlock,
)
from aioredlock2.embedded import Server
from tests.support.child import Child
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up
from tests.support.fleet import Look, all_keys, everywhere, values, wipe
from tests.support.loops import run
from tests.support.polling import until
from tests.support.relay import Relays

# --- F086: loops ---------------------------------------------------------------------------------


def test_f086_a_client_outlives_the_loops_it_is_used_in(servers3: Sequence[Server]) -> None:
    """One client made outside of any loop, and three loops one after the other: it dials anew."""
    redlock = patient(urls_of(servers3))

    async def work() -> str:
        lease = await redlock("x").acquire()
        return (await lease.release()).outcome

    async def close() -> None:
        await work()
        await redlock.aclose()

    assert ["clean"] * 3 == [run(work()) for _ in range(3)]
    run(close())


def test_f086_what_a_closed_loop_held_is_lost(servers3: Sequence[Server], view: Look) -> None:
    """A lease of an earlier loop is nobody's any more, and its name is free after its ttl."""
    redlock = patient(urls_of(servers3), node_timeout=0.1)

    async def acquire() -> None:
        leases.append(await redlock("x", ttl=0.8).acquire())

    async def look_again() -> None:
        (lease,) = leases
        async with redlock("x", ttl=0.8, wait=10):
            assert not lease.is_held
            assert lease.is_lost
        with pytest.raises((LeaseError, ConfigurationError)):
            await lease.extend()
        with pytest.raises(ConfigurationError, match="loop"):
            await lease.release()
        await redlock.aclose()

    leases: list[Any] = []
    run(acquire())
    run(look_again())


def test_f086_a_second_living_loop_is_an_error_that_says_so(servers3: Sequence[Server]) -> None:
    """Two threads with a loop each share no client; nothing hangs, the first goes on."""
    redlock = patient(urls_of(servers3))
    errors: list[Exception] = []

    def elsewhere() -> None:
        for call in (redlock("x").acquire, redlock("x").try_acquire, redlock.aclose):
            try:
                run(call())
            except ConfigurationError as error:
                errors.append(error)

    async def work() -> None:
        async with redlock, redlock("x") as lease:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            await asyncio.to_thread(thread.join)
            await lease.extend()

    run(work())
    assert 3 == len(errors)
    assert all("loop" in str(error) for error in errors)


@pytest.mark.parametrize(
    "use",
    [
        lambda redlock: redlock("x").acquire(),
        lambda redlock: redlock("x").try_acquire(),
        lambda redlock: redlock("x").__aenter__(),
        lambda redlock: redlock.__aenter__(),
        lambda redlock: redlock.inspect("x"),
        lambda redlock: redlock.is_locked("x"),
    ],
    ids=["acquire", "try_acquire", "lock", "client", "inspect", "is_locked"],
)
def test_without_a_running_asyncio_loop_the_error_names_the_cause(
    use: Callable[[Redlock], Coroutine[Any, Any, object]],
) -> None:
    """Driven by anything but asyncio (trio, a bare `send`), a call ends in a ConfigurationError."""
    redlock = Redlock(["redis://127.0.0.1:1"])
    coroutine = use(redlock)
    with pytest.raises(ConfigurationError, match="asyncio loop"):
        coroutine.send(None)


# --- F087: closing -------------------------------------------------------------------------------


@pytest.mark.loop
async def test_f087_closing_again_does_nothing(servers3: Sequence[Server]) -> None:
    """Also a client that was never used, and from several tasks at once."""
    async with connected(urls_of(servers3)) as redlock:
        await asyncio.gather(redlock.aclose(), redlock.aclose())
        await redlock.aclose()
    unused = patient(urls_of(servers3))
    await unused.aclose()
    await unused.aclose()
    with pytest.raises(ConfigurationError, match="closed"):
        await unused("x").acquire()


def test_f087_closing_after_the_end_of_the_loop_is_fine(servers3: Sequence[Server]) -> None:
    """In the next loop, as a test suite's teardown does: no error, no warning."""
    redlock = patient(urls_of(servers3))

    async def work() -> None:
        async with redlock("x"):
            pass

    run(work())
    run(redlock.aclose())
    run(redlock.aclose())


async def test_f087_a_forgotten_client_warns_once_and_hangs_up(
    servers3: Sequence[Server], relays3: Relays
) -> None:
    """Dropped in a living loop: one ResourceWarning, and the connections are gone."""
    kept = [patient(relays3.urls)]
    await all_up(kept[0])
    async with kept[0]("x"):
        pass
    with pytest.warns(ResourceWarning, match="was never closed") as warned:
        kept.clear()
    gc.collect()
    assert 1 == len(warned)
    await until(lambda: [0, 0, 0] == [relay.connections for relay in relays3])


@pytest.mark.parametrize("program", ["forget_to_close", "forget_to_release"])
def test_f087_forgetting_at_the_interpreter_s_end_is_one_warning(
    program: str, servers3: Sequence[Server]
) -> None:
    """F071 too: a client that nobody closed, with or without a lease that nobody gave back."""
    with Child(
        "tests.support.programs", program, *urls_of(servers3), options=["-X", "dev"]
    ) as child:
        ended = child.finish()
    assert 0 == ended.status, ended.errors
    assert ["done"] == ended.lines
    assert 1 == ended.errors.count("ResourceWarning"), ended.errors
    assert "was never closed" in ended.errors
    # asyncio's debug mode may also tell of slow steps.
    assert not re.search("Traceback|ignored|never retrieved|destroyed", ended.errors), ended.errors


@pytest.mark.loop
async def test_f088_closing_releases_and_turns_everybody_away(
    servers3: Sequence[Server], view: Look
) -> None:
    """With three leases held, three tasks waiting and a node frozen: bounded, and clear to all."""
    async with connected(urls_of(servers3), node_timeout=0.3) as redlock:
        leases = [await redlock(f"x{n}", ttl=60).acquire() for n in range(3)]
        waiting = [asyncio.create_task(redlock(f"x{n}", wait=None).acquire()) for n in range(3)]
        await asyncio.sleep(0.01)
        servers3[2].freeze()
        began = time.monotonic()
        await redlock.aclose()
        assert time.monotonic() - began < 2 * 0.3 + 1
        assert set() == all_keys(view, servers3[:2])
        refused = await asyncio.gather(*waiting, return_exceptions=True)
        assert [ConfigurationError] * 3 == [type(error) for error in refused]
        assert all("closed" in str(error) for error in refused)
        for lease in leases:
            assert lease.is_released
            with pytest.raises(LeaseReleased):
                await lease.extend()
            await lease.release()
        for call in (redlock("y").acquire, redlock("y").try_acquire):
            with pytest.raises(ConfigurationError, match="closed"):
                await call()
        with pytest.raises(ConfigurationError, match="closed"):
            await redlock.inspect("y")
        servers3[2].thaw()


@pytest.mark.loop
async def test_f088_a_body_may_close_its_own_client(servers3: Sequence[Server], view: Look) -> None:
    """Its lease was released by `aclose`: the exit is quiet, and whoever is next keeps the lock."""
    async with connected(urls_of(servers3)) as other:
        redlock = patient(urls_of(servers3))
        async with redlock("x", ttl=60) as lease:
            await redlock.aclose()
            assert not lease.is_held
            following = await other("x", ttl=60).acquire()
            token = await everywhere(view, servers3, "x")
        assert [token] * 3 == values(view, servers3, "x")
        await following.release()


@pytest.mark.loop
async def test_f088_closing_stops_the_bodies_of_other_tasks(
    servers3: Sequence[Server], view: Look
) -> None:
    """They are no longer protected: LeaseLost says why, and their keys are gone."""
    inside = asyncio.Event()

    async def work(lock: Lock) -> None:
        async with lock:
            inside.set()
            await asyncio.sleep(30)

    async with connected(urls_of(servers3)) as redlock:
        working = asyncio.create_task(work(redlock("x", ttl=60)))
        await inside.wait()
        await redlock.aclose()
        with pytest.raises(LeaseLost, match="the client was closed"):
            await working
    assert set() == all_keys(view, servers3)


async def test_f088_closing_can_be_cancelled(servers3: Sequence[Server], view: Look) -> None:
    """Cut short, it hangs up at once; the deletes were written before."""
    redlock = patient(urls_of(servers3), node_timeout=4)
    await all_up(redlock)
    lease = await redlock("x", ttl=60).acquire()
    for server in servers3:
        server.freeze()
    closing = asyncio.create_task(redlock.aclose())
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.wait([closing], timeout=3)
    assert closing.cancelled()
    assert lease.is_released
    for server in servers3:
        server.thaw()
    await until(lambda: not all_keys(view, servers3))
    with pytest.raises(ConfigurationError, match="closed"):
        await redlock("x").acquire()
    await redlock.aclose()


# --- F090: pickling ------------------------------------------------------------------------------


@pytest.mark.parametrize("dumps", [pickle.dumps, ForkingPickler.dumps], ids=["pickle", "spawn"])
async def test_f090_nothing_that_lives_can_be_pickled(
    dumps: Callable[[object], object], servers3: Sequence[Server]
) -> None:
    """Client, lock and lease say what to do instead; `spawn` pickles a Process' arguments."""
    async with connected(urls_of(servers3)) as redlock:
        lock: Lock = redlock("x")
        async with lock as lease:
            for one in (redlock, lock, lease):
                with pytest.raises(TypeError, match="can't be pickled"):
                    dumps((one,))


# --- F092: signals; F096: optimised ---------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_f092_a_process_that_is_asked_to_end_frees_its_keys(
    number: signal.Signals, servers3: Sequence[Server], view: Look
) -> None:
    """A bare script under `asyncio.run`: the keys are gone when it has ended, not a ttl later."""
    with Child("tests.support.programs", "hold_long", *urls_of(servers3)) as child:
        assert "held" == await asyncio.to_thread(child.line)
        child.send_signal(number)
        await asyncio.to_thread(child.finish)
        assert set() == all_keys(view, servers3)


async def test_f092_a_killed_holder_is_freed_by_its_ttl(
    servers3: Sequence[Server], view: Look
) -> None:
    """SIGKILL: whoever waits has the lock when a ttl has passed since the last renewal."""
    with Child("tests.support.programs", "hold", *urls_of(servers3)) as child:
        assert "held" == await asyncio.to_thread(child.line)
        async with connected(urls_of(servers3)) as redlock:
            waiting = asyncio.create_task(redlock("x", ttl=60).acquire())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            child.send_signal(signal.SIGKILL)
            began = time.monotonic()
            lease = await waiting
            assert time.monotonic() - began < 0.8 + 1
            await lease.release()


async def test_f096_nothing_depends_on_assert_or_docstrings(
    servers3: Sequence[Server], view: Look
) -> None:
    """Under -OO a rival is kept out, and a loss is noticed."""
    with Child("tests.support.programs", "hold", *urls_of(servers3), options=["-OO"]) as child:
        assert "held" == await asyncio.to_thread(child.line)
        async with connected(urls_of(servers3)) as redlock:
            assert await redlock("x").try_acquire() is None
        wipe(view, servers3, "x")
        assert "lost" == await asyncio.to_thread(child.line)
        assert 0 == (await asyncio.to_thread(child.finish)).status
