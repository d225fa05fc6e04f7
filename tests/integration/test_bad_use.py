"""Uses that can't work, of a client at work: told with a clear error, and nothing is sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest

from aioredlock2 import ConfigurationError, Lease, LeaseReleased, LockContended, Redlock
from aioredlock2.embedded import Server
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, all_keys, values
from tests.support.polling import until
from tests.support.relay import Relays

NAME = "invoice:42"


@pytest.fixture
async def lease(relays3: Relays) -> AsyncGenerator[Lease]:
    """A lease of "invoice:42" that is not renewed in the meantime, held by all of three nodes."""
    async with connected(relays3.urls, ttl=60) as redlock:
        held = await redlock(NAME, renew=False, max_hold=600).acquire()
        await until(lambda: all(vote.vote.value == "granted" for vote in held.votes))
        yield held
        await held.release()


def elsewhere(use: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run *use* in a loop of its own; to be called in another thread."""
    asyncio.run(use())


@pytest.mark.loop
async def test_a_lease_is_of_no_use_in_another_thread_or_loop(
    servers3: Sequence[Server], relays3: Relays, view: Look, lease: Lease
) -> None:
    """Releasing, extending and watching it there raise, say why, and leave it as it is."""
    stored = values(view, servers3, NAME)
    sent = [relay.to_server.bytes for relay in relays3]
    for use, what in ((lease.release, "release"), (lease.extend, "extend"), (lease.lost, "loss")):
        with pytest.raises(ConfigurationError, match=what) as caught:
            await asyncio.to_thread(elsewhere, use)
        assert "another thread or event loop" in str(caught.value)
    assert sent == [relay.to_server.bytes for relay in relays3]
    assert stored == values(view, servers3, NAME)
    assert lease.is_held
    await lease.extend()


async def test_a_client_in_use_is_of_no_use_in_another_loop(servers3: Sequence[Server]) -> None:
    """While its loop lives, a client can't be used in, or closed from, another one."""
    async with connected(urls_of(servers3)) as redlock:
        lock = redlock(NAME)
        for use in (lock.acquire, lock.try_acquire, lambda: redlock.inspect(NAME), redlock.aclose):
            with pytest.raises(ConfigurationError, match=r"another .*event loop"):
                await asyncio.to_thread(elsewhere, use)
        async with lock:
            pass


@pytest.mark.parametrize(
    ("argument", "use"),
    [
        ("ttl", lambda redlock, _: redlock("other", ttl=0)),
        ("wait", lambda redlock, _: redlock("other", wait=math.nan)),
        ("renew", lambda redlock, _: redlock("other", renew=None)),
        ("max_hold", lambda redlock, _: redlock("other", max_hold=-1)),
        ("on_lost", lambda redlock, _: redlock("other", on_lost="explode")),
        ("resource", lambda redlock, _: redlock("")),
        ("resource", lambda redlock, _: redlock(42)),
        ("resource", lambda redlock, _: redlock.inspect(b"")),
        ("resource", lambda redlock, _: redlock.is_locked(None)),
        ("ttl", lambda _, lease: lease.extend(True)),
        ("ttl", lambda _, lease: lease.extend(timedelta(seconds=-1))),
        ("max_hold", lambda _, lease: lease.extend(601)),
    ],
)
async def test_a_wrong_argument_sends_nothing(
    relays3: Relays, lease: Lease, argument: str, use: Callable[[Redlock, Lease], Any]
) -> None:
    """Not a byte goes to any node, and what is held stays as it is."""
    async with connected(relays3.urls) as redlock:
        sent = [relay.to_server.bytes for relay in relays3]
        valid_until = lease.valid_until
        with pytest.raises((TypeError, ConfigurationError), match=argument):
            await called(use, redlock, lease)
        await asyncio.sleep(0.01)
        assert sent == [relay.to_server.bytes for relay in relays3]
        assert valid_until == lease.valid_until
        assert lease.is_held


async def called(use: Callable[[Redlock, Lease], Any], redlock: Redlock, lease: Lease) -> None:
    result = use(redlock, lease)
    if isinstance(result, Awaitable):
        await result


@pytest.mark.loop
async def test_closing_a_client_ends_all_that_is_under_way(
    servers3: Sequence[Server], view: Look
) -> None:
    """`aclose` releases what is held and turns away who waits, in the queue and at the nodes."""
    async with connected(urls_of(servers3)) as other, other("theirs"):
        redlock = patient(urls_of(servers3), wait=None)
        mine = await redlock("mine").acquire()
        waiters = [asyncio.create_task(redlock(name).acquire()) for name in ("mine", "theirs")]
        await asyncio.sleep(0.05)
        await redlock.aclose()
        for waiter in waiters:
            with pytest.raises(ConfigurationError, match="closed by aclose"):
                await waiter
        assert mine.is_released
        assert {b"redlock:theirs"} == all_keys(view, servers3)
        with pytest.raises(LeaseReleased):
            await mine.extend()
        report = await mine.release()
        assert "clean" == report.outcome
        with pytest.raises(ConfigurationError, match="closed by aclose"):
            await redlock("mine").acquire()


async def test_a_lock_that_was_not_entered_can_not_be_left(servers3: Sequence[Server]) -> None:
    """An exit without an entry is told, not guessed at."""
    async with patient(urls_of(servers3)) as redlock:
        lock = redlock(NAME)
        with pytest.raises(ConfigurationError, match="without having been entered"):
            await lock.__aexit__(None, None, None)
        async with lock:
            assert await redlock.is_locked(NAME)


async def test_an_error_can_be_told_without_its_lock(servers3: Sequence[Server]) -> None:
    """An AcquireError is complete in itself: it names the resource, the time and the nodes."""
    async with patient(urls_of(servers3)) as a, patient(urls_of(servers3)) as b, a(NAME):
        with pytest.raises(LockContended) as caught:
            await b(NAME, wait=0).acquire()
    error = caught.value
    assert NAME == error.resource
    assert 1 == error.rounds
    assert [server.url.removeprefix("redis://") for server in servers3] == [
        each.node for each in error.outcomes
    ]
    assert repr(NAME) in str(error)
    assert f"{error.elapsed:.3f} s" in str(error)
    assert "denied" in str(error)
