"""Loss: noticed by vote, by the clock and after a pause; told to the holder and to nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pytest

from aioredlock2 import AcquireError, Lease, LeaseError, LeaseLost, Lock, Redlock
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.child import Child
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up
from tests.support.fleet import Look, everywhere, key_of, monitors, plant, values, wipe
from tests.support.polling import until
from tests.support.relay import Relays
from tests.support.view import Monitor, Word

SHORT_S = 0.1
"""The node timeout beside ttls of about a second."""


def names(running: Sequence[Monitor]) -> set[bytes]:
    """The names of all commands so far."""
    return {words[0].upper() for monitor in running for words in monitor.commands()}


async def test_f051_a_body_is_stopped_when_its_lease_is_lost(
    servers3: Sequence[Server], view: Look
) -> None:
    """A body that loops on short sleeps ends with LeaseLost by the next renewal; the flag, the
    future and the text say so too.
    """
    began = ended = 0.0

    async def work(lock: Lock, kept: list[Lease]) -> None:
        nonlocal began, ended
        async with lock as lease:
            kept.append(lease)
            await everywhere(view, servers3, "x")
            wipe(view, servers3[1:], "x")
            began = time.monotonic()
            while True:
                ended = time.monotonic()
                await asyncio.sleep(0.005)

    kept: list[Lease] = []
    async with connected(urls_of(servers3)) as redlock:
        with pytest.raises(LeaseLost, match=r"'x'.*2 denied"):
            await work(redlock("x", ttl=3), kept)
        assert kept[0].is_lost
        assert not kept[0].is_held
        assert await kept[0].lost()
        # A renewal is due after a third of the ttl; by the clock it would have been all of it.
        assert ended - began < 2


@pytest.mark.loop
async def test_h30_a_body_that_blocks_the_loop_past_its_ttl_is_stopped_in_two_turns(
    servers3: Sequence[Server], view: Look
) -> None:
    """It reads its loss at once, and nothing is sent for the lease but its deletes."""
    turns = 0

    async def work(lock: Lock, stack: contextlib.ExitStack) -> list[Monitor]:
        nonlocal turns
        with contextlib.suppress(LeaseLost):
            async with lock as lease:
                await everywhere(view, servers3, "x")
                running = stack.enter_context(monitors(view, servers3))
                time.sleep(0.9)
                assert lease.is_lost
                assert not lease.is_held
                assert lease.remaining() == 0
                while True:
                    await asyncio.sleep(0)
                    turns += 1
        return running

    async with connected(urls_of(servers3), node_timeout=SHORT_S) as redlock:
        with contextlib.ExitStack() as stack:
            running = await work(redlock("x", ttl=0.8), stack)
            assert turns <= 2
            await redlock.inspect("x")  # answered behind all that was sent before
            assert b"DELIFEQ" in names(running)
            assert names(running) <= {b"DELIFEQ", b"EXISTS", b"GET", b"PTTL"}


async def test_f054_h01_a_holder_that_was_stopped_past_its_ttl_sends_no_renewal(
    servers3: Sequence[Server], view: Look
) -> None:
    """After SIGCONT it learns of its loss first; only its deletes go out, and they hit nothing."""
    with Child("tests.support.programs", "hold", *urls_of(servers3)) as child:
        assert "held" == await asyncio.to_thread(child.line)
        child.freeze()
        await until(lambda: not any(values(view, servers3, "x")))
        async with connected(urls_of(servers3)) as redlock:
            lease = await redlock("x", ttl=30, renew=False).acquire()
            token = await everywhere(view, servers3, "x")
            with monitors(view, servers3) as running:
                child.thaw()
                assert "lost" == await asyncio.to_thread(child.line)
                assert 0 == (await asyncio.to_thread(child.finish)).status
                assert b"DELIFEQ" in names(running)
                assert b"SET" not in names(running)
            assert [token] * 3 == values(view, servers3, "x")
            await lease.release()


async def test_f054_an_acquire_that_was_stopped_past_its_ttl_is_too_late(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """Stopped between SET and reply: the replies say yes, but that is worth nothing any more."""
    with Child("tests.support.programs", "acquire_once", *relays3.urls) as child:
        assert "ready" == await asyncio.to_thread(child.line)
        for relay in relays3:
            relay.to_client.hold()
        child.tell("go")
        await everywhere(view, servers3, "x")
        child.freeze()
        for relay in relays3:
            relay.to_client.release()
        await until(lambda: not any(values(view, servers3, "x")))
        child.thaw()
        assert "AcquiredTooLate" == await asyncio.to_thread(child.line)
        assert 0 == (await asyncio.to_thread(child.finish)).status


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock that counts suspend")
async def test_f055_h16_validity_is_read_from_the_clock_that_counts_suspend(
    servers: Sequence[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Linux that is CLOCK_BOOTTIME, and no other clock is asked."""
    asked: list[int] = []

    def clock_gettime(clock_id: int) -> float:
        asked.append(clock_id)
        return 1000.0

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    redlock = patient(urls_of(servers))
    lease = await redlock("x", ttl=10).acquire()
    assert lease.valid_until == pytest.approx(1000 + 10 - 0.102)
    assert lease.remaining() == pytest.approx(10 - 0.102)
    await redlock.aclose()
    assert {time.CLOCK_BOOTTIME} == set(asked)


