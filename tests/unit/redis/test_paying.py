"""When a node sends the deletes it is owed: its own timing, over a link that only writes down."""

from __future__ import annotations

import asyncio

import hiredis

from aioredlock2._node import Request, Verb
from aioredlock2._nodes.redis import PAID_AT_ONCE, RedisNode
from tests.support.recorder import Recorder, node_over
from tests.support.virtual import in_virtual_time, the_loop

DEBTS = 2 * PAID_AT_ONCE + 100
TTL_MS = 60_000


def owing(link: Recorder | None) -> RedisNode:
    """A node that owes many deletes, over this link or without one."""
    node = node_over(link)
    for number in range(DEBTS):
        node._owe(Request(Verb.REVOKE, b"redlock:x", b"%032d" % number, TTL_MS))
    return node


@in_virtual_time
async def test_h25_debts_are_paid_in_batches_oldest_first() -> None:
    link = Recorder()
    node = owing(link)
    node._pay()
    assert len(link.slots) == PAID_AT_ONCE
    await asyncio.sleep(1)
    assert [int(slot.token) for slot in link.slots] == list(range(DEBTS))
    assert the_loop().timers == 0


@in_virtual_time
async def test_a_node_that_is_away_is_not_paid() -> None:
    """And no timer goes on trying: the debts go out when it is back."""
    node = owing(None)
    node._pay()
    assert len(node._debts) == DEBTS
    assert the_loop().timers == 0


@in_virtual_time
async def test_a_link_that_breaks_in_the_middle_ends_the_payment() -> None:
    link = Recorder()
    node = owing(link)
    node._pay()
    node._link = None
    await asyncio.sleep(1)
    assert len(link.slots) == PAID_AT_ONCE
    assert the_loop().timers == 0


@in_virtual_time
async def test_deletes_that_meet_an_error_are_not_sent_round_and_round() -> None:
    """They are kept for the next connection."""
    link = Recorder()
    node = owing(link)
    node._pay()
    answered = 0
    for _ in range(50):
        for slot in link.slots[answered:]:
            node.replied(slot, hiredis.ReplyError("ERR something new"))
        answered = len(link.slots)
        await asyncio.sleep(0.1)
    assert len(link.slots) == DEBTS
    assert len(node._debts) == DEBTS


@in_virtual_time
async def test_a_server_that_is_loading_is_asked_again_after_a_while() -> None:
    """One batch at a time, until it can."""
    link = Recorder()
    node = owing(link)
    node._pay()
    for slot in list(link.slots):
        node.replied(slot, hiredis.ReplyError("LOADING Redis is loading the dataset in memory"))
    await asyncio.sleep(0.1)
    assert len(link.slots) == PAID_AT_ONCE
    await asyncio.sleep(1)
    assert len(link.slots) == PAID_AT_ONCE + DEBTS
