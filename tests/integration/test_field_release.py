"""Release: what it deletes, what it leaves alone, what it reports, and that it never gets in the way."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Sequence

import pytest
import redis.asyncio

from aioredlock2 import (
    LeaseLost,
    LeaseReleased,
    LockContended,
    NodeState,
    ReleaseReport,
    Removal,
)
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.ailments import is_loading, load_slowly, slow_loading
from tests.support.clients import urls_of
from tests.support.connected import connected
from tests.support.facts import states
from tests.support.fleet import (
    Look,
    all_keys,
    everywhere,
    key_of,
    monitors,
    plant,
    values,
    wipe,
)
from tests.support.polling import until
from tests.support.relay import Relays

SHORT_S = 0.1
"""The node timeout where one is waited for."""


async def complete(report: ReleaseReport) -> ReleaseReport:
    """Wait until the report says something of every node."""
    await until(lambda: Removal.PENDING not in {node.removal for node in report.nodes})
    return report


async def test_f063_h15_no_key_is_ever_deleted_without_a_comparison(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """Whatever happens, DEL comes from inside a script only, right behind its GET."""
    with monitors(view, any_servers3) as running:
        async with (
            connected(urls_of(any_servers3)) as redlock,
            connected(urls_of(any_servers3)) as other,
        ):
            async with redlock("x") as lease:
                assert await other("x").try_acquire() is None
                await lease.extend()
            cancelled = asyncio.create_task(redlock("y").acquire())
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            robbed = await redlock("z", renew=False).acquire()
            await everywhere(view, any_servers3, "z")
            plant(view, any_servers3, "z")
            await robbed.release()
        await until(lambda: {b"redlock:z"} == all_keys(view, any_servers3))
        for monitor in running:
            commands = [[word.lower() for word in words] for words in monitor.commands()]
            for before, words in itertools.pairwise(commands):
                if words[0] == b"del" and b"redlock:" in words[1]:
                    assert [b"get", words[1]] == before
            deletes = {words[0] for words in commands} & {b"delex", b"delifeq", b"evalsha"}
            assert deletes
            assert all(b"ifeq" in words for words in commands if words[0] == b"delex")


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decodes", [True, False])
async def test_f064_tokens_match_whatever_the_given_client_decodes(
    protocol: int, decodes: bool, any_servers3: Sequence[Server], view: Look
) -> None:
    """A client given with decode_responses or RESP3 makes no difference: the keys are gone."""
    given = [
        redis.asyncio.Redis.from_url(url, protocol=protocol, decode_responses=decodes)
        for url in urls_of(any_servers3)
    ]
    async with connected(given) as redlock:
        async with redlock("x") as lease:
            token = await everywhere(view, any_servers3, "x")
            assert re.fullmatch(rb"[0-9a-f]{32}", token)
            await lease.extend()
        await until(lambda: not all_keys(view, any_servers3))


@pytest.mark.parametrize(
    ("frozen", "outcome"), [(0, "clean"), (2, "clean"), (3, "unknown")], ids=str
)
async def test_f070_a_release_is_clean_with_a_quorum_and_unknown_without(
    frozen: int, outcome: str, servers: Sequence[Server]
) -> None:
    """Nodes that keep silent are waited for no longer than the node timeout."""
    async with connected(urls_of(servers), node_timeout=SHORT_S) as redlock:
        lease = await redlock("x").acquire()
        for server in servers[:frozen]:
            server.freeze()
        began = asyncio.get_running_loop().time()
        report = await lease.release()
        assert asyncio.get_running_loop().time() - began < SHORT_S + 1
        await complete(report)
        removals = [node.removal for node in report.nodes]
        assert [Removal.UNREACHABLE] * frozen == removals[:frozen]
        assert {Removal.DELETED} == set(removals[frozen:])
        assert outcome == report.outcome
        assert lease.is_released
        for server in servers[:frozen]:
            server.thaw()


async def test_f070_the_report_tells_what_each_node_had(
    servers: Sequence[Server], view: Look
) -> None:
    """One node each: deleted, gone, somebody else's, silent."""
    async with connected(urls_of(servers), node_timeout=SHORT_S) as redlock:
        lease = await redlock("x").acquire()
        await everywhere(view, servers, "x")
        wipe(view, servers[1:2], "x")
        plant(view, servers[2:3], "x")
        servers[3].freeze()
        report = await complete(await lease.release())
        assert [
            Removal.DELETED,
            Removal.ABSENT,
            Removal.OTHER_OWNER,
            Removal.UNREACHABLE,
            Removal.DELETED,
        ] == [node.removal for node in report.nodes]
        servers[3].thaw()