class SuspendableClock:
    """The runtime's clock, which jumps as it does when the machine sleeps; the loop's doesn't."""

    def __init__(self, redlock: Redlock) -> None:
        self._read = redlock._runtime.clock
        self.slept = 0.0
        redlock._runtime.clock = self

    def __call__(self) -> float:
        return self._read() + self.slept


@pytest.mark.loop
@pytest.mark.parametrize("renew", [True, False])
async def test_f055_h16_a_suspend_longer_than_the_validity_is_noticed_at_once(
    renew: bool, servers3: Sequence[Server], view: Look
) -> None:
    """The loop's timers have stood still, but the lease reads lost in that very moment, the body is
    stopped within a tenth of the ttl, and no renewal goes out.
    """
    redlock = patient(urls_of(servers3))
    clock = SuspendableClock(redlock)
    began = ended = 0.0

    async def work() -> None:
        nonlocal began, ended
        async with redlock("x", ttl=4, renew=renew) as lease:
            await everywhere(view, servers3, "x")
            clock.slept = 5
            began = time.monotonic()
            assert lease.is_lost
            try:
                await asyncio.sleep(10)
            finally:
                ended = time.monotonic()

    async with redlock:
        await all_up(redlock)
        with monitors(view, servers3) as running:
            with pytest.raises(LeaseLost):
                await work()
            assert ended - began < 0.8  # a tenth of the ttl, and some for a slow machine
            await redlock.inspect("x")
            renewals = [
                words
                for monitor in running
                for words in monitor.commands()
                if b"IFEQ" in words and words[0] == b"SET"
            ]
            assert [] == renewals


async def test_f055_extend_after_a_suspend_is_a_loss(servers3: Sequence[Server]) -> None:
    """Nothing is sent: the lease is lost before anybody looked at it."""
    redlock = patient(urls_of(servers3))
    clock = SuspendableClock(redlock)
    async with redlock:
        lease = await redlock("x", ttl=6).acquire()
        clock.slept = 7
        with pytest.raises(LeaseLost):
            await lease.extend()
        report = await lease.release()
        assert "lost" == report.outcome


async def test_f056_leaving_a_lost_lease_takes_one_node_timeout(servers3: Sequence[Server]) -> None:
    """With all nodes frozen the exit makes one best effort and does not retry."""
    async with connected(urls_of(servers3), node_timeout=SHORT_S) as redlock:
        clock = redlock._runtime.clock
        with contextlib.suppress(LeaseLost):
            async with redlock("x", ttl=0.6) as lease:
                for server in servers3:
                    server.freeze()
                await asyncio.sleep(10)
        assert lease.is_lost
        assert clock() - lease.valid_until < SHORT_S + 0.6
        for server in servers3:
            server.thaw()


