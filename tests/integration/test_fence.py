"""Fences over real servers of every kind: they grow, whoever grants them and whatever was forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import pytest
from redis.asyncio import Redis

from aioredlock2 import LockContended, NodeState, QuorumUnreachable, Redlock
from aioredlock2._core.fence import LIFETIME_S
from aioredlock2._redis import scripts
from aioredlock2.embedded import Server
from tests.support.acl import acl_user
from tests.support.clients import patient, until_up, up, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up, heard
from tests.support.fleet import Look
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.relay import Relays
from tests.support.servers import Kind

KEY, COUNTER = b"redlock:job", b"{redlock:job}:fence"
FOREIGN = "f" * 32
WRITE = """
if tonumber(redis.call("HGET", KEYS[1], "fence") or 0) > tonumber(ARGV[1]) then return "refused" end
redis.call("HSET", KEYS[1], "fence", ARGV[1], "by", ARGV[2])
return "written"
"""
"""What a resource does that checks fences."""
NATIVE = {Kind.VALKEY9: True, Kind.REDIS8: True, Kind.VALKEY8: True, Kind.REDIS62: False}


async def fence_of(redlock: Redlock) -> int:
    """The fence of one more lease, which is given back."""
    async with redlock("job", fenced=True) as lease:
        return lease.fence


async def test_fences_grow(any_servers3: Sequence[Server]) -> None:
    async with patient(urls_of(any_servers3)) as redlock:
        await all_up(redlock)
        fences = [await fence_of(redlock) for _ in range(20)]
    assert fences == sorted(set(fences))
    assert fences[-1] < 2**53


async def test_one_request_and_its_own_words_per_node(
    any_servers3: Sequence[Server], any_kind: Kind, view: Look
) -> None:
    """Where the counters agree nobody is asked twice: the statistics of the servers prove it."""
    views = [view(server) for server in any_servers3]
    async with patient(urls_of(any_servers3)) as redlock:
        await all_up(redlock)
        await fence_of(redlock)  # the scripts are known from here on
        for each in views:
            each.reset_commandstats()
        lease = await redlock("job", fenced=True).acquire()
        await heard(lease)
        stats = [each.commandstats() for each in views]
        await lease.release()
    native = NATIVE[any_kind]
    asked = {"multi": int(native), "incr": int(native), "incrby": 0, "evalsha": int(not native)}
    assert [asked] * 3 == [{name: one.get(name, 0) for name in asked} for one in stats]


async def test_nodes_that_disagree_are_levelled(any_servers3: Sequence[Server], view: Look) -> None:
    """A second round trip, and afterwards a quorum knows the fence."""
    views = [view(server) for server in any_servers3]
    async with patient(urls_of(any_servers3)) as redlock:
        await all_up(redlock)
        first = await fence_of(redlock)
        views[0].execute("SET", COUNTER, first + 10**9, "PX", 10**6)
        views[1].execute("SET", COUNTER, first + 10**12, "PX", 10**6)
        lease = await redlock("job", fenced=True).acquire()
        await heard(lease)
        assert lease.fence > first
        known = [int(each.get(COUNTER) or 0) for each in views]
        assert sum(counter >= lease.fence for counter in known) >= 2
        await lease.release()
        fences = [await fence_of(redlock) for _ in range(5)]
    assert [lease.fence, *fences] == sorted({lease.fence, *fences})


async def test_f099_the_fence_key_is_the_only_other_key_and_it_ends(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """A decimal number in the slot of the lock key, with a ttl from the first moment."""
    async with patient(urls_of(any_servers3)) as redlock:
        await all_up(redlock)
        for _ in range(3):
            await fence_of(redlock)
    for each in map(view, any_servers3):
        assert {COUNTER} == each.keys()
        assert (each.get(COUNTER) or b"").isdigit()
        assert 0 < each.pttl(COUNTER) <= LIFETIME_S * 1000


async def test_h37_wiped_nodes_do_not_pull_the_fence_back(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """One after the other forgets everything, and last all of them at once."""
    async with patient(urls_of(any_servers3)) as redlock:
        await all_up(redlock)
        fences = []
        for index in [0, 1, 2, 0, 1, 2]:
            fences.append(await fence_of(redlock))
            view(any_servers3[index]).execute("FLUSHALL")
        for server in any_servers3:
            view(server).execute("FLUSHALL")
        fences.append(await fence_of(redlock))
    assert fences == sorted(set(fences))


async def test_h36_whatever_quorum_grants_the_next_fence_is_larger(
    relays3: Relays, view: Look, servers3: Sequence[Server]
) -> None:
    """Each time another node is away, and its counter stays behind."""
    async with patient(relays3.urls) as redlock:
        await all_up(redlock)
        fences = []
        for turn in range(9):
            away = relays3[turn % 3]
            away.refuse()
            away.cut()
            await until(lambda: up(redlock) == 2)
            fences.append(await fence_of(redlock))
            away.accept()
            await until_up(redlock, 3)
    assert fences == sorted(set(fences))


async def test_fences_are_shared_by_clients_and_kinds_of_server(pool: ServerPool) -> None:
    """A mixed fleet, two clients that take turns and get into each other's way."""
    kinds = [Kind.VALKEY9, Kind.REDIS62, Kind.REDIS8, Kind.VALKEY8, Kind.VALKEY9]
    servers = [*pool.take(Kind.VALKEY9, 2), *(pool.take(kind, 1)[0] for kind in kinds[1:4])]
    fences: list[int] = []

    async def work(redlock: Redlock) -> None:
        for _ in range(15):
            async with redlock("job", fenced=True, wait=60) as lease:
                fences.append(lease.fence)

    async with patient(urls_of(servers)) as one, patient(urls_of(servers)) as two:
        await all_up(one)
        await all_up(two)
        await asyncio.gather(work(one), work(two), work(one))
    assert fences == sorted(set(fences))
    assert len(fences) == 45


