"""The model node keeps the contract of `aioredlock2/_node.py`, point by point."""

from __future__ import annotations

import asyncio
import math

import pytest

from aioredlock2._core.ballot import Ballot, grant_rule
from aioredlock2._node import Node, NodeState, Request, Sighting, Verb
from aioredlock2.outcomes import Vote
from tests.support.model_node import (
    LOST,
    MUTE,
    LoneHost,
    ModelNode,
    ModelServer,
    Way,
    model_nodes,
    sent,
)
from tests.support.virtual import VirtualRuntime, in_virtual_time, settle, the_loop

KEY = b"k"
G, D, F, M, P = Vote.GRANTED, Vote.DENIED, Vote.FAULTED, Vote.MISSING, Vote.PENDING


class Host(LoneHost):
    """Notes each change of a node."""

    def __init__(self) -> None:
        super().__init__(VirtualRuntime(the_loop()))
        self.states: list[NodeState] = []

    def changed(self, node: Node) -> None:
        self.states.append(node.status.state)


def opened(server: ModelServer | None = None) -> ModelNode:
    node = ModelNode("n", server or ModelServer(the_loop().boottime))
    node.open(Host(), 0)
    return node


def put(node: ModelNode, verb: Verb, token: bytes = b"t", ttl_ms: int = 1000) -> Ballot:
    ballot = Ballot(1, grant_rule)
    request = Request(verb, KEY, token, ttl_ms)
    request.ballot = ballot
    node.ask(request)
    return ballot


async def answer(node: ModelNode, verb: Verb, token: bytes = b"t", ttl_ms: int = 1000) -> Vote:
    ballot = put(node, verb, token, ttl_ms)
    while ballot.unheard:
        await asyncio.sleep(0)
    return ballot.votes[0]


@in_virtual_time
async def test_it_is_a_node() -> None:
    node = opened()
    assert isinstance(node, Node)
    assert node.status.state is NodeState.UP
    assert node.idle


@in_virtual_time
async def test_1_a_grant_excludes_other_tokens_for_its_ttl() -> None:
    node = opened()
    assert await answer(node, Verb.GRANT, b"one") is G
    assert await answer(node, Verb.GRANT, b"two") is D
    assert await answer(node, Verb.GRANT, b"one") is D
    await asyncio.sleep(0.999)
    assert await answer(node, Verb.GRANT, b"two") is D
    await asyncio.sleep(0.001)
    assert await answer(node, Verb.GRANT, b"two") is G


@in_virtual_time
async def test_2_a_renewal_never_creates_and_sets_the_time() -> None:
    node = opened()
    assert await answer(node, Verb.RENEW) is D
    assert await answer(node, Verb.GRANT) is G
    assert await answer(node, Verb.RENEW, b"other") is D
    await asyncio.sleep(0.9)
    assert await answer(node, Verb.RENEW) is G
    stored = node.server.get(KEY)
    assert stored is not None
    assert stored[1] == pytest.approx(1)
    await asyncio.sleep(1)
    assert await answer(node, Verb.RENEW) is D


@in_virtual_time
async def test_2_a_revoke_removes_its_own_token_only() -> None:
    node = opened()
    assert await answer(node, Verb.REVOKE) is D
    assert await answer(node, Verb.GRANT) is G
    assert await answer(node, Verb.REVOKE, b"other") is D
    assert await answer(node, Verb.REVOKE) is G
    assert await answer(node, Verb.REVOKE) is D


@in_virtual_time
async def test_an_inspection_sees_token_and_time_left() -> None:
    node = opened()
    assert await answer(node, Verb.INSPECT) is D
    await answer(node, Verb.GRANT, ttl_ms=1500)
    ballot = put(node, Verb.INSPECT)
    await settle()
    assert ballot.causes == [Sighting(b"t", 1500)]


@in_virtual_time
async def test_3_requests_take_effect_in_the_order_of_the_calls() -> None:
    """However long each is under way: a quick one behind a slow one waits."""
    node = opened()
    node.then(Verb.GRANT, Way(there=0.5, back=0.5))
    granted, revoked = put(node, Verb.GRANT), put(node, Verb.REVOKE)
    await asyncio.sleep(0.4)
    assert node.server.get(KEY) is None
    await asyncio.sleep(0.2)
    assert node.server.get(KEY) is None
    assert (granted.votes, revoked.votes) == ([P], [P])
    await asyncio.sleep(0.4)
    await settle()
    assert (granted.votes, revoked.votes) == ([G], [G])


@in_virtual_time
async def test_3_a_delete_that_may_not_have_arrived_is_sent_again() -> None:
    node = opened()
    await answer(node, Verb.GRANT)
    node.then(Verb.REVOKE, LOST)
    revoked = put(node, Verb.REVOKE)
    node.cut("reset")
    assert (revoked.votes, revoked.causes, revoked.unsent) == ([F], ["reset"], 0)
    assert node.server.get(KEY) is not None
    node.restore()
    await settle()
    assert node.server.get(KEY) is None


@in_virtual_time
async def test_3_an_owed_delete_is_forgotten_with_its_ttl() -> None:
    node = opened()
    node.cut()
    put(node, Verb.REVOKE, ttl_ms=1000)
    await asyncio.sleep(1)
    node.restore()
    await settle()
    assert sent([node], Verb.REVOKE) == [[]]


