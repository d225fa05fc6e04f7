"""Answers that come when nobody waits for them any more, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from aioredlock2 import Lease
from aioredlock2._node import Verb
from aioredlock2._runtime import digest
from tests.support.model_node import ModelNode, Way, client, sent
from tests.support.scene import NODE_TIMEOUT, holders, nearby
from tests.support.virtual import in_virtual_time


def known_by_a_quorum(lease: Lease, nodes: list[ModelNode]) -> bool:
    tokens = [token for token in holders(nodes) if token is not None]
    return [digest(token) for token in tokens].count(lease.digest) > len(nodes) // 2


@pytest.mark.parametrize("late_ms", range(0, 40, 2))
@in_virtual_time
async def test_h21_a_late_yes_counts_for_its_own_round_only(late_ms: int) -> None:
    """Before, during and after the next round: a lease is one that a quorum has the token of."""
    nodes = nearby(3)
    late = NODE_TIMEOUT + late_ms / 1000
    for node in nodes[:2]:
        node.then(Verb.GRANT, Way(back=late), Way(back=late / 2), Way(there=late, back=late))
    async with client(nodes) as redlock:
        for _ in range(3):
            lease = await redlock("x", wait=10).acquire()
            assert known_by_a_quorum(lease, nodes)
            await lease.release()
            await asyncio.sleep(0.2)
            assert holders(nodes) == [None] * 3


@in_virtual_time
async def test_h21_a_late_yes_to_an_extension_is_none_to_the_next() -> None:
    """Each round has to be heard by itself: two of one and one of the other are no quorum."""
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lease = await redlock("x", renew=False).acquire()
        until = lease.valid_until
        nodes[0].then(Verb.RENEW, Way(back=2.0))
        nodes[1].then(Verb.RENEW, *[Way(fault="BUSY")] * 100)
        nodes[2].then(Verb.RENEW, Way(fault="BUSY"))
        extending = asyncio.create_task(lease.extend())
        await asyncio.sleep(2.005)
        assert len(sent(nodes, Verb.RENEW)[2]) > 1, "the next one was heard by this node"
        assert not extending.done()
        assert lease.valid_until == until
        await extending
        assert lease.valid_until > until
        assert len(sent(nodes, Verb.RENEW)[0]) == 2
        await lease.release()