async def test_f057_loss_and_failure_to_acquire_are_different_things(
    servers3: Sequence[Server], view: Look
) -> None:
    """LeaseLost is no AcquireError, and the body's own exception comes out first, with a note."""
    assert not issubclass(LeaseLost, AcquireError)
    assert not issubclass(AcquireError, LeaseError)

    async def fails_when_stopped(lock: Lock) -> None:
        async with lock:
            await everywhere(view, servers3, "x")
            wipe(view, servers3, "x")
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError as stopped:
                raise KeyError("mine") from stopped

    async with connected(urls_of(servers3)) as redlock:
        with pytest.raises(KeyError, match="mine") as caught:
            await fails_when_stopped(redlock("x", ttl=1.5))
        assert "the lease of 'x' was lost" in caught.value.__notes__[0]
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        plant(view, servers3, "x")
        with pytest.raises(AcquireError) as refused:
            await redlock("x", wait=0.1).acquire()
        assert not isinstance(refused.value, LeaseError)


async def test_f057_loss_is_chained_to_the_cancellation_it_sent(
    servers3: Sequence[Server], view: Look
) -> None:
    """`__cause__` shows where the body stood."""

    async def sleeps(lock: Lock) -> None:
        async with lock:
            await everywhere(view, servers3, "x")
            wipe(view, servers3, "x")
            await asyncio.sleep(10)

    async with connected(urls_of(servers3)) as redlock:
        with pytest.raises(LeaseLost) as caught:
            await sleeps(redlock("x", ttl=1.5))
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)


async def test_f058_trouble_of_the_watchdog_stays_with_the_holder(
    servers3: Sequence[Server], view: Look, stray_errors: list[dict[str, Any]]
) -> None:
    """An outage shorter than the validity is silent; a loss reaches the loop's handler no more than
    it does anybody else.
    """
    async with connected(urls_of(servers3), node_timeout=SHORT_S) as redlock:
        async with redlock("x", ttl=2) as lease:
            was_valid_until = lease.valid_until
            for server in servers3:
                server.freeze()
            await asyncio.sleep(1.0)
            for server in servers3:
                server.thaw()
            await until(lambda: lease.valid_until > was_valid_until)
        by_hand = await redlock("y", ttl=1).acquire()
        await everywhere(view, servers3, "y")
        wipe(view, servers3, "y")
        assert await by_hand.lost()
        await asyncio.sleep(0.01)
    assert [] == stray_errors


async def test_f060_h13_keys_removed_by_an_operator_are_missed_at_the_next_renewal(
    servers3: Sequence[Server], view: Look
) -> None:
    """FLUSHALL on all nodes: lost, nothing planted again, and whoever is next keeps the lock."""
    async with connected(urls_of(servers3)) as redlock, connected(urls_of(servers3)) as other:
        lease = await redlock("x", ttl=3).acquire()
        await everywhere(view, servers3, "x")
        for server in servers3:
            view(server).execute("FLUSHALL")
        began = time.monotonic()
        following = await other("x", ttl=30).acquire()
        token = await everywhere(view, servers3, "x")
        assert await lease.lost()
        assert time.monotonic() - began < 2
        assert "lost" == (await lease.release()).outcome
        assert [token] * 3 == values(view, servers3, "x")
        assert following.is_held
        await following.release()


async def test_f061_h12_eviction_is_warned_of_and_noticed(
    fresh_servers: StartServers, view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that evicts keys drops the lock under pressure: one warning, then the loss."""
    (server,) = fresh_servers(
        1, options=["--maxmemory", "3mb", "--maxmemory-policy", "volatile-ttl"]
    )
    async with connected([server.url]) as redlock:
        lease = await redlock("x", ttl=3).acquire()
        flood: list[tuple[Word, ...]] = [
            ("SET", f"data:{n}", b"." * 1000, "PX", 600_000) for n in range(4000)
        ]
        view(server).pipeline(flood)
        assert view(server).get(key_of("x")) is None
        assert await lease.lost()
        view(server).execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await until(lambda: "is down" in caplog.text)
        await all_up(redlock)
    warnings = [record for record in caplog.records if "evicts keys" in record.message]
    assert 1 == len(warnings)
    assert "volatile-ttl" in warnings[0].message
