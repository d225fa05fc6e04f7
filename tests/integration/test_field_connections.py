"""Connections that die, come back, move and break under load (field cases F098 to F104, F121)."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from aioredlock2 import Lease, LeaseLost, NodeState, Redlock, RedlockError, Vote
from aioredlock2.embedded import Server
from tests.conftest import LOOP
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up, heard, states, works
from tests.support.fleet import Look, all_keys
from tests.support.logs import ours
from tests.support.polling import until
from tests.support.relay import Relays

UP, DOWN = NodeState.UP, NodeState.DOWN
BACK_S_MAX = 3.0
"""An idle client dials once a second; the rest is for a loaded machine."""


async def test_f098_a_restarted_node_is_back_within_a_second_or_so(
    servers3: Sequence[Server],
) -> None:
    """Each in turn, then all: full votes again, without anybody asking for a lock meanwhile."""
    async with connected(urls_of(servers3)) as redlock:
        for dying in ([0], [1], [2], [0, 1, 2]):
            for index in dying:
                servers3[index].kill()
            await until(lambda: [i for i in range(3) if states(redlock)[i] is DOWN] == dying)  # noqa: B023
            for index in dying:
                servers3[index].restart()
            await until(lambda: states(redlock) == [UP] * 3, BACK_S_MAX)
        await works(redlock)


@pytest.mark.loop
async def test_f098_killed_connections_cost_no_lock(servers3: Sequence[Server], view: Look) -> None:
    """CLIENT KILL behind the client's back: the next acquire dials again inside its wait."""
    async with connected(urls_of(servers3)) as redlock:
        for _ in range(3):
            for server in servers3:
                view(server).execute("CLIENT", "KILL", "TYPE", "normal")
            async with redlock("job", wait=5):
                pass
        for server in servers3:
            view(server).execute("CLIENT", "KILL", "TYPE", "normal")
        await until(lambda: DOWN in states(redlock))
        await until(lambda: states(redlock) == [UP] * 3)
        async with redlock("job", wait=0) as lease:
            await heard(lease)


async def test_f098_servers_that_drop_idle_clients(servers3: Sequence[Server], view: Look) -> None:
    """`timeout 1`: after every hang-up the connection is there again before anybody needs it."""
    async with connected(urls_of(servers3)) as redlock:
        before = [client["id"] for s in servers3 for client in view(s).client_list()]
        for server in servers3:
            view(server).config_set(timeout=1)

        def replaced() -> bool:
            now = [client["id"] for s in servers3 for client in view(s).client_list()]
            return len(now) == 3 and not set(now) & set(before)

        await until(replaced, 10)
        await until(lambda: states(redlock) == [UP] * 3)
        async with redlock("job", wait=0) as lease:
            await heard(lease)


async def test_f099_an_outage_under_load_is_told_once(
    relays3: Relays, caplog: pytest.LogCaptureFixture
) -> None:
    """One node accepts and hangs up, all the while: a few lines, and ever fewer dials."""
    async with connected(relays3.urls) as redlock:
        relays3[0].hang_up()
        relays3[0].cut()
        loop = asyncio.get_running_loop()
        end, rounds = loop.time() + 2.0, 0
        while loop.time() < end:
            async with redlock(f"job{rounds}"):
                rounds += 1
        assert rounds > 100
        assert relays3[0].accepts < 15
    told = [r.getMessage() for r in ours(caplog) if r.levelno >= logging.WARNING]
    assert 0 < len(told) < 5


# --- names and resolvers ------------------------------------------------------------------------


