"""Bytes: streams in pieces, garbage, and what a lock may ever say (field cases F102, F109 to F112)."""

from __future__ import annotations

import asyncio
import gc
import random
import re
from collections.abc import Callable, Sequence

import pytest

from aioredlock2 import LeaseLost, LockContended, NodeState, Redlock
from aioredlock2.embedded import Server
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up, deleted, heard, works
from tests.support.fleet import Look, all_keys
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.relay import Relay, Relays
from tests.support.servers import Kind

PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$9\r\nredlock:x\r\n"


@pytest.mark.loop
async def test_f102_single_bytes_and_merged_replies(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """Byte by byte in both directions, then a hundred replies in one read: the same votes."""
    for relay in relays3:
        relay.to_server.split = relay.to_client.split = True
    async with connected(relays3.urls, node_timeout=5, ttl=30) as redlock:
        await works(redlock)
        for relay in relays3:
            relay.to_server.split = relay.to_client.split = False
            relay.to_client.hold()
        acquiring = [asyncio.create_task(redlock(f"job{i}").acquire()) for i in range(100)]
        await until(lambda: all(len(view(server).keys()) == 100 for server in servers3))
        for relay in relays3:
            relay.to_client.release()
        for lease in await asyncio.gather(*acquiring):
            await heard(lease)
            await deleted(await lease.release())
    assert [1, 1, 1] == [relay.accepts for relay in relays3]


async def test_f102_pushes_between_replies_are_no_replies(relays3: Relays) -> None:
    """RESP3 push frames at any time: nobody's answer, no reason to hang up."""
    async with connected(relays3.urls) as redlock:
        for relay in relays3:
            relay.to_client.rewrite = lambda data: PUSH + data + PUSH * 2
        for _ in range(10):
            await works(redlock)
        assert [1, 1, 1] == [relay.accepts for relay in relays3]


@pytest.mark.parametrize("keep_bytes", range(5))
async def test_f102_a_cut_in_mid_reply_is_one_lost_vote(
    servers3: Sequence[Server], relays3: Relays, view: Look, keep_bytes: int
) -> None:
    """Some replies, part of the next, then a reset: what was not answered is no vote."""
    async with connected(relays3.urls) as redlock:
        relays3[0].cut_after(replies=3, keep_bytes=keep_bytes)
        leases = await asyncio.gather(*(redlock(f"job{i}", wait=0).acquire() for i in range(10)))
        await until(lambda: relays3[0].accepts == 2)
        told = [lease.votes[0].vote.value for lease in leases]
        assert ["granted"] * 3 + ["faulted"] * 7 == told
        assert {"", "connection lost"} == {v.votes[0].cause.partition(" (")[0] for v in leases}
        await asyncio.gather(*(lease.release() for lease in leases))
        await all_up(redlock)
        await until(lambda: not all_keys(view, servers3))


GARBAGE = {
    "no RESP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "zeroes": b"\0" * 64,
    "negative length": b"$-5\r\n",
    "absurd length": b"$999999999999999999\r\n",
    "absurd array": b"*2147483648\r\n",
    "wrong kind": b":1\r\n",
    "a boolean": b"#t\r\n",
    "an array": b"*1\r\n+OK\r\n",
    "another status": b"+QUEUED\r\n",
    "one too many": b"+OK\r\n+OK\r\n",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_f102_garbage_ends_the_connection(
    servers3: Sequence[Server], relays3: Relays, view: Look, garbage: bytes
) -> None:
    """A reply that can't be: no vote for all in flight, a new connection, the others decide."""
    async with connected(relays3.urls) as redlock:
        relays3[0].to_client.rewrite = once(relays3[0], garbage)
        leases = await asyncio.gather(*(redlock(f"job{i}", wait=0).acquire() for i in range(20)))
        await until(lambda: relays3[0].accepts == 2)
        await all_up(redlock)
        assert all(lease.is_held for lease in leases)
        await asyncio.gather(*(lease.release() for lease in leases))
        await until(lambda: not all_keys(view, servers3))
        await works(redlock)


def once(relay: Relay, data: bytes) -> Callable[[bytes], bytes]:
    """Replace the next segment by *data*, and only that."""

    def rewrite(_: bytes) -> bytes:
        relay.to_client.rewrite = None
        return data

    return rewrite


async def test_f102_h39_any_bytes_at_all_harm_one_vote_at_most(
    relays3: Relays, rng: random.Random
) -> None:
    """One node's replies mutilated at random, hundreds of times: the two others always decide."""
    # An absurd array is only seen where a chunk begins: what follows may be anybody's value.
    inserted = [data for name, data in GARBAGE.items() if name != "absurd array"]

    def mutilate(data: bytes) -> bytes:
        broken = bytearray(data)
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(broken) + 1)
            how = rng.randrange(4)
            if how == 0:
                broken[at:at] = rng.randbytes(rng.randrange(1, 9))
            elif how == 1:
                del broken[at : at + rng.randrange(1, 9)]
            elif how == 2:
                broken[at:at] = rng.choice(inserted)
            elif at < len(broken):
                broken[at] = rng.randrange(256)
        return bytes(broken) or b"\r\n"

    for _ in range(15):
        async with patient(relays3.urls) as redlock:
            await all_up(redlock, [1, 2])
            relays3[0].to_client.rewrite = mutilate
            for index in range(20):
                async with redlock(f"job{index}", wait=0) as lease:
                    await lease.extend()
            relays3[0].to_client.rewrite = None
            relays3[0].cut()
            await until(lambda: redlock.nodes[0].state is not NodeState.CONNECTING)
    async with patient(relays3.urls) as redlock:
        await works(redlock)


# --- what is said -------------------------------------------------------------------------------

TOKEN = rb"[0-9a-f]{32}"
NAME = rb"redlock:\w*"
SAID = re.compile(
    rb"SET KEY TOKEN NX PX \d+|SET KEY (TOKEN) IFEQ \1 PX \d+"
    rb"|DELEX KEY IFEQ TOKEN|DELIFEQ KEY TOKEN"
    rb"|EVALSHA [0-9a-f]{40} 1 KEY TOKEN( \d+)?|EVAL .* 1 KEY TOKEN( \d+)?"
    rb"|(GET|PTTL|EXISTS) KEY|HELLO 3|CLIENT SETINFO LIB-(NAME|VER) \S+|INFO".replace(
        b"(TOKEN)", b"(%b)" % TOKEN
    )
    .replace(b"TOKEN", TOKEN)
    .replace(b"KEY", NAME)
)
BY_SCRIPT = re.compile(rb"DEL %b|PEXPIRE %b \d+" % (NAME, NAME))
BY_TEST = (b"UNLINK", b"MSET", b"CLIENT SETNAME", b"ECHO", b"KEYS", b"SCRIPT FLUSH")


async def test_f109_h28_nothing_is_ever_said_but_this(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """No bare DELEX, no DEL but a script's, no SET without NX or IFEQ and PX, no empty token."""
    first = view(any_servers3[0])
    first.keys()
    with first.monitor() as monitor:
        async with connected(urls_of(any_servers3)) as one, connected(urls_of(any_servers3)) as two:
            for _ in range(3):
                await everything_a_lock_can_meet(one, two, any_servers3, view)
        said = [b" ".join(words) for words in monitor.commands()]
    ours = [command for command in said if not command.startswith(BY_TEST)]
    assert len(ours) > 50
    odd = [
        command
        for index, command in enumerate(ours)
        if not SAID.fullmatch(command)
        and not (
            BY_SCRIPT.fullmatch(command)
            and ours[index - 1] == b"GET " + command.split()[1]
            and ours[index - 2].startswith(b"EVAL")
        )
    ]
    assert [] == odd


async def everything_a_lock_can_meet(
    one: Redlock, two: Redlock, servers: Sequence[Server], view: Look
) -> None:
    """Contention, cancellation, extension, loss, keys gone and keys replaced, scripts flushed."""
    lease = await one("job").acquire()
    with pytest.raises(LockContended):
        await two("job", wait=0.05).acquire()
    await heard(lease)
    view(servers[0]).execute("UNLINK", "redlock:job")
    await lease.extend()
    view(servers[0]).execute("SCRIPT", "FLUSH")
    await until(lambda: view(servers[0]).keys())
    await lease.extend(20)
    assert await two.is_locked("job")
    await two.inspect("job")
    waiting = asyncio.create_task(two("job").acquire())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await lease.release()
    lost = await one("job").acquire()
    for server in servers:
        view(server).execute("UNLINK", "redlock:job")
        view(server).execute("MSET", "redlock:job", "foreign")
    with pytest.raises(LeaseLost):
        await lost.extend()
    await lost.release()
    for server in servers:
        view(server).execute("UNLINK", "redlock:job")


LOOKALIKES: list[str | bytes] = [
    *(
        "job",
        "Job",
        " job",
        "job ",
        "job\n",
        "job\r\n",
        "job\0",
        "job\0x",
        "\0job",
        "job\\0",
        "'job'",
    ),
    *(
        "{job}",
        "{job}x",
        "{}job",
        "job}",
        "{job",
        "redlock:job",
        "job:fence",
        "{redlock:job}:fence",
    ),
    *("1", "01", "1.0", "-1", "0", "None", "nil", "*", "j?b", "[job]", "$3", "\r\n$3\r\njob"),
    *(
        "caf\u00e9",
        "cafe\u0301",
        "\U0001f512",
        "\U0001f513",
        "\u200bjob",
        "\ufeffjob",
        "\u212a",
        "K",
    ),
    *(b"\xff", b"\xfe", b"\xff\xfe", b"\x80", b"caf\xe9", b"\xc0\xafjob"),
    *("x" * 10_000, "x" * 9_999 + "y", "x" * 10_001),
]


@pytest.mark.parametrize("kind", [Kind.VALKEY9, Kind.REDIS62], ids=lambda kind: kind.label)
async def test_f110_lookalikes_never_exclude_each_other(
    pool: ServerPool, view: Look, kind: Kind
) -> None:
    """All of them are held at once, each keeps its own rival out, and each goes alone."""
    servers = pool.take(kind, 3)
    assert len(LOOKALIKES) == len(set(LOOKALIKES))
    async with connected(urls_of(servers)) as one, connected(urls_of(servers)) as two:
        leases = [await one(name, wait=0).acquire() for name in LOOKALIKES]
        for lease in leases:
            await heard(lease)
        stored = view(servers[0]).keys()
        assert {b"redlock:" + _bytes(name) for name in LOOKALIKES} == stored
        for name in LOOKALIKES:
            assert await two(name).try_acquire() is None
        for lease, name in zip(leases, LOOKALIKES, strict=True):
            await lease.extend()
            await deleted(await lease.release())
            stored -= {b"redlock:" + _bytes(name)}
            assert stored == view(servers[0]).keys()


def _bytes(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode()


async def test_f110_text_and_its_utf8_bytes_are_one_name(servers3: Sequence[Server]) -> None:
    """A lock taken by str keeps out whoever names the same bytes."""
    async with (
        connected(urls_of(servers3)) as one,
        connected(urls_of(servers3)) as two,
        one("caf\u00e9"),
    ):
        assert await two(b"caf\xc3\xa9").try_acquire() is None
        assert await one(b"caf\xc3\xa9").try_acquire() is None


def test_f110_other_names_are_refused() -> None:
    """TypeError for anything but str and bytes; ValueError for an empty one or lone surrogates."""
    redlock = patient(["redis://10.0.0.1"])
    for name in (None, 1, 1.5, True, object(), ["job"], bytearray(b"job"), memoryview(b"job")):
        with pytest.raises(TypeError, match="str or bytes"):
            redlock(name)  # type: ignore[arg-type]
    for empty in ("", b"", "\ud800"):
        with pytest.raises(ValueError, match="resource"):
            redlock(empty)


async def test_f112_nothing_is_left_behind(servers3: Sequence[Server], view: Look) -> None:
    """Thousands of distinct names: no key, no channel, and nothing in the client either."""
    before = _kept()
    async with connected(urls_of(servers3)) as redlock:
        for batch in range(4):
            names = [f"{batch}.{index}" for index in range(500)]
            leases = await asyncio.gather(*(redlock(name).acquire() for name in names))
            await asyncio.gather(*(lease.release() for lease in leases))
            leases.clear()
        await redlock.inspect("last")  # answered when all before it are
        assert [0, 0, 0] == [view(server).execute("DBSIZE") for server in servers3]
        assert [] == view(servers3[0]).execute("PUBSUB", "CHANNELS")
        assert before == _kept()


def _kept() -> int:
    """How many leases, and what belongs to them, are still in memory."""
    gc.collect()
    return sum(type(thing).__name__ in {"Hold", "Lease", "Turn"} for thing in gc.get_objects())
