"""Field cases 1c: how long keys live, on the servers' own showing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from aioredlock2 import AcquireError, ConfigurationError, LeaseLost, Redlock
from aioredlock2.embedded import Server
from tests.support import doomed
from tests.support.child import Child
from tests.support.clients import cut_off, patient, urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, all_keys, key_of, quorum_ttl, values, wipe
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.relay import Relays
from tests.support.servers import Kind, Unavailable
from tests.support.view import Monitor

NAME = "invoice:42"

TTLS: list[tuple[float | timedelta, int]] = [
    (0.05, 50),
    (0.0501, 51),
    (0.5, 500),
    (1.1, 1100),
    (1.999, 1999),
    (3, 3000),
    (timedelta(milliseconds=2500), 2500),
]
"""Seconds as asked for, and the milliseconds that are sent: rounded up."""

BAD_TTLS: list[Any] = [
    0,
    0.0,
    -1,
    -0.001,
    math.nan,
    math.inf,
    -math.inf,
    1e-9,
    0.0005,
    2**63,
    1e300,
]
BAD_TTLS += [timedelta(0), timedelta(seconds=-1), True, False, "10", b"10", [10]]


def lifetimes(monitor: Monitor) -> set[int]:
    """What all SET commands so far gave as PX."""
    sets = [words for words in monitor.commands() if words[0].upper() == b"SET"]
    return {int(words[words.index(b"PX") + 1]) for words in sets if b"PX" in words}


@pytest.mark.parametrize(("ttl", "milliseconds"), TTLS, ids=str)
async def test_f033_a_ttl_is_sent_in_milliseconds_rounded_up(
    servers3: Sequence[Server], view: Look, ttl: float | timedelta, milliseconds: int
) -> None:
    """Fractions of seconds arrive whole, at acquire and at extend, on all nodes."""
    key = key_of(NAME)
    async with connected(urls_of(servers3), node_timeout=0.02) as redlock:
        with contextlib.ExitStack() as stack:
            monitors = [stack.enter_context(view(server).monitor()) for server in servers3]
            async with redlock(NAME, ttl=ttl, on_lost="ignore"):
                left = [view(server).pttl(key) for server in servers3]
            await until(lambda: all(lifetimes(each) for each in monitors))
            assert [{milliseconds}] * 3 == [lifetimes(each) for each in monitors]
            assert all(each <= milliseconds for each in left)
        with contextlib.ExitStack() as stack:
            lease = await redlock(NAME, ttl=60, renew=False).acquire()
            await until(lambda: all(values(view, servers3, NAME)))
            monitors = [stack.enter_context(view(server).monitor()) for server in servers3]
            with contextlib.suppress(LeaseLost):
                await lease.extend(ttl)
            left = [view(server).pttl(key) for server in servers3]
            await until(lambda: all(lifetimes(each) for each in monitors))
            assert [{milliseconds}] * 3 == [lifetimes(each) for each in monitors]
            await lease.release()


@pytest.mark.parametrize("ttl", BAD_TTLS, ids=repr)
async def test_f034_a_ttl_that_can_not_be_is_refused_before_anything_is_sent(
    servers3: Sequence[Server], relays3: Relays, view: Look, ttl: Any
) -> None:
    """In acquire and extend alike: nothing leaves, and the key keeps its ttl and its value."""
    wrong = (TypeError, ConfigurationError)
    async with connected(relays3.urls) as redlock:
        lease = await redlock(NAME, ttl=60, renew=False).acquire()
        await until(lambda: all(values(view, servers3, NAME)))
        stored = values(view, servers3, NAME)
        until_before = lease.valid_until
        sent = [relay.to_server.bytes for relay in relays3]
        with pytest.raises(wrong, match="ttl"):
            await redlock("other", ttl=ttl).acquire()
        with pytest.raises(wrong, match="ttl"):
            await lease.extend(ttl)
        with pytest.raises(wrong, match="ttl"):
            Redlock(relays3.urls, ttl=ttl)
        await asyncio.sleep(0.01)
        assert sent == [relay.to_server.bytes for relay in relays3]
        assert stored == values(view, servers3, NAME)
        assert all(view(server).pttl(key_of(NAME)) > 30_000 for server in servers3)
        assert lease.is_held
        assert until_before == lease.valid_until
        await lease.release()


@pytest.mark.parametrize("ttl", [0.02, 0.05, 0.1])
async def test_f035_a_very_short_ttl_is_renewed_without_a_busy_loop(
    servers3: Sequence[Server], view: Look, ttl: float
) -> None:
    """Held or lost and taken again: never more commands than a few per third of the ttl."""
    duration = 0.6
    async with Redlock(urls_of(servers3), ttl=ttl, restart_guard=False) as redlock:
        for server in servers3:
            view(server).reset_commandstats()
        begun_at = time.monotonic()
        losses = 0
        while (left := begun_at + duration - time.monotonic()) > 0:
            with contextlib.suppress(AcquireError, TimeoutError):
                async with redlock(NAME, on_lost="ignore", max_hold=None) as lease:
                    losses += await asyncio.wait_for(lease.lost(), left)
        took = time.monotonic() - begun_at
    for server in servers3:
        stats = view(server).commandstats()
        assert 1 <= stats["set"] < 4 * (took / (ttl / 3) + losses + 5)


async def test_f035_renewals_that_fail_are_not_repeated_in_a_busy_loop(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """With two of three nodes gone each renewal fails at once: a few tries until it is lost."""
    async with connected(relays3.urls, node_timeout=0.05) as redlock:
        lease = await redlock(NAME, ttl=0.8).acquire()
        for relay in relays3[:2]:
            cut_off(relay)
        view(servers3[2]).reset_commandstats()
        assert await lease.lost()
        assert 2 <= view(servers3[2]).commandstats()["set"] <= 30
        await lease.release()


def test_f035_a_ttl_that_drift_and_node_timeouts_use_up_is_refused() -> None:
    """Too short to be kept: the error says how long it has to be."""
    urls = ["redis://127.0.0.1:1"]
    with pytest.raises(ConfigurationError, match=r"ttl=0\.005: must be more than 0\.0\d+ seconds"):
        Redlock(urls, ttl=0.005)
    with pytest.raises(ConfigurationError, match=r"ttl=1: must be more than 1\.0\d+ seconds"):
        Redlock(urls, ttl=1, node_timeout=0.5)
    redlock = Redlock(urls, node_timeout=0.5)
    with pytest.raises(ConfigurationError, match=r"ttl=1: must be more than"):
        redlock(NAME, ttl=1)


async def test_f036_h27_no_key_is_ever_without_a_ttl(
    pool: ServerPool, view: Look, rng: random.Random
) -> None:
    """Holders are killed at random points: at no instant has any key no ttl, and all keys end."""
    try:
        kinds = (Kind.VALKEY9, Kind.VALKEY8, Kind.REDIS62)
        servers = [pool.take(kind, 1)[0] for kind in kinds]
    except Unavailable as reason:
        pytest.skip(str(reason))
    with contextlib.ExitStack() as stack:
        monitors = [stack.enter_context(view(server).monitor()) for server in servers]
        children = [
            stack.enter_context(Child("tests.support.doomed", "churn", *urls_of(servers)))
            for _ in range(2)
        ]
        for child in children:
            assert "ready" == child.line()
        seen = 0
        for child in children:
            deadline = time.monotonic() + rng.uniform(0.2, 0.4)
            while time.monotonic() < deadline:
                seen += scan(view, servers)
                await asyncio.sleep(0.001)
            child.send_signal(signal.SIGKILL)
        assert seen > 100
        for monitor in monitors:
            for words in monitor.commands():
                if words[0].upper() == b"SET":
                    assert b"PX" in words
                    assert (b"NX" in words) != (b"IFEQ" in words)
                else:
                    assert words[0].upper() not in (b"EXPIRE", b"PERSIST", b"GETEX", b"SETEX")
    scan(view, servers)
    await until(lambda: not all_keys(view, servers), within=doomed.TTL_S * 2 + 5)


def scan(view: Look, servers: Sequence[Server]) -> int:
    """How many keys there are; fails if one has no ttl."""
    count = 0
    for server in servers:
        keys = list(view(server).keys())
        lefts = view(server).pipeline([("PTTL", key) for key in keys])
        assert -1 not in lefts
        count += len(keys)
    return count


async def test_f036_a_key_that_is_planted_again_has_a_ttl(
    servers3: Sequence[Server], view: Look
) -> None:
    """A minority node that lost its memory gets the key back, for no longer than the others."""
    async with connected(urls_of(servers3), ttl=5) as redlock, redlock(NAME) as lease:
        await until(lambda: all(values(view, servers3, NAME)))
        wipe(view, servers3[:1], NAME)
        await lease.extend()
        await until(lambda: all(values(view, servers3, NAME)))
        assert all(0 < view(server).pttl(key_of(NAME)) <= 5000 for server in servers3)


async def test_f037_an_extension_sets_the_time_and_adds_nothing(
    servers3: Sequence[Server], view: Look
) -> None:
    """After each of twenty quick extensions the keys have the ttl left, and no more."""
    async with patient(urls_of(servers3), ttl=2) as redlock:
        lease = await redlock(NAME, renew=False).acquire()
        for _ in range(20):
            await lease.extend()
            assert 1.2 < quorum_ttl(view, servers3, NAME) <= 2
            assert lease.remaining() < 2
        await lease.extend(4)
        assert 3 < quorum_ttl(view, servers3, NAME) <= 4
        await lease.extend(1.5)
        assert 0.7 < quorum_ttl(view, servers3, NAME) <= 1.5
        assert lease.remaining() < 1.5
        await lease.release()


async def test_f037_a_lease_that_was_extended_often_is_taken_over_as_soon(
    servers3: Sequence[Server], view: Look
) -> None:
    """Its holder is killed after twenty extensions: one ttl later somebody else has it."""
    with Child("tests.support.doomed", "extend", *urls_of(servers3)) as child:
        async with connected(urls_of(servers3)) as redlock:
            assert "extended" == child.line()
            child.send_signal(signal.SIGKILL)
            left = quorum_ttl(view, servers3, "extended")
            assert left <= doomed.TTL_S
            begun_at = time.monotonic()
            async with redlock("extended", wait=20):
                assert left - 0.05 < time.monotonic() - begun_at < left + 0.25 + 1