@in_virtual_time
async def test_4_trouble_is_a_fault_with_its_cause() -> None:
    node = opened()
    node.then(Verb.GRANT, Way(fault="OOM"))
    ballot = put(node, Verb.GRANT)
    await settle()
    assert (ballot.votes, ballot.causes) == ([F], ["OOM"])
    assert node.server.get(KEY) is None
    assert await answer(node, Verb.GRANT) is G


@in_virtual_time
async def test_4_a_grant_is_never_sent_again() -> None:
    node = opened()
    node.then(Verb.GRANT, LOST)
    granted = put(node, Verb.GRANT)
    node.cut()
    node.restore()
    await settle()
    assert granted.votes == [F]
    assert node.server.get(KEY) is None
    assert len(node.asked) == 1


@pytest.mark.parametrize("arrives", [True, False])
@in_virtual_time
async def test_h18_4_what_lay_in_the_old_sockets_buffers_may_still_arrive(arrives: bool) -> None:
    """Its answer doesn't, nor does it count for a request of the new connection."""
    node = opened()
    node.then(Verb.GRANT, Way(there=0.5))
    old = put(node, Verb.GRANT, b"old")
    node.cut(arrives=arrives)
    node.restore()
    new = put(node, Verb.INSPECT)
    await asyncio.sleep(1)
    assert (old.votes, new.votes) == ([F], [D])
    stored = node.server.get(KEY)
    assert (stored is not None) == arrives


@pytest.mark.parametrize("how", ["down", "guarded", "overdue"])
@in_virtual_time
async def test_5_what_is_not_sent_is_told_by_skip(how: str) -> None:
    node = opened()
    if how == "down":
        node.cut("refused")
    elif how == "guarded":
        node.guard()
    else:
        node.then(Verb.INSPECT, MUTE)
        put(node, Verb.INSPECT)
        node.missed()
    ballot = put(node, Verb.GRANT)
    assert ballot.unsent == 1
    assert ballot.votes == [M if how == "overdue" else F]
    assert sent([node], Verb.GRANT) == [[]]
    assert put(node, Verb.REVOKE).unsent == (1 if how == "down" else 0)


@in_virtual_time
async def test_5_an_overdue_node_is_asked_again_once_it_has_answered() -> None:
    node = opened()
    node.server.freeze()
    put(node, Verb.GRANT)
    node.missed()
    assert put(node, Verb.GRANT).votes == [M]
    node.server.thaw()
    await settle()
    assert await answer(node, Verb.RENEW) is G


@in_virtual_time
async def test_6_nobody_needs_to_wait() -> None:
    node = opened()
    node.ask(Request(Verb.GRANT, KEY, b"t", 1000))
    assert not node.idle
    await settle()
    assert node.idle
    assert node.server.get(KEY) is not None


@in_virtual_time
async def test_a_frozen_server_acts_when_it_thaws_in_order() -> None:
    """For all its clients."""
    server = ModelServer(the_loop().boottime)
    one, two = opened(server), opened(server)
    server.freeze()
    first = put(one, Verb.GRANT, b"one")
    await settle()
    second = put(two, Verb.GRANT, b"two")
    await asyncio.sleep(10)
    assert (first.votes, second.votes) == ([P], [P])
    server.thaw()
    await settle()
    assert (first.votes, second.votes) == ([G], [D])
    stored = server.get(KEY)
    assert stored is not None
    assert stored[1] == pytest.approx(1)


@in_virtual_time
async def test_a_dial_takes_its_time_and_the_host_is_told_of_each_change() -> None:
    (node,) = model_nodes(1, dial=0.5)
    host = Host()
    node.open(host, 0)
    assert node.status.state is NodeState.CONNECTING
    assert put(node, Verb.GRANT).causes == ["not connected yet"]
    await asyncio.sleep(0.6)
    node.guard()
    node.restore_vote()
    node.cut()
    assert host.states == [NodeState.UP, NodeState.GUARDED, NodeState.UP, NodeState.DOWN]


@in_virtual_time
async def test_dropped_it_lets_go_and_casts_nothing() -> None:
    (node,) = model_nodes(1, dial=math.inf)
    node.open(Host(), 0)
    node.restore()
    node.way = Way(there=1)
    ballot = put(node, Verb.GRANT)
    node.drop()
    assert the_loop().timers == 0
    await asyncio.sleep(2)
    assert ballot.votes == [P]
    assert node.server.get(KEY) is None
    assert node.status.state is NodeState.DOWN
    node.open(Host(), 0)
    node.restore()
    node.way = Way()
    assert await answer(node, Verb.GRANT) is G


@in_virtual_time
async def test_what_was_asked_is_on_record() -> None:
    node = opened()
    before = the_loop().boottime()
    await answer(node, Verb.GRANT, b"one", 1500)
    (asked,) = node.asked
    assert (asked.at, asked.verb, asked.key, asked.token, asked.ttl_ms, asked.sent) == (
        before,
        Verb.GRANT,
        KEY,
        b"one",
        1500,
        True,
    )
