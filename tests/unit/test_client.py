"""The client: one session per loop, two questions about a resource, and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
from collections.abc import Sequence

import pytest

from aioredlock2 import (
    ConfigurationError,
    Inspection,
    NodeSighting,
    NodeState,
    QuorumUnreachable,
    Redlock,
)
from aioredlock2._runtime import digest
from tests.support.model_node import ModelNode, Way, client, model_nodes
from tests.support.scene import (
    FOREIGN,
    KEY,
    NODE_TIMEOUT,
    ROUND_TRIP,
    SLACK,
    cut,
    hold_elsewhere,
    nearby,
    now,
)
from tests.support.virtual import VirtualLoop, in_virtual_time, settle, the_loop

# --- inspect ------------------------------------------------------------------------------------


@in_virtual_time
async def test_an_inspection_tells_holder_and_the_time_its_quorum_lasts() -> None:
    """The holder has what the third of five nodes keeps longest, not what the last one does."""
    nodes = nearby()
    async with client(nodes) as redlock:
        for node, ttl in zip(nodes, (9.0, 7.0, 8.0, 5.0, 6.0), strict=True):
            node.server.put(KEY, FOREIGN, ttl)
        found = await redlock.inspect("x")
        assert (found.resource, found.holder) == ("x", digest(FOREIGN))
        assert found.remaining == pytest.approx(7 - ROUND_TRIP / 2, abs=0.002)
        assert [seen.node for seen in found.nodes] == ["n1", "n2", "n3", "n4", "n5"]
        assert [seen.holder for seen in found.nodes] == [digest(FOREIGN)] * 5


@in_virtual_time
async def test_a_free_resource_has_no_holder() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        assert await redlock.inspect("x") == Inspection(
            "x", None, None, tuple(NodeSighting(node.name, None, None) for node in nodes)
        )


@in_virtual_time
async def test_without_a_quorum_nobody_is_the_holder() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        hold_elsewhere(nodes[:1])
        nodes[1].server.put(KEY, b"other", 9)
        cut(nodes[2:])
        found = await redlock.inspect("x")
        assert (found.holder, found.remaining) == (None, None)
        assert [seen.holder for seen in found.nodes] == [digest(FOREIGN), digest(b"other"), None]
        assert [seen.cause for seen in found.nodes] == ["", "", "reset"]


@in_virtual_time
async def test_an_inspection_takes_one_node_timeout_at_most() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        for node in nodes:
            node.server.freeze()
        began_at = now()
        found = await redlock.inspect("x")
        assert now() - began_at <= NODE_TIMEOUT + SLACK
        assert found.holder is None
        assert {seen.cause for seen in found.nodes} == {"no answer in time"}


# --- is_locked ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "answer"),
    [
        ("free free free", False),
        ("held held held", True),
        ("held held free", True),
        ("held free free", False),
        ("held other free", False),
        ("down free free", False),
        ("down held held", True),
        ("down held free", None),
        ("down down free", None),
        ("down down held", None),
        ("down down down", None),
    ],
)
@in_virtual_time
async def test_f116_held_by_anyone_asks_a_quorum_and_says_unknown_without_one(
    states: str, answer: bool | None
) -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        for node, state in zip(nodes, states.split(), strict=True):
            if state == "held":
                hold_elsewhere([node])
            elif state == "other":
                node.server.put(KEY, b"other", 60)
            elif state == "down":
                node.cut("refused")
        if answer is None:
            with pytest.raises(QuorumUnreachable, match="can't tell whether it is locked"):
                await redlock.is_locked("x")
        else:
            assert await redlock.is_locked("x") is answer


@in_virtual_time
async def test_f116_errors_of_a_quorum_are_no_answer() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        for node in nodes[:2]:
            node.way = Way(ROUND_TRIP / 2, ROUND_TRIP / 2, "MISCONF")
        with pytest.raises(QuorumUnreachable, match="MISCONF"):
            await redlock.is_locked("x")


@in_virtual_time
async def test_f116_its_own_lock_counts() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        async with redlock("x"):
            assert await redlock.is_locked("x")
        assert not await redlock.is_locked("x")


# --- connecting ---------------------------------------------------------------------------------


@in_virtual_time
async def test_entering_waits_for_a_quorum_and_no_longer_than_two_seconds() -> None:
    for dials, took in (((0.1, 0.5, 9.0), 0.5), ((0.1, 9.0, 9.0), 2.0)):
        nodes = model_nodes(3)
        for node, dial in zip(nodes, dials, strict=True):
            node.dial = dial
        began_at = now()
        async with client(nodes) as redlock:
            assert now() - began_at == pytest.approx(took)
            assert redlock.nodes[0].state is NodeState.UP
            assert redlock.nodes[2].state is NodeState.CONNECTING


@in_virtual_time
async def test_building_opens_nothing() -> None:
    nodes = model_nodes(3)
    redlock = client(nodes)
    redlock("x")
    await settle()
    assert {status.state for status in redlock.nodes} == {NodeState.CONNECTING}
    assert repr(redlock) == "<Redlock n1, n2, n3>"
    await redlock.aclose()


@in_virtual_time
async def test_f003_two_nodes_with_one_address_are_refused() -> None:
    (node,) = model_nodes(1)
    with pytest.raises(ConfigurationError, match="n1 and n1 are the same address"):
        Redlock([node, node])


@pytest.mark.parametrize(("count", "warnings"), [(1, 0), (2, 1), (3, 0), (4, 1), (5, 0)])
@in_virtual_time
async def test_f002_an_even_number_of_nodes_is_warned_of_once(
    count: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "aioredlock2"):
        Redlock(model_nodes(count))
    assert len(caplog.records) == warnings


@in_virtual_time
async def test_f090_a_client_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="a Redlock can't be pickled"):
        pickle.dumps(client(model_nodes(1)))


# --- loops --------------------------------------------------------------------------------------


def in_a_loop(nodes: Sequence[ModelNode]) -> tuple[VirtualLoop, Redlock]:
    """A client in use in a loop of its own, which is not running now."""
    loop = VirtualLoop()

    async def use() -> Redlock:
        redlock = client(nodes)
        await (await redlock("x").acquire()).release()
        return redlock

    return loop, loop.run_until_complete(use())


def far_nodes() -> list[ModelNode]:
    loop = VirtualLoop()

    async def make() -> list[ModelNode]:
        return model_nodes(3)

    nodes = loop.run_until_complete(make())
    loop.close()
    return nodes


def test_f086_outside_a_loop_the_error_says_so() -> None:
    redlock = Redlock(far_nodes())
    with pytest.raises(ConfigurationError, match="works in a running asyncio loop only"):
        redlock.session()


def test_f086_in_a_second_loop_the_error_names_the_cause() -> None:
    first, redlock = in_a_loop(far_nodes())
    second = VirtualLoop()
    with pytest.raises(ConfigurationError, match="in use in another event loop that still lives"):
        second.run_until_complete(redlock("x").acquire())
    second.close()
    first.run_until_complete(redlock.aclose())
    first.close()


def test_f086_when_the_first_loop_is_closed_it_serves_the_next() -> None:
    first, redlock = in_a_loop(far_nodes())
    first.close()
    second = VirtualLoop()

    async def use() -> None:
        async with redlock("x") as lease:
            assert lease.is_held
        await redlock.aclose()

    second.run_until_complete(use())
    second.close()


@in_virtual_time
async def test_after_a_fork_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    redlock = client(nearby(3))
    session = redlock.session()
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: session.pid + 1)
        asyncio._set_running_loop(None)  # as a fork leaves it
        try:
            with pytest.raises(ConfigurationError, match="was used before the fork"):
                redlock.session()
        finally:
            asyncio._set_running_loop(loop)
    await redlock.aclose()


# --- the end ------------------------------------------------------------------------------------


@in_virtual_time
async def test_f088_after_the_end_everything_says_so() -> None:
    nodes = nearby(3)
    redlock = client(nodes)
    lock = redlock("x")
    lease = await lock.acquire()
    await redlock.aclose()
    calls = [
        lock.acquire,
        lock.try_acquire,
        lock.__aenter__,
        lambda: redlock.inspect("x"),
        lambda: redlock.is_locked("x"),
        redlock.__aenter__,
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"closed by aclose\(\)"):
            await call()
    assert (await lease.release()).outcome == "clean"


@in_virtual_time
async def test_f087_closing_twice_or_unused_is_fine() -> None:
    nodes = nearby(3)
    redlock = client(nodes)
    await redlock.aclose()
    await redlock.aclose()
    with pytest.raises(ConfigurationError):
        redlock.session()
    used = client(nodes)
    used.session()
    await asyncio.gather(used.aclose(), used.aclose())


def test_f087_closing_after_the_loops_end_is_fine() -> None:
    loop, redlock = in_a_loop(far_nodes())
    loop.close()
    other = VirtualLoop()
    other.run_until_complete(redlock.aclose())
    other.close()


@in_virtual_time
async def test_f087_a_client_that_is_forgotten_warns_once_and_lets_go() -> None:
    nodes = nearby(3)
    kept = [client(nodes)]
    kept[0].session()
    await settle()
    with pytest.warns(ResourceWarning, match="<Redlock n1, n2, n3> was never closed"):
        kept.clear()
    await settle()
    assert {node.status.cause for node in nodes} == {"the client is closed"}
    assert the_loop().timers == 0


def test_f087_a_client_that_is_forgotten_after_its_loops_end_warns_once() -> None:
    loop, redlock = in_a_loop(far_nodes())
    loop.close()
    kept = [redlock]
    del redlock
    with pytest.warns(ResourceWarning, match="was never closed"):
        kept.clear()


@in_virtual_time
async def test_f087_a_client_that_was_closed_or_never_used_is_forgotten_quietly() -> None:
    kept = [client(model_nodes(1)), client(model_nodes(1))]
    kept[0].session()
    await kept[0].aclose()
    kept.clear()
    gc.collect()
