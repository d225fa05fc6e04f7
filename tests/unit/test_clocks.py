"""Clocks that nobody on the client's side can see: what they do to a lease, and when it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from aioredlock2 import LockContended, Redlock
from aioredlock2._node import Verb
from tests.support.model_node import ModelNode, client, sent
from tests.support.scene import ROUND_TRIP, SLACK, holders, nearby, now
from tests.support.virtual import VirtualRuntime, in_virtual_time, the_loop

RENEWAL_S = 10 / 3
"""A renewal of the default ttl is due by then."""


def step(nodes: Sequence[ModelNode], seconds: float) -> None:
    """The clocks of these nodes jump, forward or back."""
    boottime = the_loop().boottime
    for node in nodes:
        node.server.clock = lambda: boottime() + seconds


def rival_of(nodes: Sequence[ModelNode]) -> Redlock:
    """Another client of the same servers, with tokens of its own."""
    runtime = VirtualRuntime(the_loop(), "rival")
    return client([ModelNode(node.name, node.server) for node in nodes], runtime)


@in_virtual_time
async def test_h05_a_majority_that_jumped_forward_is_noticed_by_the_next_renewal() -> None:
    """Not before: until then a second holder is possible, and the lease says that it is held."""
    nodes = nearby(3)
    async with client(nodes) as redlock, rival_of(nodes) as rival:
        lease = await redlock("x").acquire()
        acquired_at = now()
        step(nodes[:2], 40)
        other = await rival("x", wait=0).acquire()
        assert lease.is_held, "it can't know yet"
        assert await lease.lost()
        assert now() - acquired_at <= RENEWAL_S + ROUND_TRIP + SLACK
        assert other.is_held
        assert holders(nodes[:2]).count(None) == 0, "what the rival has is left alone"
        await lease.release()
        await other.release()


@in_virtual_time
async def test_h05_a_minority_that_jumped_forward_costs_nothing() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock, rival_of(nodes) as rival, redlock("x") as lease:
        step(nodes[:1], 40)
        with pytest.raises(LockContended):
            await rival("x", wait=0).acquire()
        await asyncio.sleep(60)
        assert lease.is_held
        assert None not in holders(nodes), "planted again"


@in_virtual_time
async def test_h06_nodes_that_jumped_back_keep_a_key_too_long_and_still_delete_it() -> None:
    """Nobody is let in who should not be: only a crash then blocks for longer than a ttl."""
    nodes = nearby(3)
    async with client(nodes) as redlock, rival_of(nodes) as rival:
        lease = await redlock("x", renew=False).acquire()
        step(nodes, -3600)
        assert await lease.lost(), "the holder goes by its own clock"
        with pytest.raises(LockContended):
            await rival("x", wait=0).acquire()
        await lease.release()
        async with rival("x", wait=0) as free:
            assert free.is_held


@in_virtual_time
async def test_h17_a_paused_virtual_machine_learns_of_it_by_its_next_renewal() -> None:
    """No clock of the client's counts such a pause: to it the nodes have jumped forward, all of them."""
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lease = await redlock("x").acquire()
        woke_at = now()
        step(nodes, 60)
        assert lease.is_held
        assert await lease.lost()
        assert now() - woke_at <= RENEWAL_S + ROUND_TRIP + SLACK
        assert [1, 1, 1] == [len(asked) for asked in sent(nodes, Verb.RENEW)], "and none after it"
        assert [1, 1, 1] == [len(asked) for asked in sent(nodes, Verb.GRANT)], "nothing is planted"
        await lease.release()