class Resolver:
    """Answers for *.test, in place of the system's resolver; asyncio asks it in a thread."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.asked: list[str] = []
        self.slow = threading.Event()
        """Set: slow.test is answered."""
        self._real = socket.getaddrinfo

    def __call__(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if not name.endswith(".test"):
            return self._real(host, port, *args, **kwargs)
        self.asked.append(name)
        if name == "slow.test":
            self.slow.wait(30)
        return self._real("127.0.0.1", self.ports[name], *args, **kwargs)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Generator[Resolver]:
    if LOOP == "uvloop":
        pytest.skip("uvloop resolves without Python")
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made
    made.slow.set()


async def test_f100_a_name_is_resolved_at_every_dial(
    servers: Sequence[Server], resolver: Resolver
) -> None:
    """The address behind a name changes: the next dial goes there."""
    resolver.ports["moving.test"] = servers[0].port
    async with connected(["redis://moving.test:6379", *urls_of(servers[1:3])]) as redlock:
        assert ["moving.test"] == resolver.asked
        resolver.ports["moving.test"] = servers[3].port
        servers[0].kill()
        await until(lambda: redlock.nodes[0].state is DOWN)
        await works(redlock)
        assert servers[3].is_running


async def test_f100_a_slow_resolver_slows_nobody_else(
    servers: Sequence[Server], resolver: Resolver
) -> None:
    """It is asked off the loop; locks go on with the others, and the node joins in the end."""
    resolver.ports["slow.test"] = servers[0].port
    async with patient(["redis://slow.test:6379", *urls_of(servers[1:3])]) as redlock:
        await until(lambda: "slow.test" in resolver.asked)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for index in range(50):
            async with redlock(f"job{index}", wait=0):
                pass
        assert loop.time() - began < 5
        assert redlock.nodes[0].state is not UP
        resolver.slow.set()
        await works(redlock)


# --- many at once -------------------------------------------------------------------------------


async def test_f101_a_huge_burst_starves_nobody(servers3: Sequence[Server]) -> None:
    """Thousands of acquires at once all succeed, while another client works on undisturbed."""
    async with connected(urls_of(servers3)) as busy, connected(urls_of(servers3)) as other:
        loop = asyncio.get_running_loop()

        async def one(index: int) -> None:
            async with busy(f"job{index}", wait=60):
                pass

        burst = asyncio.gather(*(one(index) for index in range(3000)))
        worst, burst_began = 0.0, loop.time()
        while not burst.done():
            began = loop.time()
            async with other("mine"):
                worst = max(worst, loop.time() - began)
        await burst
        assert worst < 0.75 * (loop.time() - burst_began)


async def test_f101_h25_what_waits_for_a_stalled_node_is_bounded(
    relays3: Relays, servers3: Sequence[Server]
) -> None:
    """Thousands of long names while one node takes nothing: little is kept for it."""
    async with connected(relays3.urls, node_timeout=0.1) as redlock:
        relays3[0].to_server.hold()
        began = relays3[0].to_server.bytes
        name = "x" * 4000
        for batch in range(20):
            async with asyncio.timeout(30):
                leases = await asyncio.gather(
                    *(redlock(f"{name}{batch}.{i}", wait=20).acquire() for i in range(100))
                )
            await asyncio.gather(*(lease.release() for lease in leases))
        relays3[0].to_server.release()
        await all_up(redlock)
        await redlock.inspect("last")  # answered when all before it are
        sent = relays3[0].to_server.bytes - began
    # 2000 locks would be 16 MB; what left before the first deadline is at most one window's worth.
    assert sent < 6_000_000


async def test_f104_a_reset_costs_each_lock_in_flight_one_vote(
    servers3: Sequence[Server], relays3: Relays, view: Look, rng: random.Random
) -> None:
    """200 locks in flight, one of three nodes resets, again and again: not one fails."""
    for attempt in range(20):
        # A new client each time: one that breaks again and again is dialled ever less often.
        async with connected(relays3.urls) as redlock:
            acquiring = asyncio.gather(*(redlock(f"job{i}", wait=0).acquire() for i in range(200)))
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            relays3[0].cut()
            leases = await acquiring
            assert all(lease.is_held for lease in leases), attempt
            for lease in leases:
                await heard_by_the_others(lease)
            await asyncio.gather(*(lease.release() for lease in leases))
            await all_up(redlock)
            # Stray SETs on the cut connection are deleted on the new one.
            await until(lambda: not all_keys(view, servers3))


async def heard_by_the_others(lease: Lease) -> None:
    await until(lambda: [v.vote for v in lease.votes[1:]] == [Vote.GRANTED] * 2)


@pytest.mark.loop
async def test_f121_resets_under_load_raise_nothing_but_our_own_errors(
    servers3: Sequence[Server], relays3: Relays, rng: random.Random
) -> None:
    """Writes to closing transports and the like are node errors; the connection is replaced."""
    seen: set[type[BaseException]] = set()
    done = 0
    async with connected(relays3.urls) as redlock:
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.5

        async def work(index: int) -> None:
            nonlocal done
            while loop.time() < end:
                try:
                    async with redlock(f"job{index % 7}", ttl=3, wait=1) as lease:
                        await lease.extend()
                    done += 1
                except Exception as error:  # noqa: BLE001 - which it is, is the question
                    seen.add(type(error))

        async def disturb() -> None:
            ways = [type(relays3[0]).cut, type(relays3[0]).close]
            while loop.time() < end:
                rng.choice(ways)(rng.choice(relays3))
                await asyncio.sleep(rng.random() * 0.2)

        await asyncio.gather(disturb(), *(work(index) for index in range(20)))
        await works(redlock)
    assert done > 20
    assert all(issubclass(kind, RedlockError) for kind in seen), seen


@pytest.mark.loop
async def test_f121_servers_that_die_in_mid_write(
    servers3: Sequence[Server], rng: random.Random
) -> None:
    """All servers end while hundreds of requests leave: leases are lost by the clock, cleanly."""
    async with connected(urls_of(servers3), node_timeout=0.1) as redlock:
        leases = await asyncio.gather(*(redlock(f"j{i}", ttl=0.8).acquire() for i in range(200)))
        extending = [asyncio.create_task(lease.extend()) for lease in leases]
        await asyncio.sleep(0)
        for server in servers3:
            server.kill()
        results = await asyncio.gather(*extending, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), LeaseLost}
        await until(lambda: all(lease.is_lost for lease in leases))
        await asyncio.gather(*(lease.release() for lease in leases))


async def test_f122_clients_of_other_servers_share_nothing(
    servers: Sequence[Server], view: Look
) -> None:
    """The same name, prefix and task: two disjoint sets of servers are two locks."""
    ones, others = urls_of(servers[:2]), urls_of(servers[2:4])
    async with connected(ones) as one, connected(others) as other:
        for _ in range(3):
            async with one("job", wait=0) as first, other("job", wait=0) as second:
                await heard(first)
                await heard(second)
                assert first.digest != second.digest
                assert not await _is_free(one)
                assert not await _is_free(other)
                assert 2 == len({view(server).get("redlock:job") for server in servers[:4]})
            assert await _is_free(one)
            assert await _is_free(other)


async def _is_free(redlock: Redlock) -> bool:
    return not await redlock.is_locked("job")