@pytest.mark.parametrize(("robbed", "outcome"), [(wipe, "expired"), (plant, "lost")])
async def test_f070_expired_and_stolen_are_told_apart(
    robbed: Callable[..., None], outcome: str, servers3: Sequence[Server], view: Look
) -> None:
    """A lease whose keys are gone, and one whose keys are somebody else's, before anybody noticed."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await everywhere(view, servers3, "x")
        robbed(view, servers3, "x")
        assert outcome == (await lease.release()).outcome


async def test_f071_releasing_twice_is_harmless(servers3: Sequence[Server], view: Look) -> None:
    """The second release sends nothing and repeats the report; extending afterwards is an error."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("x").acquire()
        first = await lease.release()
        other = await redlock("x").acquire()
        await everywhere(view, servers3, "x")
        view(servers3[0]).reset_commandstats()
        second = await lease.release()
        assert first.nodes == second.nodes
        assert "clean" == second.outcome
        with pytest.raises(LeaseReleased):
            await lease.extend()
        assert lease.is_released
        assert not lease.is_lost
        await redlock.inspect("x")
        assert not {"delifeq", "set"} & set(view(servers3[0]).commandstats())
        assert other.is_held
        await other.release()


async def test_f071_releasing_inside_the_body_is_fine(
    servers3: Sequence[Server], view: Look
) -> None:
    """The exit stays quiet and leaves alone whoever has the lock by then."""
    async with connected(urls_of(servers3)) as redlock, connected(urls_of(servers3)) as other:
        async with redlock("x") as lease:
            await lease.release()
            following = await other("x").acquire()
            token = await everywhere(view, servers3, "x")
        assert [token] * 3 == values(view, servers3, "x")
        await following.release()


async def test_f071_releasing_what_is_lost_is_one_quiet_attempt(
    servers3: Sequence[Server], view: Look
) -> None:
    """It deletes what is left of the lease, reports the loss, and the lease stays lost."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("x", ttl=5, renew=False).acquire()
        await everywhere(view, servers3, "x")
        wipe(view, servers3[1:], "x")
        with pytest.raises(LeaseLost):
            await lease.extend()
        assert "lost" == (await lease.release()).outcome
        assert "lost" == (await lease.release()).outcome
        assert lease.is_lost
        assert not lease.is_released
        await until(lambda: not all_keys(view, servers3))


async def test_f072_a_delete_that_a_dead_node_missed_is_sent_when_it_is_back(
    fresh_servers: StartServers, view: Look
) -> None:
    """With two of three nodes dead the exit is quick and quiet; when they come back with their
    data, long before the ttl, they are told to delete.
    """
    servers = fresh_servers(3, options=["--appendonly", "yes", "--appendfsync", "always"])
    with Relays(servers) as relays:
        async with connected(relays.urls) as redlock:
            async with redlock("x", ttl=60) as lease:
                await everywhere(view, servers, "x")
                for index in (1, 2):
                    relays[index].refuse()
                    servers[index].kill()
                await until(
                    lambda: [NodeState.UP, NodeState.DOWN, NodeState.DOWN] == states(redlock)
                )
            assert "unknown" == (await lease.release()).outcome
            for server in servers[1:]:
                server.restart()
                await until(lambda server=server: not is_loading(view, server))  # type: ignore[misc]
            assert None not in values(view, servers[1:], "x")
            for index in (1, 2):
                relays[index].accept()
            await until(lambda: not any(values(view, servers, "x")))


async def test_f072_a_delete_that_met_a_loading_node_is_sent_again(
    fresh_servers: StartServers, servers3: Sequence[Server], view: Look
) -> None:
    """A node that comes back with its data answers LOADING first: no answer, so it is told later."""
    with fresh_servers(1, options=slow_loading) as (loading,):
        servers = [loading, *servers3[:2]]
        async with connected(urls_of(servers)) as redlock:
            lease = await redlock("x", ttl=60).acquire()
            await everywhere(view, servers, "x")
            load_slowly(view, loading, 600)
            await lease.release()
            assert is_loading(view, loading)
            await until(lambda: not is_loading(view, loading))
            await until(lambda: view(loading).get(key_of("x")) is None)


async def test_f073_a_lock_and_data_of_the_same_name_don_t_meet(
    servers3: Sequence[Server], view: Look
) -> None:
    """`SET job` before and during `redlock("job")` has no effect on it, nor it on the data."""
    for server in servers3:
        view(server).execute("SET", "job", "data")
    async with connected(urls_of(servers3)) as redlock:
        async with redlock("job") as lease:
            for server in servers3:
                view(server).execute("SET", "job", "more data")
            await lease.extend()
        await until(lambda: not any(values(view, servers3, "job")))
    assert {b"more data"} == {view(server).get("job") for server in servers3}


async def test_f074_a_list_under_the_key_is_told_and_left_alone(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """Acquiring waits as for a holder and says what is there; for a lease it means "not yours"."""

    def push() -> None:
        for server in any_servers3[1:]:
            view(server).execute("DEL", key_of("x"))
            view(server).execute("LPUSH", key_of("x"), "element")

    async with connected(urls_of(any_servers3)) as redlock:
        lease = await redlock("x", renew=False).acquire()
        await everywhere(view, any_servers3, "x")
        push()
        with pytest.raises(LeaseLost):
            await lease.extend()
        report = await complete(await lease.release())
        assert [Removal.OTHER_OWNER] * 2 == [node.removal for node in report.nodes[1:]]
        with pytest.raises(LockContended, match="non-lock value on 2 of 3"):
            await redlock("x", wait=0.2).acquire()
    assert ["list"] * 2 == [
        view(server).execute("TYPE", key_of("x")).decode() for server in any_servers3[1:]
    ]
