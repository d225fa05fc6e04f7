"""What a hostile name, a hostile server or a greedy caller can do to others: as little as possible."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections.abc import Sequence

import pytest

from aioredlock2 import LeaseLost, Lock, LockContended, NodeState, QuorumUnreachable, Redlock
from aioredlock2._core.terms import NAME_BYTES_MAX
from aioredlock2.embedded import Server
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up, deleted, heard
from tests.support.fleet import Look, all_keys
from tests.support.polling import until
from tests.support.relay import Relays

HOSTILE: list[str | bytes] = [
    "job\nERROR aioredlock2 all is lost",
    "job\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    "\x1b[2J\x1b]0;title\x07",
    "job\x00\x08\x7f\x85\u2028\u2029",
    "\u202egnp.exe\u2066\ufeff",
    "%s %d %(name)s %n {} {0} {0.__class__} ${HOME} $(id)",
    "{a}{b}*?[x]\\",
    b"\xff\xfe\n\x1b[31m",
]


@pytest.mark.parametrize("fenced", [False, True])
async def test_names_inject_nothing_into_logs_texts_keys_and_commands(
    servers3: Sequence[Server], view: Look, caplog: pytest.LogCaptureFixture, fenced: bool
) -> None:
    """Contended, extended, at its max_hold, lost, dropped: each text is one printable line."""
    caplog.set_level(logging.DEBUG)
    texts: list[object] = []
    view(servers3[0]).execute("SET", "canary", "alive")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with connected(urls_of(servers3)) as one, connected(urls_of(servers3)) as two:
            for name in HOSTILE:
                lock = one(name, fenced=fenced, max_hold=10)
                texts += await tell_all(one, two, lock, view, servers3)
    texts += [warning.message for warning in warned]
    texts += [record.getMessage() for record in caplog.records if record.name == "aioredlock2"]
    lines = [str(text) for text in texts]
    for event in ("is lost", "reaches its max_hold", "is held by somebody else", "was dropped"):
        assert sum(event in line for line in lines) >= len(HOSTILE), event
    assert [] == [line for line in lines if not line.isprintable()]
    names = {key_of(name) for name in HOSTILE}
    counters = {b"{%b}:fence" % name for name in names} if fenced else set()
    assert counters <= all_keys(view, servers3) - {b"canary"} <= names | counters
    assert b"alive" == view(servers3[0]).get("canary")


async def tell_all(
    one: Redlock, two: Redlock, lock: Lock, view: Look, servers: Sequence[Server]
) -> list[object]:
    """Have a name shown in every way there is, by a lock of the first client."""
    name, texts = lock.resource, list[object]()
    lease = await lock.acquire()
    await heard(lease)
    texts += [repr(lock), repr(lease), repr(await two.inspect(name))]
    with pytest.raises(LockContended) as contended:
        await two(name, wait=0).acquire()
    texts += [contended.value, repr(contended.value)]
    await lease.extend()  # within a ttl of its max_hold, which is said
    for server in servers:
        view(server).execute("DEL", key_of(name))
    with pytest.raises(LeaseLost) as lost:
        await lease.extend()
    texts += [lost.value, repr(lost.value), repr(await lease.release())]
    dropped = await one(name, ttl=2).acquire()
    texts.append(repr(dropped))
    del dropped
    gc.collect()
    return texts


def key_of(name: str | bytes) -> bytes:
    """The lock key of a name."""
    return b"redlock:" + (name if isinstance(name, bytes) else name.encode())


async def test_servers_inject_nothing_into_logs_and_status(
    relays3: Relays, caplog: pytest.LogCaptureFixture
) -> None:
    """A version, a role and an error with escape sequences in them."""
    caplog.set_level(logging.DEBUG)
    rewrites = [
        (b"_version:", b"_version:\x1b[2J"),
        (b"role:master", b"role:\x1b[2Jxx"),
        (b"+OK", b"-ERR \x1b[2J\x07"),
    ]
    for relay, (old, new) in zip(relays3, rewrites, strict=True):
        relay.to_client.rewrite = lambda data, old=old, new=new: replaced(data, old, new)
    async with patient(relays3.urls) as redlock:
        await until(lambda: redlock.nodes[1].state is NodeState.DOWN)
        await until(lambda: all(node.cause or node.server for node in redlock.nodes))
        with pytest.raises(QuorumUnreachable) as caught:
            await redlock("job", wait=0.1).acquire()
        shown = [str(caught.value), *(f"{n.name} {n.cause} {n.server}" for n in redlock.nodes)]
    shown += [record.getMessage() for record in caplog.records if record.name == "aioredlock2"]
    assert sum("[2J" in line for line in shown) > 3
    assert [] == [line for line in shown if not line.isprintable()]


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    """The first `old` overwritten; bulk strings keep their length."""
    at = data.find(old)
    if at < 0:
        return data
    if old.startswith(b"+"):
        return data[:at] + new + data[at + len(old) :]
    return data[:at] + new + data[at + len(new) :]


async def test_a_name_of_the_greatest_length_works(any_servers3: Sequence[Server]) -> None:
    """Locked, extended, fenced, refused to others and given back; errors don't show all of it."""
    name = "n" * NAME_BYTES_MAX
    async with patient(urls_of(any_servers3)) as one, patient(urls_of(any_servers3)) as two:
        await all_up(one)
        await all_up(two)
        for fenced in (False, True):
            lease = await one(name, fenced=fenced, wait=0).acquire()
            await lease.extend()
            with pytest.raises(LockContended) as caught:
                await two(name, fenced=fenced, wait=0).acquire()
            assert len(str(caught.value)) < 1000
            await heard(lease)
            await deleted(await lease.release())


# --- one caller, and all others of the same client ------------------------------------------------


async def test_a_crowd_on_one_name_stops_no_other_name(
    servers3: Sequence[Server], view: Look
) -> None:
    """Five thousand wait for what another process holds: one of them asks, and the rest cost nothing."""
    async with connected(urls_of(servers3)) as redlock, connected(urls_of(servers3)) as other:
        held = await other("crowded", ttl=60).acquire()
        crowd = [asyncio.create_task(redlock("crowded", wait=None).acquire()) for _ in range(5000)]
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            for index in range(100):
                async with redlock(f"mine{index}", wait=0):
                    pass
        view(servers3[0]).reset_commandstats()
        await asyncio.sleep(1)
        assert view(servers3[0]).commandstats()["set"] < 100
        assert not any(task.done() for task in crowd)
        for task in crowd:
            task.cancel()
        await asyncio.wait(crowd)
        assert all(task.cancelled() for task in crowd)
        await held.release()
        async with redlock("crowded", wait=5):
            pass
        await until(lambda: not all_keys(view, servers3))


async def test_a_caller_that_floods_the_client_starves_nobody(servers3: Sequence[Server]) -> None:
    """More acquires in flight than there is room for, all the time: others get their turn."""
    async with connected(urls_of(servers3)) as redlock:
        over = False

        async def flood(number: int) -> None:
            turn = 0
            while not over:
                turn += 1
                async with redlock(f"flood{number}.{turn}", wait=60):
                    pass

        flooding = [asyncio.create_task(flood(number)) for number in range(600)]
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            for _ in range(3):
                async with redlock("mine", wait=None):
                    pass
        over = True
        await asyncio.gather(*flooding)
