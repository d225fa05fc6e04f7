"""Field cases 1a, second half: how long a caller waits, and when it asks again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta

import pytest

from aioredlock2 import AcquireError, LockContended, QuorumUnreachable, Redlock, RetryPolicy
from aioredlock2.embedded import Server
from tests.support.child import Child
from tests.support.clients import NODE_TIMEOUT_S, patient, urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, quorum_ttl
from tests.support.polling import until
from tests.support.relay import Relays

NAME = "invoice:42"
NEVER_S = 30.0
"""A pause that no test has the time for: whoever pauses is seen."""
BUSY_S = 1.0
"""What a loaded machine may add to any time that is measured here."""
FIRST_CONTACT_S = 0.5
"""A client that was never connected may take so much longer, once."""

never = RetryPolicy(floor=NEVER_S, cap=NEVER_S)


async def seconds_until_error(call: Callable[[], Awaitable[object]]) -> tuple[float, AcquireError]:
    """How long *call* took to fail, and how."""
    started_at = time.monotonic()
    with pytest.raises(AcquireError) as caught:
        await call()
    return time.monotonic() - started_at, caught.value


# --- the wait ------------------------------------------------------------------------------------


async def test_f016_the_body_never_runs_without_the_lock(servers3: Sequence[Server]) -> None:
    """When the wait ends `async with` and the decorator raise; neither runs what they guard."""
    ran = []
    async with patient(urls_of(servers3)) as a, patient(urls_of(servers3)) as b, a(NAME):
        lock = b(NAME, wait=0.2)

        async def enter() -> None:
            async with lock:
                ran.append("body")

        @lock
        async def decorated() -> None:
            ran.append("function")

        for call in (enter, decorated):
            took, error = await seconds_until_error(call)
            assert isinstance(error, LockContended)
            assert 0.2 <= took < 0.2 + BUSY_S
            assert 0.2 <= error.elapsed <= took
    assert [] == ran


async def test_f017_no_wait_is_one_round(servers3: Sequence[Server], view: Look) -> None:
    """With wait=0 a held lock costs each node one SET, and at most one clean-up."""
    async with connected(urls_of(servers3)) as a, connected(urls_of(servers3)) as b, a(NAME):
        for server in servers3:
            view(server).reset_commandstats()
        with pytest.raises(LockContended) as caught:
            async with b(NAME, wait=0):
                pass
        assert 1 == caught.value.rounds
        assert await b(NAME).try_acquire() is None
        await b.inspect(NAME)  # answers come in order: all earlier ones are in
        for server in servers3:
            stats = view(server).commandstats()
            assert 2 == stats["set"]
            assert stats.get("delifeq", 0) <= 2
            assert stats.keys() <= {"set", "delifeq", "get", "pttl", "config|resetstat", "info"}


async def test_f017_waits_of_some_seconds_and_for_ever(servers3: Sequence[Server]) -> None:
    """One argument says it all, by number, timedelta or None, for `async with` and by hand."""
    async with patient(urls_of(servers3), wait=0) as a, patient(urls_of(servers3), wait=0) as b:
        async with a(NAME):
            for wait in (0.1, timedelta(milliseconds=100)):
                took, _ = await seconds_until_error(b(NAME, wait=wait).acquire)
                assert 0.1 <= took < 0.1 + BUSY_S
            by_hand = asyncio.create_task(b(NAME, wait=None).acquire())
            await asyncio.sleep(0.3)
            assert not by_hand.done()
        lease = await by_hand
        entered = asyncio.create_task(enter_and_leave(a, None))
        await asyncio.sleep(0.1)
        assert not entered.done()
        await lease.release()
        await entered


async def enter_and_leave(redlock: Redlock, wait: float | None) -> None:
    async with redlock(NAME, wait=wait):
        pass


@pytest.mark.parametrize("ttl", [1.5, timedelta(seconds=1.5)])
async def test_f018_times_are_seconds_and_the_call_beats_the_client(
    servers3: Sequence[Server], view: Look, ttl: float | timedelta
) -> None:
    """A ttl reaches the server as milliseconds; the lock's own ttl and wait beat the client's."""
    async with patient(urls_of(servers3), ttl=60, wait=0) as long:
        async with long(NAME, ttl=ttl):
            assert 0.5 < quorum_ttl(view, servers3, NAME) <= 1.5
            took, _ = await seconds_until_error(long(NAME).acquire)
            assert took < BUSY_S
        async with long(NAME):
            assert 50 < quorum_ttl(view, servers3, NAME) <= 60
    async with patient(urls_of(servers3), ttl=ttl, wait=NEVER_S) as short, short(NAME):
        assert 0.5 < quorum_ttl(view, servers3, NAME) <= 1.5
        async with patient(urls_of(servers3), ttl=60, wait=NEVER_S) as other:
            took, _ = await seconds_until_error(other(NAME, wait=0).acquire)
            assert took < BUSY_S
            took, _ = await seconds_until_error(other(NAME, wait=0.2).acquire)
            assert 0.2 <= took < 0.2 + BUSY_S


# --- the wait is kept, whatever the servers do ---------------------------------------------------


@pytest.mark.loop
async def test_f019_the_wait_is_kept_with_every_node_frozen(servers3: Sequence[Server]) -> None:
    """All nodes hang: a call takes its wait and one node timeout at most, zero wait included."""
    async with connected(urls_of(servers3)) as redlock:
        for server in servers3:
            server.freeze()
        for wait in (0, 0.4, 0):
            took, error = await seconds_until_error(redlock(NAME, wait=wait).acquire)
            assert isinstance(error, QuorumUnreachable)
            assert wait <= took < wait + NODE_TIMEOUT_S + BUSY_S
        for server in servers3:
            server.thaw()


@pytest.mark.loop
async def test_f019_the_wait_is_kept_while_connecting(relays3: Relays) -> None:
    """Connections are accepted and nothing answers: half a second more, the first time only."""
    for relay in relays3:
        relay.hold()
    redlock = patient(relays3.urls)
    try:
        for wait, extra in ((0.0, FIRST_CONTACT_S), (0.0, 0.0), (0.3, 0.0)):
            took, error = await seconds_until_error(redlock(NAME, wait=wait).acquire)
            assert isinstance(error, QuorumUnreachable)
            assert wait <= took < wait + extra + NODE_TIMEOUT_S + BUSY_S
    finally:
        await redlock.aclose()


async def test_f019_the_wait_is_kept_when_no_connection_opens() -> None:
    """The dial itself hangs, as with a host behind a firewall that drops packets."""
    with full_listener() as port:
        redlock = patient([f"redis://127.0.0.1:{port}"])
        for wait in (0.0, 0.3):
            took, error = await seconds_until_error(redlock(NAME, wait=wait).acquire)
            assert isinstance(error, QuorumUnreachable)
            assert wait <= took < wait + FIRST_CONTACT_S + NODE_TIMEOUT_S + BUSY_S
        await redlock.aclose()


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A loopback port on which connections neither open nor fail."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port


async def test_f019_the_wait_is_kept_while_names_are_resolved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name server keeps silent: nobody waits for it longer than for a server."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, asyncio.BaseEventLoop):
        pytest.skip("this loop resolves names where a test can't get at it")

    async def getaddrinfo(*_: object, **__: object) -> list[object]:
        await asyncio.sleep(NEVER_S)
        return []

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    redlock = patient([f"redis://node-{index}.invalid" for index in range(3)])
    for wait in (0.0, 0.3):
        took, error = await seconds_until_error(redlock(NAME, wait=wait).acquire)
        assert isinstance(error, QuorumUnreachable)
        assert wait <= took < wait + FIRST_CONTACT_S + NODE_TIMEOUT_S + BUSY_S
    await redlock.aclose()


# --- the pauses ----------------------------------------------------------------------------------


@pytest.mark.loop
async def test_f020_nobody_pauses_before_the_first_round_or_after_the_last(
    servers3: Sequence[Server],
) -> None:
    """With pauses of half a minute: a free lock is had, and giving up is told, at once."""
    async with (
        connected(urls_of(servers3), retry=never) as a,
        connected(urls_of(servers3), retry=never) as b,
    ):
        started_at = time.monotonic()
        for _ in range(20):
            async with a(NAME):
                pass
        async with a(NAME):
            for _ in range(20):
                assert await b(NAME).try_acquire() is None
                await seconds_until_error(b(NAME, wait=0).acquire)
        assert time.monotonic() - started_at < 2 * BUSY_S
        async with a(NAME):
            took, error = await seconds_until_error(b(NAME, wait=0.2).acquire)
        assert 0.2 <= took < 0.2 + BUSY_S
        assert 2 == error.rounds


@pytest.mark.loop
async def test_f021_the_deadline_rules_and_the_last_thing_tried_is_a_round(
    servers3: Sequence[Server],
) -> None:
    """A lock that is freed before the wait ends is had, though the pause would be far longer."""
    async with (
        connected(urls_of(servers3)) as a,
        connected(urls_of(servers3), retry=never) as b,
    ):
        lease = await a(NAME).acquire()
        waiter = asyncio.create_task(b(NAME, wait=0.5).acquire())
        await asyncio.sleep(0.2)
        assert not waiter.done()
        await lease.release()
        won = await waiter
        await won.release()


async def test_f021_no_count_of_tries_ends_the_wait_and_none_comes_too_soon(
    servers3: Sequence[Server],
) -> None:
    """As many rounds as the wait has room for, each at least the floor after the one before."""
    floor, wait = 0.02, 0.8
    async with connected(urls_of(servers3)) as a, a(NAME):
        for growth, fewest in ((1, 8), (1.5, 3)):
            retry = RetryPolicy(floor=floor, cap=0.1, growth=growth)
            async with connected(urls_of(servers3), retry=retry) as b:
                _, error = await seconds_until_error(b(NAME, wait=wait).acquire)
                assert fewest <= error.rounds <= wait / floor + 2


async def test_f022_renewals_of_many_leases_are_spread(servers3: Sequence[Server]) -> None:
    """Leases that began together aren't renewed in step: each draws its own time, each time."""
    ttl = 1.2
    async with connected(urls_of(servers3), ttl=ttl, node_timeout=0.2) as redlock:
        leases = await asyncio.gather(*(redlock(f"{NAME}:{i}").acquire() for i in range(24)))
        born = [lease.valid_until for lease in leases]
        await until(lambda: all(x.valid_until > b for x, b in zip(leases, born, strict=True)))
        steps = [lease.valid_until - b for lease, b in zip(leases, born, strict=True)]
        assert max(steps) - min(steps) > 1.5 * ttl / 64  # due times are rounded to this
        assert max(steps) < ttl / 3 + BUSY_S / 2
        for lease in leases:
            await lease.release()


