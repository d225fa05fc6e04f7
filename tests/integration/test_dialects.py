"""Each kind of server is asked in the words it has, which its own command statistics prove."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aioredlock2 import Lease
from aioredlock2.embedded import Server
from tests.support.clients import patient
from tests.support.facts import all_up, deleted, heard
from tests.support.fleet import Look
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.relay import Relays
from tests.support.servers import Kind
from tests.support.view import View

COMMANDS = {
    Kind.VALKEY9: ("DELIFEQ", "SET IFEQ"),
    Kind.REDIS8: ("DELEX", "SET IFEQ"),
    Kind.VALKEY8: ("EVALSHA", "SET IFEQ"),
    Kind.REDIS62: ("EVALSHA", "EVALSHA"),
}
LOCK_COMMANDS = {"set", "delifeq", "delex", "evalsha", "eval", "get", "del", "pexpire", "exists"}
KEY = b"redlock:job"


def asked(view: View) -> dict[str, int]:
    """The attempts of everything that a lock may use; what a script calls counts as well."""
    return {name: n for name, n in view.commandstats().items() if name in LOCK_COMMANDS}


EXPECTED = {
    Kind.VALKEY9: {"set": 3, "delifeq": 1},
    Kind.REDIS8: {"set": 3, "delex": 1},
    Kind.VALKEY8: {"set": 3, "evalsha": 1, "get": 1, "del": 1},
    Kind.REDIS62: {"set": 1, "evalsha": 3, "get": 3, "pexpire": 2, "del": 1},
}
"""One acquire, two extensions and a release; the scripts were introduced at connect."""


async def test_each_kind_is_asked_in_its_own_words(
    any_servers3: Sequence[Server], any_kind: Kind, view: Look
) -> None:
    """One SET per acquire, one command per extension and release; no script's text is sent."""
    views = [view(server) for server in any_servers3]
    async with patient([s.url for s in any_servers3]) as redlock:
        await all_up(redlock)
        assert [COMMANDS[any_kind]] * 3 == [node.commands for node in redlock.nodes]
        for each in views:
            each.reset_commandstats()
        lease = await redlock("job").acquire()
        await heard(lease)
        for _ in range(2):
            await lease.extend()
            await heard(lease)
        report = await lease.release()
        await deleted(report)
        assert [EXPECTED[any_kind]] * 3 == [asked(each) for each in views]
    assert [set()] * 3 == [each.keys() for each in views]


