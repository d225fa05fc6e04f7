"""Requests that are in flight together when their command turns out to be refused."""

from __future__ import annotations

import logging

import hiredis
import pytest

from aioredlock2._core.ballot import Ballot, inspect_rule
from aioredlock2._node import Request, Verb
from aioredlock2._redis import dialect
from aioredlock2._redis.dialect import FORMS, Form
from aioredlock2.outcomes import Vote
from tests.support.logs import ours
from tests.support.recorder import Recorder, node_over
from tests.support.virtual import in_virtual_time, the_loop

NOPERM = hiredis.ReplyError("NOPERM User app has no permissions to run this command")
WORKING: dict[Verb, tuple[Form, object]] = {
    Verb.GRANT_FENCED: (dialect.FENCED_EVALSHA, 1_900_000_000_000_000),
    Verb.CONFIRM: (dialect.CONFIRM_EVALSHA, 1),
    Verb.RENEW: (dialect.RENEW_EVALSHA, 1),
    Verb.REVOKE: (dialect.REVOKE_EVALSHA, 1),
}
"""The one form that this server allows, and its yes."""


def request_of(verb: Verb, number: int) -> Request:
    request = Request(verb, b"redlock:x", b"%032d" % number, 10_000)
    request.until = the_loop().boottime() + 10
    request.ballot = Ballot(1, inspect_rule)
    return request


def form_of(slot: object) -> object:
    return slot[0] if isinstance(slot, tuple) else slot.form  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", WORKING, ids=lambda verb: verb.name)
def test_f107_those_that_are_refused_later_are_put_otherwise_as_well(
    verb: Verb, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one has found the form that works by then: the second has yet to try it."""
    from tests.support.virtual import run

    async def body() -> None:
        link, (working, yes) = Recorder(), WORKING[verb]
        node = node_over(link)
        first, second = request_of(verb, 1), request_of(verb, 2)
        node.ask(first)
        node.ask(second)
        waiting = link.slots.pop(1)
        while link.slots:
            slot = link.slots.pop(0)
            node.replied(slot, yes if form_of(slot) is working else NOPERM)
        assert first.ballot is not None
        assert first.ballot.votes == [Vote.GRANTED]
        assert node._dialect.preferred[verb] is working
        node.replied(waiting, NOPERM)
        while link.slots:
            slot = link.slots.pop(0)
            node.replied(slot, yes if form_of(slot) is working else NOPERM)
        assert second.ballot is not None
        assert second.ballot.votes == [Vote.GRANTED]

    run(body())
    assert [] == [r for r in ours(caplog) if r.levelno >= logging.WARNING]


@in_virtual_time
async def test_f107_where_nothing_is_allowed_each_form_is_tried_once() -> None:
    """Whatever the others have found out meanwhile, it comes to an end."""
    for verb in WORKING:
        link = Recorder()
        node = node_over(link)
        request = request_of(verb, 1)
        node.ask(request)
        tried = []
        while link.slots:
            slot = link.slots.pop(0)
            tried.append(form_of(slot))
            node.replied(slot, NOPERM)
        assert len(tried) == len(set(map(id, tried))) == len(FORMS[verb])
        assert request.ballot is not None
        assert request.ballot.votes == [Vote.FAULTED]