async def test_f022_h33_a_crowd_makes_steady_progress(
    servers: Sequence[Server], view: Look
) -> None:
    """Fifty waiters of ten clients on five nodes: no long gap, and few commands per lock."""
    ttl = 20.0
    wins: list[float] = [time.monotonic()]
    inside = 0

    async def work(redlock: Redlock) -> None:
        nonlocal inside
        for _ in range(2):
            async with redlock(NAME, ttl=ttl, wait=None):
                inside += 1
                assert 1 == inside
                await asyncio.sleep(0)
                inside -= 1
                wins.append(time.monotonic())

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(urls_of(servers))) for _ in range(10)]
        for server in servers:
            view(server).reset_commandstats()
        await asyncio.gather(*(work(client) for client in clients for _ in range(5)))
    assert 101 == len(wins)
    # Half a second as a rule; a vote that stays split would last a ttl.
    assert max(b - a for a, b in itertools.pairwise(wins)) < ttl / 4
    for server in servers:
        assert view(server).commandstats()["set"] < 100 * 5


async def test_f023_h32_a_waiter_takes_over_from_a_killed_holder(
    servers3: Sequence[Server], view: Look
) -> None:
    """SIGKILL for a holder that renews: a waiter goes on past the ttl and has it soon after."""
    ttl = 0.8
    urls = urls_of(servers3)
    with Child("tests.support.programs", "hold", *urls) as holder:
        assert "held" == holder.line()
        async with connected(urls, ttl=ttl, node_timeout=0.1) as redlock:
            waiter = asyncio.create_task(redlock("x", wait=10).acquire())
            await asyncio.sleep(1.2 * ttl)
            assert not waiter.done()
            holder.send_signal(signal.SIGKILL)
            killed_at = time.monotonic()
            left = quorum_ttl(view, servers3, "x")
            lease = await waiter
            took = time.monotonic() - killed_at
            assert left - 0.05 < took < left + 0.25 + BUSY_S
            await lease.release()