async def test_a_counter_of_another_type_is_a_fault_that_is_named(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """No vote there, although the key was set, and nothing stays behind."""
    async with patient(urls_of(any_servers3)) as redlock:
        await all_up(redlock)
        view(any_servers3[0]).execute("RPUSH", COUNTER, "x")
        async with redlock("job", fenced=True) as lease:
            assert lease.fence > 0
        view(any_servers3[1]).execute("SET", COUNTER, "a letter")
        with pytest.raises(QuorumUnreachable, match="the fence key"):
            await redlock("job", fenced=True, wait=0).acquire()
        await until(lambda: not any(view(s).get(KEY) for s in any_servers3))
        async with redlock("job") as plain:
            assert plain.is_held


@pytest.mark.parametrize("planted", [str(2**63 - 1), "inf", "nan", "1e300"])
async def test_an_absurd_counter_stops_its_own_name_only(
    any_servers3: Sequence[Server], view: Look, planted: str
) -> None:
    """It is named, and the connections that others use stay up."""
    async with patient(urls_of(any_servers3)) as redlock:
        await all_up(redlock)
        for server in any_servers3:
            view(server).execute("SET", COUNTER, planted)
        async with redlock("other", ttl=60) as other:
            for _ in range(3):
                with pytest.raises(QuorumUnreachable, match="the fence key"):
                    await redlock("job", fenced=True, wait=0).acquire()
                async with redlock("another", wait=0):
                    pass
            assert other.is_held
        assert {NodeState.UP} == {node.state for node in redlock.nodes}


async def test_a_held_name_refuses_a_fenced_lock_as_well(
    any_servers3: Sequence[Server], view: Look
) -> None:
    async with patient(urls_of(any_servers3)) as redlock:
        await all_up(redlock)
        for server in any_servers3:
            view(server).execute("SET", KEY, FOREIGN, "PX", 60_000)
        with pytest.raises(LockContended):
            await redlock("job", fenced=True, wait=0.1).acquire()
        assert [FOREIGN.encode()] * 3 == [view(server).get(KEY) for server in any_servers3]


async def test_f105_scripts_may_be_forgotten_at_any_time(pool: ServerPool, view: Look) -> None:
    servers = pool.take(Kind.REDIS62, 3)
    async with patient(urls_of(servers)) as redlock:
        await all_up(redlock)
        fences = []
        for _ in range(5):
            for server in servers:
                view(server).execute("SCRIPT", "FLUSH")
            fences.append(await fence_of(redlock))
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("denied", ["-multi", "-incr", "-exec", "-multi -eval -evalsha"])
async def test_f107_rights_that_are_missing(
    any_servers3: Sequence[Server], view: Look, denied: str
) -> None:
    """The script serves where the transaction is denied; without both, the error says so."""
    with acl_user(any_servers3, view, "~*", "+@all", *denied.split()) as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            if "eval" not in denied:
                assert await fence_of(redlock) < await fence_of(redlock)
            else:
                with pytest.raises(QuorumUnreachable, match="NOPERM"):
                    await redlock("job", ttl=2, fenced=True, wait=0).acquire()
            # What could not be deleted either, where that takes a script, ends with its ttl.
            await until(lambda: not any(view(s).get(KEY) for s in any_servers3))


@contextmanager
def refused_transactions(
    relays: Relays, servers: Sequence[Server], view: Look
) -> Generator[list[str]]:
    """URLs of a user without MULTI: what stands in it is executed all the same, then put otherwise."""
    with acl_user(servers, view, "~*", "+@all", "-multi") as user:
        login = user.urls[0].partition("@")[0] + "@"
        yield [url.replace("redis://", login) for url in relays.urls]


async def heard_last(redlock: Redlock) -> None:
    """All that was asked before is answered, and what followed from the answers as well."""
    for _ in range(3):
        await redlock.inspect("job")


async def test_h18_a_refused_grant_is_not_put_otherwise_behind_its_own_delete(
    relays3: Relays, servers3: Sequence[Server], view: Look
) -> None:
    """The refusal is heard only after the lease has come and gone."""
    with refused_transactions(relays3, servers3, view) as urls:
        async with patient(urls) as redlock:
            await all_up(redlock)
            relays3[2].hold()
            async with redlock("job", fenced=True):
                pass
            relays3[2].release()
            await heard_last(redlock)
            assert view(servers3[2]).get(KEY) is None


async def test_a_refused_grant_is_not_put_otherwise_behind_an_extension(
    relays3: Relays, servers3: Sequence[Server], view: Look
) -> None:
    """It would set the shorter ttl again, after a vote that counts for the longer one."""
    with refused_transactions(relays3, servers3, view) as urls:
        async with patient(urls, node_timeout=2, ttl=10) as redlock:
            await all_up(redlock)
            relays3[2].hold()
            async with redlock("job", fenced=True) as lease:
                await lease.extend(60)
                relays3[2].release()
                await heard_last(redlock)
                assert view(servers3[2]).pttl(KEY) > 30_000


async def test_a_refused_grant_is_not_put_otherwise_after_the_lease(
    relays3: Relays, servers3: Sequence[Server], view: Look
) -> None:
    """The loop was blocked past the end, and reads the refusal before any timer can tell of it."""
    with refused_transactions(relays3, servers3, view) as urls:
        async with patient(urls, ttl=2) as redlock:
            await all_up(redlock)
            view(servers3[2]).execute("SCRIPT", "LOAD", scripts.GRANT_FENCED.text)
            relays3[2].hold()
            lease = await redlock("job", fenced=True, renew=False).acquire()
            relays3[2].release()
            time.sleep(2.1)
            await heard_last(redlock)
            assert view(servers3[2]).get(KEY) is None
            await lease.release()


async def test_h01_h02_a_write_held_up_on_its_way_is_refused_by_its_fence(
    servers: Sequence[Server], view: Look
) -> None:
    """Its holder had looked: the lease was valid. The write arrives when somebody else has it."""
    store = servers[4]
    with Relays([store]) as relays:
        slow = relays[0]
        writer = Redis(host=slow.host, port=slow.port)
        async with writer, connected(urls_of(servers[:3]), node_timeout=0.1) as redlock:
            await writer.ping()
            slow.to_server.hold()
            late = await redlock("job", fenced=True, ttl=1, renew=False).acquire()
            assert late.is_held
            writing = asyncio.ensure_future(writer.eval(WRITE, 1, "account", late.fence, "late"))
            assert await late.lost()
            async with redlock("job", fenced=True, wait=10) as lease:
                words = ("EVAL", WRITE, 1, "account", lease.fence, "timely")
                assert b"written" == view(store).execute(*words)
                slow.to_server.release()
                assert b"refused" == await writing
            await late.release()
    assert b"timely" == view(store).execute("HGET", "account", "by")