async def test_connecting_changes_nothing_on_the_server(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """The probes of the greeting leave no key, and write none while they run."""
    with view(any_servers3[0]).monitor() as monitor:
        async with patient([s.url for s in any_servers3]) as redlock:
            await all_up(redlock)
        words = [command[0].upper() for command in monitor.commands()]
    assert b"DEL" not in words
    assert set() == view(any_servers3[0]).keys()
    assert "0" == view(any_servers3[0]).info("stats").get("expired_keys")


async def test_f105_h40_flushed_scripts_are_sent_again_in_the_same_attempt(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """SCRIPT FLUSH before every kind of operation: each works at the first call, on every node."""
    views = [view(server) for server in any_servers3]

    def flush() -> None:
        for each in views:
            each.execute("SCRIPT", "FLUSH")

    async with patient([s.url for s in any_servers3]) as redlock:
        await all_up(redlock)
        for _ in range(3):
            flush()
            lease = await redlock("job", ttl=20).acquire()
            await heard(lease)
            flush()
            await lease.extend(30)
            await heard(lease)
            assert all(each.pttl(KEY) > 20_000 for each in views)
            flush()
            report = await lease.release()
            await deleted(report)
            assert report.outcome == "clean"


async def test_f105_scripts_flushed_while_the_watchdog_renews(pool: ServerPool, view: Look) -> None:
    """A server that knows scripts only forgets them all the time: the watchdog loses nothing."""
    servers = pool.take(Kind.REDIS62, 3)
    views = [view(server) for server in servers]
    async with (
        patient([s.url for s in servers], node_timeout=0.2) as redlock,
        redlock("job", ttl=1.2) as lease,
    ):
        until_then = lease.valid_until + 0.5
        while lease.valid_until < until_then:
            for each in views:
                each.execute("SCRIPT", "FLUSH")
            await asyncio.sleep(0.005)


async def test_f105_a_restart_amid_pipelined_scripts(pool: ServerPool, view: Look) -> None:
    """One scripts-only server restarts, empty, while hundreds of extensions are under way."""
    servers = pool.take(Kind.REDIS62, 3)
    async with patient([s.url for s in servers]) as redlock:
        await all_up(redlock)
        leases = await asyncio.gather(*(redlock(f"job{i}", ttl=20).acquire() for i in range(100)))

        async def extend(lease: Lease) -> None:
            for _ in range(10):
                await lease.extend()

        extending = [asyncio.create_task(extend(lease)) for lease in leases]
        await until(lambda: view(servers[0]).commandstats().get("pexpire", 0) > 50)
        servers[0].kill()
        await asyncio.gather(*extending)
        assert all(lease.is_held for lease in leases)
        servers[0].restart()
        await all_up(redlock)
        # The first extension finds it empty and plants there, the next is confirmed by it.
        await asyncio.gather(*(lease.extend() for lease in leases))
        await until(lambda: len(view(servers[0]).keys()) == 100)
        await asyncio.gather(*(lease.extend() for lease in leases))
        reports = await asyncio.gather(*(lease.release() for lease in leases))
        for report in reports:
            await deleted(report)
    assert [set()] * 3 == [view(server).keys() for server in servers]


async def test_a_mixed_fleet_locks_as_one(pool: ServerPool, view: Look) -> None:
    """One server of each kind and a fifth: every lock has all five votes, each in its own words."""
    kinds = [*Kind, Kind.VALKEY9]
    servers = [pool.take(kind, 1)[0] for kind in Kind] + pool.take(Kind.VALKEY9, 2)[1:]
    urls = [server.url for server in servers]
    async with patient(urls) as one, patient(urls) as two:
        await all_up(one)
        await all_up(two)
        assert [COMMANDS[kind] for kind in kinds] == [node.commands for node in one.nodes]
        for index in range(20):
            lease = await one(f"job{index}").acquire()
            await heard(lease)
            assert await two(f"job{index}").try_acquire() is None
            await lease.extend()
            await heard(lease)
            report = await lease.release()
            await deleted(report)
            await (await two(f"job{index}", wait=0).acquire()).release()
    for kind, server in zip(kinds, servers, strict=True):
        used = set(asked(view(server)))
        assert used.issuperset({"set", COMMANDS[kind][0].lower()})
        assert ("eval" in used) is ("EVALSHA" in COMMANDS[kind])
    await until(lambda: not any(view(server).keys() for server in servers))


CHANGES = [
    (Kind.VALKEY9, Kind.REDIS62),
    (Kind.REDIS62, Kind.VALKEY9),
    (Kind.VALKEY9, Kind.REDIS8),
    (Kind.REDIS8, Kind.VALKEY8),
]


@pytest.mark.parametrize(
    ("before", "after"), CHANGES, ids=lambda kind: kind.label if isinstance(kind, Kind) else None
)
async def test_a_fleet_replaced_in_place_keeps_its_leases(
    pool: ServerPool, view: Look, before: Kind, after: Kind
) -> None:
    """Rolling down- and upgrade, one address at a time: the lease is planted anew and kept."""
    olds, news = pool.take(before, 3), pool.take(after, 3)
    with Relays(olds) as relays:
        async with patient(relays.urls) as redlock:
            await all_up(redlock)
            lease = await redlock("job", ttl=1.5).acquire()
            for index, relay in enumerate(relays):
                relay.retarget(news[index])
                relay.cut()
                await until(lambda i=index: view(news[i]).keys() == {KEY})  # type: ignore[misc]
            assert [COMMANDS[after]] * 3 == [node.commands for node in redlock.nodes]
            assert lease.is_held
            await lease.extend()
            report = await lease.release()
            await deleted(report)
    assert not any(view(server).keys() for server in news)


async def test_a_downgrade_behind_a_proxy_is_corrected_in_the_same_round(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """The connection stays, the commands go: unknown command and syntax error lead to the script."""
    views = [view(server) for server in servers3]
    async with patient(relays3.urls) as redlock:
        await all_up(redlock)
        assert [COMMANDS[Kind.VALKEY9]] * 3 == [node.commands for node in redlock.nodes]
        lease = await redlock("job", ttl=20).acquire()
        await heard(lease)
        token = views[0].get(KEY)
        for relay in relays3:
            relay.to_server.rewrite = _forget_native
        await lease.extend(30)
        await heard(lease)
        assert [token] * 3 == [each.get(KEY) for each in views]
        assert all(each.pttl(KEY) > 20_000 for each in views)
        report = await lease.release()
        await deleted(report)
        assert [("EVALSHA", "EVALSHA")] * 3 == [node.commands for node in redlock.nodes]
        assert [1, 1, 1] == [relay.accepts for relay in relays3]


def _forget_native(data: bytes) -> bytes:
    """What an older server would make of it, in as many bytes."""
    return data.replace(b"DELIFEQ", b"DELNONE").replace(b"IFEQ", b"NONE")


async def test_a_correction_is_remembered(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """The refused command is asked once per connection, not once per lock."""
    async with patient(relays3.urls) as redlock:
        await all_up(redlock)
        for relay in relays3:
            relay.to_server.rewrite = _forget_native
        for _ in range(2):
            await (await redlock("job").acquire()).release()
        await until(lambda: all(n.commands == ("EVALSHA", "SET IFEQ") for n in redlock.nodes))
        for server in servers3:
            view(server).reset_commandstats()
        for _ in range(10):
            report = await (await redlock("job").acquire()).release()
            await deleted(report)
        used = asked(view(servers3[0]))
    assert {"set": 10, "evalsha": 10, "get": 10, "del": 10} == used


async def test_at_maxmemory_a_lease_is_extended_and_released(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """New locks are refused with OOM; what is held can be kept and given back, on every kind."""
    views = [view(server) for server in any_servers3]
    async with patient([s.url for s in any_servers3]) as redlock:
        await all_up(redlock)
        lease = await redlock("job", ttl=20).acquire()
        await heard(lease)
        for each in views:
            each.config_set(maxmemory=1, maxmemory_policy="noeviction")
        await lease.extend(30)
        await heard(lease)
        assert all(each.pttl(KEY) > 20_000 for each in views)
        report = await lease.release()
        await deleted(report)
        for each in views:
            each.config_set(maxmemory=0)
        await (await redlock("job").acquire()).release()
